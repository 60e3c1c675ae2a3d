"""The exact trace and diagonal of the Hessian."""

from torch import nn

from ..errors import InputError, LossError, NotExactError
from ..losses import Centred, Criterion, as_loss
from ..losses.axis import on_axis
from ..network.network import Network
from ..network.reader import read
from ..progress import bar
from ..results.curvature import MATRICES, Diagonal, MatrixName, Trace
from ..subject.batches import Data, batches, count, first_of
from ..subject.model import Pattern, counted
from ..subject.modes import plain_mode
from ..subject.outputs import Pick
from .engine import Engine
from .quantities import DIAGONAL, TRACE, Measured, Quantity, Result


def hessian_trace(
    model: nn.Module | Network,
    data: Data,
    loss: Criterion | None = None,
    *,
    parameters: Pattern = None,
    curvature: MatrixName = "hessian",
    outputs: Pick = None,
    class_axis: int | None = None,
    memory: int | None = None,
    progress: bool = False,
) -> Trace:
    """Tr[H_P] for each parameter P: exact, label-free for cross-entropy, in K - 1 backward passes.

    For outputs o that are piecewise linear in P, H_P = 1/n sum_i J_i^T S_i S_i^T J_i with J = do/dP and
    S S^T = d²loss/do², so Tr[H_P] = 1/n sum_i ||S_i^T J_i||_F^2 (Proposition 1 of arXiv 2106.12612, with its norms
    squared). Where o is not piecewise linear in a measured parameter, ``curvature="hessian"`` refuses, naming the
    operation; ``curvature="ggn"`` returns the trace of the Gauss-Newton matrix for any network, and
    ``curvature="jacobian"`` uses no loss at all: E ||dc/dP||_F^2 of the centred outputs c = o - mean(o).

    Args:
        model: a module, or a network that `read` returned. Measured in eval mode; left as it was.
        data: a tensor of inputs, a pair (inputs, targets), or an iterable of either. Several inputs go in a tuple
            or a dict. Targets are optional where the Hessian of the loss does not depend on them.
        loss: a torch criterion, or a `minsharp.losses.Loss`; cross-entropy unless given. The result is the Hessian of
            that very criterion over all the data, ``reduction`` included.
        parameters: a glob pattern, or several: measure only the parameters whose names match. Without it, every
            parameter that forward uses and that requires a gradient.
        curvature: "hessian", "ggn" or "jacobian".
        outputs: which of what the model returns is measured: a name, an index, or a function that picks it. Without it,
            the tensor that it returns, or its ``logits``.
        class_axis: the axis of the outputs that runs over the classes, where the shape of the targets does not tell: -1
            for language models, (n, positions, classes).
        memory: working memory in bytes; decides how many samples are taken at a time. Chosen for speed if not given.
        progress: show a progress bar.

    One layer with zero weights has p = 1/K everywhere, so Tr[H_W] = (1 - 1/K) ||x||^2 for a single sample:

    >>> import torch
    >>> model = torch.nn.Linear(3, 4, bias=False)
    >>> _ = torch.nn.init.zeros_(model.weight)
    >>> round(hessian_trace(model, torch.tensor([[1.0, 2.0, 2.0]])).total, 4)
    6.75
    """
    return _measure(TRACE, model, data, loss, parameters, curvature, outputs, class_axis, memory, progress)


def hessian_diagonal(
    model: nn.Module | Network,
    data: Data,
    loss: Criterion | None = None,
    *,
    parameters: Pattern = None,
    curvature: MatrixName = "hessian",
    outputs: Pick = None,
    class_axis: int | None = None,
    memory: int | None = None,
    progress: bool = False,
) -> Diagonal:
    """DIAG[H_P] for each parameter P, in float64: as `hessian_trace`, with squares summed entry by entry.

    >>> import torch
    >>> model = torch.nn.Linear(3, 4, bias=False)
    >>> _ = torch.nn.init.zeros_(model.weight)
    >>> hessian_diagonal(model, torch.tensor([[1.0, 2.0, 0.0]])).by_parameter["weight"][0]
    tensor([0.1875, 0.7500, 0.0000], dtype=torch.float64)
    """
    return _measure(DIAGONAL, model, data, loss, parameters, curvature, outputs, class_axis, memory, progress)


@plain_mode()
def _measure(
    quantity: Quantity[Result],
    model: nn.Module | Network,
    data: Data,
    criterion: Criterion | None,
    parameters: Pattern,
    curvature: MatrixName,
    outputs: Pick,
    class_axis: int | None,
    memory: int | None,
    progress: bool,
) -> Result:
    if curvature not in MATRICES:
        raise InputError(f"curvature={curvature!r}: expected one of {', '.join(map(repr, MATRICES))}")
    if memory is not None and (not isinstance(memory, int) or memory <= 0):
        raise InputError(f"memory={memory!r}: expected a number of bytes, as in memory=2**30")
    loss = Centred() if curvature == "jacobian" else as_loss(criterion)
    first, stream = first_of(batches(data))
    network = read(model, first.inputs, outputs=outputs, class_axis=class_axis)
    shape = network.graph.values[network.graph.output].shape
    loss = on_axis(loss, shape, first.targets, network.class_axis)
    names = counted(network.parameters, parameters)
    if curvature == "hessian":
        _refuse_inexact(network, names)
    quantity = quantity.prepared(network, names)
    engine = Engine(network, names, loss, quantity, memory)
    with bar("samples", count(data) if progress else None, progress) as advance:
        total = engine.run(stream, advance)
    known = network.exactness
    exact = {name: curvature == "jacobian" or bool(known[name]) for name in names}
    if not total.weight:
        raise LossError(f"{loss.name} over this data weighs nothing: every target is ignored, or has weight zero")
    return quantity.result(Measured(total, curvature, loss.name, loss.mean, exact, network.graph))


def _refuse_inexact(network: Network, names: list[str]) -> None:
    known = network.exactness
    bad = [name for name in names if not known[name]]
    if not bad:
        return
    lines = [f"  {name}: {known[name].blame.where}" for name in bad[:10]]  # type: ignore[union-attr]
    lines += [f"  and {len(bad) - 10} more"] if len(bad) > 10 else []
    good = [name for name in names if known[name]]
    also = f", or narrow to the exact ones: parameters={good}" if good else ""
    raise NotExactError(
        "the outputs are not piecewise linear in these parameters, so their Hessian is not the Gauss-Newton "
        "matrix; to blame:\n" + "\n".join(lines) + f'\nAsk for the Gauss-Newton trace: curvature="ggn"{also}'
    )
