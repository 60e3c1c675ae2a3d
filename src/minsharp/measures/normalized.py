"""Normalized sharpness (Tsuzuku, Sato, Sugiyama): the sharpness that the paper compares its own with."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..curvature.hessian import hessian_diagonal
from ..curvature.schedule import Schedule
from ..errors import InputError
from ..frozen import Frozen
from ..graph.records import DEVICE, Graph, Operation
from ..losses import Criterion
from ..network.network import Network
from ..network.reader import read
from ..reference.estimators import tsuzuku_arxiv_diagonal, tsuzuku_icml_diagonal
from ..results.curvature import Diagonal, MatrixName
from ..results.files import Saved
from ..rules.contraction import Contraction, PerSampleVJP
from ..solve.status import Status, StatusText
from ..subject.batches import Data, batches, first_of, held
from ..subject.model import Pattern, parameters_of
from ..subject.modes import plain_mode
from ..text import count, magnitude, number, plain_table
from .minimum import graph_of

Form = Literal["arxiv", "icml"]
Approximation = Literal["exact", "arxiv", "icml"]


@dataclass(frozen=True, repr=False)
class NormalizedSharpness(Frozen, Saved):
    """The sum over layers, and each layer's part, with a certified lower bound on the sum."""

    value: float
    lower_bound: float
    by_layer: Mapping[str, float]
    status: StatusText
    objective: Form
    loss: str
    samples: int

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain Python: ready for json."""
        return {**vars(self), "by_layer": dict(self.by_layer), "status": str(self.status)}

    def __repr__(self) -> str:
        rows = [(name, number(value)) for name, value in self.by_layer.items()]
        head = f"Normalized sharpness {number(self.value)} ({self.objective} objective, {count(self.samples)} samples)"
        return f"{head}\n{self.status}\n{plain_table(('layer', 'value'), rows, least=(0, 12))}"


@plain_mode()
def normalized_sharpness(
    model: nn.Module | Network,
    data: Data | Diagonal,
    loss: Criterion | None = None,
    *,
    objective: Form = "arxiv",
    diagonal: Approximation = "exact",
    curvature: MatrixName = "hessian",
    parameters: Pattern = None,
    memory: int | None = None,
    progress: bool = False,
) -> NormalizedSharpness:
    """The sum over weight matrices of a scale-free product of curvature and size (arXiv 1901.04653; ICML 2020).

    With H = DIAG[H_W] and W2 = W^2 as matrices of outputs by inputs, convolutions summed over their taps, a layer has

        arxiv   min over s1, s2 > 0 of  <s2, H s1> + <1/s2, W2 (1/s1)>
        icml    min over s1 > 0 of      sqrt( sum_i (H s1)_i (W2 (1/s1))_i )

    The scales are free (with their products fixed at 1, as the paper prints, it would not be invariant), biases and
    norm weights do not count, and the groups of a grouped convolution have scales of their own. Both problems are
    convex in log s and solved to the end, with a bound from the dual.

    ``diagonal`` takes the authors' approximations of the diagonal in place of the exact one (`tsuzuku_arxiv_diagonal`,
    `tsuzuku_icml_diagonal`; they need labels, and negative entries count as zero). ``data`` may also be a diagonal
    that has been measured.

    A single weight w with curvature h has min h s + w^2 / s = 2 |w| sqrt(h):

    >>> model = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.constant_(model.weight, 3.0)
    >>> result = normalized_sharpness(model, torch.tensor([[2.0]]), nn.MSELoss())  # h = 2 x^2 = 8
    >>> abs(result.value - 2 * 3 * 8**0.5) < 1e-6
    True
    """
    solvers = _solvers()
    if objective not in solvers:
        raise InputError(f"objective={objective!r}: expected 'arxiv' or 'icml'")
    if isinstance(data, Diagonal):
        measured = data
        graph = graph_of(model, measured, "normalized_sharpness")
    else:
        data = held(data)
        network = read(model, first_of(batches(data))[0].inputs)
        measured = _diagonal(network, data, loss, diagonal, curvature, parameters, memory, progress)
        graph = network.graph
    weights = {name: parameter.detach() for name, parameter in parameters_of(model).items()}
    results = {}
    for name, H in measured.by_parameter.items():
        matrices = as_matrices(graph, name)
        if matrices is not None:
            pair = (matrices(t.double().cpu()).numpy() for t in (H.clamp_min(0), weights[name].double().square()))
            results[name] = solvers[objective](*pair)
    value = sum(result.value for result in results.values())
    bound = sum(result.lower_bound for result in results.values())
    loose = [name for name, result in results.items() if not result.attained]
    return NormalizedSharpness(
        value=value,
        lower_bound=bound,
        by_layer={name: result.value for name, result in results.items()},
        status=_status(value, bound, loose),
        objective=objective,
        loss=measured.loss,
        samples=measured.samples,
    )


def _solvers() -> dict[str, Callable[..., Any]]:
    from ..solve.balance import minimise_pairs, minimise_products

    return {"arxiv": minimise_pairs, "icml": minimise_products}


def _diagonal(
    network: Network,
    data: Data,
    loss: Criterion | None,
    diagonal: Approximation,
    curvature: MatrixName,
    parameters: Pattern,
    memory: int | None,
    progress: bool,
) -> Diagonal:
    if diagonal == "arxiv":
        return tsuzuku_arxiv_diagonal(network, data, loss, parameters=parameters)
    if diagonal == "icml":
        return tsuzuku_icml_diagonal(network, data, loss, parameters=parameters)
    if diagonal != "exact":
        raise InputError(f"diagonal={diagonal!r}: expected 'exact', 'arxiv' or 'icml'")
    return hessian_diagonal(
        network, data, loss, parameters=parameters, curvature=curvature, memory=memory, progress=progress
    )


def _status(value: float, bound: float, loose: list[str]) -> StatusText:
    if not value:
        return Status.NO_MATRIX.told()
    gap = magnitude(max(1 - bound / value, 0.0), 0)
    return Status.INFIMUM_OF_LAYERS.told(gap=gap, names=", ".join(loose)) if loose else Status.MINIMUM.told(gap=gap)


def as_matrices(graph: Graph, parameter: str) -> Callable[[Tensor], Tensor] | None:
    """How numbers shaped like a parameter become matrices (groups, outputs, inputs); none if it is not a weight.

    That depends on the operation in which the parameter meets the samples, the first one if there are several.
    """
    steps = Schedule(graph, (parameter,))
    if len(graph.values[parameter].shape) < 2 or not steps.paths[parameter].leaves:  # of no consequence
        return None
    operation, leaf, contraction = _first_use(steps, parameter)
    if leaf != parameter and not steps.paths[parameter].direct:  # made into something else first: as it stands
        leaf, contraction = parameter, PerSampleVJP()
    if contraction.matrices(operation, torch.zeros(graph.values[leaf].shape)) is None:
        return None

    def arranged(tensor: Tensor) -> Tensor:
        values: dict[str, Any] = {parameter: tensor, DEVICE.name: tensor.device}
        for step in steps.prelude if leaf != parameter else ():
            if any(name == parameter or name in values for _, name in step.reads):
                step.run(values)
        matrices = contraction.matrices(operation, values[leaf])
        assert matrices is not None
        return matrices

    return arranged


def _first_use(steps: Schedule, parameter: str) -> tuple[Operation, str, Contraction]:
    for step in steps.steps:
        for site in step.sites:
            if site.leaf in steps.paths[parameter].leaves:
                return step.operation, site.leaf, site.contraction
    raise AssertionError(f"'{parameter}' is not used")
