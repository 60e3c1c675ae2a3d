"""Normalisation layers."""

from ..draft import Draft, Rejected
from .registry import EVERY, register


def _layer_norm(d: Draft) -> str:
    axes = d.rng.randint(1, d.rank - 1)
    shape = list(d.shape[-axes:])
    return str(
        d.pick(
            f"{d.module(f'nn.LayerNorm({shape})')}({d.h})",
            f"{d.module(f'nn.LayerNorm({shape}, elementwise_affine=False)')}({d.h})",
            f"{d.module(f'nn.LayerNorm({shape}, bias=False)')}({d.h})",
            f"F.layer_norm({d.h}, {shape})",
            f"F.layer_norm({d.h}, {shape}, {d.param(*shape)})",
            f"{d.module(f'nn.RMSNorm({shape}, eps=1e-3)')}({d.h})",
            f"{d.module(f'nn.RMSNorm({shape}, eps=1e-3, elementwise_affine=False)')}({d.h})",
            f"F.rms_norm({d.h}, {shape}, {d.param(*shape)}, 1e-3)",
        )
    )


def _batch_norm(d: Draft) -> str:
    dims = {2: "1d", 3: "1d", 4: "2d", 5: "3d"}[d.rank]
    options = d.pick("", "", ", affine=False", ", eps=0.1")
    c = d.shape[1]
    if d.coin(0.2):
        mean, var = d.buffer(c), d.kept_buffer(f"torch.arange(1, {c + 1}) / 2.0")
        return f"F.batch_norm({d.h}, {mean}, {var}, {d.param(c)}, {d.param(c) if d.coin() else None}, eps=0.01)"
    return f"{d.module(f'nn.BatchNorm{dims}({c}{options})')}({d.h})"


def _group_norm(d: Draft) -> str:
    c = d.shape[1]
    groups = d.pick(*[g for g in range(1, c + 1) if c % g == 0])
    if d.value[0].numel() // groups < 2:
        raise Rejected("one entry per group")
    return str(
        d.pick(
            f"{d.module(f'nn.GroupNorm({groups}, {c})')}({d.h})",
            f"{d.module(f'nn.GroupNorm({groups}, {c}, affine=False)')}({d.h})",
            f"F.group_norm({d.h}, {groups}, {d.param(c)})",
        )
    )


def _instance_norm(d: Draft) -> str:
    dims = d.rank - 2
    c = d.shape[1]
    if d.value[0, 0].numel() < 2:
        raise Rejected("one entry per channel")
    return str(
        d.pick(
            f"{d.module(f'nn.InstanceNorm{dims}d({c}, affine=True)')}({d.h})",
            f"{d.module(f'nn.InstanceNorm{dims}d({c})')}({d.h})",
            f"{d.module(f'nn.InstanceNorm{dims}d({c}, affine=True, track_running_stats=True)')}({d.h})",
            f"F.instance_norm({d.h}, weight={d.param(c)})",
        )
    )


def _prelu(d: Draft) -> str:
    count = d.pick(1, d.shape[1])
    return str(
        d.pick(
            f"{d.module(f'nn.PReLU({count})')}({d.h})",
            f"F.prelu({d.h}, {d.param(count)})",
            f"F.prelu({d.h}, {d.param(count)}.abs())",
        )
    )


register("linear", EVERY, {"batch norm": _batch_norm, "PReLU": _prelu})
register("bent", EVERY, {"layer norm": _layer_norm, "group norm": _group_norm})
register("bent", "345", {"instance norm": _instance_norm})
