"""Layers with weights: linear, shared, tied, parametrized, generated, in slices; bare parameters."""

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


def _sliced_layers(d: Draft) -> str:
    """One tensor of parameters, a slice of it for each of several layers, one behind the other or side by side."""
    w, k = d.width, d.size(2, 3)
    p, b = d.param(k, w, w), d.param(k, w)
    if d.coin():
        v = d.let(f"{d.h} * 1")
        act = d.pick("F.relu({})", "{}", "torch.tanh({})", "{}.abs()")
        for i in range(k):
            d.line(f"{v} = {act.format(f'{v} @ {p}[{i}] + {b}[{i}]')}")
        return v
    return str(
        d.pick(
            f"sum(F.relu({d.h} @ m) for m in {p})",
            f"torch.cat([{d.h} @ {p}[0], F.relu({d.h} @ {p}[1]) + {b}[1]], -1)",
            f"torch.stack([{d.h} @ m + c for m, c in zip({p}, {b})]).amax(0)",
            f"{d.h} @ {p}.sum(0) + {b}.mean(0)",
            f"{d.h} @ {p}[0] + {d.h} @ {p}[-1].T",
        )
    )


def _generated(d: Draft) -> str:
    """Weights that another layer makes of the sample itself, or of a code."""
    w, o = d.width, d.size(1, 2)
    maker = d.module(f"nn.Linear({w}, {w * o})")
    code = d.param(1, w)
    if d.rank == 2:
        return str(
            d.pick(
                f"({d.h}.unsqueeze(1) @ {maker}({d.h}).view(-1, {w}, {o})).squeeze(1)",
                f"torch.einsum('ni,nio->no', {d.h}, {maker}({d.h}).view(-1, {w}, {o}))",
                f"F.linear({d.h}, {maker}({code}).view({o}, {w}))",
                f"{d.h} @ F.relu({maker}({code})).view({w}, {o})",
            )
        )
    return str(
        d.pick(f"F.linear({d.h}, {maker}({code}).view({o}, {w}))", f"{d.h} @ F.relu({maker}({code})).view({w}, {o})")
    )


def _algebra(d: Draft) -> str:
    """Matrices inverted, solved with, exponentiated, made orthogonal."""
    w = d.width
    m = d.let(f"{d.param(w, w)} * 0.3 + torch.eye({w}, dtype=D)")
    return str(
        d.pick(
            f"{d.h} @ torch.linalg.inv({m})",
            f"torch.linalg.solve({m}, {d.h}.flatten(0, -2).T).T.view({d.h}.shape)",
            f"{d.h} @ torch.matrix_exp({m})",
            f"{d.module(f'nn.utils.parametrizations.orthogonal(nn.Linear({w}, {w}))')}({d.h})",
            f"{d.h} * torch.linalg.det({m})",
            f"{d.h} @ {m}.inverse().T",
            f"{d.h} @ {m} @ {m}",
            f"{d.h} @ torch.linalg.matrix_power({m}, 2)",
            f"{d.h} * torch.trace({m})",
        )
    )


def _alias(d: Draft) -> str:
    """One module under two names."""
    layer = d.module(f"nn.Linear({d.width}, {d.width})")
    name = d._name("m")
    d.init(f"self.{name} = {layer}")
    return str(
        d.pick(
            f"self.{name}({d.h})", f"self.{name}(F.relu({layer}({d.h})))", f"self.{name}({d.h}) + {layer}({d.h}.abs())"
        )
    )


def _lists(d: Draft) -> str:
    """Parameters in lists and dicts."""
    w = d.width
    several = d.module(f"nn.ParameterList([nn.Parameter(torch.empty({w})) for _ in range(2)])")
    named = d.module(f"nn.ParameterDict(dict(a=nn.Parameter(torch.empty({w})), b=nn.Parameter(torch.empty(1))))")
    return str(
        d.pick(
            f"sum(p * F.relu({d.h}) for p in {several})",
            f"{d.h} * {several}[0] + {several}[1]",
            f"{d.h} * {named}['a'] + {named}['b']",
            f"{d.h} * torch.stack(list({several})).sum(0)",
        )
    )


register(
    "layer",
    EVERY,
    {"sliced layers": _sliced_layers, "generated": _generated, "algebra": _algebra, "alias": _alias, "lists": _lists},
)
register(
    "layer",
    EVERY,
    {
        "Linear": _linear,
        "Linear and ReLU": _linear_relu,
        "F.linear": _functional,
        "bare parameter": _bare,
        "0-d parameter": _scalar,
        "shared layer": _shared,
        "parametrized Linear": _parametrized,
        "frozen": _frozen,
        "tied module": _tied_module,
    },
)
register("layer", "234", {"mixture": _mixture})
