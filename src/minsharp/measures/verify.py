"""The proof that a sceptic asks for: every claim of a minimum sharpness, measured afresh on real data."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..curvature.hessian import hessian_trace
from ..curvature.losses import Criterion
from ..curvature.objective import Objective
from ..curvature.stream import Batch, Data, batches
from ..errors import InputError
from ..network.model import unwrapped
from ..network.reader import Network, call_form, eval_mode, picked, plain_mode
from ..network.rescale import rescale
from ..text import printable
from .minimum import MinimumSharpness


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
class Verification:
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
        claims = [printable(check.claim) for check in self.checks]
        width = max(map(len, claims))
        rows = [
            f"{claim.ljust(width)}  {c.error:>9.1e}  {c.allowed:>9.1e}  {'holds' if c.holds else 'FAILS'}"
            for claim, c in zip(claims, self.checks, strict=True)
        ]
        head = f"{'claim'.ljust(width)}  {'error':>9}  {'allowed':>9}"
        return "\n".join([head, "-" * (len(head) + 7), *rows])


@plain_mode()
def verify(
    model: nn.Module | Network,
    data: Data,
    result: MinimumSharpness,
    loss: Criterion | None = None,
    *,
    directions: int = 3,
    seed: int = 0,
) -> Verification:
    """Check a minimum sharpness on data: nothing is taken from the result but its claims.

    - The rescaled network has the outputs of the original.
    - Its trace, computed afresh, is the one that was promised.
    - Along random directions v inside each parameter that is claimed to be exact, v^T H v by Hessian-vector products
      equals the Gauss-Newton form ||S^T J v||^2.
    - The lower bound is not above the value.

    ``data`` is the data that was measured; give a list or a DataLoader, not a generator, for it is read several times.

    >>> _ = torch.manual_seed(0)
    >>> from minsharp import minimum_sharpness
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    >>> data = (torch.randn(16, 4).double(), torch.randint(3, (16,)))
    >>> verify(model, data, minimum_sharpness(model, data)).holds
    True
    """
    if isinstance(data, Iterator):
        raise InputError("verify reads the data several times: pass a tensor, a pair, a list or a DataLoader")
    module = unwrapped(model)
    objective = Objective(module, data, loss, list(result.by_parameter), need_targets=False)
    if objective.samples != result.samples:
        raise InputError(f"the result was measured on {result.samples} samples, this data has {objective.samples}")
    rescaled = rescale(module, result.scales)
    precision = torch.finfo(next(iter(objective.parameters.values())).dtype).eps
    names = list(result.by_parameter)
    fresh = hessian_trace(rescaled, data, loss, parameters=names, curvature=result.curvature).total
    promised = sum(result.by_parameter.values())
    checks = [
        Check("the rescaled network has the same outputs", _difference(module, rescaled, data), 2e3 * precision),
        Check("its trace is the one promised", _relative(fresh, promised), 1e3 * precision),
        Check("the lower bound is not above the value", max(result.lower_bound - result.value, 0.0), 0.0),
    ]
    if result.attained:
        checks.insert(2, Check("what was promised is the value", _relative(promised, result.value), 1e-9))
    for name in names:
        if result.exact[name] and result.curvature != "jacobian":
            error = _curvature_error(objective, name, directions, seed)
            checks.append(Check(f"v^T H v = ||S^T J v||^2 in {name}", error, 1e-8))
    return Verification(tuple(checks))


def _relative(a: float, b: float) -> float:
    return abs(a - b) / max(abs(a), abs(b)) if a != b else 0.0


@torch.no_grad()
def _difference(model: nn.Module, other: nn.Module, data: Data) -> float:
    """The largest difference of the outputs, relative to the largest output."""
    largest = difference = 0.0
    device = next(model.parameters()).device
    for batch in batches(data):
        a, b = (_outputs(m, {}, batch.to(device)) for m in (model, other))
        largest = max(largest, float(a.abs().max()))
        difference = max(difference, float((a - b).abs().max()))
    return difference / largest if largest else difference


def _outputs(model: nn.Module, parameters: dict[str, Tensor], batch: Batch) -> Tensor:
    args, kwargs = call_form(model, batch.inputs)
    with plain_mode(), eval_mode(model):
        return picked(functional_call(model, parameters, args, kwargs))


def _curvature_error(objective: Objective, name: str, directions: int, seed: int) -> float:
    """The largest relative difference between the two forms of v^T H v, in double precision."""
    generator = torch.Generator().manual_seed(seed)
    double = objective.double()
    worst = 0.0
    for _ in range(directions):
        parameter = double.parameters[name]
        v = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter.device)
        hessian, gauss_newton = double.quadratic_form(name, v), _gauss_newton_form(double, name, v)
        worst = max(worst, _relative(hessian, gauss_newton))
    return worst


def _gauss_newton_form(objective: Objective, name: str, v: Tensor) -> float:
    """||S^T J v||^2 over all the data."""
    with objective.prepared():
        forms = [objective.output_form(*objective.tangent({name: v}, b), b) for b in objective.batches]
    return sum(forms) / objective.divisor
