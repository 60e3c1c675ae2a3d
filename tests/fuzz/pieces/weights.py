"""Weights that are made of parameters in every way: tied, sliced, transposed, joined, masked, normed, cast."""

from collections.abc import Callable

from ..draft import Draft, Rejected

Way = Callable[[Draft, tuple[int, ...]], str]


def _text(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape))


def _more(d: Draft, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape with one axis longer."""
    axis = d.rng.randrange(len(shape))
    return tuple(s + (i == axis) for i, s in enumerate(shape))


def _sliced(d: Draft, shape: tuple[int, ...]) -> str:
    longer = _more(d, shape)
    cuts = [f"{d.pick(f':{s}', '1:') if s != t else ':'}" for s, t in zip(shape, longer, strict=True)]
    return f"{d.param(*longer)}[{', '.join(cuts)}]"


def _tied(d: Draft, shape: tuple[int, ...]) -> str:
    fits = [name for name, held in d.live if held == shape]
    if not fits:
        raise Rejected("nothing to tie to")
    return str(d.pick(*fits))


def _tied_transposed(d: Draft, shape: tuple[int, ...]) -> str:
    fits = [name for name, held in d.live if held == shape[::-1] and len(shape) == 2]
    if not fits:
        raise Rejected("nothing to tie to")
    return f"{d.pick(*fits)}.{d.pick('t()', 'T', 'mT')}"


def _joined(d: Draft, shape: tuple[int, ...]) -> str:
    axis = d.rng.randrange(len(shape))
    if shape[axis] < 2:
        raise Rejected("too short to join")
    first = d.rng.randint(1, shape[axis] - 1)
    parts = [tuple(k if i == axis else s for i, s in enumerate(shape)) for k in (first, shape[axis] - first)]
    return f"torch.cat([{', '.join(d.param(*part) for part in parts)}], {axis})"


def _stacked(d: Draft, shape: tuple[int, ...]) -> str:
    axis = d.rng.randrange(len(shape))
    rest = shape[:axis] + shape[axis + 1 :]
    rows = [d.param(*rest) for _ in range(shape[axis] - 1)]
    rows.append(str(d.pick(*rows)) if rows and d.coin() else d.param(*rest))
    return f"torch.stack([{', '.join(rows)}], {axis})"


def _rows(d: Draft, shape: tuple[int, ...]) -> str:
    count = d.size(1, 4)
    index = d.indices(shape[0], count)
    source = d.param(count, *shape[1:])
    return str(d.pick(f"{source}[{index}]", f"{source}.index_select(0, torch.tensor({index}))"))


def _low_rank(d: Draft, shape: tuple[int, ...]) -> str:
    inner = d.size(1, 3)
    rest = 1
    for s in shape[1:]:
        rest *= s
    a, b = d.param(shape[0], inner), d.param(inner, rest)
    return f"({a} @ {b}).view({_text(shape)})"


def _masked(d: Draft, shape: tuple[int, ...]) -> str:
    mask = d.kept_buffer(f"(torch.arange({_count(shape)}) % {d.size(2, 4)} > 0).view({_text(shape)})")
    w = d.param(*shape)
    return str(
        d.pick(
            f"{w} * {mask}",
            f"torch.where({mask}, {w}, 0.0)",
            f"torch.where({mask}, {w}, {d.param(*shape)})",
            f"{w}.masked_fill({mask}, 0)",
            f"{w}.masked_fill(~{mask}, {d.number()})",
        )
    )


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for s in shape:
        count *= s
    return count


def _odd_axes(d: Draft, shape: tuple[int, ...]) -> str:
    """A parameter with extra axes of size one."""
    axis = d.rng.randint(0, len(shape))
    longer = (*shape[:axis], 1, *shape[axis:])
    how = d.pick(f"squeeze({axis})", f"select({axis}, 0)", f"flatten({max(axis - 1, 0)}, {max(axis, 1)})")
    return f"{d.param(*longer)}.{how}"


def _spread(d: Draft, shape: tuple[int, ...]) -> str:
    axis = d.rng.randrange(len(shape))
    thin = tuple(1 if i == axis else s for i, s in enumerate(shape))
    repeats = [s if i == axis else 1 for i, s in enumerate(shape)]
    how = d.pick(f"expand({_text(shape)})", f"repeat({_text(tuple(repeats))})")
    return f"{d.param(*thin)}.{how}"


WAYS: dict[str, Way] = {
    "tied": _tied,
    "tied transposed": _tied_transposed,
    "sliced": _sliced,
    "joined": _joined,
    "stacked": _stacked,
    "rows": _rows,
    "masked": _masked,
    "odd axes": _odd_axes,
    "spread": _spread,
    "low rank": _low_rank,
    "flat": lambda d, shape: f"{d.param(_count(shape))}.{d.pick('view', 'reshape')}({_text(shape)})",
    "transposed": lambda d, shape: f"{d.param(*shape[::-1])}.permute({_text(tuple(range(len(shape)))[::-1])})",
    "flipped": lambda d, shape: f"{d.param(*shape)}.flip({d.rng.randrange(len(shape))})",
    "rolled": lambda d, shape: f"{d.param(*shape)}.roll(1, {d.rng.randrange(len(shape))})",
    "sum of two": lambda d, shape: f"{d.param(*shape)} {d.pick('+', '-')} {d.param(*shape)}",
    "times a number": lambda d, shape: f"{d.param()} * {d.param(*shape)}",
    "times rows": lambda d, shape: f"{d.param(shape[0], *[1] * (len(shape) - 1))} * {d.param(*shape)}",
    "over a number": lambda d, shape: f"{d.param(*shape)} / {d.number()}",
    "triangle": lambda d, shape: f"{d.param(*shape)}.{d.pick('tril', 'triu')}({d.pick('', '1', '-1')})",
    "product": lambda d, shape: f"{d.param(*shape)} * {d.param(*shape)}",
    "rectified": lambda d, shape: f"{d.param(*shape)}.{d.pick('relu()', 'abs()', 'clamp(min=0)', 'clamp(-1, 1)')}",
    "padded": lambda d, shape: f"F.pad({d.param(*shape[:-1], max(shape[-1] - 1, 1))}, (0, {min(shape[-1] - 1, 1)}))",
    "twice a step": lambda d, shape: f"(lambda w: w + w.flip(0))({d.param(*shape)})",
    "detached": lambda d, shape: f"{d.param(*shape)} + {d.param(*shape)}.detach()",
    "smooth": lambda d, shape: f"{d.param(*shape)}.{d.pick('tanh()', 'exp()', 'softmax(0)', 'square()', 'sigmoid()')}",
    "normed": lambda d, shape: (lambda w: f"{w} / {w}.{d.pick('norm()', 'abs().max()', 'norm(dim=0, keepdim=True)')}")(
        d.param(*shape)
    ),
    "standardised": lambda d, shape: f"(lambda w: w - w.mean(0, keepdim=True))({d.param(*shape)})",
    "normalize": lambda d, shape: f"F.normalize({d.param(*shape)}, dim={d.rng.randrange(len(shape))})",
    "signs": lambda d, shape: (lambda w: f"{w}.abs() * {w}.sign()")(d.param(*shape)),
}
NARROW: dict[str, Way] = {
    "float32": lambda d, shape: f"{d.param(*shape)}.{d.pick('float()', 'to(torch.float32)')}.double()",
    "to integers": lambda d, shape: (
        f"(lambda w: w + (3 * w).{d.pick('round()', 'floor()', 'long().to(D)', 'int().double()')})({d.param(*shape)})"
    ),
}


def weight(d: Draft, *shape: int) -> str:
    """An expression for a weight of some shape: half of the time just a parameter."""
    if d.coin(0.45):
        return d.param(*shape)
    if d.coin(0.04):
        name = d.pick(*NARROW)
        if name == "float32":
            d.tag("low")
        return NARROW[name](d, shape)
    try:
        return f"({WAYS[d.pick(*WAYS)](d, shape)})"
    except Rejected:
        return d.param(*shape)
