"""What stands around operations: checkpoints, hooks, detached and unrecorded parts, unused and empty parameters."""

from ..draft import Draft
from .registry import EVERY, register


def _checkpoint(d: Draft) -> str:
    inner = f"nn.Sequential(nn.Linear({d.width}, 3), nn.ReLU(), nn.Linear(3, {d.size()}))"
    return f"checkpoint({d.module(inner)}, {d.h}, use_reentrant=False)"


def _hooks(d: Draft) -> str:
    layer = d.module(f"nn.Linear({d.width}, {d.size()})")
    d.init(
        d.pick(
            f"{layer}.register_forward_hook(double_output)",
            f"{layer}.register_forward_pre_hook(relu_input)",
            f"{layer}.register_forward_hook(look)",
            f"{layer}.register_full_backward_hook(look)",
            f"{layer}.register_full_backward_pre_hook(look)",
        )
    )
    return f"{layer}({d.h})"


def _detached(d: Draft) -> str:
    layer = d.module(f"nn.Linear({d.width}, {d.width})")
    return str(
        d.pick(
            f"{d.h} + {layer}({d.h}).detach()",
            f"{d.h} + {layer}({d.h}.detach())",
            f"{d.h} * F.relu({layer}({d.h})).detach()",
            f"{d.h} + (F.relu({d.h}).round() - {d.h}).detach()",
            f"{d.h} - {d.h}.detach() + F.relu({layer}({d.h}))",
            f"{d.h} * {layer}.bias.detach()",
            f"F.linear({d.h}, {layer}.weight.detach(), {layer}.bias)",
            f"{d.h}.data + {layer}({d.h})",
        )
    )


def _unrecorded(d: Draft) -> str:
    v = d._name("v")
    layer = d.module(f"nn.Linear({d.width}, {d.width})")
    inner = d.pick(
        f"F.relu({layer}({d.h}))",
        f"{layer}({d.h})",
        f"{d.h}.abs().mean(-1, keepdim=True)",
        "torch.arange(1.0, 2.0, dtype=D)",
        f"torch.linspace(0.5, 1, {d.width}, dtype=D)",
        f"{d.h}.clone()",
        f"{layer}.weight.abs().sum(1)",
    )
    around = d.pick("torch.no_grad()", "torch.set_grad_enabled(False)", "torch.no_grad()", "torch.enable_grad()")
    d.line(f"with {around}:\n    {v} = {inner}")
    result = d.let(
        d.pick(f"{d.h} + {v}", f"{d.h} * {v}", f"F.relu({layer}({d.h}) + {v})", f"torch.maximum({d.h}, {v})")
    )
    if d.coin(0.3):
        d.line(d.pick(f"{result} = {result} * 1", f"{result} += 1", f"{result} *= 0.5"))
    return result


def _unused(d: Draft) -> str:
    d.keep_unused = True
    d.module(
        d.pick(f"nn.Linear({d.width}, 2)", "nn.Embedding(3, 2)", "nn.ParameterList([nn.Parameter(torch.empty(2))])")
    )
    if d.coin():
        d.let(
            d.pick(
                f"{d.param(d.width)} * {d.h}", f"{d.h}.softmax(0)", "torch.rand(1)", f"{d.h}.mean()", f"{d.h}.sum(0)"
            )
        )
    return str(d.pick(f"{d.h} * {d.number()}", f"F.relu({d.h})"))


def _empty(d: Draft) -> str:
    w = d.width
    return str(
        d.pick(
            f"torch.cat([{d.h}, {d.h}[..., :0]], -1)",
            f"torch.cat([torch.tensor([], dtype=D), {d.h}], -1)",
            f"torch.cat([{d.h}.new_zeros({d.h}.shape[0], 0), {d.h}], 1)"
            if d.rank == 2
            else f"torch.cat([{d.h}[:, :0], {d.h}], 1)",
            f"{d.h} + {d.param(0)}.sum()",
            f"{d.h} + {d.module(f'nn.Linear(0, {w})')}({d.module(f'nn.Linear({w}, 0)')}({d.h}))",
            f"torch.cat([{d.h}, {d.module(f'nn.Linear({w}, 0)')}({d.h})], -1)",
            f"{d.h} + {d.h}[..., :0].sum(-1, keepdim=True)",
            f"torch.cat([{d.param(0, w)}, {d.param(3, w)}]).sum(0) + {d.h}",
            f"{d.h} + {d.h}[..., :0] @ {d.param(0, w)}",
        )
    )


def _constants(d: Draft) -> str:
    w = d.width
    return str(
        d.pick(
            f"{d.h} * {d.buffer(w)}",
            f"{d.h} + {d.buffer(*d.shape[1:])}",
            f"{d.h} * torch.arange(1, {w + 1})",
            f"{d.h} @ torch.eye({w}, dtype=D).flip(0)",
            f"{d.h} + torch.linspace(-1, 1, {w}, dtype=D)",
            f"{d.h} * torch.full(({w},), 0.5, dtype=D)",
            f"{d.h} + torch.zeros({w}, dtype=D)",
            f"{d.h} @ torch.ones({w}, {w}, dtype=D).tril()",
            f"{d.h} * torch.tensor({[round(0.5 + 0.3 * i, 1) for i in range(w)]}, dtype=D)",
            f"{d.h} / {d.kept_buffer('torch.tensor(2.0)')}",
            f"{d.h} @ {d.buffer(w, d.size())}",
            f"F.linear({d.h}, {d.buffer(d.size(), w)}, {d.buffer(1)})",
            f"{d.h} * {d.kept_buffer(f'torch.arange({w})')} + {d.h}",
            f"{d.h}.new_full(({w},), 0.3) + {d.h}",
            f"{d.h}.new_ones({d.h}.shape) + {d.h}",
            f"torch.ones_like({d.h}) * {d.param(w)} + {d.h}",
            f"torch.zeros_like({d.h}) + F.relu({d.h})",
            f"torch.ones({d.h}.shape[0], 1, dtype=D) @ {d.param(1, w)} + {d.h}"
            if d.rank == 2
            else f"{d.h} * math.sqrt({d.shape[1]})",
        )
    )


def _modules(d: Draft) -> str:
    """Containers of modules."""
    w, o = d.width, d.size()
    return str(
        d.pick(
            f"{d.module(f'nn.Sequential(nn.Linear({w}, {o}), nn.Dropout(0.5), nn.Linear({o}, {o}))')}({d.h})",
            f"{d.module(f'nn.Sequential(nn.Linear({w}, {o}), nn.Identity(), nn.Hardtanh())')}({d.h})",
            f"sum(layer({d.h}) for layer in {d.module(f'nn.ModuleList([nn.Linear({w}, {o}), nn.Linear({w}, {o})])')})",
            f"{d.module('nn.ModuleDict({' + repr('a') + f': nn.Linear({w}, {o})' + '})')}['a']({d.h})",
            f"{d.module(f'nn.Bilinear({w}, {w}, {o})')}({d.h}, {d.h})",
            f"{d.module(f'nn.Sequential(nn.Linear({w}, 2), nn.ReLU(inplace=True), nn.Linear(2, {w}))')}({d.h}) + {d.h}",
            f"{d.module(f'nn.Sequential(nn.Linear({w}, {o}), nn.LeakyReLU(0.1, inplace=True))')}({d.h})",
        )
    )


register(
    "linear",
    EVERY,
    {
        "checkpoint": _checkpoint,
        "hooks": _hooks,
        "detach": _detached,
        "no_grad": _unrecorded,
        "unused": _unused,
        "empty": _empty,
        "constants": _constants,
        "modules": _modules,
    },
)
