"""The exact trace and diagonal of the Hessian."""

from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from ..errors import InputError, NotExactError, WeightlessError
from ..graph.records import Operation
from ..losses import Centred, Criterion, Loss, Margin, as_loss
from ..losses.axis import on_axis
from ..losses.next_token import warn_unshifted
from ..network.network import Network
from ..network.reader import read
from ..progress import bar
from ..results.curvature import LOSSLESS, MATRICES, Diagonal, MatrixName, Trace
from ..results.reduce import shared, together
from ..subject.batches import Batch, Data, batches, count, first_of
from ..subject.inputs import tensors_of
from ..subject.model import Pattern, counted
from ..subject.modes import plain_mode, seeded
from ..subject.outputs import Pick
from .activations import activations
from .engine import Engine
from .estimate import Estimator
from .outputs import Margins, lacks_floor, margins_of, with_floor
from .quantities import DIAGONAL, TRACE, Measured, Quantity, Result
from .smooth import Rest, probed
from .tolerance import checked_tolerance

Of = Literal["parameters", "activations"]
_ALL, _SOME = 10, 3
"""An error names up to ten parameters; of more, three of each kind."""


def hessian_trace(
    model: nn.Module | Network,
    data: Data,
    loss: Criterion | None = None,
    *,
    parameters: Pattern = None,
    curvature: MatrixName = "hessian",
    of: Of = "parameters",
    outputs: Pick = None,
    class_axis: int | None = None,
    tolerance: float = 0.0,
    seed: int = 0,
    memory: int | None = None,
    progress: bool = False,
    process_group: Any = None,
) -> Trace:
    """Tr[H_P] for each parameter P: exact, label-free for cross-entropy, in K - 1 backward passes.

    For outputs o that are piecewise linear in P, H_P = 1/n sum_i J_i^T S_i S_i^T J_i with J = do/dP and
    S S^T = d²loss/do², so Tr[H_P] = 1/n sum_i ||S_i^T J_i||_F^2 (Proposition 1 of arXiv 2106.12612, with its norms
    squared). Where o is not piecewise linear in a measured parameter, ``curvature="hessian"`` refuses, naming the
    operation, unless a ``tolerance`` is given: then what the Gauss-Newton matrix leaves out is probed, and the result
    is an estimate of the Hessian with an error bar, for which targets are needed. ``curvature="ggn"`` returns the trace
    of the Gauss-Newton matrix for any network, and ``curvature="jacobian"`` uses no loss at all: E ||dc/dP||_F^2 of the
    centred outputs c = o - mean(o). Nor does ``curvature="margin"``: E ||dm/dP||_F^2 / m^2 of the margin m between the
    two largest outputs, in one backward pass for any number of classes; ``loss=minsharp.losses.Margin(floor=...)`` sets
    the floor under small margins.

    Args:
        model: a module, or a network that `read` returned. Measured in eval mode; left as it was.
        data: a tensor of inputs, a pair (inputs, targets), or an iterable of either. Several inputs go in a tuple
            or a dict. Targets are optional where the Hessian of the loss does not depend on them.
        loss: a torch criterion, or a `minsharp.losses.Loss`; cross-entropy unless given. The result is the Hessian of
            that very criterion over all the data, ``reduction`` included.
        parameters: a glob pattern, or several: measure only the parameters whose names match. Without it, every
            parameter that forward uses and that requires a gradient.
        curvature: "hessian", "ggn", "jacobian" or "margin".
        of: "parameters", or "activations": then the curvature is that with respect to the inputs of each layer, by the
            layer's name, and ``parameters`` picks among those names.
        outputs: which of what the model returns is measured: a name, an index, or a function that picks it. Without it,
            the tensor that it returns, or its ``logits``.
        class_axis: the axis of the outputs that runs over the classes, where the shape of the targets does not tell: -1
            for language models, (n, positions, classes).
        tolerance: the relative standard error of the total that will do; zero, unless given: exact. Above zero, columns
            are mixed with random signs, drawn for each sample by itself, in no more backward passes than it takes, and
            the result carries its ``standard_error``, in total and for each parameter.
        seed: of those signs.
        memory: working memory in bytes; decides how many samples are taken at a time. Chosen for speed if not given.
        progress: show a progress bar.
        process_group: processes that measure together (torch.distributed): each passes its own part of the data, as
            `shard` makes it, and each returns the result for all of it.

    One layer with zero weights has p = 1/K everywhere, so Tr[H_W] = (1 - 1/K) ||x||^2 for a single sample:

    >>> import torch
    >>> model = torch.nn.Linear(3, 4, bias=False)
    >>> _ = torch.nn.init.zeros_(model.weight)
    >>> round(hessian_trace(model, torch.tensor([[1.0, 2.0, 2.0]])).total, 4)
    6.75
    """
    chosen = Choice(parameters, curvature, of, outputs, class_axis, tolerance, seed, memory, progress)
    return measured_together(TRACE, model, data, loss, chosen, process_group)


def hessian_diagonal(
    model: nn.Module | Network,
    data: Data,
    loss: Criterion | None = None,
    *,
    parameters: Pattern = None,
    curvature: MatrixName = "hessian",
    of: Of = "parameters",
    outputs: Pick = None,
    class_axis: int | None = None,
    tolerance: float = 0.0,
    seed: int = 0,
    memory: int | None = None,
    progress: bool = False,
    process_group: Any = None,
) -> Diagonal:
    """DIAG[H_P] for each parameter P, in float64: as `hessian_trace`, with squares summed entry by entry.

    >>> import torch
    >>> model = torch.nn.Linear(3, 4, bias=False)
    >>> _ = torch.nn.init.zeros_(model.weight)
    >>> hessian_diagonal(model, torch.tensor([[1.0, 2.0, 0.0]])).by_parameter["weight"][0]
    tensor([0.1875, 0.7500, 0.0000], dtype=torch.float64)
    """
    chosen = Choice(parameters, curvature, of, outputs, class_axis, tolerance, seed, memory, progress)
    return measured_together(DIAGONAL, model, data, loss, chosen, process_group)


@dataclass(frozen=True)
class Choice:
    """What a caller asks for beside model, data and loss, as far as it can be checked without them."""

    parameters: Pattern
    curvature: MatrixName
    of: Of
    outputs: Pick
    class_axis: int | None
    tolerance: float
    seed: int
    memory: int | None
    progress: bool

    def check(self) -> None:
        """Refuse what nothing can be measured with."""
        if self.curvature not in MATRICES:
            raise InputError(f"curvature={self.curvature!r}: expected one of {', '.join(map(repr, MATRICES))}")
        if self.of not in ("parameters", "activations"):
            raise InputError(f"of={self.of!r}: expected 'parameters' or 'activations'")
        if self.memory is not None and (not isinstance(self.memory, int) or self.memory <= 0):
            raise InputError(f"memory={self.memory!r}: expected a number of bytes, as in memory=2**30")
        checked_tolerance(self.tolerance)
        seeded(self.seed)


def measured_together(
    quantity: Quantity[Result],
    model: nn.Module | Network,
    data: Data,
    criterion: Criterion | None,
    chosen: Choice,
    group: Any,
) -> Result:
    """What a quantity comes to over the data of all processes of a group; without one, of this process."""
    if group is not None and chosen.curvature == "margin" and lacks_floor(_loss(criterion, "margin")):
        criterion = _on_one_floor(model, data, chosen, group)
    return together(lambda: measured_over(quantity, model, data, criterion, chosen), group, model, data)


def _on_one_floor(model: nn.Module | Network, data: Data, chosen: Choice, group: Any) -> Margin:
    """The margin whose floor is that of all the data: each process has a part of it."""

    @plain_mode()
    def found() -> Margins:
        first, _ = first_of(batches(data))
        network = read(model, first.inputs, outputs=chosen.outputs, class_axis=chosen.class_axis)
        return margins_of(_on_axis(Margin(), network, first), network, data)

    def joined(mine: Margins | None, heard: Margins | None) -> Margins | None:
        if mine is None or heard is None:
            return heard if mine is None else mine
        return Margins(mine.squares + heard.squares, mine.numbers + heard.numbers)

    _, total, nothing = shared(found, joined, group, model, data)
    if total is None and nothing is not None:
        raise nothing
    floored: Margin = total.floored()
    return floored


def _on_axis(loss: Loss, network: Network, first: Batch) -> Loss:
    """A loss with its classes where the network has them."""
    return on_axis(loss, network.graph.values[network.graph.output].shape, first.targets, network.class_axis)


@plain_mode()
def measured_over(
    quantity: Quantity[Result], model: nn.Module | Network, data: Data, criterion: Criterion | None, chosen: Choice
) -> Result:
    """What a quantity comes to over all the data."""
    chosen.check()
    tolerance = checked_tolerance(chosen.tolerance)
    loss = _loss(criterion, chosen.curvature)
    first, stream = first_of(batches(data))
    if criterion is None and chosen.curvature in ("hessian", "ggn"):
        warn_unshifted(tensors_of(first.inputs), first.targets)
    network = read(model, first.inputs, outputs=chosen.outputs, class_axis=chosen.class_axis)
    loss, stream = with_floor(_on_axis(loss, network, first), network, data, stream)
    weights = network.digests()
    if chosen.of == "activations":
        network = activations(network)
    names = counted(network.parameters, chosen.parameters)
    quantity = quantity.prepared(network, names)
    known = network.exactness
    bent = chosen.curvature == "hessian" and not all(known[name] for name in names)
    if bent and not tolerance:
        _refuse_inexact(network, names, estimable=probed(quantity))
    rest = Rest(network, names, loss, quantity, chosen.seed) if bent else None
    size = count(data) if chosen.progress or tolerance else None
    with bar("samples", size, chosen.progress) as advance:
        if tolerance:
            estimator = Estimator(network, names, loss, quantity, tolerance, chosen.seed, chosen.memory, rest)
            total = estimator.run(stream, size, advance)
        else:
            total = Engine(network, names, loss, quantity, chosen.memory).run(stream, advance)
    exact = {name: chosen.curvature in LOSSLESS or bool(known[name]) for name in names}
    facts = Measured(total, chosen.curvature, loss.name, loss.mean, exact, network.graph, weights)
    return _weighed(quantity.result(facts), facts)


def _weighed(result: Result, facts: Measured) -> Result:
    """A result over data that weighs something; otherwise an error that carries it, for those who add results up."""
    if not facts.sum.weight:
        error = WeightlessError(
            f"{facts.loss} over this data weighs nothing: every target is ignored, or has weight zero"
        )
        error.result = result
        raise error
    return result


def _loss(criterion: Criterion | None, curvature: MatrixName) -> Loss:
    """The loss that a curvature is of: the criterion's, or one made of the outputs alone."""
    if curvature == "margin":
        return criterion if isinstance(criterion, Margin) else Margin()
    return Centred() if curvature == "jacobian" else as_loss(criterion)


def _refuse_inexact(network: Network, names: list[str], *, estimable: bool) -> None:
    known = network.exactness
    bad = [name for name in names if not known[name]]
    if not bad:
        return
    good = [name for name in names if known[name]]
    also = f", or narrow to the exact ones: parameters={good[:_ALL]}{_rest(good, _ALL)}" if good else ""
    raise NotExactError(
        "the outputs are not piecewise linear in these parameters, so their Hessian is not the Gauss-Newton "
        "matrix; to blame:\n"
        + ";\n".join(_blamed(network, bad))
        + ".\nAsk "
        + (
            "for an estimate with an error bar: tolerance=0.01 (what is left out is probed; needs targets), "
            * estimable
        )
        + f'for the Gauss-Newton trace: curvature="ggn"{also}'
    )


def _blamed(network: Network, names: list[str]) -> list[str]:
    """A line for each kind of operation that some parameters pass first: where it comes, and which they are."""
    kinds: dict[str, dict[str, str]] = {}
    for name in names:
        blame: Operation = network.exactness[name].blame  # type: ignore[assignment]
        kinds.setdefault(blame.name, {})[name] = blame.where
    lines = [(list(found), list(dict.fromkeys(found.values()))) for found in kinds.values()]
    shown = _ALL if len(names) <= _ALL else _SOME
    return [f"  {places[0]}{_rest(places, 1)}: {', '.join(p[:shown])}{_rest(p, shown)}" for p, places in lines]


def _rest(things: list[str], shown: int) -> str:
    """How many more there are than are shown."""
    return f" and {len(things) - shown} more" if len(things) > shown else ""
