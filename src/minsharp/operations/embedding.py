"""Rows of a table, looked up by index."""

from math import prod

import torch
from torch import Tensor

from ..graph.records import Operation
from ..rules.apart import all_axes, along
from ..rules.channels import Walk
from ..rules.contraction import Contraction, Use, widest
from ..rules.row import Row


class Embedding(Contraction):
    """Rows looked up by index. A row that is looked up twice in a sample adds up before it is squared."""

    def _rows(self, use: Use, G: Tensor) -> tuple[Tensor, Tensor]:
        """The indices (n, L), and the cotangents (n, R, L, width), zero at the padding index."""
        index = use.per_sample("indices").flatten(1)
        g = use.columns(G).flatten(2, -2)
        padding = use.bound.get("padding_idx", -1)
        if padding is not None and padding >= 0:
            g = g * (index != padding)[:, None, :, None]
        return index, g

    def gradient(self, use: Use, G: Tensor) -> Tensor:
        """Add each cotangent to its row of the table."""
        index, g = self._rows(use, G)
        result = g.new_zeros(*g.shape[:2], *use.shape)
        return result.scatter_add_(2, index[:, None, :, None].expand_as(g), g)

    def trace(self, use: Use, G: Tensor) -> Tensor:
        """Sum the products of the cotangents at every two positions that look up the same row."""
        index, g = self._rows(use, G)
        same = index.unsqueeze(2) == index.unsqueeze(1)  # (n, L, L)
        gram = torch.einsum("nrld,nrmd->nlm", g, g) * same
        return widest(gram.flatten(1).sum(1)).sum()

    def squares(self, use: Use, G: Tensor) -> Tensor:
        """As the trace, column by column."""
        index, g = self._rows(use, G)
        same = index.unsqueeze(2) == index.unsqueeze(1)
        return widest(((g @ g.mT) * same.unsqueeze(1)).flatten(2).sum(2))

    def diagonal(self, use: Use, G: Tensor) -> Tensor:
        """Each of the m positions that share a row holds their whole sum, and gives 1/m of its square."""
        index, g = self._rows(use, G)
        same = (index.unsqueeze(2) == index.unsqueeze(1)).to(g.dtype)
        total = torch.einsum("nlm,nrmd->nrld", same, g)
        squares = total.square().sum(1) / same.sum(2).unsqueeze(-1)  # (n, L, width)
        return g.new_zeros(use.shape).index_add_(0, index.flatten(), squares.flatten(0, 1))

    def floats(self, operation: Operation, shape: tuple[int, ...], output: tuple[int, ...]) -> tuple[int, int]:
        """One number per pair of positions."""
        return (prod(output) // shape[1]) ** 2, prod(output)

    def matrices(self, operation: Operation, tensor: Tensor) -> Tensor | None:
        """A row of the table is what one word, an input, gives to each output."""
        return tensor.mT.unsqueeze(0)


def embedding_scales(walk: Walk, operation: Operation) -> Tensor:
    """Which rows are looked up is up to the data: the scale can only differ between columns."""
    given = operation.by_argument
    shape = walk.graph.values[operation.outputs[0]].shape
    out = walk.forms.fresh(shape[-1])
    walk.assign_scale(given["weight"], out, walk.one, operation)
    return out.expand(shape)


def bags(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Tensor | None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> tuple[Tensor, ...]:
    """Sums, means (mode 1) or maxima (mode 2) of the rows in each bag, and what else torch's own returns."""
    given = (scale_grad_by_freq, mode, sparse, per_sample_weights, include_last_offset, padding_idx)
    with torch.no_grad():
        made, *rest = torch.ops.aten.embedding_bag(weight, indices, offsets, *given)
    flat, starts = indices.flatten(), offsets[:-1] if include_last_offset else offsets
    kept = torch.ones_like(flat, dtype=torch.bool) if padding_idx is None else flat != padding_idx % len(weight)
    bag = torch.searchsorted(starts, torch.arange(len(flat), device=flat.device), right=True) - 1
    sizes = torch.zeros_like(made[:, :1]).index_add(0, bag, kept.to(made).unsqueeze(1))
    if mode == 2:
        chosen = weight.gather(0, rest[2].clamp_min(0))
        return torch.where(sizes > 0, chosen, 0.0), *rest
    factors = kept.to(weight) if per_sample_weights is None else kept * per_sample_weights.flatten()
    sums = torch.zeros_like(made).index_add(0, bag, weight[flat] * factors.unsqueeze(1))
    return sums / sizes.clamp_min(1) if mode == 1 else sums, *rest


ROWS: dict[str, Row] = {
    "embedding_bag": Row("weight*per_sample_weights", statistics=True, twice=bags),
    "embedding": Row(
        "weight", contract={"weight": Embedding()}, channels=embedding_scales, apart=along("indices", all_axes)
    ),
}
