"""What may be refused, but must not be wrong: gradients by hand, state that forward keeps, samples in odd places."""

from ..draft import Draft
from .registry import EVERY, register


def _gradient_by_hand(d: Draft) -> str:
    return str(d.pick(f"Rounded.apply({d.h})", f"Rectified.apply({d.h})", f"{d.h} + Rounded.apply(2 * {d.h})"))


def _kept_aside(d: Draft) -> str:
    """Forward keeps an activation on the module, as some people do to look at it later."""
    d.keep_unused = True
    name = d._name("seen")
    d.line(f"self.{name} = {d.h}{d.pick('', '.detach()', '.mean()')}")
    return f"F.relu({d.h})"


def _counted(d: Draft) -> str:
    """Forward counts its calls in a buffer."""
    count = d.kept_buffer("torch.zeros(1)")
    d.line(d.pick(f"{count} += 1", f"{count}.add_(1)", f"{count}.copy_({count} + 1)"))
    return f"{d.h} * 2"


def _as_channels(d: Draft) -> str:
    """All samples as groups of channels of one."""
    w, o = d.width, d.size(1, 2)
    n = f"{d.h}.shape[0]"
    return str(
        d.pick(
            f"F.conv1d({d.h}.reshape(1, -1, 1), {d.param(o, w, 1)}.repeat({n}, 1, 1), groups={n}).view(-1, {o})",
            f"F.max_pool1d({d.h}.flatten(1).unsqueeze(0), 2, 1).squeeze(0)",
            f"F.interpolate({d.h}.flatten(1).unsqueeze(0), scale_factor=2, mode='linear').squeeze(0)",
            f"F.pad({d.h}.flatten(1).unsqueeze(0), (1, 0), mode='replicate').squeeze(0)",
            f"F.conv2d({d.h}.flatten(1)[None, None], {d.param(2, 1, 1, 1)})[0].transpose(0, 1).flatten(1)",
            f"F.instance_norm({d.h}.flatten(1).unsqueeze(0)).squeeze(0)",
            f"F.layer_norm({d.h}.flatten(1).unsqueeze(0), ({d.value[0].numel()},)).squeeze(0)",
        )
    )


def _not_real(d: Draft) -> str:
    return str(
        d.pick(
            f"torch.fft.irfft(torch.fft.rfft({d.h}), n={d.width})",
            f"torch.view_as_real(torch.complex({d.h}, {d.h} * 2)).flatten(-2)",
            f"torch.func.vmap(lambda row: F.relu(2 * row))({d.h})",
            f"torch.vmap(torch.sin)({d.h})",
            f"{d.h}[..., {d.kept_buffer(f'torch.arange({d.width}) % 2 == 0')}]",
            f"{d.h}.to(torch.bfloat16).to(D).detach() + {d.h}",
        )
    )


def _constant(d: Draft) -> str:
    """Nothing of the sample is left."""
    return str(
        d.pick(
            f"{d.param(3)}.expand({d.h}.shape[0], -1)",
            f"torch.zeros_like({d.h}) + {d.param(d.width)}",
            f"0 * {d.h} + {d.param(1)}",
            f"torch.ones_like({d.h}) * {d.param(d.width)}",
            f"{d.h}.detach().sign() * {d.param(d.width)}",
        )
    )


register(
    "odd",
    EVERY,
    {
        "gradient by hand": _gradient_by_hand,
        "kept aside": _kept_aside,
        "counter": _counted,
        "samples as channels": _as_channels,
        "not real": _not_real,
        "constant": _constant,
    },
)
