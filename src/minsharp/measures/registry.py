"""Measures by name: what `compare` and the experiments go through. A decorator adds one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import InputError

Invariance = Literal["none", "layer", "neuron", "full"]
Shared = Literal["trace", "diagonal", "jacobian", "margin", "grams", "jacobian_grams"]
Function = Callable[..., Any]


@dataclass(frozen=True)
class Measure:
    """A measure: a function ``(model, data, loss) -> number``, or a result with a ``value``, and what it promises.

    ``invariance`` says which rescalings leave it as it is. ``uses`` names the curvature it wants to be given: that is
    computed once for all measures, and passed as the keyword ``trace``, ``diagonal``, ``jacobian`` or ``margin``;
    ``grams`` and ``jacobian_grams`` are the Gram matrices of frames. With ``reads`` the function takes a `Network` in
    place of the module.
    """

    name: str
    function: Function
    invariance: Invariance
    needs_labels: bool
    uses: Shared | None
    reads: bool


MEASURES: dict[str, Measure] = {}


def measure(
    name: str,
    *,
    invariance: Invariance = "none",
    needs_labels: bool = False,
    uses: Shared | None = None,
    reads: bool = False,
) -> Callable[[Function], Function]:
    """Register a measure of your own: it appears in `compare`, on the command line and in the experiments.

    >>> import torch, minsharp
    >>> @minsharp.measure("weight norm")
    ... def weight_norm(model, data, loss):
    ...     return sum(float(p.detach().square().sum()) for p in model.parameters()) ** 0.5
    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> _ = torch.nn.init.constant_(model.weight, 1.5)
    >>> minsharp.compare(model, torch.ones(1, 2), measures=["weight norm"]).rows[0].value
    3.0
    >>> _ = MEASURES.pop("weight norm")
    """
    if not isinstance(name, str) or not name:
        raise InputError(f'measure({name!r}): expected a name, as in @minsharp.measure("weight norm")')

    def register(function: Function) -> Function:
        if name in MEASURES and MEASURES[name].function is not function:
            raise InputError(f"a measure called {name!r} exists already")
        MEASURES[name] = Measure(name, function, invariance, needs_labels, uses, reads)
        return function

    return register
