"""One example of an operation, held to all laws."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..curvature.hessian import hessian_diagonal
from ..errors import MinsharpError
from ..operations.examples.notation import Example
from .close import equal
from .contraction import contraction_law
from .linearity import linearity_law
from .parts import parts_law
from .probe import Entry, UnfitError
from .pull import pull_law
from .samples import samples_law
from .scale import SCOPES, freedom, scale_law
from .trial import Trial, begin

Law = Literal["scale", "linearity", "pull", "contraction", "parts", "samples", "untouched"]
LAWS: tuple[Law, ...] = ("scale", "linearity", "pull", "contraction", "parts", "samples", "untouched")


class Snapshot:
    """Everything that a law might change by mistake."""

    def __init__(self, trial: Trial):
        self.trial = trial
        self.inputs = trial.probe.draw(5, 9 + trial.seed)
        self.before = self._state()

    def _held(self) -> dict[str, Tensor]:
        probe = self.trial.probe
        return dict(probe.named_parameters()) | dict(probe.named_buffers()) | dict(self.trial.network.graph.constants)

    def _state(self) -> dict[str, Any]:
        held = self._held() | {f"input {i}": tensor for i, tensor in enumerate(self.inputs)}
        state: dict[str, Any] = {name: t.detach().clone() for name, t in held.items()}
        state |= {f"{name} version": t._version for name, t in held.items()}  # a write that leaves the same numbers
        state |= {f"{name} requires_grad": t.requires_grad for name, t in held.items()}
        state |= {f"mode of '{name}'": m.training for name, m in self.trial.probe.named_modules()}
        state |= {f"{name} grad": t.grad for name, t in held.items()}
        state["grad mode"] = torch.is_grad_enabled()
        state["random numbers"] = torch.get_rng_state()
        return state

    def changed(self) -> list[str]:
        """What is not as it was, after measuring these very inputs too."""
        with suppress(Exception):  # which the law of contraction tells
            criterion = nn.MSELoss(reduction="sum")
            hessian_diagonal(self.trial.network, (self.inputs, None), criterion, curvature="ggn")
        now = self._state()
        return [
            name
            for name, old in self.before.items()
            if not (
                equal(now[name], old) if isinstance(old, Tensor) and isinstance(now[name], Tensor) else now[name] == old
            )
        ]


_CHECKS: dict[Law, Callable[[Trial], Iterator[str]]] = {
    "scale": scale_law,
    "linearity": linearity_law,
    "pull": pull_law,
    "contraction": contraction_law,
    "parts": parts_law,
    "samples": samples_law,
}


def check_example(
    example: Example,
    name: str = "",
    *,
    sizes: Mapping[str, int] | None = None,
    entry: Entry = "scaled",
    seed: int = 0,
    wide: bool = False,
    laws: Sequence[Law] = LAWS,
) -> list[str]:
    """Hold one example of the operation ``name`` to the laws; returns every violation in a line of text.

    ``sizes`` gives the letters of the example other sizes than it has by itself, ``entry`` is the way in which the
    samples reach the call, ``wide`` tries more of everything. Raises `UnfitError` where the call does not run at these
    sizes.

    >>> from minsharp.operations.examples.notation import Example
    >>> check_example(Example(torch.relu, "x(n,i)"), "relu")
    []
    """
    sizes = example.default_sizes() | dict(sizes or {})
    try:
        trial = begin(name, example, sizes, entry, seed, wide)
    except UnfitError:
        raise
    except MinsharpError as error:
        return [f"read: {type(error).__name__}: {str(error).splitlines()[0]}"]
    snapshot = Snapshot(trial)
    violations: list[str] = []
    for law, holds in _CHECKS.items():
        if law in laws:
            try:
                violations += holds(trial)
            except Exception as error:
                violations.append(f"{law}: raised {type(error).__name__}: {_first_line(error)}")
    if violations and not trial.finite():
        raise UnfitError("the call itself makes NaN or infinity of the samples that are drawn")
    if example.free and "scale" in laws and not violations:
        violations += _given_away(trial)
    if "untouched" in laws:
        violations += [f"untouched: {what} has changed" for what in snapshot.changed()]
    return violations


def _given_away(trial: Trial) -> Iterator[str]:
    for scope in SCOPES:
        found = freedom(trial, scope)
        if found.claimed != found.true:
            yield f"free, {scope}: the group has {found.claimed} free numbers, {found.true} would keep the function"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]
