"""The contraction law."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from ..curvature.hessian import hessian_diagonal, hessian_trace
from ..errors import MinsharpError
from .close import close
from .trial import Trial, jacobians


class Case(NamedTuple):
    """One measurement: of n samples, under a loss, in so much memory."""

    quantity: Literal["trace", "diagonal"]
    loss: Literal["squares", "entropy"]
    n: int
    memory: int | None


_FEW = (
    Case("trace", "squares", 5, None),
    Case("trace", "entropy", 2, 1),
    Case("diagonal", "entropy", 5, 1),
    Case("diagonal", "squares", 1, None),
    Case("diagonal", "entropy", 2, None),
)
_ALL = tuple(
    Case(q, l, n, m)
    for q in ("trace", "diagonal")
    for l in ("squares", "entropy")  # noqa: E741
    for n in (1, 2, 5)
    for m in (None, 1)
)


def contraction_law(trial: Trial) -> Iterator[str]:
    """Trace and diagonal of the Gauss-Newton matrix are those of Jacobians taken one sample at a time."""
    inputs = trial.probe.draw(5, 9 + trial.seed)
    values = trial.values()
    tolerance = trial.tolerance if trial.differentiable else 1e-5
    one = [tuple(t[[i, i]] for t in inputs) for i in range(5)]  # with a twin: for one alone forward may be another
    with torch.no_grad():
        outputs = torch.cat([trial.outputs(values, x)[:1] for x in one])
    each = [jacobians(trial, values, x, outputs.shape[1]) for x in one]
    J = {
        name: torch.stack([j[name] for j in each]).reshape(5, outputs.shape[1], -1) for name in values
    }  # (5, K, entries)
    for case in _ALL if trial.wide else _FEW:
        try:
            found = _measured(trial, case, tuple(t[: case.n] for t in inputs))
        except MinsharpError:
            if trial.differentiable:
                raise
            return  # what torch has no derivative for may be refused, in words
        diagonals = {name: _gauss_newton(j[: case.n], outputs[: case.n], case) for name, j in J.items()}
        noise = 1e-20 * max((float(d.abs().sum()) for d in diagonals.values()), default=0.0)
        for name, got in found.items():
            expected = diagonals[name].view_as(values[name])
            expected = expected if case.quantity == "diagonal" else expected.sum()
            if not close(got, expected, tolerance, noise if trial.differentiable else 1e-9):
                yield f"contraction, {case.quantity}: {name} is not that of the oracle for {case}"
                return
        missing = set(values) - set(found)
        if any(float(J[name].abs().sum()) for name in missing):
            yield f"contraction, {case.quantity}: {sorted(missing)} is not measured"


def _measured(trial: Trial, case: Case, inputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
    n = case.n
    loss: nn.Module = nn.MSELoss(reduction="sum") if case.loss == "squares" else nn.CrossEntropyLoss()
    K = trial.network.graph.values[trial.network.graph.output].shape[1]
    targets = torch.zeros(n, K, dtype=torch.float64) if case.loss == "squares" else torch.zeros(n, dtype=torch.int64)
    data = (inputs[0] if len(inputs) == 1 else inputs, targets)
    if case.quantity == "trace":
        trace = hessian_trace(trial.network, data, loss, curvature="ggn", memory=case.memory)
        return {name: torch.tensor(float(v), dtype=torch.float64) for name, v in trace.by_parameter.items()}
    return dict(hessian_diagonal(trial.network, data, loss, curvature="ggn", memory=case.memory).by_parameter)


def _gauss_newton(J: Tensor, outputs: Tensor, case: Case) -> Tensor:
    """The diagonal of sum_i J_i^T H_i J_i: H = 2 for a sum of squares, (diag p - p p^T)/n for the mean entropy."""
    if case.loss == "squares":
        return 2 * J.square().sum((0, 1))
    p = outputs.softmax(1).unsqueeze(2)  # (n, K, 1)
    return ((p * J.square()).sum(1) - (p * J).sum(1).square()).sum(0) / len(J)
