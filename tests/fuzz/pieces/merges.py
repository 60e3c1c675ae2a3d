"""Branches that part and come together, gates, values of other inputs."""

from ..draft import Draft, Rejected
from .registry import EVERY, register


def _branch(d: Draft) -> str:
    """Another value of the same shape: made by a layer, or from before."""
    if d.coin(0.3):
        return d.other()
    layer = f"{d.module(f'nn.Linear({d.width}, {d.width}, bias={d.coin()})')}({d.h})"
    return d.let(d.pick(layer, f"F.relu({layer})"))


def _joined(d: Draft) -> str:
    a, b, axis = d.h, _branch(d), d.axis()
    mask = f"({b} > 0)"
    return str(
        d.pick(
            f"{a} + {b}",
            f"{a} - {b}",
            f"F.relu({a} + {b})",
            f"torch.cat([{a}, {b}], {axis})",
            f"torch.stack([{a}, {b}], {axis}).flatten({d.rank - 1})",
            f"torch.stack([{a}, {b}], 1)",
            f"torch.stack([{a}, {b}]).sum(0)",
            f"torch.stack([{a}, {b}]).amax(0)",
            f"torch.stack([{a}, {b}], -1).max(-1).values",
            f"torch.maximum({a}, {b})",
            f"torch.min({a}, {b})",
            f"torch.fmin({a}, {b})",
            f"torch.where({mask}, {a}, {b})",
            f"torch.where({a} > {b}, {a}, 2 * {b})",
            f"{a} * {mask}",
            f"torch.hstack([{a}, {b}])",
            f"torch.concat([{a}, {b}, {a}], dim={axis})",
            f"torch.column_stack([{a}, {b}])" if d.rank == 2 else f"torch.dstack([{a}, {b}])",
            f"torch.vstack([{a}, {b}]).view(2, -1, {', '.join(map(str, d.shape[1:]))}).transpose(0, 1).flatten(1, 2)",
            f"{a} + {b}.detach()",
            f"torch.lerp({a}, {b}, {d.number()})",
            f"sum([{a}, {b}, {a}])",
            f"{a} + {d.param()} * {b}",
            f"torch.add({a}, {b}, alpha=-{d.number()})",
        )
    )


def _multiplied(d: Draft) -> str:
    a, b = d.h, _branch(d)
    return str(
        d.pick(
            f"{a} * {b}",
            f"{a} * F.relu({b})",
            f"torch.mul({a}, {b}) + {a}",
            f"{a} * {b}.clamp(0, 1)",
            f"{a} * F.hardsigmoid({b})",
            f"{a} * {b}.abs()",
            f"torch.addcmul({a}, {a}, {b}, value={d.number()})",
            f"{a} / ({b}.abs() + 1)",
            f"{a} * {b}.sum(-1, keepdim=True)",
            f"{a} * {b}.mean({d.axis()}, keepdim=True)",
            f"({a}.unsqueeze(-1) * {b}.unsqueeze(-2)).flatten(-2)",
            f"{a}.unsqueeze(-2) @ {b}.unsqueeze(-1)" if d.rank == 2 else f"{a} @ {b}.mT",
            f"torch.bmm({a}.unsqueeze(1), {b}.unsqueeze(2)).squeeze(2)" if d.rank == 2 else f"{a}.mT @ {b}",
            f"{a} * torch.sigmoid({b})",
            f"{a} * torch.tanh({b}) + {b}",
            f"{a} * {b}.softmax(-1)",
            f"F.cosine_similarity({a}, {b}, dim=-1).unsqueeze(-1)",
            f"F.glu(torch.cat([{a}, {b}], -1), -1)",
            f"torch.linalg.vecdot({a}, {b}).unsqueeze(-1)",
            f"torch.cdist({a}.view({a}.shape[0], -1, {d.width}), {b}.view({a}.shape[0], -1, {d.width})).flatten(1)",
        )
    )


def _maxout(d: Draft) -> str:
    k = d.size(2, 3)
    o = d.size(1, 3)
    v = d.let(f"{d.module(f'nn.Linear({d.width}, {o * k})')}({d.h}).unflatten(-1, ({o}, {k}))")
    return str(
        d.pick(
            f"{v}.max(-1).values",
            f"{v}.amax(-1)",
            f"{v}.amax(-2)",
            f"{v}.median(-1).values",
            f"{v}.topk(2, -1).values.sum(-1)",
        )
    )


def _extra(d: Draft) -> str:
    """Another input comes in."""
    others = [g for g in d.given if g.name != d.given[0].name]
    if not others or d.rank < 2:
        raise Rejected("no other input")
    g = d.pick(*others)
    if g.kind == "int":
        table = d.module(f"nn.Embedding({g.count}, {d.width})")
        z = d.let(f"{table}({g.name}).mean(1)")
    elif g.kind == "bool":
        size = g.shape[-1]
        layer = d.module(f"nn.Linear({size}, {d.width})")
        z = d.let(
            d.pick(
                f"{layer}({g.name}.to(D))",
                f"{g.name}.double() @ {d.param(size, d.width)}",
                f"torch.where({g.name}, 1.0, -1.0).to(D) @ {d.param(size, d.width)}",
            )
        )
    else:
        z = d.let(f"{d.module(f'nn.Linear({g.shape[-1]}, {d.width})')}({g.name})")
    wide = d.let(f"{z}.view(-1, {', '.join(['1'] * (d.rank - 2) + [str(d.width)])})")
    return str(
        d.pick(
            f"{d.h} + {wide}",
            f"{d.h} * {wide}",
            f"F.relu({d.h} + {wide})",
            f"torch.maximum({d.h}, {wide})",
            f"torch.where({wide} > 0, {d.h}, {wide})",
        )
    )


register("linear", EVERY, {"join": _joined, "join again": _joined, "maxout": _maxout, "other input": _extra})
register("bent", EVERY, {"multiply": _multiplied})
