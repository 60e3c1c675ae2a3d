"""What the engine sums up for each parameter: its trace, its diagonal, or whatever else gradients tell.

The engine walks the samples and pulls the columns back; a quantity says what becomes of them. It has to say only what
it makes of gradients (`of_gradients`), what nothing at all is (`zero`), and what a measurement returns (`result`).
Where a contraction knows a shorter way than forming the gradients, a quantity that can use it takes it in `contract`. A
sum may have any shape, as long as the sums of two parts of the data add up to the sum of both.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from ..graph.records import Graph
from ..network.network import Network
from ..results.curvature import Diagonal, MatrixName, Trace
from ..results.sums import CurvatureSum
from ..rules.contraction import Contraction, Use, square_sum, squares_of_rows, widest
from ..rules.pullback import differentiating, wide


class Measured(NamedTuple):
    """What a measurement knows at its end."""

    sum: CurvatureSum
    kind: MatrixName
    loss: str
    mean: bool
    exact: Mapping[str, bool]
    graph: Graph
    weights: Mapping[str, str]


class Leaf(NamedTuple):
    """A tensor that meets the samples, and the parameter that it is made of, or is."""

    parameter: str
    made: Tensor
    source: Tensor

    def back(self, sums: Tensor) -> Tensor:
        """From entries in the leaf's arrangement to the parameter's: (*leaf) -> (*parameter)."""
        if self.made is self.source:
            return sums
        (moved,) = torch.autograd.grad(self.made, self.source, sums.to(self.made.dtype), retain_graph=True)
        return moved

    def pull(self, gradients: Tensor) -> Tensor:
        """From gradients of the leaf to gradients of the parameter: (n, R, *leaf) -> (n, R, *parameter)."""
        if self.made is self.source:
            return gradients
        rows = gradients.flatten(0, 1).to(self.made.dtype)
        options = {"retain_graph": True, "allow_unused": True}
        pulled: Tensor | None
        try:
            pulled = torch.autograd.grad(self.made, self.source, rows, is_grads_batched=True, **options)[0]
        except RuntimeError:  # some derivatives take one row at a time, and some operations have none
            with differentiating(f"what is made of '{self.parameter}' before it meets the samples"):
                parts = [torch.autograd.grad(self.made, self.source, row, **options)[0] for row in rows]
            pulled = torch.stack(parts) if parts and parts[0] is not None else None
        if pulled is None:  # the parameter enters without a derivative
            pulled = self.source.new_zeros(len(rows), *self.source.shape)
        return wide(pulled.unflatten(0, gradients.shape[:2]))


class Place(NamedTuple):
    """The one place where a parameter meets the samples, and what the cotangents G (R, *output) there come to.

    All answers are in the arrangement of the parameter, also where the samples meet it rearranged.
    """

    leaf: Leaf
    contraction: Contraction
    use: Use

    def trace(self, G: Tensor) -> Tensor:
        """The squared gradients, summed over everything: ()."""
        return self.contraction.trace(self.use, G)

    def diagonal(self, G: Tensor) -> Tensor:
        """The squared gradients, summed over samples and columns: (*parameter)."""
        return self.leaf.back(self.contraction.diagonal(self.use, G))

    def squares(self, G: Tensor) -> Tensor:
        """The squared gradients of each column of each sample: (n, R)."""
        return self.contraction.squares(self.use, G)

    def gradients(self, G: Tensor) -> Tensor:
        """The gradient of each column of each sample: (n, R, *parameter)."""
        return self.leaf.pull(self.contraction.gradient(self.use, G))


Result = TypeVar("Result")


class Quantity(ABC, Generic[Result]):
    """What is summed over samples and columns for each parameter, and what a measurement of it returns."""

    uses_row_squares = False
    """Whether `contract` has a use for the squared norms of inputs that are plain rows: then they are taken once."""

    def prepared(self, network: Network, parameters: Sequence[str]) -> "Quantity[Result]":
        """The quantity for the parameters of a network that are measured, where it depends on them."""
        return self

    @abstractmethod
    def zero(self, parameter: str, like: Tensor) -> Tensor:
        """The sum for a parameter that no column reached, in float64."""

    @abstractmethod
    def of_gradients(self, parameter: str, gradients: Tensor) -> Tensor:
        """What the gradients of some samples and columns, (n, R, *parameter), add to the sum."""

    def contract(self, place: Place, G: Tensor) -> Tensor:
        """The same from the cotangents where a parameter is used once; they are others' too, not to be written to."""
        return self.of_gradients(place.leaf.parameter, place.gradients(G))

    def of_last_layer(self, D: Tensor, x: Tensor | None) -> Tensor | None:
        """The sum for the weight of a linear layer at the very end, or for its bias (without x), where it is known.

        D, (n, positions, K), is the diagonal of the output Hessian, and x, (n, positions, d), what the weight
        multiplies: the squares of entry (k, j) of the gradients add up to D_k x_j².
        """
        return None

    def of_squares(self, squares: Tensor) -> Tensor | None:
        """The sum from the squared gradients of each sample and column, (n, R), where they are enough."""
        return None

    def add(self, sums: dict[str, Tensor], found: Iterable[tuple[str, Tensor]]) -> None:
        """Add what one sweep finds, parameter by parameter, to the sums so far, in float64."""
        for name, value in found:
            if name in sums:
                sums[name] += value.to(sums[name].device)
            else:
                sums[name] = widest(value).contiguous()

    @abstractmethod
    def result(self, measured: Measured) -> Result:
        """What a measurement returns."""


class TraceSum(Quantity[Trace]):
    """sum_i ||S_i^T J_iP||_F^2, one number for each parameter."""

    uses_row_squares = True

    def zero(self, parameter: str, like: Tensor) -> Tensor:
        """(*parameter) -> (), zero."""
        return widest(like.new_zeros(()))

    def of_gradients(self, parameter: str, gradients: Tensor) -> Tensor:
        """(n, R, *parameter) -> ()."""
        return square_sum(gradients)

    def contract(self, place: Place, G: Tensor) -> Tensor:
        """The order of the entries does not matter."""
        return place.trace(G)

    def of_last_layer(self, D: Tensor, x: Tensor | None) -> Tensor:
        """tr(H) ||x||^2, summed over the positions."""
        traces = D.sum(2)
        return traces.sum() if x is None else torch.dot(traces.flatten(), squares_of_rows(x.flatten(0, 1)).to(traces))

    def of_squares(self, squares: Tensor) -> Tensor:
        """(n, R) -> ()."""
        return squares.sum()

    def result(self, measured: Measured) -> Trace:
        """A number for each parameter."""
        return Trace(*measured)


class DiagonalSum(Quantity[Diagonal]):
    """sum_i sum_k (S_i^T J_iP)_k^2, entry by entry."""

    def zero(self, parameter: str, like: Tensor) -> Tensor:
        """(*parameter) -> (*parameter)."""
        return widest(torch.zeros_like(like))

    def of_gradients(self, parameter: str, gradients: Tensor) -> Tensor:
        """(n, R, *parameter) -> (*parameter)."""
        return gradients.square().sum((0, 1))

    def contract(self, place: Place, G: Tensor) -> Tensor:
        """Without forming the gradients, where the contraction knows how."""
        return place.diagonal(G)

    def of_last_layer(self, D: Tensor, x: Tensor | None) -> Tensor:
        """diag(H) (x²)^T, summed over the positions."""
        return D.sum((0, 1)) if x is None else torch.einsum("npk,npd->kd", D, x.to(D).square())

    def result(self, measured: Measured) -> Diagonal:
        """A tensor for each parameter, of its shape."""
        return Diagonal(*measured)


TRACE = TraceSum()
DIAGONAL = DiagonalSum()
