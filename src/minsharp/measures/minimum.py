"""Minimum sharpness: the least trace of the Hessian over all rescalings that keep the function.

Under a rescaling with log-scales t the gradient with respect to an entry of P is divided by its factor, so that
entry's curvature by the factor squared (the paper's Proposition 2). The minimum over the group t = A z is

    MS = min_z  sum_e c_e exp(-2 (A z)_e)

with c the traces (scope "layer") or the diagonal (scope "neuron"). For a chain of D layers without biases it is
D (prod_d Tr[H_d])^(1/D), the paper's Theorem 1.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import log
from typing import Any

import torch
from torch import Tensor, nn

from ..curvature.hessian import hessian_diagonal, hessian_trace
from ..errors import InputError
from ..frozen import Copied, Frozen, held
from ..graph.records import Graph
from ..losses import Criterion
from ..network.network import Network
from ..network.rescale import rescale
from ..network.rescalings import folding_frees
from ..network.symmetry import Scope, Symmetries, tried_group
from ..results.curvature import MATRICES, Diagonal, MatrixName, Trace
from ..results.files import Saved
from ..results.gram import Grams
from ..solve.status import Status, StatusText
from ..subject.batches import Data
from ..subject.model import Pattern, parameters_of, unwrapped
from ..subject.modes import plain_mode
from ..subject.outputs import Pick
from ..text import interval, number, plain_table, plus_minus
from .noise import Biases, Noise, checked, finite, is_noisy, only_absolute
from .noisy import least_noise, rescaled_parts
from .outcome import finite_exp, nothing_to_do, status_of, status_of_powers
from .program import Curvature, curvatures, least_powers, program, shares_left, traces_at

OTHERS: dict[str, Callable[..., "MinimumSharpness"]] = {}
"""Minima over groups of more than scales, by scope: each stands in a file of its own, and enters itself here."""


@dataclass(frozen=True, repr=False, eq=False)
class MinimumSharpness(Frozen, Saved):
    """The minimum, a certified lower bound, and the rescaling that attains it.

    ``by_parameter`` holds each parameter's trace in the rescaled network; ``scales`` goes into `minsharp.rescale`.
    With ``power_of_two``, all of that is of the flattest network that was found with powers of two as factors, and
    ``lower_bound`` is the bound for factors of any kind.
    Under a ``noise`` that grows with the weights, what is called a trace is the sum of noise times curvature.

    ``standard_error`` is zero where the curvature is exact. The minimum moves with each parameter's trace as that trace
    shrinks under the rescaling: dMS/dc_P = exp(-2 t_P), for the best rescaling moves it only to second order. Value and
    bound are those of the estimated curvature. Per neuron the error is an approximation, all entries of a parameter
    taken to be as uncertain as their sum.
    """

    value: float
    lower_bound: float
    trace: float
    status: StatusText
    attained: bool
    scope: Scope
    by_parameter: Mapping[str, float]
    pinned: Mapping[str, str]
    curvature: MatrixName
    loss: str
    samples: int
    exact: Mapping[str, bool]
    symmetries: Symmetries = field(repr=False)
    before: Mapping[str, float] = field(repr=False)
    z: Tensor = Copied()  # type: ignore[assignment]  # noqa: RUF009
    energy: float = field(default=0.0, repr=False)
    power_of_two: bool = False
    noise: Noise = "absolute"
    biases: Biases = "noisy"
    standard_error: float = 0.0

    @property
    def scales(self) -> Mapping[str, float | Tensor]:
        """A factor for every parameter that moves; tensors of their own each time."""
        if not self.power_of_two:
            return self.symmetries.scales(self.z)
        logs = self.symmetries.log_scales(self.z)
        powers = {name: (t / log(2)).round() for name, t in logs.items() if name not in self.symmetries.pinned}
        return {name: float(p.exp2()) if p.numel() == 1 else p.exp2() for name, p in powers.items()}

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain Python: ready for json."""
        scales = {n: f.tolist() if isinstance(f, Tensor) else f for n, f in self.scales.items()}
        names = "value lower_bound standard_error trace attained scope power_of_two noise biases curvature loss samples"
        return {
            **{name: getattr(self, name) for name in names.split()},
            "status": str(self.status),
            "by_parameter": dict(self.by_parameter),
            "before": dict(self.before),
            "scales": scales,
            "pinned": dict(self.pinned),
            "exact": dict(self.exact),
        }

    @property
    def unknowns(self) -> int:
        """How many numbers z holds."""
        return self.symmetries.dimension

    @property
    def _conditions(self) -> str:
        """What is not as usual."""
        usual = ", powers of two" if self.power_of_two else ""
        noise = usual if self.noise == "absolute" else f", noise {self.noise!r}"
        return f"{noise}, biases exact" if self.biases == "exact" else noise

    def check_whole(self) -> None:
        """The scales can be made, and speak of the parameters that were measured."""
        group = self.symmetries
        entries = sum(held(e, "plus").numel() + held(e, "minus").numel() for e in group.exponents.values())
        if not group.nodes.count <= entries or self.z.shape != (self.unknowns,):
            raise ValueError(f"its group of {group.dimension} numbers does not fit the {self.z.numel()} that it holds")
        if not set(self.by_parameter) == set(self.before) == set(self.exact) <= set(group.exponents):
            raise ValueError("its fields speak of different parameters")
        try:
            repr(self)
        except (RuntimeError, IndexError) as error:
            raise ValueError(f"its scales cannot be made: {error}") from None

    def _rows(self) -> list[tuple[str, ...]]:
        scales = self.scales
        return [
            (name, number(self.before[name]), number(after), _factor(scales.get(name)))
            for name, after in self.by_parameter.items()
        ]

    def __repr__(self) -> str:
        value = plus_minus(self.value, self.standard_error or None)
        head = (
            f"Minimum sharpness {value}, from a trace of {number(self.trace)} "
            f"({MATRICES[self.curvature]}, scope {self.scope!r}{self._conditions})"
        )
        columns = ("parameter", "trace before", "trace after", "factor")
        total = ("total", number(self.trace), number(self.value), "")
        table = plain_table(columns, self._rows(), total=total)
        return "\n".join((head, self.status, table, *folding_frees(self.pinned)))


def _factor(factor: float | Tensor | None) -> str:
    if factor is None:
        return "pinned"
    if isinstance(factor, Tensor):
        return interval(float(factor.min()), float(factor.max()))
    return number(factor, 4)


@plain_mode()
def minimum_sharpness(
    model: nn.Module | Network,
    data: Data | Curvature | Grams,
    loss: Criterion | None = None,
    *,
    scope: Scope = "layer",
    power_of_two: bool = False,
    noise: Noise = "absolute",
    biases: Biases | None = None,
    curvature: MatrixName = "hessian",
    parameters: Pattern = None,
    outputs: Pick = None,
    class_axis: int | None = None,
    tolerance: float = 0.0,
    seed: int = 0,
    memory: int | None = None,
    progress: bool = False,
) -> MinimumSharpness:
    """The least trace of the Hessian over all networks that compute the same function: no rescaling can fool it.

    ``scope="layer"`` rescales whole parameter tensors, as the paper does; ``scope="neuron"`` rescales every channel by
    itself, and its minimum is lower. ``scope="full"`` rescales whole tensors and puts an invertible matrix into every
    frame, such as the queries and keys of an attention head: the minimum for transformers, a `FullMinimumSharpness`.
    ``data`` may also be a result of `hessian_trace`, `hessian_diagonal` or `hessian_grams` (scope "neuron" needs the
    diagonal, "full" the Gram matrices): then the data is not touched again. The other arguments are those of
    `hessian_trace`. Parameters that are not measured stay as they are.

    With ``power_of_two=True`` the factors are powers of two, which change no bit of the outputs: the least trace that a
    search over them finds, never more than the trace of the network as it is. The search needs the curvature of every
    entry that was measured, so it is done here, and its answer is a result like any other.

    ``noise`` has one size for all weights ("absolute"), or grows with the root mean square of each tensor ("relative"),
    its largest weight ("max"), or that of each output channel ("max-per-channel"), as on quantizers and analog tiles.
    Then the value is the least sum over groups T of N_T sum_{i in T} h_i, N_T the mean or the largest w_i² of T; only
    scope "neuron" can lower it. ``biases`` are "exact" or "noisy"; unless given, exact under the last two.

    For a chain without biases, D (prod_d Tr[H_d])^(1/D):

    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False))
    >>> result = minimum_sharpness(model, torch.randn(16, 4))
    >>> first, second = result.before.values()
    >>> abs(result.value / (2 * (first * second) ** 0.5) - 1) < 1e-12
    True
    """
    options: Any = {"outputs": outputs, "class_axis": class_axis, "memory": memory, "progress": progress}
    options |= {"tolerance": tolerance, "seed": seed}
    treated = checked(noise, biases)
    if power_of_two and noise != "absolute":
        raise InputError(f'power_of_two=True goes with noise="absolute", got noise={noise!r}: leave one of them out')
    if scope in OTHERS:
        only_absolute(scope, noise, biases)
        options |= {"power_of_two": power_of_two, "curvature": curvature, "parameters": parameters}
        return OTHERS[scope](model, data, loss, **options)
    data = data.trace if isinstance(data, Grams) else data
    measured = data if isinstance(data, Trace | Diagonal) else None
    if scope not in ("layer", "neuron"):
        raise InputError(f"scope={scope!r}: expected 'layer', 'neuron' or 'full'")
    entrywise = scope == "neuron" or noise == "max-per-channel"
    if measured is None:
        measure: Any = hessian_diagonal if entrywise else hessian_trace
        measured = measure(model, data, loss, parameters=parameters, curvature=curvature, **options)
    if entrywise and isinstance(measured, Trace):
        asked = 'scope="neuron"' if scope == "neuron" else 'noise="max-per-channel"'
        raise InputError(f"{asked} needs the diagonal: pass hessian_diagonal(model, data)")
    graph = graph_of(model, measured, "minimum_sharpness")
    module, fixed = unwrapped(model), [name for name in graph.parameters if name not in measured.exact]
    symmetries = tried_group(graph, module, scope, fixed)
    if noise != "absolute":
        return _minimise_under(noise, treated, symmetries, measured, parameters_of(module))
    return _minimise_over(symmetries, measured, scope, power_of_two, treated)


def graph_of(model: nn.Module | Network, measured: Curvature | Grams, function: str) -> Graph:
    """The network that results are of; the function is named where they are of another."""
    graph = model.graph if isinstance(model, Network) else measured.graph
    if graph is None or not _fits(graph, unwrapped(model), measured):
        raise InputError(
            f"these results are not of this network, or do not say of which: {list(measured.exact)}. Pass the network "
            f"that was measured: {function}(minsharp.read(model, example), results)"
        )
    return graph


def _fits(graph: Graph, module: nn.Module, measured: Curvature | Grams) -> bool:
    """Whether what was measured has the names and shapes of the graph's parameters, and these those of the module's."""
    own = {name: tuple(p.shape) for name, p in parameters_of(module).items()}
    read = {name: graph.values[name].shape for name in graph.parameters}
    if not read.items() <= own.items() or not set(measured.exact) <= set(read):
        return False
    blocks = held(measured.sum, "sums").items() if isinstance(measured, Diagonal) else ()
    return all(tuple(block.shape) == read[name] for name, block in blocks)


def _minimise_under(
    noise: Noise, biases: Biases, symmetries: Symmetries, measured: Curvature, weights: Mapping[str, Tensor]
) -> MinimumSharpness:
    """The least effect of noise that grows with the weights; factors per layer change nothing of it."""
    blocks = curvatures(measured, "neuron" if isinstance(measured, Diagonal) else "layer")
    finite({name: weights[name].detach() for name in blocks})
    before = rescaled_parts(blocks, weights, symmetries, torch.zeros(symmetries.dimension), noise, biases)
    least = least_noise(blocks, weights, symmetries, noise, biases)
    status = nothing_to_do(symmetries, before, any(bool(block.any()) for block in blocks.values())) or (
        Status.SAME_FOR_LAYERS.told() if symmetries.scope == "layer" else None
    )
    value, bound = (finite_exp(log) + least.fixed for log in (least.log_value, least.log_bound))
    return _result(
        symmetries,
        measured,
        value=value,
        lower_bound=min(bound, value),
        status=status or status_of(least.vanishing, least.log_value, least.log_bound, least.fixed),
        attained=not least.vanishing,
        by_parameter=least.after,
        before=before,
        z=least.z,
        noise=noise,
        biases=biases,
        standard_error=measured.error_of(_moves(blocks, least.after)),
    )


def _moves(blocks: Mapping[str, Tensor], after: Mapping[str, float]) -> dict[str, float]:
    """How fast each parameter's part of the minimum moves with its trace."""
    traces = {name: float(block.sum()) for name, block in blocks.items()}
    return {name: part / traces[name] for name, part in after.items() if traces[name]}


def _result(symmetries: Symmetries, measured: Curvature, **found: Any) -> MinimumSharpness:
    """What was found, with what is known of the measurement."""
    return MinimumSharpness(
        trace=sum(found["before"].values()),
        scope=symmetries.scope,
        pinned={name: why for name, why in symmetries.pinned.items() if name in found["before"]},
        curvature=measured.kind,
        loss=measured.loss,
        samples=measured.samples,
        exact=measured.exact,
        symmetries=symmetries,
        energy=measured.energy,
        **found,
    )


def _minimise_over(
    symmetries: Symmetries, measured: Curvature, scope: Scope, power_of_two: bool, biases: Biases
) -> MinimumSharpness:
    """The minimum over a group, from curvature that has been measured."""
    import numpy as np

    from ..solve.geometric import minimise

    blocks = {
        name: block if is_noisy(len(symmetries.shapes[name]), biases) else torch.zeros_like(block)
        for name, block in curvatures(measured, scope).items()
    }
    parts = program(blocks, symmetries)
    solution = minimise(parts.log_c, parts.A)
    before = {name: float(block.sum()) for name, block in blocks.items()}
    vanishing = [name for i, name in enumerate(blocks) if solution.vanishing[parts.owner == i].any()]
    z, fixed = np.asarray(solution.z, dtype=np.float64), float(parts.fixed.sum())
    value, bound = (finite_exp(log) + fixed for log in (solution.log_value, solution.log_bound))
    if power_of_two:
        z, after = least_powers(parts, z, list(before.values()))
        value = sum(after)
        status = status_of_powers(value, bound, bool(z.any()))
    else:
        after = traces_at(parts, z)
        status = status_of(vanishing, solution.log_value, solution.log_bound, fixed)
    return _result(
        symmetries,
        measured,
        value=value,
        lower_bound=min(bound, value),
        status=nothing_to_do(symmetries, before) or status,
        attained=power_of_two or solution.attained,
        by_parameter=dict(zip(blocks, after, strict=True)),
        before=before,
        z=torch.from_numpy(z),
        power_of_two=power_of_two,
        biases=biases,
        standard_error=measured.error_of(dict(zip(blocks, shares_left(parts, z), strict=True))),
    )


@plain_mode()
def flattest(
    model: nn.Module | Network,
    data: Data | Curvature | Grams,
    loss: Criterion | None = None,
    *,
    scope: Scope = "neuron",
    power_of_two: bool = False,
    noise: Noise = "absolute",
    biases: Biases | None = None,
    curvature: MatrixName = "hessian",
    parameters: Pattern = None,
    outputs: Pick = None,
    class_axis: int | None = None,
    tolerance: float = 0.0,
    seed: int = 0,
    memory: int | None = None,
    progress: bool = False,
) -> nn.Module:
    """The flattest network that computes the same function: a copy whose trace is the minimum sharpness.

    It is the network that `minimum_sharpness` of the same arguments speaks of. To second order it bears one noise best
    of all, the ``noise`` that is named, and others perhaps worse than the original: for quantizers say "max" or
    "max-per-channel". With ``power_of_two=True`` all factors are powers of two: the outputs are the same bit for bit.

    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> x = torch.randn(16, 4)
    >>> flat = flattest(model, x, power_of_two=True)
    >>> torch.equal(model(x), flat(x))
    True
    >>> hessian_trace(flat, x).total < hessian_trace(model, x).total
    True
    """
    result = minimum_sharpness(
        model,
        data,
        loss,
        scope=scope,
        power_of_two=power_of_two,
        noise=noise,
        biases=biases,
        curvature=curvature,
        parameters=parameters,
        outputs=outputs,
        class_axis=class_axis,
        tolerance=tolerance,
        seed=seed,
        memory=memory,
        progress=progress,
    )
    return rescale(model, result.scales, exact=power_of_two)
