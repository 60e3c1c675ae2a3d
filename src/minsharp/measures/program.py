"""The geometric program of a minimum: its terms, from curvature that has been measured."""

from collections.abc import Mapping
from typing import Any, NamedTuple

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


class Program(NamedTuple):
    """What is to be minimised: sum_e exp(log c_e - 2 (A z)_e), and what nothing moves, which is no part of it."""

    log_c: Any
    A: Any
    owner: Any
    """Which parameter each term is of."""
    fixed: Any
    """The sum of each parameter's terms that no z moves, (parameters); of either sign."""


def program(blocks: Mapping[str, Tensor], symmetries: Symmetries) -> Program:
    """The geometric program of the terms that a rescaling moves, and the sums of those that none does."""
    import numpy as np

    c, A, owner = rows(blocks, symmetries)
    moving = np.diff(A.indptr) > 0
    fixed = np.bincount(owner[~moving], c[~moving], minlength=len(blocks))
    with np.errstate(divide="ignore"):
        return Program(np.log(c[moving]), A if moving.all() else A[moving], owner[moving], fixed)


def rows(blocks: Mapping[str, Tensor], symmetries: Symmetries) -> tuple[Any, Any, Any]:
    """Every term: c, the matrix A with t = A z, and which parameter it is of; none is negative that some z moves."""
    import scipy.sparse

    c, plus, minus, owner = _terms(blocks, symmetries)
    nodes = symmetries.nodes
    N = scipy.sparse.csr_array(
        (held(nodes, "coefficient").numpy(), (held(nodes, "form").numpy(), held(nodes, "number").numpy())),
        shape=(nodes.count, symmetries.dimension),
    )
    A = N[plus] - N[minus] if symmetries.dimension else scipy.sparse.csr_array((len(c), 0))
    A.eliminate_zeros()
    return c, A, owner


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
    """Terms of a parameter as they are; where some are negative, those with one scale added up.

    The Hessian of a smooth network has negative entries, and estimates are negative by chance; most of them are where
    nothing can be rescaled, so that only their sum counts, of either sign. What some scale moves must not be negative:
    it would have no minimum.
    """
    if not bool((c < 0).any()):
        return c, plus, minus
    shared, which = moved_by(plus, minus, symmetries).unique(dim=1, return_inverse=True)
    sums = added(c, which, shared.shape[1])
    refuse_negative(name, sums[shared[0] != shared[1]], symmetries.scope)
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


def refuse_negative(name: str, sums: Tensor, scope: str) -> None:
    """Curvature that one scale moves must not be negative in sum: there would be no minimum."""
    if bool((sums < 0).any()):
        raise NegativeError(
            f"the curvature of '{name}' that one scale moves is {_first(sums, sums < 0)}: expected none negative. The "
            f"Hessian of a smooth network may be, and an estimate of it by chance: {_instead(scope)}"
        )


def _instead(scope: str) -> str:
    """What to ask for where a term is negative."""
    ways = ['curvature="ggn", which never is', "a smaller tolerance", *(['scope="layer"'] if scope != "layer" else [])]
    return f"ask for {', or for '.join(ways)}"


def traces_at(program: Program, z: Any) -> list[float]:
    """The trace of every parameter at z."""
    return list(map(float, moving_at(program, z) + program.fixed))


def moving_at(program: Program, z: Any) -> Any:
    """What z leaves of every parameter's terms that it can move, (parameters)."""
    import numpy as np

    with np.errstate(over="ignore"):
        terms = np.exp(program.log_c - 2 * (program.A @ z))
    return np.bincount(program.owner, terms, minlength=len(program.fixed))


def shares_left(program: Program, z: Any) -> list[float]:
    """How much z leaves of every parameter's curvature, all terms counted as positive; 0 of none."""
    import numpy as np

    fixed = np.abs(program.fixed)
    before, after = (moving_at(program, at) + fixed for at in (0.0 * z, z))
    return [float(new / old) if old else 0.0 for new, old in zip(after, before, strict=True)]


def least_powers(program: Program, z: Any, before: list[float]) -> tuple[Any, list[float]]:
    """The numbers z with powers of two as factors, and every parameter's trace there; zero if that is no flatter."""
    from ..solve.powers import minimise_powers

    z = minimise_powers(program.log_c, program.A, z)
    after = traces_at(program, z)
    return (z, after) if sum(after) < sum(before) else (0.0 * z, before)
