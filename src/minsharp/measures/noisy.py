"""The least effect of noise that grows with the weights, over all rescalings.

Under a rescaling with log-scales t the curvature h_i becomes h_i exp(-2 t_i) and the weight w_i exp(t_i). So

    min_z  sum_T N_T(z) sum_{i in T} h_i exp(-2 (A z)_i)

with N_T the mean, or the largest, of w_i² exp(2 (A z)_i) over the tensor or channel T: `minsharp.solve.noise`. Entries
of a group that share a scale, such as the taps of a kernel, are one term.
"""

from collections.abc import Mapping
from math import inf
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..frozen import held
from ..network.symmetry import Symmetries
from .noise import Biases, Noise, is_noisy, weighed
from .outcome import finite_exp
from .program import added, moved_by, one_of_each, refuse_negative

REACHED = 1e-7


class Least(NamedTuple):
    """Where the least is, what it is and a lower bound (as logarithms), what vanishes, and each parameter's part."""

    z: Tensor
    log_value: float
    log_bound: float
    vanishing: list[str]
    after: dict[str, float]
    fixed: float = 0.0
    """What nothing moves, of either sign, where it is no part of the logarithms."""


def least_noise(
    blocks: Mapping[str, Tensor], weights: Mapping[str, Tensor], symmetries: Symmetries, noise: Noise, biases: Biases
) -> Least:
    """The minimum over a group, for the curvature of every entry; in scope "layer" it is the same throughout."""
    import numpy as np

    from ..solve.largest import minimise_largest
    from ..solve.noise import Program, minimise_noise
    from ..solve.sums import minimise_sums

    if symmetries.scope == "layer" or not symmetries.dimension:  # tensors are scaled alike, and with them the noise
        return _as_it_is(blocks, weights, symmetries, noise, biases)
    noisy = [name for name, block in blocks.items() if is_noisy(block.dim(), biases) and block.numel()]
    if not noisy:
        return _as_it_is(blocks, weights, symmetries, noise, biases)
    (h, v, plus, minus, group, owner), fixed = _entries({n: blocks[n] for n in noisy}, weights, symmetries, noise)
    if not len(h):
        return _as_it_is(blocks, weights, symmetries, noise, biases)
    with np.errstate(divide="ignore"):
        program = Program(np.log(h), np.log(v), _exponents(symmetries, plus, minus), group)
    solution = minimise_noise(program, minimise_sums if noise == "relative" else minimise_largest)
    z = torch.from_numpy(np.asarray(solution.z, dtype=np.float64))
    after = rescaled_parts(blocks, weights, symmetries, z, noise, biases)
    moving = finite_exp(solution.log_value)
    reached = sum(after.values()) - fixed <= moving + REACHED * (moving + abs(fixed))
    lost = solution.vanishing & (h > 0) if reached else solution.vanishing  # or weights that only make noise
    vanishing = [name for i, name in enumerate(noisy) if lost[owner == i].any()]
    return Least(z, solution.log_value, solution.log_bound, vanishing, after, fixed)


def _as_it_is(
    blocks: Mapping[str, Tensor], weights: Mapping[str, Tensor], symmetries: Symmetries, noise: Noise, biases: Biases
) -> Least:
    """The network as it is, where nothing can be gained."""
    z = torch.zeros(symmetries.dimension, dtype=torch.float64)
    parts = rescaled_parts(blocks, weights, symmetries, z, noise, biases)
    return Least(z, -inf, -inf, [], parts, sum(parts.values()))


def _exponents(symmetries: Symmetries, plus: Any, minus: Any) -> Any:
    """The matrix A with t = A z for every entry, (entries, unknowns)."""
    import scipy.sparse

    nodes = symmetries.nodes
    entries = held(nodes, "coefficient").numpy(), (held(nodes, "form").numpy(), held(nodes, "number").numpy())
    N = scipy.sparse.csr_array(entries, shape=(nodes.count, max(symmetries.dimension, 1)))
    A = N[plus] - N[minus]
    A.eliminate_zeros()
    return A[:, : symmetries.dimension]


def rescaled_parts(
    blocks: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    symmetries: Symmetries,
    z: Tensor,
    noise: Noise,
    biases: Biases,
) -> dict[str, float]:
    """Each parameter's part of the objective in the network rescaled by z."""
    t = symmetries.log_scales(z)
    h = {name: block * (-2 * t[name]).exp() for name, block in blocks.items()}
    w = {name: weights[name].detach().cpu().double() * t[name].exp() for name in blocks}
    return weighed(h, w, noise, biases)


def _entries(
    blocks: Mapping[str, Tensor], weights: Mapping[str, Tensor], symmetries: Symmetries, noise: Noise
) -> tuple[tuple[Any, ...], float]:
    """h, v, plus, minus, group and owner of every entry, those that share scale and group taken together.

    Where a parameter has negative ones, groups that nothing moves are left out: what they come to stands beside.
    """
    parts, groups, fixed = [], 0, 0.0
    for i, (name, block) in enumerate(blocks.items()):
        exponent = symmetries.exponents[name]
        plus, minus = torch.broadcast_tensors(held(exponent, "plus"), held(exponent, "minus"))
        ones = [1] * (block.dim() - plus.dim())
        plus, minus = plus.reshape(*ones, *plus.shape), minus.reshape(*ones, *minus.shape)
        channels = len(block) if noise == "max-per-channel" and block.dim() > 1 else 1
        shape = (channels, *plus.shape[1:]) if channels > 1 else plus.shape  # a channel's entries stay its own
        shared = [d for d in range(block.dim()) if shape[d] == 1]
        v = weights[name].detach().cpu().double().square()
        v = _sum(v, shared) / block.numel() if noise == "relative" else v.amax(shared, keepdim=True) if shared else v
        own = torch.arange(channels).view(-1, *[1] * (block.dim() - 1)) if block.dim() else torch.tensor(0)
        columns = (_sum(block, shared), v, plus, minus, groups + own, torch.tensor(i))
        terms = [column.expand(shape).flatten() for column in columns]
        if bool((terms[0] < 0).any()):
            terms, still = _none_negative(name, terms, symmetries, noise)
            fixed += still
        parts.append(terms)
        groups += channels
    return tuple(torch.cat(column).numpy() for column in zip(*parts, strict=True)), fixed


def _sum(tensor: Tensor, axes: list[int]) -> Tensor:
    return tensor.sum(axes, keepdim=True) if axes else tensor


def _none_negative(name: str, terms: list[Tensor], symmetries: Symmetries, noise: Noise) -> tuple[list[Tensor], float]:
    """Terms with those of one group added up that one scale moves, none of which must be negative.

    Groups that nothing moves are a number of either sign, N_T times their curvature: it comes back beside the others.
    """
    h, v, plus, minus, group, owner = terms
    kinds, which = torch.stack([group, *moved_by(plus, minus, symmetries)]).unique(dim=1, return_inverse=True)
    count, some = kinds.shape[1], one_of_each(which, kinds.shape[1])
    h = added(h, which, count)
    v = added(v, which, count) if noise == "relative" else v.new_zeros(count).scatter_reduce_(0, which, v, "amax")
    moving = torch.isin(kinds[0], kinds[0, (kinds[1:] >= 0).any(0)])
    refuse_negative(name, h[moving], symmetries.scope)
    kept = [column[moving] for column in (h, v, plus[some], minus[some], group[some], owner[some])]
    return kept, float((h * v)[~moving].sum())
