"""The proof that a sceptic asks for: every claim of a minimum sharpness, measured afresh in double precision."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import hypot, inf, isfinite
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..curvature.hessian import hessian_diagonal, hessian_trace
from ..errors import InputError
from ..losses import Criterion
from ..losses.find import default_loss
from ..network.network import Network
from ..network.reader import read
from ..network.rescale import rescale
from ..network.symmetry import Transformation
from ..progress import bar
from ..reference.objective import Objective, doubled
from ..results.curvature import LOSSLESS
from ..results.files import Saved
from ..subject.batches import Batch, Data, batches, first_of
from ..subject.inputs import call_form
from ..subject.model import copied, parameters_of, unwrapped
from ..subject.modes import eval_mode, plain_mode, random_state_kept, seeded
from ..subject.outputs import Pick, adapted, picked
from ..text import magnitude, plain_table
from .minimum import MinimumSharpness
from .noise import weighed
from .random_inputs import SIZES, draws
from .relative import per_trace

OUTPUTS = 1e-9
"""How far outputs may move in double precision, relative; more only where rounding alone moves them further."""
Fresh = Callable[..., tuple[float, float]]  # what is promised, measured afresh, and its standard error


@dataclass(frozen=True)
class Check:
    """One claim: the error that was measured, and the error that rounding allows."""

    claim: str
    error: float
    allowed: float

    @property
    def holds(self) -> bool:
        """Whether the claim stands."""
        return self.error <= self.allowed


@dataclass(frozen=True, repr=False)
class Verification(Saved):
    """What was measured, claim by claim."""

    checks: tuple[Check, ...]

    @property
    def holds(self) -> bool:
        """Whether every claim stands."""
        return all(check.holds for check in self.checks)

    def to_dict(self) -> dict[str, object]:
        """Everything, as plain Python: ready for json."""
        rows = [{"claim": c.claim, "error": c.error, "allowed": c.allowed, "holds": c.holds} for c in self.checks]
        return {"holds": self.holds, "checks": rows}

    def __repr__(self) -> str:
        rows = [
            (c.claim, magnitude(c.error), magnitude(c.allowed), "holds" if c.holds else "FAILS") for c in self.checks
        ]
        return plain_table(("claim", "error", "allowed", ""), rows, least=(0, 9, 9, 0))


@plain_mode()
def verify(
    model: nn.Module | Network,
    data: Data,
    result: MinimumSharpness,
    loss: Criterion | None = None,
    *,
    outputs: Pick = None,
    class_axis: int | None = None,
    directions: int = 3,
    seed: int = 0,
    progress: bool = False,
) -> Verification:
    """Check a minimum sharpness on data: nothing is taken from the result but its claims.

    In double precision, on a copy, whatever the precision of the model:

    - The rescaled network has the outputs of the original, on the data and on random inputs of the same shapes: entries
      of the data in disorder, and noise up to a hundred times as large (whole numbers stay in the range of the data's).
    - Each sample of the data has the same outputs whatever the order and the batch that it comes in.
    - Its trace, computed afresh, is the one that was promised, to the precision in which it was measured; where that
      was an estimate, to five standard errors.
    - Along random directions v inside each parameter that is claimed to be exact, v^T H v by Hessian-vector products
      equals the Gauss-Newton form ||S^T J v||^2. There are ``directions`` of them; none leaves this out, which is of
      the network, not of the result, for a second result of the same network.
    - The lower bound is not above the value.

    And in the model's own precision, if that is another: the outputs of the network that `rescale` returns move no
    further than rounding moves them, times the condition number of the matrices if there are any; not by a bit, if the
    factors are powers of two.

    ``data`` is the data that was measured; give a list or a DataLoader, not a generator, for it is read several times.
    ``progress`` shows bars.

    >>> _ = torch.manual_seed(0)
    >>> from minsharp import minimum_sharpness
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    >>> data = (torch.randn(16, 4).double(), torch.randint(3, (16,)))
    >>> verify(model, data, minimum_sharpness(model, data)).holds
    True
    """
    _refuse_disorder(data, result)
    seeded(seed)
    _not_forgotten(loss, result)
    module, names = adapted(unwrapped(model), outputs), list(result.by_parameter)
    axis = model.class_axis if isinstance(model, Network) and class_axis is None else class_axis
    wide = copied(module).double()
    objective, network = _in_double(wide, [b.double().given for b in batches(data)], doubled(loss), names, axis)
    if objective.samples != result.samples:
        raise InputError(f"the result was measured on {result.samples} samples, this data has {objective.samples}")
    rescaled, inside = rescale(wide, result.scales), _precision_inside(network)
    checks = _outputs_checks(wide, rescaled, objective.batches, inside, seed)
    condition = result.scales.condition if isinstance(result.scales, Transformation) else 1.0
    checks += _own_checks(module, wide, data, rescale(module, result.scales), result.power_of_two, condition, seed)

    def trace(of: nn.Module, **estimate: Any) -> tuple[float, float]:
        data, criterion = [batch.given for batch in objective.batches], doubled(loss)
        options: Any = {"parameters": names, "curvature": result.curvature, "progress": progress, **estimate}
        return _measured(result, replace(network, module=of), data, criterion, options)

    promised, precision = sum(result.by_parameter.values()), max(_precision_of(module), inside) * condition
    if result.standard_error or (result.curvature == "hessian" and not all(result.exact.values())):
        checks.append(_estimate_check(trace, rescaled, promised, result.standard_error, precision, seed))
    else:
        checks.append(_trace_check(trace, rescaled, promised, precision, seed))
    if result.attained:
        checks.append(Check("what was promised is the value", _relative(promised, result.value), 1e-9))
    checks.append(Check("the lower bound is not above the value", max(result.lower_bound - result.value, 0.0), 0.0))
    exact = [name for name in names if result.exact[name] and result.curvature not in LOSSLESS] if directions else []
    with bar("second derivatives", len(exact), progress and bool(exact)) as advance:
        for name in exact:
            error = _curvature_error(objective, name, directions, seed, result.trace)
            checks.append(Check(f"v^T H v = ||S^T J v||^2 in {name}", error, max(1e-8, 1e3 * inside)))
            advance(1)
    return Verification(tuple(checks))


def _refuse_disorder(data: Any, result: Any) -> None:
    """Refuse what is no result, as where data and result are the wrong way round, and data that is gone once read."""
    if not isinstance(result, MinimumSharpness):
        raise InputError(
            f"result is a {type(result).__name__}: expected what minimum_sharpness returned, after the data, as in "
            "verify(model, data, result)"
        )
    if isinstance(data, Iterator):
        raise InputError("verify reads the data several times: pass a tensor, a pair, a list or a DataLoader")


def _not_forgotten(loss: Criterion | None, result: MinimumSharpness) -> None:
    """Whoever names no loss means the one by default; a result of another was measured with one that was named."""
    usual = result.curvature in LOSSLESS or result.loss.split(" on axis ")[0] == default_loss().name
    if loss is None and not usual:
        raise InputError(f"the result is of {result.loss}: pass it too, as in verify(model, data, result, loss)")


def _measured(
    result: MinimumSharpness, network: Network, data: Data, loss: Criterion | None, options: dict[str, Any]
) -> tuple[float, float]:
    """What a result promises, of a network, and its standard error: the trace, or the effect of a noise."""
    if result.noise == "absolute" and result.biases == "noisy":
        trace = hessian_trace(network, data, loss, **options)
        return trace.total, trace.standard_error
    curvature = hessian_diagonal(network, data, loss, **options)
    weights = parameters_of(network)
    parts = weighed(curvature.by_parameter, weights, result.noise, result.biases)
    return sum(parts.values()), curvature.error_of(per_trace(parts, curvature))


def _relative(a: float, b: float) -> float:
    return abs(a - b) / max(abs(a), abs(b)) if a != b else 0.0


# Double precision


def _in_double(
    wide: nn.Module, data: Data, criterion: Criterion | None, names: list[str], class_axis: int | None
) -> tuple[Objective, Network]:
    """The loss as a function, and the network, in double precision; says so where the model does not run in it."""
    try:
        first, _ = first_of(batches(data))
        network = read(wide, first.inputs, class_axis=class_axis)
        return Objective(network, data, criterion, names, need_targets=False), network
    except InputError as error:
        raise InputError(f"verify runs a copy of the model in double precision: {error}") from error


def _precision_of(module: nn.Module) -> float:
    """The relative precision of the coarsest parameter."""
    kinds = {p.dtype for p in parameters_of(module).values() if p.dtype.is_floating_point}
    return max((torch.finfo(kind).eps for kind in kinds), default=torch.finfo(torch.float64).eps)


def _precision_inside(network: Network) -> float:
    """The relative precision of the coarsest value: forward may turn to single precision by itself."""
    kinds = {v.dtype for v in network.graph.of_kind("activation") if v.dtype.is_floating_point}
    return max((torch.finfo(kind).eps for kind in kinds), default=torch.finfo(torch.float64).eps)


def _estimate_check(
    trace: Callable[..., tuple[float, float]],
    rescaled: nn.Module,
    promised: float,
    error: float,
    precision: float,
    seed: int,
) -> Check:
    """Another estimate of the trace, with signs of its own, against the one promised: five standard errors of both.

    The Hessian of a smooth network has no other way; where the errors are zero, rounding is all that may differ.
    """
    tolerance = min(max(error / promised, 1e-3), 0.1) if promised > 0 else 0.1
    fresh, own = trace(rescaled, tolerance=tolerance, seed=seed + 1)
    size = max(abs(fresh), abs(promised)) or 1.0
    allowed = 5 * hypot(error, own) / size + _rounding(precision)
    return Check("its trace, estimated afresh, is the one promised", _relative(fresh, promised), allowed)


def _trace_check(trace: Fresh, rescaled: nn.Module, promised: float, precision: float, seed: int) -> Check:
    """The trace afresh against the one promised, to what rounding does to a trace in the precision of the promise.

    That is less than a thousand times the precision, or its root where that is coarse; more where weights that differ
    by rounding have traces that differ by more, as they have where the outputs are large and nearly certain. What
    is too small for single precision counts as nothing, unless all is double.
    """
    fresh, allowed = trace(rescaled)[0], _rounding(precision)
    coarse = precision > torch.finfo(torch.float64).eps
    error = 0.0 if coarse and max(fresh, promised) < 1e-30 else _relative(fresh, promised)
    if error > allowed:
        others = [trace(_jiggled(rescaled, precision, seed + i))[0] for i in range(3)]
        allowed = max(allowed, *(10 * _relative(fresh, other) for other in others))
    return Check("its trace is the one promised", error, allowed)


def _rounding(precision: float) -> float:
    """What rounding does to a trace, as a rule."""
    return min(1e3 * precision, 2 * precision**0.5)


def _jiggled(module: nn.Module, precision: float, seed: int) -> nn.Module:
    """A copy with each parameter changed as much as rounding may change it, at random."""
    result, generator = copied(module), seeded(seed)
    with torch.no_grad():
        for parameter in result.parameters():
            if parameter.dtype.is_floating_point:
                noise = 2 * torch.rand(parameter.shape, generator=generator, dtype=torch.float64) - 1
                parameter.mul_(1 + precision * noise.to(parameter.device))
    return result


# Outputs


def _outputs(module: nn.Module, batch: Batch) -> Tensor:
    args, kwargs = call_form(module, batch.inputs)
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    with plain_mode(), torch.no_grad(), eval_mode(module), random_state_kept(device):
        return picked(module(*args, **kwargs)).double()


def _distance(a: Tensor, b: Tensor) -> float:
    """The largest difference, relative to the largest entry of the first; infinite if it is not finite."""
    if not a.numel():
        return 0.0
    largest, difference = float(a.abs().max()), float((a - b).abs().max())
    if not isfinite(difference):
        return inf
    return difference / largest if largest else difference


def _outputs_checks(
    wide: nn.Module, rescaled: nn.Module, data: list[Batch], precision: float, seed: int
) -> list[Check]:
    """The outputs on the data, and on random inputs where the model has finite ones."""
    shaken = _jiggled(wide, precision, seed)
    claim = "the rescaled network has the same outputs"

    def check(claim: str, batches: list[Batch]) -> Check:
        allowed = max(OUTPUTS, 100 * _largest(wide, shaken, batches))
        return Check(claim, _largest(wide, rescaled, batches), allowed)

    fresh = [batch for batch in draws(data[0], seed) if _runs(wide, batch)]
    more = f"and on random inputs ({len(fresh)} of {1 + len(SIZES)} draws)"
    moved = max(_order(wide, batch) for batch in data)
    rounding = max(OUTPUTS, 100 * _largest(wide, shaken, data)) if moved > OUTPUTS else OUTPUTS
    own = Check("each sample has its own outputs, in whatever order and batch", moved, rounding)
    return [check(claim, data), *([check(more, fresh)] if fresh else []), own]


def _order(module: nn.Module, batch: Batch) -> float:
    """How far the outputs of samples move if they come the other way round, and in two batches."""
    straight = _outputs(module, batch)
    rows = torch.arange(len(straight) - 1, -1, -1, device=straight.device)
    back = [_outputs(module, _part(batch, part)) for part in rows.tensor_split(2) if len(part)]
    return _distance(straight, torch.cat(back).flip(0))


def _part(batch: Batch, rows: Tensor) -> Batch:
    return Batch(pytree.tree_map_only(Tensor, lambda t: t[rows], batch.inputs), None)


def _largest(a: nn.Module, b: nn.Module, data: list[Batch]) -> float:
    """The largest distance of the outputs of two networks over some batches."""
    return max(_distance(_outputs(a, batch), _outputs(b, batch)) for batch in data)


def _runs(module: nn.Module, batch: Batch) -> bool:
    """Whether random inputs are such as the model takes, and its outputs are finite."""
    try:
        return bool(torch.isfinite(_outputs(module, batch)).all())
    except Exception:  # whatever a model does with inputs that it was not made for
        return False


# The model's own precision


def _own_checks(
    module: nn.Module, wide: nn.Module, data: Data, returned: nn.Module, powers: bool, condition: float, seed: int
) -> list[Check]:
    """How far the network that is handed back moves, against what rounding of weights and activations does.

    A matrix takes sums of weights for weights, and makes that larger by at most its condition number.
    """
    precision = _precision_of(module)
    if precision == torch.finfo(torch.float64).eps and not powers:
        return []  # that has been checked
    device = next(module.parameters()).device
    own = [batch.to(device) for batch in batches(data)]
    if powers:
        different = sum(int((_outputs(module, b) != _outputs(returned, b)).sum()) for b in own)
        claim = "with powers of two, the outputs are the same bit for bit"
        return [Check(claim, different / sum(_outputs(module, b).numel() for b in own), 0.0)]
    shaken = _jiggled(wide, precision, seed)
    moved = _largest(module, returned, own)
    rounded = max(_distance(_outputs(wide, b.double()), _outputs(module, b)) for b in own)
    weights = _largest(wide, shaken, [b.double() for b in own])
    kind = str(next(module.parameters()).dtype).removeprefix("torch.")
    claim = f"in {kind}, its outputs move no further than by rounding"
    return [Check(claim, moved, 10 * (rounded + weights + precision) * condition)]


# Curvature


def _curvature_error(objective: Objective, name: str, directions: int, seed: int, total: float) -> float:
    """The largest difference between the two forms of v^T H v, relative to them, or to a millionth of ||J v||^2.

    Where the outputs are certain, the Hessian of the loss is what rounding leaves of p - p^2; and where a parameter has
    no part in them, its curvature is what rounding leaves of the whole trace.
    """
    parameter, generator = objective.parameters[name], seeded(seed)
    drawn = [torch.randn(parameter.shape, generator=generator, dtype=torch.float64) for _ in range(directions)]
    vs = [v.to(parameter.device) for v in drawn]
    try:
        pairs = zip(objective.quadratic_forms(name, vs), _gauss_newton_forms(objective, name, vs), strict=True)
    except RuntimeError as error:  # there are functions of which torch has a first derivative only
        raise InputError(
            f"verify compares with v^T H v by autograd's second derivatives, and in '{name}' there is none: {error}. "
            "verify(..., directions=0) checks all the rest"
        ) from error
    worst = 0.0
    for hessian, (gauss_newton, size) in pairs:
        scale = max(abs(hessian), abs(gauss_newton), 1e-6 * size, 1e-8 * total)
        worst = max(worst, abs(hessian - gauss_newton) / scale if hessian != gauss_newton else 0.0)
    return worst


def _gauss_newton_forms(objective: Objective, name: str, directions: list[Tensor]) -> list[tuple[float, float]]:
    """||S^T J v||^2 and ||J v||^2 over all the data, for each direction v."""
    forms, sizes = [0.0] * len(directions), [0.0] * len(directions)
    with objective.prepared():
        for batch in objective.batches:
            outputs, tangents = objective.tangents([{name: v} for v in directions], batch)
            for i, tangent in enumerate(tangents):
                forms[i] += objective.output_form(outputs, tangent, batch)
                sizes[i] += float(tangent.square().sum())
    return [(form / objective.divisor, size / objective.divisor) for form, size in zip(forms, sizes, strict=True)]
