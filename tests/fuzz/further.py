"""Claims that are checked on some of the cases: parts of the data, some parameters, folding, verify, pickling."""

import pickle
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

import minsharp as ms

if TYPE_CHECKING:
    from .checks import Examiner


def sums(e: "Examiner") -> None:
    """Results of two parts of the data add up to that of the whole."""
    if e.case.samples < 2 or e.case.seed % 3 or not hasattr(e, "diagonal"):
        return
    order = torch.arange(e.case.samples)
    parts = [
        e.measured("a part", ms.hessian_diagonal, curvature="ggn", data=e.rows(rows)) for rows in (order[:1], order[1:])
    ]
    e.compare("a + b", e.call("a + b", lambda: parts[0] + parts[1]).by_parameter)


def some_parameters(e: "Examiner") -> None:
    """Only some of the parameters: the same numbers for those, and the others stay as they are."""
    names = list(e.diagonal.by_parameter) if hasattr(e, "diagonal") else []
    chosen = [name for i, name in enumerate(names) if (i + e.case.seed) % 2]
    if e.case.seed % 5 or not chosen:
        return
    part = e.measured("some parameters", ms.hessian_diagonal, curvature="ggn", parameters=chosen)
    e.compare("some parameters", part.by_parameter, {n: e.diagonals[n] for n in chosen if n in e.diagonals})
    for scope in ("layer", "neuron"):
        result = e.call("minimum of some", partial(ms.minimum_sharpness, e.net, part, scope=scope))
        others = sorted(set(result.scales) - set(chosen))
        e.expect(not others, f"some parameters, {scope}", f"{others} move")
        e.kept(f"some parameters, {scope}", e.call("rescale", partial(ms.rescale, e.model, result.scales)), 1e3)


def folded(e: "Examiner") -> None:
    """BatchNorm folded away, where torch.fx can follow: the same outputs."""
    if not any(isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d) for m in e.inner.modules()):
        return
    try:
        other = ms.fold_batchnorm(e.given)
    except ms.MinsharpError:
        return
    e.kept("fold_batchnorm", other)


def verified(e: "Examiner") -> None:
    """What was found holds in the eyes of `verify` too."""
    if e.case.seed % 12 or not hasattr(e, "diagonal") or e.case.low:
        return
    result = e.call("minimum_sharpness", lambda: ms.minimum_sharpness(e.net, e.diagonal, scope="neuron"))
    found = e.call("verify", lambda: ms.verify(e.given, e.data, result, e.case.loss.criterion))
    e.expect(found.holds, "verify", "; ".join(f"{c.claim}: {c.error:.2g}" for c in found.checks if not c.holds))


def pickled(e: "Examiner") -> None:
    """Results survive pickling."""
    if e.case.seed % 15 or not hasattr(e, "diagonal"):
        return
    twin = e.call("pickle", lambda: pickle.loads(pickle.dumps(e.diagonal)))
    e.expect(twin.total == e.diagonal.total, "pickle", f"{twin.total} for {e.diagonal.total}")


CHECKS: tuple[Callable[["Examiner"], None], ...] = (sums, some_parameters, folded, verified, pickled)
