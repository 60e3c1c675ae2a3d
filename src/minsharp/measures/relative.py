"""Two measures that use no loss, and so do not vanish with it: how the outputs react, relative to their size.

With centred outputs c = o - mean(o) and ``curvature="jacobian"`` in the engine:

    relative minimum sharpness   min over rescalings of  sum_P E||dc/dP||_F^2  /  E||c||^2
    relative sensitivity         sum_P (||P||_F^2 / N_P) E||dc/dP||_F^2  /  E||c||^2      (scope "tensor")
                                 sum_i t_i^2 E||dc/dt_i||^2  /  E||c||^2                  (scope "element")
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor, nn

from ..curvature.hessian import hessian_diagonal, hessian_trace
from ..errors import InputError, UndefinedError
from ..frozen import Frozen
from ..losses import Criterion
from ..network.network import Network
from ..network.symmetry import Scope
from ..results.curvature import Diagonal, Trace
from ..results.files import Saved
from ..results.gram import Grams
from ..solve.status import StatusText
from ..subject.batches import Data
from ..subject.model import Pattern, parameters_of
from ..subject.modes import plain_mode
from ..subject.outputs import Pick
from ..text import count, number, plain_table, plus_minus
from .full import FullMinimumSharpness
from .minimum import MinimumSharpness, minimum_sharpness
from .program import Curvature

SensitivityScope = Literal["tensor", "element"]


@dataclass(frozen=True, repr=False)
class RelativeMinimumSharpness(Saved):
    """The minimum over rescalings of E||dc/dP||^2, summed over parameters, over E||c||^2 (``energy``)."""

    value: float
    lower_bound: float
    energy: float
    minimum: MinimumSharpness | FullMinimumSharpness = field(repr=False)

    def check_whole(self) -> None:
        """As the minimum is."""
        self.minimum.check_whole()

    @property
    def status(self) -> StatusText:
        """How sure the minimum is."""
        return self.minimum.status

    @property
    def standard_error(self) -> float:
        """Zero where the curvature is exact."""
        return self.minimum.standard_error / self.energy

    @property
    def scales(self) -> Mapping[str, float | Tensor]:
        """The rescaling that attains it."""
        return self.minimum.scales

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain Python: ready for json."""
        numbers = {"value": self.value, "lower_bound": self.lower_bound, "standard_error": self.standard_error}
        return {**numbers, "energy": self.energy, "minimum": self.minimum.to_dict()}

    def __repr__(self) -> str:
        value = plus_minus(self.value, self.standard_error or None)
        head = f"Relative minimum sharpness {value}: the following over E||c||^2 = {number(self.energy)}"
        return f"{head}\n{self.minimum!r}"


@dataclass(frozen=True, repr=False)
class RelativeSensitivity(Frozen, Saved):
    """The squared relative change of the outputs under noise as large as the weights, and each parameter's part."""

    value: float
    by_parameter: Mapping[str, float]
    energy: float
    scope: SensitivityScope
    samples: int
    standard_error: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain Python: ready for json."""
        return {**vars(self), "by_parameter": dict(self.by_parameter)}

    def __repr__(self) -> str:
        rows = [(name, number(value)) for name, value in self.by_parameter.items()]
        value = plus_minus(self.value, self.standard_error or None)
        head = f"Relative sensitivity {value} (scope {self.scope!r}, {count(self.samples)} samples)"
        return f"{head}\n{plain_table(('parameter', 'part'), rows, least=(0, 12))}"


@plain_mode()
def relative_minimum_sharpness(
    model: nn.Module | Network,
    data: Data | Curvature | Grams,
    loss: Criterion | None = None,
    *,
    scope: Scope = "layer",
    parameters: Pattern = None,
    outputs: Pick = None,
    class_axis: int | None = None,
    tolerance: float = 0.0,
    seed: int = 0,
    memory: int | None = None,
    progress: bool = False,
) -> RelativeMinimumSharpness:
    """The relative change of the outputs per unit of weight noise, at the best-conditioned equivalent network.

    min over rescalings of sum_P E||dc/dP||_F^2 / E||c||^2. The loss is not used. ``data`` may also be a result of
    `hessian_trace`, `hessian_diagonal` or `hessian_grams` (for ``scope="full"``) with ``curvature="jacobian"``.

    Two weights in a row, o = v relu(w x), have min (v x)^2 / a^2 + (a w x)^2 = 2 |v w| x^2, over (v w x)^2:

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 1, bias=False))
    >>> _ = [nn.init.constant_(p, value) for p, value in zip(model.parameters(), (4.0, 0.5))]
    >>> round(relative_minimum_sharpness(model, torch.tensor([[3.0]])).value, 6)
    1.0
    """
    measured = minimum_sharpness(
        model,
        _jacobian(data),
        scope=scope,
        curvature="jacobian",
        parameters=parameters,
        outputs=outputs,
        class_axis=class_axis,
        tolerance=tolerance,
        seed=seed,
        memory=memory,
        progress=progress,
    )
    energy = _energy(measured.energy)
    return RelativeMinimumSharpness(measured.value / energy, measured.lower_bound / energy, energy, measured)


@plain_mode()
def relative_sensitivity(
    model: nn.Module | Network,
    data: Data | Curvature,
    loss: Criterion | None = None,
    *,
    scope: SensitivityScope = "tensor",
    parameters: Pattern = None,
    outputs: Pick = None,
    class_axis: int | None = None,
    tolerance: float = 0.0,
    seed: int = 0,
    memory: int | None = None,
    progress: bool = False,
) -> RelativeSensitivity:
    """The relative change of the outputs under noise as large as the weights themselves.

    ``scope="tensor"``, noise as large as the typical entry of a tensor: sum_P (||P||^2 / N_P) E||dc/dP||^2 / E||c||^2,
    which no rescaling of layers changes. ``scope="element"``, noise as large as each weight: sum_i t_i^2 E||dc/dt_i||^2
    / E||c||^2, which no rescaling of neurons changes either. The loss is not used. ``data`` may also be a result of
    `hessian_trace` or `hessian_diagonal` (for "element", the diagonal) with ``curvature="jacobian"``.

    The outputs of a linear layer on one-hot inputs are its weights:

    >>> import torch
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.constant_(model.weight, 5.0)
    >>> relative_sensitivity(model, torch.eye(2), scope="element").value
    1.0
    """
    if scope not in ("tensor", "element"):
        raise InputError(f"scope={scope!r}: expected 'tensor' or 'element'")
    measured: Any = _jacobian(data)
    if not isinstance(measured, Trace | Diagonal):
        measure: Any = hessian_trace if scope == "tensor" else hessian_diagonal
        options: Any = {"outputs": outputs, "class_axis": class_axis, "memory": memory, "progress": progress}
        options |= {"tolerance": tolerance, "seed": seed}
        measured = measure(model, data, parameters=parameters, curvature="jacobian", **options)
    if scope == "element" and isinstance(measured, Trace):
        raise InputError('scope="element" needs the diagonal: pass hessian_diagonal(model, data, curvature="jacobian")')
    energy = _energy(measured.energy)
    parts = {n: v / energy for n, v in weighed_by_size(measured, squared_weights(model, measured), scope).items()}
    error = measured.error_of(per_trace(parts, measured))
    return RelativeSensitivity(sum(parts.values()), parts, energy, scope, measured.samples, error)


def per_trace(parts: Mapping[str, float], measured: Curvature) -> dict[str, float]:
    """How fast each parameter's part moves with its trace; where there is no trace, it is left out."""
    traces = (measured.trace if isinstance(measured, Diagonal) else measured).by_parameter
    return {name: part / traces[name] for name, part in parts.items() if traces[name]}


def squared_weights(model: nn.Module | Network, measured: Curvature) -> dict[str, Tensor]:
    """The squares of the parameters that were measured, in double precision."""
    held = parameters_of(model)
    return {name: held[name].detach().cpu().double().square() for name in measured.exact}


def weighed_by_size(measured: Curvature, squares: Mapping[str, Tensor], scope: SensitivityScope) -> dict[str, float]:
    """Each parameter's curvature times the size of its weights: the mean square of the tensor, or entry by entry."""
    if scope == "element" and isinstance(measured, Diagonal):
        return {n: float((squares[n] * h.cpu()).sum()) for n, h in measured.by_parameter.items()}
    traces = measured.trace if isinstance(measured, Diagonal) else measured
    return {n: _mean(squares[n]) * trace for n, trace in traces.by_parameter.items()}


def _jacobian(data: Data | Curvature | Grams) -> Data | Curvature | Grams:
    if isinstance(data, Trace | Diagonal | Grams) and data.kind != "jacobian":
        raise InputError(f'these results have curvature="{data.kind}": measure with curvature="jacobian"')
    return data


def _energy(energy: float) -> float:
    """E||c||^2, which the measures divide by."""
    if not energy > 0:
        raise UndefinedError("the centred outputs are zero on this data: nothing to be relative to")
    return energy


def _mean(squares: Tensor) -> float:
    """The mean square; zero of a parameter without entries."""
    return float(squares.mean()) if squares.numel() else 0.0
