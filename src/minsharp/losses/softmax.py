"""The factor of the softmax's Hessian at the logits."""

import torch
from torch import Tensor

from .columns import Columns


def softmax_columns(p: Tensor, coefficient: Tensor | None, outputs: Tensor) -> Columns:
    """The triangular factor of diag(p) - pp^T in closed form, for probabilities p (n, positions, K).

    With s_j = the sum of p_i over i <= j and f_j = sqrt(p_j / (s_j s_{j-1})), column j = 1, ..., K - 1 holds
    L_jj = f_j s_{j-1}, and L_ij = -f_j p_i for i < j. In float64 the sums have no cancellation, and where s_{j-1}
    underflows so does the column.
    """
    n, positions, K = p.shape
    sums = p.cumsum(-1).clamp_min_(torch.finfo(p.dtype).tiny)
    before = sums[..., :-1]
    f = (p[..., 1:] / sums[..., 1:]).div_(before).sqrt_()
    if coefficient is not None:
        f *= coefficient.reshape(n, -1, 1).sqrt()
    corners = (f * before).flatten(1)  # (n, columns)
    factors = f.flatten(1)  # large where the sum is small, and so are the probabilities that it multiplies

    def slice(start: int, stop: int) -> Tensor:
        factor, corner = factors[:, start:stop, None], corners[:, start:stop]
        if positions == 1:
            signs = p.new_full((stop - start, K), -1).tril_(start)  # a product: tril_ of every sample takes longer
            L = (factor * p).mul_(signs).to(outputs.dtype)
            L.diagonal(start + 1, 1, 2).copy_(corner)
            return L.reshape(n, stop - start, *outputs.shape[1:])
        column = torch.arange(start, stop, device=p.device)
        position, j = column // (K - 1), column % (K - 1) + 1
        L = (factor * p[:, position]).neg_().to(outputs.dtype)
        L.masked_fill_(torch.arange(K, device=p.device) >= j.unsqueeze(1), 0)
        L[:, column - start, j] = corner.to(outputs.dtype)
        full = L.new_zeros(n, stop - start, K, positions)
        full[:, column - start, :, position] = L.transpose(0, 1)
        return full.unflatten(3, outputs.shape[2:])

    return Columns((K - 1) * positions, slice)
