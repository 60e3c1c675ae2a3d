"""Recurrent layers, attention, embeddings looked up by what the network itself decides."""

from ..draft import Draft, Rejected
from .registry import register


def _recurrent(d: Draft) -> str:
    """A recurrent layer over (n, T, F)."""
    size, first = d.size(1, 3), d.coin(0.7)
    kind = d.pick("LSTM", "GRU", "RNN", "RNN")
    options = [
        f"batch_first={first}",
        f"bidirectional={d.coin(0.3)}",
        f"bias={d.coin(0.8)}",
        f"num_layers={d.pick(1, 1, 2)}",
    ]
    if kind == "RNN":
        options.append(f"nonlinearity={d.pick('relu', 'tanh')!r}")
    if kind == "LSTM" and size > 1 and d.coin(0.3):
        options.append("proj_size=1")
    layer = d.module(f"nn.{kind}({d.width}, {size}, {', '.join(options)})")
    result = d.let(f"{layer}({d.h if first else f'{d.h}.transpose(0, 1)'})")
    last = f"{result}[1][0][-1]" if kind == "LSTM" else f"{result}[1][-1]"
    return str(d.pick(f"{result}[0]" if first else f"{result}[0].transpose(0, 1)", last))


def _cells(d: Draft) -> str:
    """A cell in a loop written out."""
    size = d.size(1, 3)
    kind = d.pick("LSTMCell", "GRUCell", "RNNCell")
    cell = d.module(f"nn.{kind}({d.width}, {size})")
    s = d.let(f"{d.h}.new_zeros({d.h}.shape[0], {size})")
    if kind == "LSTMCell":
        c = d.let(f"torch.zeros_like({s})")
        for t in range(d.shape[1]):
            d.line(f"{s}, {c} = {cell}({d.h}[:, {t}], ({s}, {c}))")
    else:
        for t in range(d.shape[1]):
            d.line(f"{s} = {cell}({d.h}[:, {t}], {s})")
    return s


def _loop(d: Draft) -> str:
    """A recurrence by hand, with one weight for all steps."""
    size = d.size(1, 3)
    a, b = d.module(f"nn.Linear({d.width}, {size})"), d.module(f"nn.Linear({size}, {size}, bias=False)")
    s = d.let(d.pick(f"{d.h}.new_zeros({d.h}.shape[0], {size})", f"{d.param(size)}.expand({d.h}.shape[0], -1)", "0.0"))
    if s and not hasattr(d.of(s), "shape"):
        d.line(f"{s} = {a}({d.h}[:, 0])")
    d.line(f"for part in {d.h}.unbind(1):\n    {s} = F.relu({a}(part) + {b}({s}))")
    return s


def _attention(d: Draft) -> str:
    heads = d.pick(*[k for k in (1, 2, 3) if d.width % k == 0])
    bias = f"bias={d.coin(0.7)}, add_bias_kv={d.coin(0.1)}"
    layer = d.module(f"nn.MultiheadAttention({d.width}, {heads}, batch_first=True, {bias})")
    mask = d.pick(
        "", ", need_weights=False", f", attn_mask=torch.ones({d.shape[1]}, {d.shape[1]}, dtype=torch.bool).triu(1)"
    )
    return f"{layer}({d.h}, {d.h}, {d.h}{mask})[0]"


def _explicit_attention(d: Draft) -> str:
    size = d.size(1, 3)
    q, k, v = (d.let(f"{d.module(f'nn.Linear({d.width}, {size}, bias={d.coin()})')}({d.h})") for _ in range(3))
    scores = d.let(
        d.pick(
            f"{q} @ {k}.transpose(-2, -1) / {size}**0.5",
            f"torch.einsum('nti,nsi->nts', {q}, {k})",
            f"torch.bmm({q}, {k}.mT)",
        )
    )
    if d.coin():
        keep = f"torch.ones({d.shape[1]}, {d.shape[1]}, dtype=torch.bool).tril()"
        scores = d.let(
            d.pick(
                f"{scores}.masked_fill(~{keep}, -math.inf)",
                f"{scores} + torch.zeros({d.shape[1]}, {d.shape[1]}, dtype=D).masked_fill(~{keep}, -1e9)",
            )
        )
    kind = d.pick("softmax", "softmax", "relu", "none")
    weights = {"softmax": f"{scores}.softmax(-1)", "relu": f"{scores}.relu()", "none": scores}[kind]
    return str(
        d.pick(f"{weights} @ {v}", f"torch.einsum('nts,nsi->nti', {weights}, {v})", f"torch.bmm({weights}, {v})")
    )


def _fused_attention(d: Draft) -> str:
    size, heads = d.size(1, 2), d.size(1, 2)
    layers = [d.module(f"nn.Linear({d.width}, {size * heads})") for _ in range(3)]
    split = f"view(-1, {d.shape[1]}, {heads}, {size}).transpose(1, 2)"
    q, k, v = (d.let(f"{layer}({d.h}).{split}") for layer in layers)
    if d.coin(0.4):
        qkv = d.let(f"{d.module(f'nn.Linear({d.width}, {3 * size * heads})')}({d.h})")
        parts = f"{qkv}.view(-1, {d.shape[1]}, 3, {heads}, {size})"
        q, k, v = (f"{d.let(f'{parts}.permute(2, 0, 3, 1, 4)')}[{i}]" for i in range(3))
        if d.coin():
            q, k, v = (
                d.let(f"{qkv}.chunk(3, -1)[{i}].unflatten(-1, ({heads}, {size})).transpose(1, 2)") for i in range(3)
            )
    mask = d.pick("", ", is_causal=True", f", scale={d.number()}", f", attn_mask={d.param(d.shape[1], d.shape[1])}")
    return f"F.scaled_dot_product_attention({q}, {k}, {v}{mask}).transpose(1, 2).flatten(2)"


def _encoder(d: Draft) -> str:
    if d.width % 2:
        raise Rejected("an odd width")
    options = f"norm_first={d.coin()}, activation={d.pick('relu', 'gelu')!r}"
    return f"{d.module(f'nn.TransformerEncoderLayer({d.width}, 2, 3, batch_first=True, {options})')}({d.h})"


def _looked_up(d: Draft) -> str:
    """An embedding of what the values decide: the place of the largest, signs, rounded numbers."""
    axis, o = d.axis(), d.size(1, 3)
    n = d.shape[axis]
    padding = d.pick("", "", ", padding_idx=0")
    table = d.module(f"nn.Embedding({max(n, 4)}, {o}{padding})")
    index = d.pick(
        f"{d.h}.argmax({axis})",
        f"({d.h} > 0).long()",
        f"(2 * {d.h}).long() % 4",
        f"{d.h}.argsort({axis})",
        f"({d.h} > 0).long().cumsum({axis}).clamp(max=3)",
    )
    return str(d.pick(f"{table}({index})", f"F.embedding({index}, {table}.weight)", f"{table}.weight[{index}]"))


def _one_hot(d: Draft) -> str:
    axis = d.axis()
    k = d.shape[axis]
    return str(
        d.pick(f"F.one_hot({d.h}.argmax({axis}), {k}).to(D)", f"F.one_hot({d.h}.argmax({axis}), {k + 1}).double()")
    ) + (f" + {d.param(1)}" if d.coin() else "")


def _positions(d: Draft) -> str:
    """Positions added, by a table or by a parameter."""
    t, f = d.shape[1], d.width
    return str(
        d.pick(
            f"{d.h} + {d.module(f'nn.Embedding({t}, {f})')}.weight",
            f"{d.h} + {d.module(f'nn.Embedding({t}, {f})')}(torch.arange({t}))",
            f"{d.h} + {d.param(1, t, f)}",
            f"{d.h} + {d.param(t + 1, f)}[:{t}]",
            f"torch.cat([{d.param(1, 1, f)}.expand({d.h}.shape[0], -1, -1), {d.h}], 1)",
            f"torch.cat([{d.param(f)}.repeat({d.h}.shape[0], 1, 1), {d.h}], 1)",
            f"{d.h} + {d.module(f'nn.Embedding({t}, {f})')}(torch.arange({t}).unsqueeze(0))",
            f"{d.h} + {d.module(f'nn.Embedding({t}, {f})')}(torch.arange({t}).expand({d.h}.shape[0], {t}))",
            f"torch.cat([{d.h}, {d.param(1, f)}.unsqueeze(0).expand({d.h}.shape[0], 1, {f})], dim=1)",
            f"torch.cat([torch.tensor([], dtype=D), {d.h}], -2)",
        )
    )


def _rotary(d: Draft) -> str:
    """Pairs of channels turned by angles that are made under no_grad."""
    if d.width % 2:
        raise Rejected("an odd width")
    angle, half = d._name("angle"), d.width // 2
    d.line(
        "with torch.no_grad():\n"
        f"    {angle} = torch.outer(torch.arange({d.shape[1]}, dtype=D), torch.arange(1, {half + 1}, dtype=D))"
    )
    a, b = d.let(f"{d.h}[..., :{half}]"), d.let(f"{d.h}[..., {half}:]")
    return f"torch.cat([{a} * {angle}.cos() - {b} * {angle}.sin(), {a} * {angle}.sin() + {b} * {angle}.cos()], -1)"


def _few_keys(d: Draft) -> str:
    """Queries of several heads share keys and values."""
    size = d.size(1, 2)
    q = d.let(f"{d.module(f'nn.Linear({d.width}, {2 * size})')}({d.h}).unflatten(-1, (2, {size})).transpose(1, 2)")
    k, v = (
        d.let(f"{d.module(f'nn.Linear({d.width}, {size})')}({d.h}).unflatten(-1, (1, {size})).transpose(1, 2)")
        for _ in range(2)
    )
    way = d.pick(
        f"F.scaled_dot_product_attention({q}, {k}, {v}, enable_gqa=True)",
        f"F.scaled_dot_product_attention({q}, {k}.expand(-1, 2, -1, -1), {v}.repeat_interleave(2, 1))",
        f"({q} @ {k}.mT).softmax(-1) @ {v}",
    )
    return f"{way}.transpose(1, 2).flatten(2)"


def _decoder(d: Draft) -> str:
    if d.width % 2:
        raise Rejected("an odd width")
    return f"{d.module(f'nn.TransformerDecoderLayer({d.width}, 2, 3, batch_first=True)')}({d.h}, {d.h}.flip(1))"


def _padded_attention(d: Draft) -> str:
    """Some keys are masked, by their own values."""
    layer = d.module(f"nn.MultiheadAttention({d.width}, 1, batch_first=True)")
    mask = d.let(f"torch.cat([torch.zeros_like({d.h}[:, :1, 0]), {d.h}[:, 1:, 0]], 1) > 0.5")
    return f"{layer}({d.h}, {d.h}, {d.h}, key_padding_mask={mask})[0]"


register(
    "bent",
    "3",
    {
        "recurrent": _recurrent,
        "few keys": _few_keys,
        "decoder": _decoder,
        "padded attention": _padded_attention,
        "cells": _cells,
        "attention": _attention,
        "explicit attention": _explicit_attention,
        "fused attention": _fused_attention,
        "encoder": _encoder,
    },
)
register("linear", "3", {"loop": _loop, "positions": _positions, "rotary": _rotary})
register("linear", "23", {"looked up": _looked_up, "one hot": _one_hot})
