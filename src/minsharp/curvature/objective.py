"""The criterion over all the data as a plain function of the parameters: autograd on the module as it is, in eval mode.

Nothing here reads the network or shares code with the engine.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

from ..network.reader import Network, call_form, eval_mode, random_state_kept
from .engine import CurvatureSum
from .hessian import Pattern, matching
from .losses import Criterion, Loss, as_loss
from .results import Diagonal
from .stream import Batch, Data, batches, first_of

Parameters = dict[str, Tensor]


def _double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.dtype.is_floating_point else tensor


class Objective:
    """The criterion over all the data, as a function of some of the model's parameters."""

    def __init__(
        self,
        model: nn.Module | Network,
        data: Data,
        criterion: Criterion | None = None,
        pattern: Pattern = None,
        *,
        need_targets: bool = True,
    ):
        self.model = model.module if isinstance(model, Network) else model
        self.loss: Loss = as_loss(nn.CrossEntropyLoss() if criterion is None else criterion)
        held = dict(self.model.named_parameters())
        self.names = matching(held, pattern)
        self.parameters = {name: held[name].detach().clone() for name in self.names}
        self.device = next(iter(self.parameters.values())).device
        _, stream = first_of(batches(data))
        self.batches = [batch.to(self.device) for batch in stream]
        self.weight, self.samples = 0.0, sum(map(len, self.batches))
        with self.prepared(), torch.no_grad():
            for i, batch in enumerate(self.batches):
                outputs = self.outputs({}, batch)
                self.loss.check(outputs, batch.targets)
                if batch.targets is None and not need_targets:
                    self.batches[i] = Batch(batch.inputs, self.loss.any_targets(outputs))
                self.weight += self.loss.weight(outputs, batch.targets)
        self.divisor = self.weight if self.loss.mean else 1.0

    def double(self) -> "Objective":
        """The same in double precision."""
        result = copy.copy(self)
        result.model = copy.deepcopy(self.model).double()
        result.parameters = {name: p.double() for name, p in self.parameters.items()}
        result.batches = [
            Batch(*pytree.tree_map_only(Tensor, _double, (batch.inputs, batch.targets))) for batch in self.batches
        ]
        return result

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """The model in eval mode, without fused kernels that lack second derivatives; as it was afterwards."""
        fast = torch.backends.mha.get_fastpath_enabled()
        with eval_mode(self.model), random_state_kept(self.device):
            torch.backends.mha.set_fastpath_enabled(False)
            try:
                yield
            finally:
                torch.backends.mha.set_fastpath_enabled(fast)

    def outputs(self, parameters: Parameters, batch: Batch) -> Tensor:
        """The outputs with some parameters replaced."""
        args, kwargs = call_form(self.model, batch.inputs)
        return functional_call(self.model, parameters, args, kwargs)

    def gradient(self, parameters: Parameters, batch: Batch, create_graph: bool = False) -> tuple[Tensor, ...]:
        """The gradient of one batch's terms, already divided."""
        with torch.enable_grad():
            leaves = [p.requires_grad_() for p in parameters.values()]
            total = self.loss.total(self.outputs(parameters, batch), batch.targets) / self.divisor
            found = torch.autograd.grad(total, leaves, create_graph=create_graph, allow_unused=True)
        return tuple(torch.zeros_like(p) if g is None else g for p, g in zip(leaves, found, strict=True))

    def full_gradient(self, parameters: Parameters) -> list[Tensor]:
        """The gradient over all the data."""
        parts = [self.gradient(parameters, batch) for batch in self.batches]
        return [torch.stack(rows).sum(0) for rows in zip(*parts, strict=True)]

    def quadratic_form(self, name: str, v: Tensor) -> float:
        """v^T H v for a direction v inside one parameter, by Hessian-vector products."""
        total = 0.0
        with self.prepared():
            for batch in self.batches:
                current = {name: self.parameters[name].clone()}
                (gradient,) = self.gradient(current, batch, create_graph=True)
                if gradient.requires_grad:
                    (product,) = torch.autograd.grad(gradient, current[name], v, allow_unused=True)
                    total += 0.0 if product is None else float((product * v).sum())
        return total

    def result(self, diagonals: list[Tensor]) -> Diagonal:
        """Diagonals as a result; none of them claims to be exact but the baseline's."""
        sums = {n: d.detach().double() * self.divisor for n, d in zip(self.names, diagonals, strict=True)}
        whole = CurvatureSum(sums, self.weight, self.samples)
        return Diagonal(whole, "hessian", self.loss.name, self.loss.mean, dict.fromkeys(self.names, False))
