"""The criterion over all the data as a plain function of the parameters: autograd on the module as it is, in eval mode.

Nothing here reads the network or shares code with the engine.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import isfinite
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..errors import InputError, LossError, MinsharpError, NonFiniteError
from ..losses import Criterion, Loss, as_loss
from ..losses.axis import on_axis
from ..losses.next_token import warn_unshifted
from ..results.curvature import Diagonal
from ..results.sums import CurvatureSum
from ..subject.batches import Batch, Data, batches, first_of
from ..subject.inputs import call_form, describe, tensors_of
from ..subject.model import Model, Pattern, ReadModel, counted, unwrapped
from ..subject.modes import LOCK, eval_mode, plain_mode, random_state_kept, without_fast_path
from ..subject.outputs import picked
from ..subject.usage import used_parameters

Parameters = dict[str, Tensor]
T = TypeVar("T")

_PART = 512  # samples at a time: the graph of their second derivatives has to fit
_COLUMNS = 64  # of the factor of the loss at a time
_KEPT = 2  # graphs that are not built anew for every product


def _parts(batch: Batch) -> Iterator[Batch]:
    """The samples of a batch, not too many at a time."""
    return (batch.part(start, start + _PART) for start in range(0, len(batch), _PART))


def doubled(criterion: Criterion | None) -> Criterion | None:
    """A criterion whose own tensors are in double precision; a function stays as it is."""
    if isinstance(criterion, Loss):
        return criterion.double()
    return copy.deepcopy(criterion).double() if isinstance(criterion, nn.Module) else criterion


class Objective:
    """The criterion over all the data, as a function of some of the model's parameters."""

    @plain_mode()
    def __init__(
        self,
        model: Model,
        data: Data,
        criterion: Criterion | None = None,
        pattern: Pattern = None,
        *,
        need_targets: bool = True,
    ):
        self.model = unwrapped(model)
        self.loss: Loss = as_loss(criterion)
        with LOCK:
            self.device = next((p.device for p in self.model.parameters()), torch.device("cpu"))
        first, stream = first_of(batches(data))
        if criterion is None:
            warn_unshifted(tensors_of(first.inputs), first.targets)
        used = model.parameters if isinstance(model, ReadModel) else self._used(first)
        axis = model.class_axis if isinstance(model, ReadModel) else None
        self.names = counted(used, pattern)
        self.parameters: Parameters = {name: used[name].detach().clone() for name in self.names}
        self.batches = [part.to(self.device) for batch in stream for part in _parts(batch)]
        self.weight, self.samples = 0.0, sum(map(len, self.batches))
        with self.prepared(), torch.no_grad():
            for i, batch in enumerate(self.batches):
                outputs = self._first_outputs(batch)
                if i == 0:
                    self.loss = on_axis(self.loss, tuple(outputs.shape), batch.targets, axis)
                self.loss.check(outputs, batch.targets)
                if batch.targets is None and not need_targets:
                    self.batches[i] = Batch(batch.inputs, self.loss.any_targets(outputs))
                self.weight += self.loss.weight(outputs, batch.targets)
        if not self.weight:
            raise LossError(f"{self.loss.name} over this data weighs nothing: every target is ignored, or has weight 0")
        self.divisor = self.weight if self.loss.mean else 1.0

    def _used(self, batch: Batch) -> Parameters:
        """The parameters that forward uses."""
        args, kwargs = call_form(self.model, batch.part(0, 2).to(self.device).inputs)
        with self.prepared():
            return dict(self._tried(lambda: used_parameters(self.model, args, kwargs), batch))

    def _first_outputs(self, batch: Batch) -> Tensor:
        """The outputs as the model is; refuses what it does not run on."""
        return self._tried(lambda: self.outputs({}, batch), batch)

    def _tried(self, run: Callable[[], T], batch: Batch) -> T:
        """What running the model gives; refuses inputs that it does not run on."""
        try:
            return run()
        except MinsharpError:
            raise
        except Exception as error:
            cause = next(iter(str(error).splitlines()), type(error).__name__)
            kind = type(self.model).__name__
            raise InputError(f"{kind} does not run on {describe(batch.inputs)}: {cause}") from error

    def narrowed(self, names: Sequence[str]) -> "Objective":
        """The same as a function of fewer parameters."""
        result = copy.copy(self)
        result.names = list(names)
        result.parameters = {name: self.parameters[name] for name in names}
        return result

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """The model in eval mode, without fused kernels that lack second derivatives; as it was afterwards.

        Only one thread at a time: the mode and the kernels are the whole process's.
        """
        modes = plain_mode(), eval_mode(self.model), random_state_kept(self.device), without_fast_path()
        with ExitStack() as stack:
            for mode in (*modes, sdpa_kernel(SDPBackend.MATH)):
                stack.enter_context(mode)
            yield

    def outputs(self, parameters: Parameters, batch: Batch) -> Tensor:
        """The outputs with some parameters replaced."""
        args, kwargs = call_form(self.model, batch.inputs)
        return picked(functional_call(self.model, parameters, args, kwargs))

    def gradient(self, parameters: Parameters, batch: Batch, create_graph: bool = False) -> tuple[Tensor, ...]:
        """The gradient of one batch's terms, already divided."""
        return self._value_and_gradient(parameters, batch, create_graph)[1]

    def _value_and_gradient(
        self, parameters: Parameters, batch: Batch, create_graph: bool = False
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        with torch.enable_grad():
            leaves = [p.requires_grad_() for p in parameters.values()]
            total = self.loss.total(self.outputs(parameters, batch), batch.targets) / self.divisor
            found: tuple[Tensor | None, ...] = (None,) * len(leaves)
            if total.requires_grad:  # a derivative leads to it
                found = torch.autograd.grad(total, leaves, create_graph=create_graph, allow_unused=True)
        gradient = tuple(torch.zeros_like(p) if g is None else g for p, g in zip(leaves, found, strict=True))
        return total.detach(), gradient

    def full_gradient(self, parameters: Parameters) -> list[Tensor]:
        """The gradient over all the data."""
        parts = [self.gradient(parameters, batch) for batch in self.batches]
        return [torch.stack(rows).sum(0) for rows in zip(*parts, strict=True)]

    @property
    def vector(self) -> Tensor:
        """The parameters end to end."""
        return torch.cat([p.flatten() for p in self.parameters.values()])

    def at(self, vector: Tensor) -> Parameters:
        """A vector as parameters, each a tensor of its own."""
        parts = vector.split([p.numel() for p in self.parameters.values()])
        return {
            name: part.reshape(p.shape).to(p, copy=True)
            for part, (name, p) in zip(parts, self.parameters.items(), strict=True)
        }

    def value(self, vector: Tensor) -> float:
        """The criterion over all the data, at a vector of parameters."""
        parameters = self.at(vector)
        with torch.no_grad():
            terms = [self.loss.total(self.outputs(parameters, batch), batch.targets) for batch in self.batches]
        return sum(map(float, terms)) / self.divisor

    def value_here(self) -> float:
        """The criterion of the model as it is; refuses one that is not finite."""
        value = self.value(self.vector)
        if not isfinite(value):
            raise NonFiniteError(
                f"{self.loss.name} over this data is {value}: a weight, an input or an activation is not finite"
            )
        return value

    def value_and_slope(self, vector: Tensor) -> tuple[float, Tensor]:
        """The criterion over all the data and its gradient, at a vector of parameters."""
        value, slope = 0.0, torch.zeros_like(vector)
        for batch in self.batches:
            term, gradient = self._value_and_gradient(self.at(vector), batch)
            value += float(term)
            slope += torch.cat([g.flatten() for g in gradient])
        return value, slope

    def hessian_product(self) -> Callable[[Tensor], Tensor]:
        """v -> H v over all the parameters, of the model as it is. Holds on to the graphs of the first few batches."""
        kept = [self._second_graph(batch) for batch in self.batches[:_KEPT]]

        def product(direction: Tensor) -> Tensor:
            parts = list(self.at(direction).values())
            total = torch.zeros_like(direction)
            for i, batch in enumerate(self.batches):
                leaves, gradient = kept[i] if i < _KEPT else self._second_graph(batch)
                pairs = [(g, v) for g, v in zip(gradient, parts, strict=True) if g.requires_grad]
                if pairs:
                    rows, weights = zip(*pairs, strict=True)
                    found = torch.autograd.grad(rows, leaves, weights, retain_graph=i < _KEPT, allow_unused=True)
                    images = (torch.zeros_like(p) if h is None else h for p, h in zip(leaves, found, strict=True))
                    total += torch.cat([image.flatten() for image in images])
            return total

        return product

    def _second_graph(self, batch: Batch) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        """Parameters, and the gradient of one batch as a function of them."""
        current = {name: p.clone() for name, p in self.parameters.items()}
        return list(current.values()), self.gradient(current, batch, create_graph=True)

    def quadratic_forms(self, name: str, directions: Sequence[Tensor]) -> list[float]:
        """v^T H v for directions v inside one parameter, by Hessian-vector products."""
        totals = [0.0] * len(directions)
        with self.prepared():
            for batch in self.batches:
                current = {name: self.parameters[name].clone()}
                (gradient,) = self.gradient(current, batch, create_graph=True)
                for i, v in enumerate(directions) if gradient.requires_grad else ():
                    (product,) = torch.autograd.grad(gradient, current[name], v, retain_graph=True, allow_unused=True)
                    totals[i] += 0.0 if product is None else float((product * v).sum())
        return totals

    def tangent(self, direction: Parameters, batch: Batch) -> tuple[Tensor, Tensor]:
        """The outputs o and J v, by two backward passes: J v is the derivative of u -> <J^T u, v>."""
        outputs, (tangent,) = self.tangents([direction], batch)
        return outputs, tangent

    def tangents(self, directions: Sequence[Parameters], batch: Batch) -> tuple[Tensor, list[Tensor]]:
        """The outputs and J v for several directions in the same parameters."""
        with torch.enable_grad():
            current = {name: self.parameters[name].clone().requires_grad_() for name in directions[0]}
            outputs = self.outputs(current, batch)
            if not outputs.requires_grad:  # no derivative leads to them
                return outputs.detach(), [torch.zeros_like(outputs) for _ in directions]
            u = torch.zeros_like(outputs, requires_grad=True)
            pulled = torch.autograd.grad(outputs, list(current.values()), u, create_graph=True, allow_unused=True)
            tangents = [_derivative(u, pulled, [*direction.values()]) for direction in directions]
        return outputs.detach(), tangents

    def output_form(self, outputs: Tensor, tangent: Tensor, batch: Batch) -> float:
        """||S^T (J v)||^2 of one batch, S S^T the Hessian of its terms at the outputs; a few columns at a time."""
        columns = self.loss.columns(outputs, batch.targets)
        total = 0.0
        for start in range(0, columns.rank, _COLUMNS):
            S = columns.slice(start, min(start + _COLUMNS, columns.rank))
            S = S.reshape(*S.shape[:2], -1)  # (n, columns, outputs)
            total += float(torch.einsum("nro,no->nr", S, tangent.reshape(len(S), -1)).double().square().sum())
        return total

    def result(self, diagonals: list[Tensor]) -> Diagonal:
        """Diagonals as a result; none of them claims to be exact but the baseline's."""
        sums = {n: d.detach().double() * self.divisor for n, d in zip(self.names, diagonals, strict=True)}
        whole = CurvatureSum(sums, self.weight, self.samples)
        return Diagonal(whole, "hessian", self.loss.name, self.loss.mean, dict.fromkeys(self.names, False))


def _derivative(u: Tensor, pulled: Sequence[Tensor | None], direction: list[Tensor]) -> Tensor:
    """Of <pulled, direction> by u."""
    given = zip(pulled, direction, strict=True)
    pairs = [(g, v.detach()) for g, v in given if g is not None and g.requires_grad]
    if not pairs:
        return torch.zeros_like(u)
    rows, weights = zip(*pairs, strict=True)
    (found,) = torch.autograd.grad(rows, u, weights, retain_graph=True, allow_unused=True)
    return torch.zeros_like(u) if found is None else found
