"""Pools, pads and resizing, with a batch axis and (as torch reads the shape) without one; folds."""

from ..draft import Draft, Rejected
from .registry import EVERY, register


def _pool(d: Draft, dims: int) -> str:
    """A pool over the last axes: on a value with dims + 1 axes torch takes the samples for channels."""
    sizes = d.shape[-dims:]
    low = min(sizes)
    if low < 2:
        raise Rejected("too small to pool")
    h, s = d.h, d.size(1, 2)
    out = d.size(1, 3)
    return str(
        d.pick(
            f"F.max_pool{dims}d({h}, 2)",
            f"F.max_pool{dims}d({h}, 2, {s}, 1)",
            f"F.max_pool{dims}d({h}, 2, 1, ceil_mode=True)",
            f"F.max_pool{dims}d({h}, 2, 2, 0, 1, True)",
            f"F.max_pool{dims}d({h}, 2, 1, dilation={1 if low < 3 else 2})",
            f"F.max_pool{dims}d({h}, 2, {s}, return_indices=True)[0]",
            f"F.avg_pool{dims}d({h}, 2)",
            f"F.avg_pool{dims}d({h}, 2, {s}, 1)",
            f"F.avg_pool{dims}d({h}, 3, 1, 1, count_include_pad=False)",
            f"F.avg_pool{dims}d({h}, 2, 2, 0, True)",
            f"F.adaptive_avg_pool{dims}d({h}, {out})",
            f"F.adaptive_max_pool{dims}d({h}, {out})",
            f"F.lp_pool{dims}d({h}, 2, 2)" if d.coin(0.3) else f"F.max_pool{dims}d({h}, 2, 1)",
            f"F.lp_pool{dims}d({h}, 1, 2)" if d.coin(0.3) else f"F.avg_pool{dims}d({h}, 2, 1)",
            f"F.max_unpool{dims}d(*F.max_pool{dims}d({h}, 2, return_indices=True), 2)"
            if dims < 3 and low % 2 == 0
            else f"F.max_pool{dims}d({h}, 2, 1)",
        )
    )


def _pad(d: Draft) -> str:
    dims = d.rng.randint(1, min(d.rank - 1, 3))
    mode = d.pick("constant", "constant", "reflect", "replicate", "circular")
    if mode != "constant":
        dims = min(dims, max(d.rank - 1, 1), 3)
        if d.rank - dims not in (1, 2):
            dims = max(1, d.rank - 2)
    low = -1 if min(d.shape[-dims:]) > 2 else 0
    high = 1 if min(d.shape[-dims:]) > 1 else 0
    pads = [d.rng.randint(low, high) for _ in range(2 * dims)]
    if mode == "constant":
        value = d.pick("", "", ", value=0.5", ", value=-1.0")
        return f"F.pad({d.h}, {tuple(pads)}{value})"
    return f"F.pad({d.h}, {tuple(pads)}, mode={mode!r})"


def _resize(d: Draft) -> str:
    dims = d.rank - 2
    smooth = {1: "linear", 2: "bilinear", 3: "trilinear"}[dims]
    modes = ["nearest", "nearest", "nearest-exact", "area", smooth, *(["bicubic"] if dims == 2 else [])]
    mode = d.pick(*modes)
    corners = f", align_corners={d.coin()}" if mode in ("linear", "bilinear", "trilinear", "bicubic") else ""
    size = d.pick(
        "scale_factor=2", "scale_factor=1.5", f"size={[d.size(1, 4) for _ in range(dims)]}", "scale_factor=0.5"
    )
    return f"F.interpolate({d.h}, {size}, mode={mode!r}{corners})"


def _fold(d: Draft) -> str:
    """Columns back to pixels."""
    c, s = d.shape[1], d.shape[2]
    if c % 2 or c < 2:
        raise Rejected("no block fits")
    return str(
        d.pick(
            f"F.fold({d.h}, (1, {s + 1}), (1, 2))",
            f"F.fold({d.h}, ({s}, 2), (1, 2))",
            f"F.fold({d.h}, (1, {2 * s}), (1, 2), stride=2)",
        )
    )


def _responses(d: Draft) -> str:
    return f"F.local_response_norm({d.h}, {d.size(1, 3)}, alpha={d.number()})"


register("linear", "234", {"pool 1d": lambda d: _pool(d, 1) if d.rank < 4 else _pool(d, 2)})
register("linear", "345", {"pool 2d": lambda d: _pool(d, 2) if d.rank < 5 else _pool(d, 3)})
register("linear", "45", {"pool 3d": lambda d: _pool(d, 3)})
register("linear", EVERY, {"pad": _pad, "pad again": _pad})
register("linear", "345", {"resize": _resize})
register("linear", "3", {"fold": _fold})
register("bent", "345", {"local responses": _responses})
