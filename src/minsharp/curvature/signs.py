"""Random signs for a parameter, each sample its own, as the change that they make to the operation's result.

Where an operation is linear in a parameter P, and nothing else uses P, a change V of it adds A V to the result z, A
made of what else goes in. So the block of P in the Hessian of any function of z is A^T B A with B the Hessian in z, and
for signs V_i that each sample draws for itself, D_i = A_i V_i,

    E sum_i D_i^T B_i D_i = Tr[A^T B A]        E sum_i V_i * (A_i^T B_i D_i) = DIAG[A^T B A].

B knows nothing of other layers' weights, and neither a bilinear term between two layers nor another sample can be seen
as noise: signs for the parameters themselves would see both.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import NamedTuple

import torch
from torch import Tensor

from ..rules.contraction import Contraction, Elementwise, Outer, Use, widest
from ..rules.pullback import wide
from ..subject.batches import Batch
from ..subject.inputs import tensors_of


def signs(shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
    """Random signs in the type of a tensor and on its device, the same on every device."""
    drawn = torch.empty(shape, dtype=torch.int8).random_(0, 2, generator=generator)
    return drawn.mul_(2).sub_(1).to(like)


def generator_for(batch: Batch, seed: int, turn: int) -> torch.Generator:
    """The source of the signs of some samples: other samples have others, also under the same seed.

    So results for parts of the data have independent errors, whoever measures them, and may be added up.
    """
    digest = blake2b(f"{seed} {turn}".encode(), digest_size=8)
    for tensor in (tensor for given in batch.given for tensor in tensors_of(given)):
        digest.update(_told(tensor.detach().cpu().contiguous().flatten().view(torch.uint8)))
    return torch.Generator().manual_seed(int.from_bytes(digest.digest()) >> 1)


_WHOLE = 1 << 16  # bytes


def _told(data: Tensor) -> bytes:
    """What tells bytes from others: all of them if they are few, else every so many, and the sum of them all."""
    if len(data) <= _WHOLE:
        return data.numpy().tobytes()
    end = len(data) // 8 * 8
    words = (data[:end] if data.storage_offset() % 8 == 0 else data[:end].clone()).view(torch.int64)
    some = words[:: 8 * len(words) // _WHOLE + 1]
    return b"".join((some.numpy().tobytes(), data[end:].numpy().tobytes(), words.sum().numpy().tobytes()))


class Share(NamedTuple):
    """What belongs to one parameter of a draw: A_i V_i of its own, and what takes B D to V*(A^T B D), (*parameter)."""

    parameter: str
    change: Tensor
    entries: Callable[[Tensor], Tensor]


class Drawn(NamedTuple):
    """One draw: the change D of the result, (*output), and the shares of the parameters that go in."""

    change: Tensor
    shares: list[Share]


class Place(ABC):
    """Where parameters go in, to be probed at the result."""

    def __init__(self, parameter: str, use: Use, like: Tensor):
        self.parameter, self.use, self.like = parameter, use, like

    @property
    def parameters(self) -> list[str]:
        """In the order of the shares."""
        return [self.parameter]

    @abstractmethod
    def draw(self, generator: torch.Generator) -> Drawn:
        """Signs for each sample."""

    def by_sample(self, product: Tensor) -> Tensor:
        """A tensor shaped like the result, summed over each sample: (n,)."""
        layout = self.use.layouts[0]
        assert layout is not None
        return widest(layout.split(product, self.use.n).flatten(1)).sum(1)


class EntryPlace(Place):
    """A parameter with a sign for each entry and sample."""

    def __init__(self, parameter: str, use: Use, like: Tensor, rule: Contraction):
        super().__init__(parameter, use, like)
        self.rule = rule

    def draw(self, generator: torch.Generator) -> Drawn:
        """V (n, *parameter)."""
        V = signs((self.use.n, *self.use.shape), self.like, generator)
        D = _adjoint(lambda G: self.rule.gradient(self.use, G), self.like, V.unsqueeze(1))

        def entries(y: Tensor) -> Tensor:
            return (wide(V) * self.rule.gradient(self.use, y.unsqueeze(0)).squeeze(1)).sum(0)

        return Drawn(D, [Share(self.parameter, D, entries)])


class OuterPlace(Place):
    """Weights that multiply U (n, g, J, L): V U has the covariance U^T U over the positions, whatever made it.

    So with U = Q F, F (n, g, k, L) and k the smaller of J and L, signs S (n, g, C, k) times F do: as many as the result
    has entries, not the weight; V = S Q^T. With one position, as in a plain linear layer, B alone is probed, times
    ||u||². A bias is a weight of an input that is one everywhere, a last row of U: so it adds nothing to the noise.
    """

    def __init__(self, parameter: str, use: Use, like: Tensor, rule: Outer, bias: str | None = None):
        super().__init__(parameter, use, like)
        self.rule, self.bias = rule, bias
        self.U = rule.inputs(use)
        if bias is not None:
            self.U = torch.cat([self.U, torch.ones_like(self.U[:, :, :1])], dim=2)
        self.Q, self.F = _factored(self.U)
        self.C = rule.cotangents(use, like.unsqueeze(0)).shape[3]

    @property
    def parameters(self) -> list[str]:
        """The weight, and the bias if there is one."""
        return [self.parameter] if self.bias is None else [self.parameter, self.bias]

    def draw(self, generator: torch.Generator) -> Drawn:
        """S (n, g, C, k)."""
        n, g, k, _ = self.F.shape
        S = signs((n, g, self.C, k), self.F, generator)
        D = self._result(S @ self.F)
        if self.bias is None:
            return Drawn(D, [Share(self.parameter, D, lambda y: self._weights(S, y))])
        of_bias = self._result((S if self.Q is None else S @ self.Q[:, :, -1:].mT)[..., -1:] @ self.U[:, :, -1:])
        weight = Share(self.parameter, D - of_bias, lambda y: self._weights(S, y))
        return Drawn(D, [weight, Share(self.bias, of_bias, lambda y: self._biases(S, y))])

    def _result(self, arranged: Tensor) -> Tensor:
        """(n, g, C, L) as a change of the result."""
        return _adjoint(lambda G: self.rule.cotangents(self.use, G), self.like, arranged.unsqueeze(1))

    def _products(self, S: Tensor, y: Tensor) -> Tensor:
        """V*(B D U^T), summed over samples: (g, C, J)."""
        back = self.rule.cotangents(self.use, y.unsqueeze(0)).squeeze(1) @ self.U.mT  # (n, g, C, J)
        return ((S if self.Q is None else S @ self.Q.mT) * back).sum(0)

    def _weights(self, S: Tensor, y: Tensor) -> Tensor:
        found = self._products(S, y)
        return self.rule.restore(found if self.bias is None else found[..., :-1], self.use)

    def _biases(self, S: Tensor, y: Tensor) -> Tensor:
        return self._products(S, y)[..., -1].flatten()


Site = tuple[str, Use, Contraction]
"""A parameter, its use, and the rule for it."""


def places(sites: Sequence[Site], like: Tensor) -> list[Place]:
    """How the parameters of one operation are probed, all of whose rules `takes_signs`; ``like`` is its result."""
    weights = [site for site in sites if isinstance(site[2], Outer)]
    others = [site for site in sites if not isinstance(site[2], Outer)]
    if len(weights) == 1 and len(others) == 1 and _is_bias(others[0], weights[0], like):
        parameter, use, rule = weights[0]
        return [OuterPlace(parameter, use, like, rule, others[0][0])]  # type: ignore[arg-type]
    found: list[Place] = [OuterPlace(name, use, like, rule) for name, use, rule in weights]  # type: ignore[arg-type]
    return [*found, *(EntryPlace(name, use, like, rule) for name, use, rule in others)]


def _is_bias(site: Site, weight: Site, like: Tensor) -> bool:
    """Whether a parameter's gradient is that of a weight whose input is one everywhere; tried on numbers."""
    _, use, rule = site
    _, at, outer = weight
    assert isinstance(outer, Outer)
    numbers = torch.arange(1, like.numel() + 1, device=like.device) % 7
    G = (numbers * numbers % 11).to(like).view(1, *like.shape)
    g = outer.cotangents(at, G)  # (n, 1, g, C, L)
    if len(use.shape) != 1 or use.shape[0] != g.shape[2] * g.shape[3] or g.numel() != G.numel():
        return False
    return torch.allclose(rule.gradient(use, G), g.sum(4).flatten(2))


def takes_signs(rule: Contraction) -> bool:
    """Whether a rule is plain enough: its gradient is made of products and sums of the cotangents."""
    return isinstance(rule, Outer | Elementwise)


def _factored(U: Tensor) -> tuple[Tensor | None, Tensor]:
    """U (n, g, J, L) as Q F, with Q orthogonal if there are fewer positions than inputs, and else the identity."""
    if U.shape[3] >= U.shape[2]:
        return None, U
    Q, F = torch.linalg.qr(U.cpu() if U.device.type == "mps" else U)
    return Q.to(U.device), F.to(U.device)


def _adjoint(linear: Callable[[Tensor], Tensor], like: Tensor, cotangent: Tensor) -> Tensor:
    """A linear map of stacked cotangents (1, *output), the other way: to (*output)."""
    with torch.enable_grad():
        G = torch.zeros_like(like).unsqueeze(0).requires_grad_()
        made = linear(G)
    (D,) = torch.autograd.grad(made, G, cotangent.to(made.dtype))
    return D.squeeze(0)
