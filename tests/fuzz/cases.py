"""From a seed to a case: a network, a loss, data, and the example as a script that runs by itself."""

import inspect
import random
import re
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from . import losses, program
from .draft import Draft, Piece, Rejected
from .losses import Loss
from .pieces import PIECES
from .program import IMPORTS, PARTS, Given, Program, Step

FIRST = 5
"""Samples of most cases; the others have more, and an odd one at the end."""
PART_NAMES = re.findall(r"^(?:class|def) (\w+)", PARTS, re.MULTILINE)
BY_KIND = {kind: [p for p in PIECES if p.kind == kind] for kind in ("layer", "linear", "bent", "odd", "forbidden")}


@dataclass(frozen=True)
class Case:
    """A network with a loss and the way its data is drawn."""

    program: Program
    loss: Loss
    samples: int
    bare: bool  # data without targets

    @property
    def seed(self) -> int:
        return self.program.seed

    @property
    def forbidden(self) -> bool:
        return "forbidden" in self.program.tags

    @property
    def odd(self) -> bool:
        """Whether it may be refused."""
        return "odd" in self.program.tags

    @property
    def low(self) -> bool:
        """Whether some of it runs in less than double precision."""
        return self.tolerance > 1e-8

    @property
    def tolerance(self) -> float:
        """How far rounding may move a number, relative to the largest of its kind."""
        precisions = {"bfloat16": 5e-2, "float32": 1e-3, "float()": 1e-3, "": 1e-8}
        return next(t for word, t in precisions.items() if word in self.program.source)

    def inputs(self, draw: int = 0, n: int | None = None) -> Any:
        """Inputs for n samples, in the form that forward takes."""
        generator = torch.Generator().manual_seed(1000 * self.seed + draw)
        tensors = [g.draw(n or self.samples, generator) for g in self.program.given]
        if self.samples > FIRST:
            tensors = [_odd_at_the_end(t) for t in tensors]
        if self.seed % 7 == 0:
            tensors = [_strided(t) for t in tensors]
        if self.program.form == "plain":
            return tensors[0] if len(tensors) == 1 else tuple(tensors)
        return {g.name: t for g, t in zip(self.program.given, tensors, strict=True)}

    def targets(self, outputs: Tensor, draw: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(1000 * self.seed + draw + 500)
        return self.loss.targets(tuple(outputs.shape), generator)

    def call(self, model: nn.Module, inputs: Any) -> Tensor:
        """The outputs for some inputs."""
        if isinstance(inputs, Tensor):
            result = model(inputs)
        elif isinstance(inputs, dict):
            result = model(inputs) if self.program.form == "dict" else model(**inputs)
        else:
            result = model(*inputs)
        outputs: Tensor = result["logits"] if isinstance(result, dict) else result
        return outputs


def _odd_at_the_end(tensor: Tensor) -> Tensor:
    """The last sample has a number like no other: what it does to others, the first samples do not show."""
    if tensor.dtype.is_floating_point and len(tensor) > FIRST:
        tensor[-1].view(-1)[0] = 5.0
    return tensor


def _strided(tensor: Tensor) -> Tensor:
    """The same numbers, in another order in memory."""
    return tensor.movedim(0, -1).contiguous().movedim(-1, 0)


def _inputs(rng: random.Random) -> tuple[Given, ...]:
    def size() -> int:
        return rng.randint(2, 5)

    kind = rng.random()
    if kind < 0.1:
        first = Given("x", (rng.randint(2, 4),), "int", rng.randint(3, 6))
    else:
        rank = rng.choice([1, 1, 1, 1, 2, 2, 2, 3, 3, 4])
        shape = {
            1: (rng.randint(2, 6),),
            2: (size(), size()),
            3: (rng.randint(1, 3), size(), size()),
            4: (rng.randint(1, 2), 2, rng.randint(2, 3), rng.randint(2, 3)),
        }[rank]
        first = Given("x", shape)
    if rng.random() > 0.15:
        return (first,)
    second = rng.choice([Given("z", (size(),)), Given("z", (size(),), "int", 4), Given("z", (size(),), "bool")])
    return (first, second)


def _embed(d: Draft) -> str:
    """Tokens (n, T) become vectors."""
    count, o = d.given[0].count, d.size(2, 4)
    padding = d.pick("", "", ", padding_idx=0")
    mode = d.pick("sum", "mean", "max")
    table = d.module(f"nn.Embedding({count}, {o}{padding})")
    return str(
        d.pick(
            f"{table}({d.h})",
            f"{table}({d.h}) + {table}({d.h}.flip(1))",
            f"{table}.weight[{d.h}]",
            f"F.embedding({d.h}, {d.param(count, o)})",
            f"F.one_hot({d.h}, {count}).to(D)",
            f"F.one_hot({d.h}, {count}).double() @ {d.param(count, o)}",
            f"{d.module(f'nn.EmbeddingBag({count}, {o}, mode={mode!r}{padding})')}({d.h})",
            f"{d.module(f'nn.EmbeddingBag({count}, {o}, mode={mode!r})')}({d.h})",
            f"{d.param(count, o)}.index_select(0, {d.h}.flatten()).view(*{d.h}.shape, {o})",
            f"{table}({d.h}) + {d.param(count, o)}[({d.h} != 1).int().cumsum(1).long() % {count}]",
            f"{table}({d.h}) + {d.module(f'nn.Embedding(9, {o})')}(({d.h} != 1).int().cumsum(1).long())",
            f"{table}({d.h}) * ({d.h} != 0).unsqueeze(-1)",
        )
    )


def _head(classes: bool, positions: bool, K: int) -> Piece:
    """Outputs that the loss takes."""

    def make(d: Draft) -> str:
        if not classes and d.value[0].numel() <= 6 and d.coin(0.4):
            return d.h
        if positions and d.rank in (3, 4):
            if d.coin():
                return f"{d.module(f'nn.Conv{d.rank - 2}d({d.shape[1]}, {K}, 1)')}({d.h})"
            return f"{d.module(f'nn.Linear({d.width}, {K})')}({d.h}).movedim(-1, 1)"
        if d.rank == 2 and d.width == K and d.coin(0.3):
            return d.h
        if d.rank > 2:
            ways = [f"{d.h}.flatten(1)"]
            if d.rank > 3:
                ways.append(f"{d.h}.mean({tuple(range(2, d.rank))})")
            if d.rank == 3:
                ways += [f"{d.h}.mean(1)", f"{d.h}[:, 0]", f"{d.h}.amax(1)", f"{d.h}.flatten(1)"]
            d.go(d.pick(*ways))
        if not classes and d.coin(0.15):
            return f"{d.module(f'nn.Linear({d.width}, 1)')}({d.h}).squeeze(-1)"
        return f"{d.module(f'nn.Linear({d.width}, {K}, bias={d.coin(0.7)})')}({d.h})"

    return Piece("head", "head", "2345", make)


def _grow(d: Draft, rng: random.Random, profile: str) -> None:
    length = rng.randint(2, 6)
    tries = 0
    while len(d.steps) < length and tries < 60:
        tries += 1
        kinds = {"plain": "layer linear linear", "mixed": "layer linear linear bent", "bent": "layer linear bent bent"}
        kind = rng.choice(kinds[profile].split())
        d.attempt(rng.choice([p for p in BY_KIND[kind] if str(d.rank) in p.ranks] or BY_KIND["layer"]))


def case(seed: int) -> Case:
    """The case of a seed, the same every time."""
    for k in range(100):
        try:
            return _case(seed, random.Random(1000 * seed + k))
        except Rejected:
            continue
    raise AssertionError(f"no network for seed {seed}")


def _case(seed: int, rng: random.Random) -> Case:
    d = drafted(seed, rng)
    K = rng.randint(2, 4)
    loss = losses.draw(rng, K)
    if not d.attempt(_head(loss.classes, rng.random() < 0.25, K)):
        raise Rejected("no head fits")
    form = rng.choice(["plain"] * 6 + ["keywords", "dict"])
    wrapper = rng.choice([""] * 16 + ["compile", "DataParallel"])
    returns = rng.choice(["{}"] * 20 + ['{{"logits": {0}, "features": x}}'])
    made = Program(seed, d.given, tuple(d.steps), form, wrapper, frozenset(d.tags), tuple(d.frozen), returns)
    samples = rng.randint(1, FIRST) if seed % 5 else rng.randint(FIRST + 2, FIRST + 4)
    return Case(made, loss, samples, loss.optional and rng.random() < 0.5)


def drafted(seed: int, rng: random.Random) -> Draft:
    """A network without a head: some first layer, then pieces."""
    d = Draft(rng.randrange(10**9), _inputs(rng))
    d.seed = seed
    if d.given[0].kind == "int" and not d.attempt(Piece("embed", "layer", "2", _embed)):
        raise Rejected("no embedding fits")
    if d.given[0].kind == "float" and rng.random() < 0.7:
        d.attempt(rng.choice([p for p in BY_KIND["layer"] if p.name in ("Linear", "Linear and ReLU", "conv and ReLU")]))
    if rng.random() < 0.15:  # a write in place has the whole graph taken apart further
        d.attempt(next(p for p in BY_KIND["linear"] if p.name == "in place"))
    _grow(d, rng, rng.choice(["plain", "plain", "plain", "mixed", "mixed", "bent"]))
    if rng.random() < 0.05:
        for _ in range(20):
            if d.attempt(rng.choice(BY_KIND["odd"])):
                d.tag("odd")
                break
    if rng.random() < 0.04:
        for _ in range(20):
            if d.attempt(rng.choice(BY_KIND["forbidden"])):
                d.tag("forbidden")
                break
        _grow(d, rng, "plain")
    return d


def script(case: Case, note: str) -> str:
    """A script that builds the network and its data, and nothing of this package."""
    shown = replace(case.program)
    own = [
        inspect.getsource(f)
        for f in (losses.log_cosh, losses.squared_sum, losses.softplus_margin)
        if f.__name__ == case.loss.text
    ]
    blocks = re.split(r"\n(?=class |def )", PARTS)
    parts = "\n".join(b for b in blocks for name in PART_NAMES if f" {name}(" in b and f"{name}" in shown.source)
    draws = "\n".join(f"{g.name} = {_draw_text(g, case.samples)}" for g in shown.given)
    names = ", ".join(g.name for g in shown.given)
    data = {"plain": names if len(shown.given) == 1 else f"({names})"}.get(
        shown.form, "{" + ", ".join(f"{g.name!r}: {g.name}" for g in shown.given) + "}"
    )
    wrap = {"": "model", "compile": "torch.compile(model, backend='eager')", "DataParallel": "nn.DataParallel(model)"}
    return "\n".join(
        [
            f"# {note}",
            "import zlib\nfrom math import sqrt",
            IMPORTS + "from torch import Tensor",
            parts,
            *own,
            inspect.getsource(program.value_for),
            "\n" + shown.source,
            "torch.manual_seed(0)",
            "model = Net().double()",
            "for name, tensor in [*model.named_parameters(), *model.named_buffers()]:",
            '    if tensor.dtype.is_floating_point and not name.rpartition(".")[2].startswith("kept"):',
            f"        tensor.data.copy_(value_for(name, tensor, {case.seed}))",
            *(f"dict(model.named_parameters())[{name!r}].requires_grad_(False)" for name in shown.frozen),
            f"model = {wrap[shown.wrapper]}",
            draws,
            f"inputs = {data}",
            f"loss = {case.loss.text}",
        ]
    )


def _draw_text(given: Given, n: int) -> str:
    if given.kind == "int":
        return f"torch.randint({given.count}, {(n, *given.shape)})"
    noise = f"torch.randn{(n, *given.shape)}.double()"
    return f"{noise} > -0.4" if given.kind == "bool" else noise


def shrunk(case: Case, steps: tuple[Step, ...]) -> Case:
    """The same case with other steps."""
    return replace(case, program=replace(case.program, steps=steps))
