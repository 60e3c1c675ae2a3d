"""Products of values and weights: from either side, broadcast, by einsum, by every function that torch has for it."""

from ..draft import Draft
from .registry import EVERY, register
from .weights import weight


def _matmul(d: Draft) -> str:
    w = weight(d, d.width, d.size())
    return str(d.pick(f"{d.h} @ {w}", f"torch.matmul({d.h}, {w})", f"{d.h}.matmul({w})"))


def _from_left(d: Draft) -> str:
    """A weight from the left, on (n, F) by way of columns or of the transposed batch."""
    if d.rank >= 3:
        return f"{weight(d, d.size(), d.shape[-2])} @ {d.h}"
    w = weight(d, d.size(), d.width)
    return str(
        d.pick(
            f"({w} @ {d.h}.unsqueeze(-1)).squeeze(-1)",
            f"({w} @ {d.h}.T).T",
            f"torch.mm({w}, {d.h}.t()).t()",
            f"({w} @ {d.h}[..., None])[..., 0]",
        )
    )


def _batched(d: Draft) -> str:
    """One matrix for each position."""
    w = weight(d, d.shape[1], d.width, d.size())
    return str(
        d.pick(
            f"({d.h}.unsqueeze(2) @ {w}).squeeze(2)",
            f"torch.einsum('nti,tio->nto', {d.h}, {w})",
            f"torch.bmm({d.h}.transpose(0, 1), {w}).transpose(0, 1)",
            f"({d.h}.transpose(0, 1) @ {w}).transpose(0, 1)",
        )
    )


def _two_batched(d: Draft) -> str:
    """One matrix for each position, the positions on a second batch axis, broadcast over the other."""
    w = weight(d, d.pick(1, d.shape[1]), d.width, d.size())
    return f"{d.h} @ {w}"


def _einsum(d: Draft) -> str:
    o, i = d.size(), d.width
    if d.rank == 2:
        return str(
            d.pick(
                f"torch.einsum('ni,io->no', {d.h}, {weight(d, i, o)})",
                f"torch.einsum('oi,ni->no', {weight(d, o, i)}, {d.h})",
                f"torch.einsum('ni,i->ni', {d.h}, {weight(d, i)})",
                f"torch.einsum('ni,ij,oj->no', {d.h}, {weight(d, i, 3)}, {weight(d, o, 3)})",
                f"torch.einsum('ni,i->n', {d.h}, {weight(d, i)}).unsqueeze(1)",
                f"torch.einsum('ni,nj,oij->no', {d.h}, {d.h}, {weight(d, o, i, i)})",
                f"torch.einsum('bi,hoi->bho', {d.h}, {weight(d, 2, o, i)})",
            )
        )
    s = d.shape[1]
    return str(
        d.pick(
            f"torch.einsum('nti,oi->nto', {d.h}, {weight(d, o, i)})",
            f"torch.einsum('nti,ot->noi', {d.h}, {weight(d, o, s)})",
            f"torch.einsum('nti,tio->no', {d.h}, {weight(d, s, i, o)})",
            f"torch.einsum('nti,nsi->nts', {d.h}, {d.h})",
            f"torch.einsum('nti,to->nio', {d.h}, {weight(d, s, o)})",
            f"torch.einsum('...i,oi->...o', {d.h}, {weight(d, o, i)})",
            f"torch.einsum('nti->nit', {d.h})",
            f"torch.einsum('nti->nt', {d.h})",
        )
    )


def _other_products(d: Draft) -> str:
    o, i, h = d.size(), d.width, d.h
    return str(
        d.pick(
            f"torch.mm({h}, {weight(d, i, o)})",
            f"torch.addmm({weight(d, o)}, {h}, {weight(d, i, o)})",
            f"torch.addmm({weight(d, o)}, {h}, {weight(d, i, o)}, beta={d.number()}, alpha={d.number()})",
            f"torch.mv({h}, {weight(d, i)}).unsqueeze(1)",
            f"torch.tensordot({h}, {weight(d, i, o)}, 1)",
            f"torch.tensordot({h}, {weight(d, o, i)}, ([1], [1]))",
            f"F.bilinear({h}, {h}, {weight(d, o, i, i)})",
            f"F.bilinear({h}, {d.let(f'{h}.roll(1, 1)')}, {weight(d, o, i, i)}, {weight(d, o)})",
            f"torch.baddbmm({weight(d, o)}, {h}[:, None], {weight(d, 1, i, o)}.expand({h}.shape[0], {i}, {o}))[:, 0]",
            f"torch.addcmul({weight(d, i)}, {h}, {weight(d, i)}, value={d.number()})",
            f"torch.addcdiv({h}, {weight(d, i)}, {h}.abs() + 1)",
            f"torch.outer({h}.flatten(), {weight(d, 2)}).view(-1, {2 * i})",
            f"torch.inner({h}, {weight(d, o, i)})",
            f"({h}.unsqueeze(1) * {weight(d, o, i)}).sum(-1)",
            f"({h}.unsqueeze(-1) * {weight(d, i, o)}).{d.pick('sum', 'mean')}(1)",
            f"torch.matmul({h}, {weight(d, i)}).unsqueeze(-1)",
            f"({weight(d, o, i)} * {h}.unsqueeze(-2)).sum(-1)",
        )
    )


def _broadcast(d: Draft) -> str:
    """Products whose factors have different numbers of axes, from either side, with axes that are spread."""
    h, w, k, o = d.h, d.width, d.size(1, 3), d.size(1, 3)
    n = f"{h}.shape[0]"
    if d.rank == 2:
        return str(
            d.pick(
                f"{h} @ {weight(d, w)}.unsqueeze(1)",
                f"({h} @ {weight(d, w)}).unsqueeze(-1)",
                f"({weight(d, w)} @ {h}.T).unsqueeze(-1)",
                f"F.linear({h}, {weight(d, w)}).unsqueeze(1)",
                f"({weight(d, k, o, w)} @ {h}[:, None, :, None]).squeeze(-1)",
                f"({h} @ {weight(d, k, w, o)}).transpose(0, 1)",
                f"torch.bmm({h}.unsqueeze(1), {weight(d, 1, w, o)}.expand({n}, -1, -1)).squeeze(1)",
                f"torch.bmm({weight(d, o, w)}.repeat({n}, 1, 1), {h}.unsqueeze(2)).squeeze(2)",
                f"torch.matmul({weight(d, 1, o, w)}, {h}.unsqueeze(2)).flatten(1)",
                f"({h}.unsqueeze(1) + {weight(d, k, w)}).relu()",
                f"{h}.unsqueeze(1) * {weight(d, k, 1)}",
                f"torch.einsum('ni,kio->nko', {h}, {weight(d, k, w, o)})",
                f"torch.einsum('ni,i,io->no', {h}, {weight(d, w)}, {weight(d, w, o)})",
                f"torch.tensordot({h}, {weight(d, w, k, o)}, dims=1)",
                f"torch.tensordot({weight(d, o, w)}, {h}, dims=([1], [1])).T",
            )
        )
    t = d.shape[-2]
    return str(
        d.pick(
            f"{h} @ {weight(d, w)}" if d.rank > 2 else h,
            f"{weight(d, t)} @ {h}" if d.rank > 2 else h,
            f"{weight(d, 1, o, t)} @ {h}" if d.rank == 3 else f"{weight(d, 1, 1, o, t)}[0] @ {h}",
            f"{h} @ {weight(d, *[1] * (d.rank - 2), w, o)}",
            f"{weight(d, k, o, t)} @ {h}.unsqueeze(1)" if d.rank == 3 else f"{weight(d, o, t)} @ {h}",
            f"{h}.unsqueeze(1) @ {weight(d, k, w, o)}" if d.rank == 3 else f"{h} @ {weight(d, w, o)}",
            f"torch.einsum('...ti,oi->...to', {h}, {weight(d, o, w)})",
            f"torch.einsum('...ti,ti->...t', {h}, {weight(d, t, w)})",
            f"torch.einsum('...ti,ti->...i', {h}, {weight(d, t, w)})",
            f"F.bilinear({h}, {h}, {weight(d, o, w, w)})",
            f"torch.tensordot({h}, {weight(d, t, w)}, dims=2)" if d.rank > 3 else f"{h} * {weight(d, t, 1)}",
            f"({h}.unsqueeze(-1) * {weight(d, w, o)}).sum(-2)",
            f"({h} * {weight(d, t, w)}).sum((-2, -1)).unsqueeze(-1)",
            f"F.linear({h}, {weight(d, w)})",
        )
    )


register("layer", EVERY, {"matmul": _matmul, "weight from the left": _from_left})
register("layer", "234", {"einsum": _einsum, "broadcast products": _broadcast})
register("layer", "2", {"other products": _other_products})
register("layer", "3", {"matrix per position": _batched})
register("layer", "4", {"broadcast batches": _two_batched})
