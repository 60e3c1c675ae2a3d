"""Gather, scatter with every reduce, writes by index and by slice, in place or not."""

from ..draft import Draft, Rejected
from .registry import EVERY, register


def _index(d: Draft, axis: int, count: int, distinct: bool = False) -> str:
    """A constant index like the value, with `count` places along an axis: a variable."""
    n = d.shape[axis]
    places = d.permutation(n)[:count] if distinct else d.indices(count, n)
    ones = [1] * d.rank
    ones[axis] = len(places)
    shape = ["-1" if i == axis else str(s) for i, s in enumerate(d.shape)]
    shape[0] = f"{d.h}.shape[0]"
    return d.let(f"torch.tensor({places}).view({', '.join(map(str, ones))}).expand({', '.join(shape)})")


def _gather(d: Draft) -> str:
    a = d.axis() % d.rank
    index = _index(d, a, d.size(1, 4))
    return str(
        d.pick(
            f"{d.h}.gather({a}, {index})",
            f"torch.gather({d.h}, {a}, {index})",
            f"{d.h}.gather({a}, ({d.h} > 0).long())" if d.shape[a] > 1 else f"{d.h}.gather({a}, {index})",
            f"{d.h}.gather({a}, {d.h}.argmax({a}, keepdim=True)) + {d.h}",
        )
    )


def _scatter(d: Draft) -> str:
    a = d.axis() % d.rank
    k = d.size(1, d.shape[a])
    reduces = d.coin()
    index = _index(d, a, k, distinct=not reduces)
    source = d.let(f"F.relu({d.module(f'nn.Linear({d.width}, {d.width})')}({d.h})).narrow({a}, 0, {k})")
    h = d.h if d.coin(0.7) else d.let(f"torch.zeros_like({d.h})")
    reduce = d.pick("sum", "prod", "mean", "amax", "amin")
    if not reduces:
        return str(
            d.pick(
                f"{h}.scatter({a}, {index}, {source})",
                f"{h}.scatter({a}, {index}, {d.number()}) + {d.h}",
                f"torch.scatter({h}, {a}, {index}, {source})",
                f"{h}.clone().scatter_({a}, {index}, {source})",
            )
        )
    return str(
        d.pick(
            f"{h}.scatter_add({a}, {index}, {source})",
            f"{h}.scatter({a}, {index}, {source}, reduce={d.pick('add', 'multiply')!r})",
            f"{h}.scatter_reduce({a}, {index}, {source}, {reduce!r}, include_self={d.coin()})",
            f"{h}.clone().scatter_add_({a}, {index}, {source})",
            f"{h}.clone().scatter_reduce_({a}, {index}, {source}, {reduce!r})",
            f"{h}.scatter({a}, {index}, 0.5, reduce={d.pick('add', 'multiply')!r}) + {d.h}",
        )
    )


def _index_writes(d: Draft) -> str:
    a = d.axis() % d.rank
    k = d.size(1, d.shape[a])
    places = d.permutation(d.shape[a])[:k]
    index = d.let(f"torch.tensor({places})")
    source = d.let(f"{d.module(f'nn.Linear({d.width}, {d.width})')}({d.h}).narrow({a}, 0, {k})")
    colons = ", ".join([":"] * a)
    h = d.h
    v = d.let(f"{h}.clone()")
    way = d.rng.randrange(9)
    if way == 0:
        d.line(f"{v}[{colons}, {index}] = {source}")
        return v
    if way == 1:
        d.line(f"{v}[{colons}, {index}] += {source}")
        return v
    if way == 2:
        d.line(f"{v}[{colons}, {places}] *= {d.number()}")
        return v
    return [
        f"{h}.index_add({a}, {index}, {source})",
        f"{h}.index_add({a}, {index}, {source}, alpha={d.number()})",
        f"{h}.index_copy({a}, {index}, {source})",
        f"{h}.index_fill({a}, {index}, {d.pick(0, 0.5)})",
        f"{h}.index_reduce({a}, {index}, {source}, {d.pick('prod', 'mean', 'amax', 'amin')!r})",
        f"{v}.index_add_({a}, {index}, {source})",
    ][way - 3]


def _slice_writes(d: Draft) -> str:
    a = d.axis() % d.rank
    n = d.shape[a]
    if n < 2:
        raise Rejected("too short")
    colons = ", ".join([":"] * a)
    layer = d.module(f"nn.Linear({d.width}, {d.width}, bias={d.coin()})")
    g = d.let(f"F.relu({layer}({d.h}))")
    start = d.pick(
        f"{d.h}.clone()",
        f"torch.zeros_like({d.h})",
        f"{d.h} * 1",
        f"{g}.clone()",
        f"torch.ones_like({d.h})",
        f"{d.h}.new_zeros({d.h}.shape)",
        f"torch.empty_like({d.h}).copy_({d.h})",
        f"torch.full_like({d.h}, 0.5)",
        f"torch.zeros({d.h}.shape, dtype=D)",
        f"{d.param(*d.shape[1:])}.expand_as({d.h}).clone()",
    )
    v = d.let(start)
    d.line(
        d.pick(
            f"{v}[{colons}, 0] = {g}[{colons}, 0]",
            f"{v}[{colons}, 1:] = {g}[{colons}, :-1]",
            f"{v}[{colons}, 1:] += {g}[{colons}, :-1]",
            f"{v}[{colons}, :1] *= {d.number()}",
            f"{v}[{colons}, ::2] = 0",
            f"{v}[{colons}, -1] = {d.number()}",
            f"{v}[{colons}, :1].copy_({g}[{colons}, 1:2])",
            f"{v}[{colons}, 1:].mul_({g}[{colons}, 1:])",
            f"{v}.narrow({a}, 0, 1).add_({g}.narrow({a}, 1, 1))",
            f"{v}.select({a}, 0).zero_()",
            f"{v}[{colons}, 0].fill_({d.number()})",
            f"{v}[{colons}, torch.tensor({[i % 2 == 0 for i in range(n)]})] = 0",
        )
    )
    return str(d.pick(v, v, f"{v} + {d.h}", f"{v} + {g}"))


def _functional_writes(d: Draft) -> str:
    a = d.axis() % d.rank
    n = d.shape[a]
    if n < 2:
        raise Rejected("too short")
    g = d.let(f"{d.module(f'nn.Linear({d.width}, {d.width})')}({d.h})")
    mask = d.kept_buffer(f"(torch.arange({d.width}) % 2 == 0)")
    return str(
        d.pick(
            f"torch.select_scatter({d.h}, {g}.select({a}, 0), {a}, 1)",
            f"torch.slice_scatter({d.h}, {g}.narrow({a}, 0, 1), {a}, 1, 2)",
            f"{d.h}.masked_fill({mask}, {d.pick(0, 0.3)})",
            f"torch.where({mask}, {d.h}, {g})",
            f"{d.h}.where({mask}, {g})",
            f"{d.h}.masked_fill({mask}, {d.param()})",
            f"torch.where({g} > 0, {d.h}, {g})",
            f"{d.h}.masked_scatter({mask}.expand_as({d.h}), {g})"
            if d.coin(0.0)
            else f"torch.where({g} > {d.h}, {g}, {d.h})",
            f"torch.where({mask}, {d.h}, torch.tensor(0.0, dtype=D))",
            f"{d.h} * {mask}",
            f"{d.h}.index_put((torch.arange({d.h}.shape[0]), torch.zeros({d.h}.shape[0]).long()), {g}[:, 0])"
            if d.coin(0.3)
            else f"{d.h} * ~{mask}",
        )
    )


def _in_place(d: Draft) -> str:
    layer = d.module(f"nn.Linear({d.width}, {d.width})")
    v = d.let(d.pick(f"{d.h}.clone()", f"{layer}({d.h})", f"{d.h} + 0", f"{d.h} * {d.number()}"))
    for _ in range(d.size(1, 3)):
        d.line(
            d.pick(
                f"{v}.relu_()",
                f"{v} += {d.h}",
                f"{v} -= {d.param(d.width)}",
                f"{v} *= {d.number()}",
                f"{v} /= {d.number()}",
                f"{v}.add_({d.h}, alpha={d.number()})",
                f"{v}.clamp_(min=0)",
                f"{v}.clamp_(-1, 1)",
                f"{v}.neg_()",
                f"F.relu({v}, inplace=True)",
                f"torch.relu_({v})",
                f"F.leaky_relu_({v}, 0.2)",
                f"F.hardtanh({v}, inplace=True)",
                f"{v}.masked_fill_({v} < -1, 0)",
                f"{v}.add_({d.param()})",
                f"{v}.sub_({d.number()})",
                f"{v} += {d.param(*d.shape[1:])}",
                f"{v}.copy_({v}.flip(-1))",
                f"{v}.transpose(0, 1).add_(1)" if d.rank > 2 else f"{v}.T.add_(1)",
                f"{v}.view(-1).add_({d.number()})" if d.coin(0.3) else f"{v}.tril_()" if d.rank > 2 else f"{v}.abs_()",
            )
        )
    return str(d.pick(v, v, f"{v} + {d.h}"))


register(
    "linear",
    EVERY,
    {
        "gather": _gather,
        "scatter": _scatter,
        "write by index": _index_writes,
        "write by slice": _slice_writes,
        "write without place": _functional_writes,
        "in place": _in_place,
    },
)
