"""How noise as large as the weights moves predictions, relative to their margins.

With m the margin of a prediction and ``curvature="margin"`` in the engine:

    margin sensitivity           sum_P (||P||_F^2 / N_P) E ||dm/dP||^2 / m^2       (scope "tensor")
                                 sum_i t_i^2 E (dm/dt_i)^2 / m^2                    (scope "element")
    minimum margin sensitivity   min over rescalings of  sum_P E ||dm/dP||^2 / m^2
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..curvature.hessian import hessian_diagonal, hessian_trace
from ..errors import InputError
from ..frozen import Frozen
from ..losses import Criterion
from ..network.network import Network
from ..results.curvature import Diagonal, Trace
from ..results.files import Saved
from ..subject.batches import Data
from ..subject.model import Pattern
from ..subject.modes import plain_mode
from ..subject.outputs import Pick
from ..text import count, number, plain_table, plus_minus
from .program import Curvature
from .relative import SensitivityScope, per_trace, squared_weights, weighed_by_size


@dataclass(frozen=True, repr=False)
class MarginSensitivity(Frozen, Saved):
    """The squared ratio of noise to margin under noise as large as the weights, and each parameter's part."""

    value: float
    by_parameter: Mapping[str, float]
    scope: SensitivityScope
    samples: int
    standard_error: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain Python: ready for json."""
        return {**vars(self), "by_parameter": dict(self.by_parameter)}

    def __repr__(self) -> str:
        rows = [(name, number(value)) for name, value in self.by_parameter.items()]
        value = plus_minus(self.value, self.standard_error or None)
        head = f"Margin sensitivity {value} (scope {self.scope!r}, {count(self.samples)} samples)"
        return f"{head}\n{plain_table(('parameter', 'part'), rows, least=(0, 12))}"


@plain_mode()
def margin_sensitivity(
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
) -> MarginSensitivity:
    """How far noise as large as the weights moves predictions, in units of their margins, squared; no labels, no loss.

    ``scope="tensor"``, noise as large as the typical entry of a tensor: sum_P (||P||^2 / N_P) E ||dm/dP||^2 / m^2,
    which no rescaling of layers changes. ``scope="element"``, noise as large as each weight: sum_i t_i^2
    E (dm/dt_i)^2 / m^2, which no rescaling of neurons changes either. ``data`` may also be a result of `hessian_trace`
    or `hessian_diagonal` (for "element", the diagonal) with ``curvature="margin"``. A ``loss`` is used only if it is
    a `minsharp.losses.Margin`, which sets the floor under small margins.

    The margin of a single linear output is its size, and relative noise on its only weight moves it by as much:

    >>> import torch
    >>> model = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.constant_(model.weight, 5.0)
    >>> round(margin_sensitivity(model, torch.tensor([[2.0], [-3.0]])).value, 4)
    1.0
    """
    if scope not in ("tensor", "element"):
        raise InputError(f"scope={scope!r}: expected 'tensor' or 'element'")
    measured: Any = data
    if not isinstance(measured, Trace | Diagonal):
        measure: Any = hessian_trace if scope == "tensor" else hessian_diagonal
        options: Any = {"outputs": outputs, "class_axis": class_axis, "memory": memory, "progress": progress}
        options |= {"tolerance": tolerance, "seed": seed}
        measured = measure(model, data, loss, parameters=parameters, curvature="margin", **options)
    if measured.kind != "margin":
        raise InputError(f'these results have curvature="{measured.kind}": measure with curvature="margin"')
    if scope == "element" and isinstance(measured, Trace):
        raise InputError('scope="element" needs the diagonal: pass hessian_diagonal(model, data, curvature="margin")')
    parts = weighed_by_size(measured, squared_weights(model, measured), scope)
    error = measured.error_of(per_trace(parts, measured))
    return MarginSensitivity(sum(parts.values()), parts, scope, measured.samples, error)
