"""Claims that are checked on some of the cases: parts of the data, some parameters, folding, verify, pickling."""

import pickle
from collections.abc import Callable
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor, nn

import minsharp as ms
from minsharp.network.apart import check_samples_apart
from minsharp.network.proof import proved_apart

from . import dense
from .state import spread

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
    try:
        e.kept("fold_batchnorm", other)
    except ms.MinsharpError:  # a BatchNorm of a value with more axes than the layer before it tells
        return


def verified(e: "Examiner") -> None:
    """What was found holds in the eyes of `verify` too."""
    if e.case.seed % 12 or not hasattr(e, "diagonal") or e.case.low:
        return
    result = e.call("minimum_sharpness", lambda: ms.minimum_sharpness(e.net, e.diagonal, scope="neuron"))
    found = e.call("verify", lambda: _verification(e, result))
    e.expect(found.holds, "verify", "; ".join(f"{c.claim}: {c.error:.2g}" for c in found.checks if not c.holds))


def _verification(e: "Examiner", result: ms.MinimumSharpness) -> ms.Verification:
    """As far as there are second derivatives to compare with."""
    check = partial(ms.verify, e.given, e.data, result, e.case.loss.criterion, class_axis=e.class_axis)
    try:
        return check()
    except ms.InputError as error:
        if "directions=0" not in str(error):
            raise
        return check(directions=0)


def pickled(e: "Examiner") -> None:
    """Results survive pickling."""
    if e.case.seed % 15 or not hasattr(e, "diagonal"):
        return
    twin = e.call("pickle", lambda: pickle.loads(pickle.dumps(e.diagonal)))
    e.expect(twin.total == e.diagonal.total, "pickle", f"{twin.total} for {e.diagonal.total}")


def relatives(e: "Examiner") -> None:
    """Sensitivities relative to the weights and the outputs, from their definitions; Tsuzuku's measure is a number."""
    if e.case.seed % 6 != 1 or not hasattr(e, "diagonal") or e.case.low or not e.centres:
        return
    found = e.truth(criterion=dense.centred)
    energy = 2 * float(dense.centred(found.outputs, e.targets))
    weights = {n: p.detach() for n, p in e.inner.named_parameters() if n in e.diagonal.by_parameter}
    squares = {n: found.diagonal(n, p.shape) for n, p in weights.items()}
    if energy < 1e-3 or not any(float(s.sum()) > 1e-6 for s in squares.values()):
        return
    jacobian = e.measured("jacobian", ms.hessian_diagonal, curvature="jacobian")
    _sensitivities(e, jacobian, weights, {n: s / energy for n, s in squares.items()})
    _relative_minima(e, jacobian, sum(float(s.sum()) for s in squares.values()) / energy)
    normalized = e.call("normalized_sharpness", lambda: ms.measures.normalized_sharpness(e.net, e.diagonal)).value
    e.expect(0 <= normalized < inf, "normalized sharpness", f"{normalized}")


def _sensitivities(e: "Examiner", jacobian: Any, weights: dict[str, Tensor], squares: dict[str, Tensor]) -> None:
    goals = {
        "element": sum(float((weights[n].square() * s).sum()) for n, s in squares.items()),
        "tensor": sum(float(weights[n].square().mean() * s.sum()) for n, s in squares.items() if s.numel()),
    }
    for scope, goal in goals.items():
        result = e.call(
            "relative_sensitivity", partial(ms.relative_sensitivity, e.net, jacobian, scope=cast(Any, scope))
        )
        close = abs(result.value - goal) <= 1e-7 * goal + 1e-12
        e.expect(close, f"relative sensitivity, {scope}", f"{result.value:.9g} for {goal:.9g}")


def _relative_minima(e: "Examiner", jacobian: Any, most: float) -> None:
    scopes: tuple[Literal["layer", "neuron"], ...] = ("layer", "neuron")
    for scope in scopes:
        minimum = partial(ms.relative_minimum_sharpness, e.net, jacobian, scope=scope)
        value = e.call("relative_minimum_sharpness", minimum).value
        e.expect(0 <= value <= most * (1 + 1e-7), f"relative minimum, {scope}", f"{value:.9g} of {most:.9g}")


def whole_group(e: "Examiner") -> None:
    """Scope "full": random matrices keep the outputs; the minimum is that of the flattest network, above its bound."""
    if e.case.seed % 3 != 1 or e.case.low or not hasattr(e, "diagonal"):
        return
    group = e.call("symmetries(full)", lambda: ms.symmetries(e.model, e.inputs, "full"))
    e.kept("full", e.call("rescale", partial(ms.rescale, e.model, group.random(0, spread=4))), 1e3)
    grams = e.measured("hessian_grams", ms.hessian_grams, curvature="ggn")
    e.compare("grams", grams.by_parameter)
    found = e.call("minimum_sharpness(full)", lambda: ms.minimum_sharpness(e.net, grams, scope="full"))
    slack = 1e-9 * e.total + e.noise
    ordered = found.lower_bound <= found.value <= e.total + slack
    e.expect(ordered, "full: order", f"{found.lower_bound:.9g}, {found.value:.9g}, {e.total:.9g}")
    wide = found.scales.condition * spread(
        e.inner, flat := e.call("flattest", partial(ms.rescale, e.net, found.scales))
    )
    e.kept("full: flattest", flat, max(1.0, wide))
    sharp, noise = e.sharpness(flat) if wide < 1e6 else (sum(found.by_parameter.values()), 0.0)
    close = abs(sharp - sum(found.by_parameter.values())) <= slack + noise + 1e-7 * wide * e.total
    e.expect(close, "full: trace", f"{sharp:.9g}, promised {sum(found.by_parameter.values()):.9g} of {e.total:.9g}")


def estimates(e: "Examiner") -> None:
    """An estimate is as far from the truth as it says; of many networks none is ten standard errors away."""
    if e.case.seed % 3 != 2 or e.case.low or not hasattr(e, "diagonal"):
        return
    found = e.measured("an estimate", ms.hessian_trace, curvature="ggn", tolerance=0.3)
    for name, value in found.by_parameter.items():
        error, allowed = abs(value - float(e.diagonals[name].sum())), 10 * found.standard_errors[name]
        close = error <= allowed + e.tolerance * e.total + e.noise
        e.expect(close, "estimate", f"{name} is off by {error:.3g}, with a standard error of {allowed / 10:.3g}")


def apart(e: "Examiner") -> None:
    """Where the records prove that samples stay apart, running the network shows the same."""
    if e.case.seed % 2 == 0 and proved_apart(e.net.graph):
        inputs = list(e.net.bind(e.inputs).values())
        e.call("samples apart", lambda: check_samples_apart(e.net, inputs))
        e.outcome.checks += 1


CHECKS: tuple[Callable[["Examiner"], None], ...] = (
    sums,
    some_parameters,
    folded,
    verified,
    pickled,
    relatives,
    whole_group,
    estimates,
    apart,
)
