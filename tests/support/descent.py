"""The trace over the whole group from dense gradients, and its minimum by plain descent."""

from typing import Any

import torch
from torch import Tensor

from minsharp.measures.full import FullMinimumSharpness
from minsharp.network.symmetry import FullSymmetries


class Dense:
    """The trace of the network that scales and matrices make, from dense gradients: each g becomes A^-T g, or A g."""

    def __init__(self, found: FullMinimumSharpness, gradients: dict[str, Tensor]):
        group = found.symmetries
        assert isinstance(group, FullSymmetries)
        self.group, self.rest, self.blocks = group, dict[str, Tensor](), list[tuple[str, int, bool, Tensor]]()
        for name, g in gradients.items():
            flat, place = g.flatten(2), torch.arange(g[0, 0].numel()).view(g.shape[2:])
            left = torch.ones(flat.shape[2], dtype=torch.bool)
            for f, frame in enumerate(group.frames):
                for member in (m for m in frame.members if m.parameter == name):
                    index = member.read(place)
                    left[index.flatten()] = False
                    M = torch.einsum("nrhm,nrkm->hk", flat[:, :, index], flat[:, :, index])
                    self.blocks.append((name, f, member.inverse, M))
            self.rest[name] = flat[:, :, left].square().sum()

    def trace(self, z: Tensor, matrices: list[Tensor]) -> Tensor:
        nodes = self.group.nodes
        logs = torch.zeros(nodes.count, dtype=torch.float64).index_add(
            0, nodes.form, nodes.coefficient * z[nodes.number]
        )
        factors = {n: (-2 * (logs[e.plus] - logs[e.minus])).exp() for n, e in self.group.exponents.items()}
        inverses = [torch.linalg.inv(A).mT for A in matrices]
        total = torch.stack([value * factors[name] for name, value in self.rest.items()]).sum()
        for name, f, inverse, M in self.blocks:
            acting = matrices[f] if inverse else inverses[f]
            total = total + ((acting @ M) * acting).sum() * factors[name]
        return total


def descended(dense: Dense, seed: int) -> float:
    """Plain descent on scales and matrices, from a random start."""
    torch.manual_seed(seed)
    group = dense.group
    z = (0.2 * torch.randn(group.layer.dimension, dtype=torch.float64)).requires_grad_()
    As = [(torch.eye(f.size) + 0.2 * torch.randn(f.size, f.size)).double().requires_grad_() for f in group.frames]
    options: dict[str, Any] = {"max_iter": 400, "tolerance_grad": 1e-12, "tolerance_change": 1e-15, "history_size": 40}
    optimiser = torch.optim.LBFGS([z, *As], line_search_fn="strong_wolfe", **options)

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = dense.trace(z, As).log()
        value.backward()
        return value

    for _ in range(8):  # LBFGS stops early where the bottom is flat
        before = float(closure().detach())
        optimiser.step(closure)
        if before - float(closure().detach()) < 1e-12:
            break
    return float(dense.trace(z, As).detach())
