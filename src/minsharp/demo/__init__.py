"""Two minutes on what minsharp is for, in three stories: a trace that rescaling fools, a transformer measured with an
error bar, and a quantized network made better. All of it on handwritten digits that are embedded in scikit-learn.
"""

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError
from ..extras import how_to_install
from ..files import make_folder
from .fooled import Fooled, fool
from .label_noise import EPOCHS, RATIOS, label_noise
from .pages import write
from .quantized import Quantized, quantize
from .steps import Steps, one_thread, steps
from .telling import besides, stories
from .transformer import Transformer, estimate

if TYPE_CHECKING:
    from ..data.dataset import Dataset

__all__ = ["experience", "run", "stories"]

SHARES = (13, 64, 6, 13, 4)
"""Of the time that all steps take, in percent, about."""
EXTRAS = {"matplotlib": "matplotlib", "sklearn": "scikit-learn"}


def run(out: str | Path = "minsharp-demo", *, epochs: int = EPOCHS, ratios: Sequence[float] = RATIOS) -> Path:
    """Run the demo, tell its stories on stdout, and write the report and the figures; the path of the report."""
    _check_extras()
    folder = make_folder(out)
    from ..data import load

    digits = load("digits")
    with one_thread(), steps(SHARES) as step:
        fooled, transformer, quantized = experience(digits, step)
        step("label noise: one network per fraction of permuted labels")
        labels = label_noise(epochs, ratios, step)
        step("writing the report and the figures")
        report = write(folder, fooled, transformer, quantized, labels)
    print("\n".join((*stories(fooled, transformer, quantized), *besides(labels, report))))
    return report


def experience(digits: "Dataset", step: Steps) -> tuple[Fooled, Transformer, Quantized]:
    """What the three stories are told from; in double precision, so that every processor tells the same."""
    digits = replace(digits, train_x=digits.train_x.double(), test_x=digits.test_x.double())
    step("a trace that rescaling fools")
    fooled = fool(digits)
    step("a transformer, with an error bar")
    transformer = estimate(digits, step.within)
    step("a quantized network, made better")
    return fooled, transformer, quantize(digits)


def _check_extras() -> None:
    missing = [name for module, name in EXTRAS.items() if find_spec(module) is None]
    if missing:
        raise InputError(f"the demo needs {' and '.join(missing)}: {how_to_install('experiments')}")
