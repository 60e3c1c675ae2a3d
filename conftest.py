"""What the doctests leave out: integrations whose framework is not here."""

from importlib.util import find_spec

_FRAMEWORKS = ("lightning", "torchmetrics", "transformers")
collect_ignore = [f"src/minsharp/integrations/{name}.py" for name in _FRAMEWORKS if find_spec(name) is None]
