"""Layers with weights: linear maps written in every way, convolutions, bare parameters."""

from ..draft import Draft, Rejected
from .registry import EVERY, register
from .weights import weight


def _linear(d: Draft) -> str:
    return f"{d.module(f'nn.Linear({d.width}, {d.size()}, bias={d.coin(0.7)})')}({d.h})"


def _linear_relu(d: Draft) -> str:
    return f"F.relu({_linear(d)})"


def _functional(d: Draft) -> str:
    o = d.size()
    bias = weight(d, o) if d.coin() else "None"
    return f"F.linear({d.h}, {weight(d, o, d.width)}, {bias})"


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


def _bare_shape(d: Draft) -> tuple[int, ...]:
    """A shape that broadcasts against one sample, from () to everything, with axes of size one."""
    full = d.shape[1:]
    shape = tuple(s if d.coin(0.6) else 1 for s in full)
    return tuple(d.pick(shape, (1, *shape), shape[d.rng.randint(0, len(shape)) :], (), (1,), full))


def _bare(d: Draft) -> str:
    p, h = weight(d, *_bare_shape(d)) if d.coin(0.5) else d.param(*_bare_shape(d)), d.h
    return str(
        d.pick(
            f"{h} * {p}",
            f"{p} * {h}",
            f"{h} + {p}",
            f"{h} - {p}",
            f"{p} - {h}",
            f"torch.add({h}, {p}, alpha={d.number()})",
            f"torch.sub({h}, {p}, alpha={d.number()})",
            f"torch.rsub({h}, {p})",
            f"torch.lerp({h}, {p}.expand_as({h}), {d.number()})",
            f"torch.maximum({h}, {p})",
            f"torch.minimum({h}, {p})",
            f"torch.where({h} > 0, {h}, {p})",
            f"torch.where({h} > 0, {h} * {p}, {h})",
            f"torch.clamp({h}, min={p})",
            f"torch.clamp_max({h}, {p})",
            f"{h} / ({p}.abs() + 0.5)",
            f"torch.div({h}, 1 + {p} ** 2)",
            f"{h} * {p} + {p}",
            f"{p} * F.relu({h} - {p})",
            f"{h} + {p} * torch.ones_like({h})",
            f"F.relu({h}) * {p}.exp()",
            f"torch.mul({h}, {p}).add({p})",
            f"torch.fmax({h}, {p})",
            f"{h}.add({p}).mul_({d.number()})",
        )
    )


def _scalar(d: Draft) -> str:
    p, q = d.param(), d.param()
    return str(d.pick(f"{p} * {d.h}", f"{d.h} + {p} * {q}", f"{p} * {d.h} + {q}", f"{d.h} * ({p} + {q})"))


def _padding_mode(d: Draft) -> str:
    return str(d.pick("zeros", "zeros", "zeros", "circular", "reflect", "replicate"))


def conv(d: Draft, relu: bool = False) -> str:
    """A convolution of any kind that fits."""
    dims = d.rank - 2
    if dims not in (1, 2, 3):
        raise Rejected("no convolution")
    channels, sizes = d.shape[1], d.shape[2:]
    groups = d.pick(*[g for g in (1, 1, 1, channels, 2) if channels % g == 0])
    out = groups * d.size(1, 3)
    if out > 6:
        out = groups
    bias = d.coin(0.7)
    if d.coin(0.2) and max(sizes) <= 3:
        kernel, stride, dilation = d.size(1, 3), d.size(1, 2), d.size(1, 2)
        padding = d.size(0, 1) if kernel > 2 else 0
        code = (
            f"nn.ConvTranspose{dims}d({channels}, {out}, {kernel}, stride={stride}, padding={padding}, groups={groups},"
            f" dilation={dilation}, bias={bias}, output_padding={1 if stride > 1 and d.coin() else 0})"
        )
    else:
        kernel = d.size(1, min(3, *sizes)) if min(sizes) >= 1 else 1
        dilation = d.size(1, 2) if (kernel - 1) * 2 < min(sizes) else 1
        padding = d.pick(0, 1, "'same'", 0) if min(sizes) > 1 else 0
        stride = d.size(1, 2) if padding != "'same'" else 1
        code = (
            f"nn.Conv{dims}d({channels}, {out}, {kernel}, stride={stride}, padding={padding}, dilation={dilation}, "
            f"groups={groups}, bias={bias}, padding_mode={_padding_mode(d)!r})"
        )
    result = f"{d.module(code)}({d.h})"
    return f"F.relu({result})" if relu else result


def _functional_conv(d: Draft) -> str:
    dims = d.rank - 2
    kernel = [d.size(1, min(3, s)) for s in d.shape[2:]]
    o = d.size(1, 4)
    bias = weight(d, o) if d.coin() else "None"
    return f"F.conv{dims}d({d.h}, {weight(d, o, d.shape[1], *kernel)}, {bias}, padding={d.size(0, 1)})"


def _functional_transposed(d: Draft) -> str:
    dims = d.rank - 2
    kernel = [d.size(1, 2) for _ in d.shape[2:]]
    return f"F.conv_transpose{dims}d({d.h}, {weight(d, d.shape[1], d.size(1, 3), *kernel)}, stride={d.size(1, 2)})"


def _shared(d: Draft) -> str:
    """A square layer called several times."""
    w = d.width
    layer = d.module(f"nn.Linear({w}, {w}, bias={d.coin()})")
    inner = f"nn.Linear({w}, {w})"
    return str(
        d.pick(
            f"{layer}({layer}({d.h}))",
            f"{layer}(F.relu({layer}({d.h})))",
            f"{layer}({d.h}) + {layer}(F.relu(-{d.h}))",
            f"torch.cat([{layer}({d.h}), {layer}({d.h}.flip(-1))], -1)",
            f"{d.module(f'Twice({inner})')}({d.h})",
            f"{d.h} + {layer}(F.relu({d.h}))",
            f"{d.module(f'Skip(nn.Sequential({inner}, nn.ReLU(), {inner}), {d.number()})')}({d.h})",
            f"F.linear(F.relu(F.linear({d.h}, {layer}.weight)), {layer}.weight.t())",
            f"F.linear(F.relu({layer}({d.h})), {layer}.weight.t())",
        )
    )


def _parametrized(d: Draft) -> str:
    inside = f"nn.Linear({d.width}, {d.size()}, bias={d.coin()})"
    name = d.module(
        d.pick(
            f"weight_norm({inside})",
            f"weight_norm({inside}, dim=1)",
            f"weight_norm({inside}, dim=None)",
            inside,
            inside,
            f"nn.utils.parametrizations.spectral_norm({inside})",
            f"nn.utils.prune.random_unstructured({inside}, 'weight', 0.4)",
        )
    )
    if d.coin() and "prune" not in d._inits[-1]:
        d.init(f"parametrize.register_parametrization({name}, 'weight', {d.pick('Scaled', 'Normed', 'Triangle')}())")
    return f"{name}({d.h})"


def _parametrized_conv(d: Draft) -> str:
    dims = d.rank - 2
    inside = f"nn.Conv{dims}d({d.shape[1]}, {d.size(1, 3)}, {d.size(1, min(2, *d.shape[2:]))})"
    name = d.module(d.pick(f"weight_norm({inside})", inside))
    d.init(f"parametrize.register_parametrization({name}, 'weight', {d.pick('Scaled', 'Normed')}())")
    return f"{name}({d.h})"


def _frozen(d: Draft) -> str:
    name = d.module(f"nn.Linear({d.width}, {d.size()})")
    which = [name + part for part in d.pick([".weight"], [".bias"], [".weight", ".bias"])]
    d.frozen += [part.removeprefix("self.") for part in which]
    return f"{name}({d.h})"


def _tied_module(d: Draft) -> str:
    fits = [name for name, shape in d.live if len(shape) == 2 and shape[1] == d.width and name.endswith(".weight")]
    if not fits or "parametrizations" in fits[0]:
        raise Rejected("nothing to tie to")
    source = d.pick(*fits)
    rows = dict(d.live)[source][0]
    name = d.module(f"nn.Linear({d.width}, {rows}, bias={d.coin()})")
    d.init(f"{name}.weight = {source}")
    return f"{name}({d.h})"


def _mixture(d: Draft) -> str:
    """Experts, and a gate that chooses among them, softly or by the largest."""
    o, k = d.size(2, 3), d.size(2, 3)
    experts = [d.module(f"nn.Linear({d.width}, {o})") for _ in range(k)]
    gate = d.let(f"{d.module(f'nn.Linear({d.width}, {k})')}({d.h})")
    all_ = d.let(f"torch.stack([{', '.join(f'{e}({d.h})' for e in experts)}], -1)")
    weights = d.pick(
        f"{gate}.softmax(-1)",
        f"F.one_hot({gate}.argmax(-1), {k}).to({d.h})",
        f"({gate} == {gate}.amax(-1, keepdim=True)).to(D)",
        f"{gate}.relu()",
        f"torch.zeros_like({gate}).scatter(-1, {gate}.topk(1, -1).indices, 1.0)",
    )
    return f"({all_} * {d.let(weights)}.unsqueeze(-2)).sum(-1)"


register(
    "layer",
    EVERY,
    {
        "Linear": _linear,
        "Linear and ReLU": _linear_relu,
        "F.linear": _functional,
        "matmul": _matmul,
        "weight from the left": _from_left,
        "bare parameter": _bare,
        "0-d parameter": _scalar,
        "shared layer": _shared,
        "parametrized Linear": _parametrized,
        "frozen": _frozen,
        "tied module": _tied_module,
    },
)
register("layer", "234", {"einsum": _einsum, "mixture": _mixture})
register("layer", "2", {"other products": _other_products})
register("layer", "3", {"matrix per position": _batched})
register("layer", "4", {"broadcast batches": _two_batched})
register(
    "layer",
    "345",
    {
        "conv": conv,
        "conv and ReLU": lambda d: conv(d, True),
        "F.conv": _functional_conv,
        "F.conv_transpose": _functional_transposed,
        "parametrized conv": _parametrized_conv,
    },
)
