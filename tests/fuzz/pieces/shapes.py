"""Entries moved about: views, axes, samples folded into other axes and back, some entries, several times, sorted."""

from ..draft import Draft, Rejected
from .registry import EVERY, one, register


def _folded(d: Draft) -> str:
    """The last axis as two."""
    k = d.divisor(d.width)
    rest = ", ".join(map(str, d.shape[1:-1]))
    rest = f"{rest}, " if rest else ""
    return str(
        d.pick(
            f"{d.h}.view(-1, {rest}{k}, {d.width // k})",
            f"{d.h}.reshape({d.h}.shape[0], {rest}{k}, -1)",
            f"{d.h}.unflatten(-1, ({k}, -1))",
            f"{d.h}.view({d.h}.size(0), {rest}{k}, {d.width // k}).transpose(-1, -2)",
            f"torch.unflatten({d.h}, {d.rank - 1}, ({k}, {d.width // k})).movedim(-1, 1)",
        )
    )


def _flattened(d: Draft) -> str:
    last = d.rank - 1
    start = d.rng.randint(1, last - 1)
    return str(
        d.pick(
            f"{d.h}.flatten({start})",
            f"{d.h}.flatten({start}, {start + 1})",
            f"{d.h}.reshape({d.h}.shape[0], -1)",
            f"torch.flatten({d.h}, 1)",
            f"{d.h}.contiguous().view({d.h}.size(0), -1)",
            f"{d.h}.reshape({d.h}.shape[0], {d.shape[1]}, -1)",
            f"{d.h}.transpose(1, -1).flatten(1)",
            f"{d.h}.transpose(1, 2).reshape(-1, *{d.h}.shape[2:3], {d.h}[0].numel() // {d.shape[2]})",
        )
    )


def _axes(d: Draft) -> str:
    order = [0, *(1 + i for i in d.permutation(d.rank - 1))]
    a, b = d.axis(), d.axis()
    return str(
        d.pick(
            f"{d.h}.permute({', '.join(map(str, order))})",
            f"{d.h}.transpose({a}, {b})",
            f"{d.h}.movedim({a}, {b})",
            f"{d.h}.swapaxes({a}, {b})",
            f"torch.moveaxis({d.h}, 1, -1)",
            f"{d.h}.mT",
            f"torch.swapdims({d.h}, {a}, {b}).contiguous()",
            f"torch.rot90({d.h}, 1, (-2, -1))",
            f"{d.h}.flip({a})",
            f"{d.h}.roll({d.size(1, 2)}, {a})",
            f"{d.h}.roll((1, 1), (1, -1))",
            f"{d.h}.adjoint()",
        )
    )


def _ones(d: Draft) -> str:
    a = d.axis()
    k = d.size(1, 2)
    return str(
        d.pick(
            f"{d.h}.unsqueeze(1)",
            f"{d.h}.unsqueeze(-1)",
            f"{d.h}[:, None]",
            f"{d.h}[..., None].expand(*{d.h}.shape, {k})",
            f"{d.h}.unsqueeze(1).expand(-1, {k}, {', '.join(['-1'] * (d.rank - 1))})",
            f"{d.h}.unsqueeze(1).repeat(1, {k}, {', '.join(['1'] * (d.rank - 1))})",
            f"{d.h}.unsqueeze({a}).squeeze({a})",
            f"{d.h}.unsqueeze(1).broadcast_to({d.h}.shape[0], {k}, {', '.join(map(str, d.shape[1:]))})",
            f"{d.h}.unsqueeze(0).squeeze(0)",
            f"{d.h}.view(1, -1, {', '.join(map(str, d.shape[1:]))})[0]",
            f"torch.atleast_3d({d.h})" if d.rank >= 3 else f"{d.h}.unsqueeze(2)",
            f"{d.h}.unsqueeze(1).tile(1, {k}, {', '.join(['1'] * (d.rank - 1))})",
            f"{d.h}.unsqueeze(1).expand_as({d.h}.unsqueeze(1).repeat(1, {k}, {', '.join(['1'] * (d.rank - 1))}))",
        )
    )


def _squeezed(d: Draft) -> str:
    axes = [i for i in range(1, d.rank) if d.shape[i] == 1]
    if not axes or d.rank < 3:
        raise Rejected("nothing to squeeze")
    return f"{d.h}.squeeze({d.pick(*axes)})"


def _repeated(d: Draft) -> str:
    a = d.axis() % d.rank
    ones = ["1"] * d.rank
    ones[a] = "2"
    counts = [1 + i % 2 for i in range(d.shape[a])]
    return str(
        d.pick(
            f"{d.h}.repeat({', '.join(ones)})",
            f"{d.h}.tile({', '.join(ones)})",
            f"{d.h}.repeat_interleave(2, {a})",
            f"torch.cat([{d.h}, {d.h}], {a})",
            f"torch.repeat_interleave({d.h}, torch.tensor({counts}), {a}, output_size={sum(counts)})",
        )
    )


def _samples_folded(d: Draft) -> str:
    """Samples and another axis in one, a layer there, and back."""
    if d.rank < 3:
        k = d.divisor(d.width)
        d.go(f"{d.h}.view(-1, {k}, {d.width // k})")
    o, h, s = d.size(), d.h, d.shape
    layer = d.module(f"nn.Linear({d.width}, {o})")
    middle = ", ".join(map(str, s[1:-1]))
    swapped = ", ".join(map(str, (1, 0, *range(2, d.rank))))
    return str(
        d.pick(
            f"F.relu({layer}({h}.reshape(-1, {d.width}))).view(-1, {middle}, {o})",
            f"F.relu({layer}({h}.flatten(0, {d.rank - 2}))).reshape({h}.shape[0], {middle}, {o})",
            f"{layer}({h}.transpose(0, 1)).transpose(0, 1)",
            f"F.relu({layer}({h}.permute({swapped}).reshape(-1, {', '.join(map(str, s[2:]))}))).view({s[1]}, -1, "
            f"{', '.join(map(str, (*s[2:-1], o)))}).transpose(0, 1)",
            f"{layer}({h}.flatten(0, 1)).unflatten(0, (-1, {s[1]}))",
            f"torch.stack([{layer}(part) for part in {h}.unbind(1)], 1)",
            f"torch.cat([{layer}(part) for part in {h}.split(1, 1)], 1)",
            f"torch.stack([F.relu({layer}({h}[:, i])) for i in range({s[1]})]).transpose(0, 1)",
            f"torch.cat([{layer}({h}[:, 0]), {layer}({h}[:, -1])]).unflatten(0, (2, -1)).transpose(0, 1)",
        )
    )


def _turned(d: Draft) -> str:
    """The batch transposed, and back."""
    w = d.width
    return str(
        d.pick(
            f"{d.h}.T.flip(0).T",
            f"F.relu({d.h}.t()).t()",
            f"({d.param(w, 1)} * {d.h}.T).T",
            f"{d.h}.T.softmax(0).T",
            f"{d.h}.t().cumsum(0).t()",
            f"({d.h}.T + {d.param(w, 1)}).T",
            f"torch.stack(list({d.h}.T), 1)",
            f"torch.stack({d.h}.unbind(1), 1)",
            f"{d.h}.T.contiguous().view({w}, -1).T",
        )
    )


def _some(d: Draft) -> str:
    a = d.axis() % d.rank
    n = d.shape[a]
    if n < 2:
        raise Rejected("too short")
    colons = ", ".join([":"] * a)
    k = d.size(1, n)
    index = d.indices(d.size(1, 4), n)
    return str(
        d.pick(
            f"{d.h}[{colons}, 1:]",
            f"{d.h}[{colons}, :-1]",
            f"{d.h}[{colons}, ::2]",
            f"{d.h}.narrow({a}, {n - k}, {k})",
            f"{d.h}.select({a}, {d.rng.randrange(n)})" if d.rank > 2 else f"{d.h}[:, :1]",
            f"{d.h}.index_select({a}, torch.tensor({index}))",
            f"{d.h}[{colons}, {index}]",
            f"{d.h}[{colons}, torch.tensor({index})]",
            f"{d.h}[{colons}, {d.kept_buffer(f'torch.tensor({index})')}]",
            f"torch.take_along_dim({d.h}, {d.h}.argsort({a}), {a})" if d.coin(0.1) else f"{d.h}[{colons}, :1]",
            f"{d.h}.chunk(2, {a})[0]",
            f"{d.h}.split({k}, {a})[0]",
            f"torch.tensor_split({d.h}, 2, {a})[0]",
            f"sum({d.h}.split([{k}, {n - k}], {a})[0].unbind({a}))"
            if d.rank > 2
            else f"{d.h}.split([1, {n - 1}], 1)[1]",
            f"{d.h}[{colons}, torch.tensor({[bool((i + k) % 2) for i in range(n)]})]",
            f"{d.h}[..., {d.rng.randrange(d.width)}]" if d.rank > 2 else f"{d.h}[:, {d.rng.randrange(n)}:]",
            f"torch.hstack([{d.h}[:, :1], {d.h}])",
            f"{d.h}.unfold({a}, {min(2, n)}, 1)",
            f"{d.h}.unfold({a}, {min(2, n)}, 1).flatten(-2)"
            if a == d.rank - 1
            else f"{d.h}.unfold({a}, 1, 1).squeeze(-1)",
            f"{d.h}.as_strided({d.h}.shape, {d.h}.stride())" if d.coin(0.2) else f"{d.h}[{colons}, -1:]",
        )
    )


def _diagonals(d: Draft) -> str:
    if d.rank == 2:
        return str(d.pick(f"torch.diag_embed({d.h})", f"torch.diag_embed({d.h}, 1)", f"torch.diag_embed({d.h}).tril()"))
    return str(
        d.pick(
            f"{d.h}.diagonal(dim1=-2, dim2=-1)",
            f"{d.h}.tril()",
            f"{d.h}.triu(1) + {d.h}",
            f"torch.diag_embed({d.h}.diagonal(0, -2, -1))",
            f"{d.h}.tril(-1) + {d.h}.triu()",
        )
    )


def _sorted(d: Draft) -> str:
    a, k = d.axis(), d.size(1, 2)
    k = min(k, d.shape[a])
    big = str(d.pick("True", "False"))
    return str(
        d.pick(
            f"{d.h}.sort({a}).values",
            f"{d.h}.sort({a}, descending={big})[0]",
            f"{d.h}.topk({k}, {a}).values",
            f"{d.h}.topk({k}, {a}, largest={big}, sorted=True)[0]",
            f"torch.msort({d.h}.transpose(0, 1)).transpose(0, 1)",
            f"{d.h}.kthvalue({k}, {a}, keepdim=True).values + {d.h}",
            f"{d.h}.gather({a}, {d.h}.argsort({a}, descending={big}))",
            f"{d.h}.gather({a}, {d.h}.topk({k}, {a}).indices)",
            f"{d.h} + {d.h}.sort({a}).indices",
            f"torch.sort({d.h}, stable=True, dim={a}).values - {d.h}",
        )
    )


def _along(d: Draft) -> str:
    a = d.axis()
    return str(
        d.pick(
            f"{d.h}.cumsum({a})",
            f"{d.h}.cummax({a}).values",
            f"{d.h}.cummin({a})[0]",
            f"{d.h}.logcumsumexp({a})",
            f"{d.h}.cumprod({a})",
            f"{d.h}.diff(dim={a})",
            f"torch.cumsum({d.h}, {a}) - {d.h}",
            f"{d.h}.cumsum({a}, dtype=torch.float64)",
            f"torch.trapezoid({d.h}, dim={a}).unsqueeze({a})",
        )
    )


def _reduced(d: Draft) -> str:
    a = d.axis()
    keep = ", keepdim=True" if d.rank == 2 or d.coin(0.4) else ""
    if d.rank == 4 and d.coin(0.3):
        return str(
            d.pick(
                f"{d.h}.mean((2, 3))",
                f"{d.h}.sum((-1, -2))",
                f"{d.h}.amax((1, 3))",
                f"{d.h}.amin((2, 3), keepdim=True)",
            )
        )
    return str(
        d.pick(
            f"{d.h}.sum({a}{keep})",
            f"{d.h}.mean({a}{keep})",
            f"{d.h}.amax({a}{keep})",
            f"{d.h}.amin({a}{keep})",
            f"{d.h}.max({a}{keep}).values",
            f"{d.h}.min({a}{keep})[0]",
            f"{d.h}.median({a}{keep}).values",
            f"torch.max({d.h}, {a}{keep})[0]",
            f"{d.h}.sum({a}{keep}) / {d.shape[a]}",
            f"{d.h}.mean({a}{keep}, dtype=torch.float64)",
            f"{d.h}.nansum({a}{keep})",
            f"{d.h}.nanmean({a}{keep})",
            f"{d.h}.nanmedian({a}{keep}).values",
            f"{d.h}.quantile(0.5, dim={a}{keep})",
            f"torch.aminmax({d.h}, dim={a}{keep}).max",
            f"{d.h}.flatten(1).sum(1, keepdim=True)",
            f"torch.einsum('n...->n', {d.h}).unsqueeze(1)",
        )
    )


def _bent_reduced(d: Draft) -> str:
    a = d.axis()
    keep = ", keepdim=True" if d.rank == 2 or d.coin(0.4) else ""
    return str(
        d.pick(
            f"{d.h}.prod({a}{keep})",
            f"{d.h}.logsumexp({a}{keep})",
            f"{d.h}.norm(dim={a}{keep})",
            f"{d.h}.var({a}{keep})",
            f"{d.h}.std({a}, unbiased=False{keep})",
            f"torch.linalg.vector_norm({d.h}, 1, {a}{keep})",
            f"torch.linalg.vector_norm({d.h}, math.inf, {a}{keep})",
            f"{d.h}.square().sum({a}{keep})",
        )
    )


register(
    "linear",
    EVERY,
    {
        "fold the last axis": _folded,
        "axes of size one": _ones,
        "repeat": _repeated,
        "samples folded": _samples_folded,
        "some entries": _some,
        "diagonals": _diagonals,
        "sort": _sorted,
        "along an axis": _along,
        "reduce": _reduced,
    },
)
register("linear", "345", {"flatten": _flattened, "axes": _axes, "squeeze": _squeezed})
register("linear", "2", {"batch transposed": _turned})
register("bent", EVERY, {"reduce, bent": _bent_reduced})
register(
    "linear",
    "4",
    {
        "pixels": one("F.pixel_unshuffle({h}, 2)", "F.channel_shuffle({h}, 2)", "F.pixel_shuffle({h}, 2)"),
        "rows to columns": one(
            "F.unfold({h}, 2)", "F.unfold({h}, (1, 2), stride=1)", "F.unfold({h}, 2, padding=1, stride=2)"
        ),
    },
)
