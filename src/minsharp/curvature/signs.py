"""Random signs for a parameter, each sample its own, as the change that they make to the operation's result.

Where an operation is linear in a parameter P, and nothing else uses P, a change V of it adds A V to the result z, A
made of what else goes in. So the block of P in the Hessian of any function of z is A^T B A with B the Hessian in z, and
for signs V_i that each sample draws for itself, D_i = A_i V_i,

    E sum_i D_i^T B_i D_i = Tr[A^T B A]        E sum_i V_i * (A_i^T B_i D_i) = DIAG[A^T B A].

B knows nothing of other layers' weights, and neither a bilinear term between two layers nor another sample can be seen
as noise: signs for the parameters themselves would see both.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..graph.records import Samples
from ..rules.contraction import Contraction, Elementwise, Outer, Use, wide


def signs(shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
    """Random signs in the type of a tensor and on its device, the same on every device."""
    drawn = torch.empty(shape, dtype=torch.int8).random_(0, 2, generator=generator)
    return drawn.mul_(2).sub_(1).to(like)


class Drawn(NamedTuple):
    """One draw: the change D of the result, (*output), and what takes B D back to V*(A^T B D), (*parameter)."""

    change: Tensor
    entries: Callable[[Tensor], Tensor]


class Place(ABC):
    """Where a parameter goes in; ``shift`` is a zero that has been added to the result there."""

    def __init__(self, parameter: str, use: Use, shift: Tensor):
        self.parameter, self.use, self.shift = parameter, use, shift

    @abstractmethod
    def draw(self, generator: torch.Generator) -> Drawn:
        """Signs for each sample."""

    def by_sample(self, product: Tensor) -> Tensor:
        """A tensor shaped like the result, summed over each sample: (n,)."""
        layout = self.use.layouts[0]
        assert isinstance(layout, Samples)
        return layout.split(wide(product), self.use.n).flatten(1).double().sum(1)


class EntryPlace(Place):
    """Any rule whose gradient is linear in the cotangents: a sign for each entry and sample."""

    def __init__(self, parameter: str, use: Use, shift: Tensor, contraction: Contraction):
        super().__init__(parameter, use, shift)
        self.contraction = contraction

    def draw(self, generator: torch.Generator) -> Drawn:
        """V (n, *parameter)."""
        V = signs((self.use.n, *self.use.shape), self.shift, generator)
        D = _adjoint(lambda G: self.contraction.gradient(self.use, G), self.shift, V.unsqueeze(1))
        return Drawn(D, lambda y: (wide(V) * self.contraction.gradient(self.use, y.unsqueeze(0)).squeeze(1)).sum(0))


class OuterPlace(Place):
    """Weights that multiply U (n, g, J, L): V U has the covariance U^T U over the positions, whatever made it.

    So with U = Q F, F (n, g, k, L) and k the smaller of J and L, signs (n, g, C, k) times F do: as many as the result
    has entries, not the weight. With one position, as in a plain linear layer, B alone is probed, times ||u||².
    """

    def __init__(self, parameter: str, use: Use, shift: Tensor, rule: Outer):
        super().__init__(parameter, use, shift)
        self.rule = rule
        self.U = rule.inputs(use)
        few = self.U.shape[3] < self.U.shape[2]
        self.Q, self.F = torch.linalg.qr(self.U) if few else (None, self.U)

    def draw(self, generator: torch.Generator) -> Drawn:
        """V = S Q^T, (n, g, C, J)."""
        n, g, k, _ = self.F.shape
        C = self.rule.cotangents(self.use, self.shift.unsqueeze(0)).shape[3]
        S = signs((n, g, C, k), self.F, generator)
        D = _adjoint(lambda G: self.rule.cotangents(self.use, G), self.shift, (S @ self.F).unsqueeze(1))

        def entries(y: Tensor) -> Tensor:
            back = self.rule.cotangents(self.use, y.unsqueeze(0)).squeeze(1) @ self.U.mT  # (n, g, C, J)
            V = S if self.Q is None else S @ self.Q.mT
            return self.rule.restore((V * back).sum(0), self.use)

        return Drawn(D, entries)


def place_of(parameter: str, use: Use, shift: Tensor, contraction: Contraction) -> Place:
    """How a parameter is probed where a rule for it `fits_signs`."""
    if isinstance(contraction, Outer):
        return OuterPlace(parameter, use, shift, contraction)
    return EntryPlace(parameter, use, shift, contraction)


def takes_signs(contraction: Contraction) -> bool:
    """Whether a rule is plain enough: its gradient is made of products and sums of the cotangents."""
    return isinstance(contraction, Outer | Elementwise)


def _adjoint(linear: Callable[[Tensor], Tensor], like: Tensor, cotangent: Tensor) -> Tensor:
    """A linear map of stacked cotangents (1, *output), the other way: to (*output)."""
    with torch.enable_grad():
        G = torch.zeros_like(like).unsqueeze(0).requires_grad_()
        made = linear(G)
    (D,) = torch.autograd.grad(made, G, cotangent.to(made.dtype))
    return D.squeeze(0)
