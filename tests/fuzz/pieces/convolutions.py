"""Convolutions of every kind."""

from ..draft import Draft, Rejected
from .registry import register
from .weights import weight


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


def _parametrized_conv(d: Draft) -> str:
    dims = d.rank - 2
    inside = f"nn.Conv{dims}d({d.shape[1]}, {d.size(1, 3)}, {d.size(1, min(2, *d.shape[2:]))})"
    name = d.module(d.pick(f"weight_norm({inside})", inside))
    d.init(f"parametrize.register_parametrization({name}, 'weight', {d.pick('Scaled', 'Normed')}())")
    return f"{name}({d.h})"


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
