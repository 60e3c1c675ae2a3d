"""The geometric program of a minimum: its terms, from curvature that has been measured."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError, NegativeError
from ..frozen import held
from ..network.rescalings import narrow
from ..network.symmetry import Scope, Symmetries
from ..results.curvature import Diagonal, Trace

Curvature = Trace | Diagonal


def curvatures(measured: Curvature, scope: Scope) -> dict[str, Tensor]:
    """The curvature of every measured parameter: a number, or one per entry."""
    source = measured.trace if scope == "layer" and isinstance(measured, Diagonal) else measured
    blocks = {n: torch.as_tensor(v, dtype=torch.float64).cpu() for n, v in source.by_parameter.items()}
    for name, block in blocks.items():
        if not bool(torch.isfinite(block).all()):
            raise InputError(
                f"the curvature of '{name}' is {_first(block, ~torch.isfinite(block))}: expected finite numbers"
            )
    return blocks


def _first(block: Tensor, bad: Tensor) -> float:
    return float(block[bad].flatten()[0])


def program(blocks: Mapping[str, Tensor], symmetries: Symmetries) -> tuple[Any, Any, Any]:
    """The geometric program: log c, the matrix A with t = A z for every term, and which parameter each term is of."""
    import numpy as np
    import scipy.sparse

    c, plus, minus, owner = _terms(blocks, symmetries)
    nodes = symmetries.nodes
    N = scipy.sparse.csr_array(
        (held(nodes, "coefficient").numpy(), (held(nodes, "form").numpy(), held(nodes, "number").numpy())),
        shape=(nodes.count, symmetries.dimension),
    )
    A = N[plus] - N[minus] if symmetries.dimension else scipy.sparse.csr_array((len(c), 0))
    A.eliminate_zeros()
    with np.errstate(divide="ignore"):
        return np.log(c), A, owner


def _terms(blocks: Mapping[str, Tensor], symmetries: Symmetries) -> tuple[Any, ...]:
    """Every (c, plus, minus) of the objective, summed over entries that share a scale, and which parameter it is of."""
    parts = []
    for i, (name, block) in enumerate(blocks.items()):
        exponent = symmetries.exponents[name]
        terms = _none_negative(name, *_together(block, held(exponent, "plus"), held(exponent, "minus")), symmetries)
        parts.append((*terms, torch.full((len(terms[0]),), i)))
    return tuple(torch.cat(column).numpy() for column in zip(*parts, strict=True))


def _together(block: Tensor, plus: Tensor, minus: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """c, plus and minus, (terms) each: summed along an axis where neither changes, and as far as only one does."""
    plus, minus = (narrow(t.reshape((*[1] * (block.dim() - t.dim()), *t.shape))) for t in (plus, minus))
    still = [d for d in range(block.dim()) if plus.shape[d] == minus.shape[d] == 1]
    c = block.sum(still, keepdim=True) if still else block
    for axis, size in enumerate(c.shape):
        along, other = (plus, minus) if plus.shape[axis] > 1 else (minus, plus)
        if size > 1 and along.numel() == size and other.shape[axis] == 1:
            shared, which = along.flatten().unique(return_inverse=True)
            shape = [len(shared) if d == axis else s for d, s in enumerate(c.shape)]
            c = c.new_zeros(shape).index_add_(axis, which, c)
            along = shared.view([len(shared) if d == axis else 1 for d in range(c.dim())])
            plus, minus = (along, other) if plus.shape[axis] > 1 else (other, along)
    return c.flatten(), plus.expand(c.shape).flatten(), minus.expand(c.shape).flatten()


def _none_negative(
    name: str, c: Tensor, plus: Tensor, minus: Tensor, symmetries: Symmetries
) -> tuple[Tensor, Tensor, Tensor]:
    """Terms of a parameter as they are; where some are negative, those with one scale added up, which must not be.

    The Hessian of a smooth network has negative entries, and estimates are negative by chance; most of them are where
    nothing can be rescaled, so that only their sum counts.
    """
    if not bool((c < 0).any()):
        return c, plus, minus
    shared, which = moved_by(plus, minus, symmetries).unique(dim=1, return_inverse=True)
    sums = added(c, which, shared.shape[1])
    refuse_negative(name, sums)
    some = one_of_each(which, len(sums))
    return sums, plus[some], minus[some]


def moved_by(plus: Tensor, minus: Tensor, symmetries: Symmetries) -> Tensor:
    """The numbers of the scales that move each entry up and down, (2, entries); -1 where nothing free does."""
    free = torch.zeros(symmetries.nodes.count, dtype=torch.bool)
    free[held(symmetries.nodes, "form")[held(symmetries.nodes, "coefficient") != 0]] = True
    pairs = torch.stack([torch.where(free[n], n, -1) for n in (plus, minus)])
    pairs[:, pairs[0] == pairs[1]] = -1
    return pairs


def added(values: Tensor, which: Tensor, count: int) -> Tensor:
    """Sums over the entries of each kind."""
    return values.new_zeros(count).index_add_(0, which, values)


def one_of_each(which: Tensor, count: int) -> Tensor:
    """The place of one entry of each kind."""
    return torch.zeros(count, dtype=torch.long).index_copy_(0, which, torch.arange(len(which)))


def refuse_negative(name: str, sums: Tensor) -> None:
    """Curvature that one scale moves must not be negative in sum: there would be no minimum."""
    if bool((sums < 0).any()):
        raise NegativeError(
            f"the curvature of '{name}' that one scale moves is {_first(sums, sums < 0)}: expected none negative. The "
            "Hessian of a smooth network may be, and an estimate of it by chance: ask for "
            'curvature="ggn", which never is, for a smaller tolerance, or for scope="layer"'
        )


def traces_at(log_c: Any, A: Any, owner: Any, z: Any, count: int) -> list[float]:
    """The trace of every parameter at z."""
    import numpy as np

    with np.errstate(over="ignore"):
        sums: list[float] = np.bincount(owner, np.exp(log_c - 2 * (A @ z)), minlength=count).tolist()
    return sums


def least_powers(log_c: Any, A: Any, owner: Any, z: Any, before: list[float]) -> tuple[Any, list[float]]:
    """The numbers z with powers of two as factors, and every parameter's trace there; zero if that is no flatter."""
    from ..solve.powers import minimise_powers

    z = minimise_powers(log_c, A, z)
    after = traces_at(log_c, A, owner, z, len(before))
    return (z, after) if sum(after) < sum(before) else (0.0 * z, before)
