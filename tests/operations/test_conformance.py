"""Every row of the table is held to its laws on all its examples.

``python -m tests.operations.test_conformance [row ...]`` prints what was checked, every violation, and for each row how
much of the true freedom to rescale its rules find.
"""

import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis import strategies as st
from torch import Tensor

from minsharp import operations
from minsharp.graph.records import Operation
from minsharp.laws import ENTRIES, LAWS, Trial, begin, freedom
from minsharp.laws.example import check_example
from minsharp.laws.probe import UnfitError
from minsharp.operations.elementwise import pull_product, pull_relu, pull_sum
from minsharp.operations.examples import EXAMPLES, Example
from minsharp.operations.linear import pull_linear
from minsharp.operations.pools import pull_max_pool
from minsharp.rules.apart import all_axes, along, by_entry, in_order
from minsharp.rules.channels import entrywise, moved, reduced
from minsharp.rules.contraction import Contraction, Elementwise, Use
from minsharp.rules.narrowing import Parts, each_entry
from minsharp.rules.pullback import Pull, Pullback
from minsharp.rules.row import Row

TABLE = operations.TABLE
NEVER_READ = {"view", "_unsafe_view", "alias", "type_as"}
"""Rows for graphs that are written by hand: the reader writes a reshape, a cast or nothing for them."""
NAMES = [name for name in TABLE if name not in NEVER_READ]
DRAWS: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck), "print_blob": True}


def _first_of_its_kind(name: str) -> bool:
    """Whether no earlier name has the very same row."""
    return next(other for other in NAMES if TABLE[other] is TABLE[name]) == name


MOST = 9
"""Examples of a row in the fast suite: reading a probe takes most of the time. The slow one takes all of them."""


def chosen(name: str) -> list[Example]:
    """Examples spread evenly over the row's; fewer for a further name of a row that stands in the table before."""
    examples = EXAMPLES.get(name, [])
    most = MOST if _first_of_its_kind(name) else MOST // 3
    return [examples[i * len(examples) // most] for i in range(most)] if len(examples) > most else examples


def _quietly(example: Example, name: str, **options: Any) -> list[str]:
    """The laws, without what torch thinks of unusual calls."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return check_example(example, name, **options)


def violations(name: str, examples: list[Example], **options: Any) -> list[str]:
    """What is broken, with the example that shows it; at its own sizes an example has to run."""
    if not examples:
        return [f"{name} has no examples"]
    found = []
    for i, example in enumerate(examples):
        try:
            broken = _quietly(example, name, **options)
        except UnfitError as error:
            broken = [] if "entry" in options else [f"does not run: {error}"]
        found += [f"{name} #{i} {example}: {what}" for what in broken]
    return found


def test_every_row_has_examples_and_every_example_a_row() -> None:
    assert set(EXAMPLES) == set(NAMES)
    assert all(EXAMPLES.values())


@pytest.mark.parametrize("name", sorted(NEVER_READ & set(TABLE)))
def test_what_is_never_read(name: str) -> None:
    calls: dict[str, Callable[[Tensor], Tensor]] = {
        "view": lambda x: x.view(-1, 6),
        "_unsafe_view": lambda x: torch.ops.aten._unsafe_view(x, (-1, 6)),
        "alias": torch.ops.aten.alias,
        "type_as": lambda x: x.type_as(torch.zeros(1)),
    }
    (found,) = violations(name, [Example(calls[name], "x(n,2,3)")])
    assert f"no operation {name!r} comes up" in found


@pytest.mark.parametrize("name", NAMES)
def test_row(name: str) -> None:
    found = violations(name, chosen(name))
    assert not found, "\n".join(found)


def _drawn(name: str, data: st.DataObject, *, wide: bool) -> None:
    example = EXAMPLES[name][data.draw(st.integers(0, len(EXAMPLES[name]) - 1), label="example")]
    sizes = {letter: data.draw(st.integers(*example.range_of(letter)), label=letter) for letter in example.letters}
    entry = data.draw(st.sampled_from(ENTRIES), label="entry")
    seed = data.draw(st.integers(0, 1000), label="seed")
    try:
        found = _quietly(example, name, sizes=sizes, entry=entry, seed=seed, wide=wide)
    except UnfitError:
        reject()
    assert not found, "\n".join([f"{name} {example}", *found])


@pytest.mark.parametrize("name", [name for name in NAMES if _first_of_its_kind(name)])
@settings(max_examples=2, derandomize=True, database=None, phases=(Phase.generate,), **DRAWS)  # shrinking takes minutes
@given(data=st.data())
def test_drawn_sizes(name: str, data: st.DataObject) -> None:
    _drawn(name, data, wide=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_row_in_every_way(name: str) -> None:
    found = [what for entry in ENTRIES for what in violations(name, EXAMPLES[name], entry=entry, seed=1, wide=True)]
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40, database=None, **DRAWS)
@given(data=st.data())
def test_many_drawn_sizes(name: str, data: st.DataObject) -> None:
    _drawn(name, data, wide=True)


# The laws can be broken


def test_a_row_without_examples_fails() -> None:
    assert violations("nothing", []) == ["nothing has no examples"]


def test_an_example_of_another_operation_fails() -> None:
    assert violations("relu", [Example(torch.abs, "x(n,a)")])[0].endswith("no operation 'relu' comes up, only ['abs']")


def test_an_example_that_mixes_samples_fails() -> None:
    (found,) = violations("roll", [Example(lambda x: x.roll(1, 0), "x(n,a)")])
    assert "read: ReadError" in found


def _times(pull: Pullback, factor: float) -> Pullback:
    """A pullback that is off by a factor."""

    def rule(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Any, Pull]:
        made, back = pull(operation, bound, wanted)
        return made, lambda G: {name: g * factor for name, g in back(G).items()}

    return rule


def _writing(pull: Pullback) -> Pullback:
    """A pullback that writes over its cotangents."""

    def rule(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Any, Pull]:
        made, back = pull(operation, bound, wanted)
        return made, lambda G: {name: g.clone() for name, g in back(G).items()} | dict.fromkeys([], G.mul_(2))

    return rule


def _first_column(pull: Pullback) -> Pullback:
    """A pullback that takes the first column for all."""

    def rule(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Any, Pull]:
        made, back = pull(operation, bound, wanted)
        return made, lambda G: {name: g[:1].expand_as(g) for name, g in back(G).items()}

    return rule


def _writing_arguments(pull: Pullback) -> Pullback:
    """A pullback that writes over what was multiplied."""

    def rule(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Any, Pull]:
        made, back = pull(operation, bound, wanted)
        bound["self"].mul_(2)
        return made, back

    return rule


class Forgetful(Contraction):
    """A contraction that squares before it has added up positions."""

    def __init__(self, right: Contraction):
        self.right = right

    def gradient(self, use: Use, G: Tensor) -> Tensor:
        return self.right.gradient(use, G)

    def trace(self, use: Use, G: Tensor) -> Tensor:
        return use.columns(G).square().sum().double()

    def diagonal(self, use: Use, G: Tensor) -> Tensor:
        return self.right.diagonal(use, G)


class Doubled(Forgetful):
    """A contraction whose diagonal is off by a factor, its trace right."""

    def trace(self, use: Use, G: Tensor) -> Tensor:
        return self.right.trace(use, G)

    def diagonal(self, use: Use, G: Tensor) -> Tensor:
        return 2 * self.right.diagonal(use, G)


class Writing(Doubled):
    """A contraction that leaves something behind in the parameter."""

    def diagonal(self, use: Use, G: Tensor) -> Tensor:
        result = self.right.diagonal(use, G)
        use.values[use.leaf].add_(1e-12)
        return result


def _one_axis_off(walk: Any, operation: Operation) -> Any:
    """Reduced along the axis before the right one."""
    dim: Any = operation.arguments["dim"]
    other = dim - 1 if isinstance(dim, int) else tuple(d - 1 for d in dim)
    return reduced(walk, replace(operation, arguments={**operation.arguments, "dim": other}))


BREAKS: dict[str, tuple[str, Callable[[Row], Row]]] = {
    "relu6 called homogeneous": ("relu6", lambda r: replace(r, formula="self")),
    "hardtanh without its upper bound": ("hardtanh", lambda r: replace(r, formula="self + min_val")),
    "gelu called linear": ("gelu", lambda r: replace(r, formula="self")),
    "softmax called homogeneous": ("softmax", lambda r: replace(r, formula="self")),
    "a product called a sum": ("mul", lambda r: replace(r, formula="self + other")),
    "a sum called a product": ("add", lambda r: replace(r, formula="self*other")),
    "division called linear in both": ("div", lambda r: replace(r, formula="self*other")),
    "rounding division as plain division": ("div", lambda r: replace(r, unless="")),
    "floor called homogeneous": ("floor", lambda r: replace(r, formula="self")),
    "floor called a comparison": ("floor", lambda r: replace(r, compares=True)),
    "clamp without its lower bound": ("clamp", lambda r: replace(r, formula="self + max")),
    "attention with free scores": (
        "scaled_dot_product_attention",
        lambda r: replace(r, formula="query*key*value", channels=None),
    ),
    "prelu without its first term": ("prelu", lambda r: replace(r, formula="self*weight", channels=None)),
    "layer norm that passes scales": ("layer_norm", lambda r: replace(r, formula="input*weight", channels=None)),
    "sums entry by entry": ("sum", lambda r: replace(r, channels=lambda w, o: _sliced(w, o))),
    "sums along the axis before": ("sum", lambda r: replace(r, channels=_one_axis_off)),
    "maxima along the axis before": ("amax", lambda r: replace(r, channels=_one_axis_off)),
    "sorted entries keep their places": ("sort", lambda r: replace(r, channels=moved)),
    "cumulative sums entry by entry": ("cumsum", lambda r: replace(r, channels=entrywise)),
    "pools entry by entry": ("avg_pool1d", lambda r: replace(r, channels=lambda w, o: _sliced(w, o))),
    "reflected entries stay apart": ("reflection_pad1d", lambda r: replace(r, channels=lambda w, o: _sliced(w, o))),
    "linear with entries of the input": ("linear", lambda r: replace(r, channels=lambda w, o: _unmixed(w, o))),
    "flip rearranges nothing": ("flip", lambda r: replace(r, channels=entrywise)),
    "expand rearranges": ("repeat", lambda r: replace(r, rearranges=True)),
    "slice rearranges": ("slice", lambda r: replace(r, rearranges=True)),
    "a pullback twice as large": ("relu", lambda r: replace(r, pull=_times(pull_relu, 2))),
    "a difference pulled back as a sum": ("sub", lambda r: replace(r, pull=_times(pull_sum, -1))),
    "a pullback of the first column": ("linear", lambda r: replace(r, pull=_first_column(pull_linear))),
    "a pullback that writes over cotangents": ("mul", lambda r: replace(r, pull=_writing(pull_product))),
    "a pullback that writes over arguments": ("mul", lambda r: replace(r, pull=_writing_arguments(pull_product))),
    "a contraction that writes over its parameter": (
        "mul",
        lambda r: replace(r, contract={**r.contract, "other": Writing(r.contract["other"])}),
    ),
    "a max pool that is slightly off": ("max_pool2d", lambda r: replace(r, pull=_times(pull_max_pool, 1 + 1e-6))),
    "a bias that is multiplied": (
        "add",
        lambda r: replace(r, contract={**r.contract, "other": Elementwise(lambda use: 2.0)}),
    ),
    "a weight that forgets its inputs": (
        "linear",
        lambda r: replace(r, contract={**r.contract, "weight": Forgetful(r.contract["weight"])}),
    ),
    "a diagonal twice as large": (
        "conv1d",
        lambda r: replace(r, contract={**r.contract, "weight": Doubled(r.contract["weight"])}),
    ),
    "an embedding that adds up nothing": (
        "embedding",
        lambda r: replace(r, contract={"weight": Forgetful(r.contract["weight"])}),
    ),
    "queries that see each other": (
        "scaled_dot_product_attention",
        lambda r: replace(r, narrows=lambda values, operation, axis, size: Parts({"query": axis, "key": axis})),
    ),
    "softmax entry by entry": ("softmax", lambda r: replace(r, narrows=each_entry)),
    "softmax along the samples": ("softmax", lambda r: replace(r, apart=by_entry)),
    "convolutions that take samples for channels": ("conv1d", lambda r: replace(r, apart=along("input", all_axes))),
    "norms of channels that are samples": ("batch_norm", lambda r: replace(r, apart=along("input", all_axes))),
    "groups of channels that are samples": ("group_norm", lambda r: replace(r, apart=along("input", all_axes))),
    "windows over samples": ("max_pool2d", lambda r: replace(r, apart=along("self", all_axes))),
    "samples rolled": ("roll", lambda r: replace(r, apart=along("self", all_axes))),
    "sums up to each sample": ("cumsum", lambda r: replace(r, apart=along("self", all_axes))),
    "samples end to end": ("cat", lambda r: replace(r, apart=lambda call: True)),
    "any shape": ("reshape", lambda r: replace(r, apart=lambda call: True)),
    "a batch of one squeezed": ("squeeze", lambda r: replace(r, apart=in_order())),
    "products along samples": ("matmul", lambda r: replace(r, apart=by_entry)),
    "attention to other samples": ("scaled_dot_product_attention", lambda r: replace(r, apart=by_entry)),
    "rows for each sample": ("expand", lambda r: replace(r, apart=by_entry)),
    "detach that lets derivatives through": ("detach", lambda r: replace(r, detaches=False)),
    "view_as with a part in it": ("view_as", lambda r: replace(r, ignores=(), formula="self + other")),
}


def _sliced(walk: Any, operation: Operation) -> Any:
    """As many of the scales as the result has entries, in their order."""
    scale = walk.scale_of(operation.by_argument["self"]).flatten()
    shape = walk.graph.values[operation.outputs[0]].shape
    count = torch.Size(shape).numel()
    return scale.repeat(count // max(len(scale), 1) + 1)[:count].reshape(shape)


def _unmixed(walk: Any, operation: Operation) -> Any:
    """A result with free scales, whatever went in."""
    return walk.forms.fresh(*walk.graph.values[operation.outputs[0]].shape)


@pytest.mark.slow
@pytest.mark.parametrize("what", BREAKS)
def test_a_broken_rule_is_noticed(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, broken = BREAKS[what]
    monkeypatch.setitem(TABLE, name, broken(TABLE[name]))
    assert any(violations(name, [example]) for example in EXAMPLES[name])


# The report


def _freedoms(name: str) -> list[str]:
    """Where the rules find less freedom than there is, in scope "neuron": how often, and the worst."""
    lost = []
    for example in EXAMPLES[name]:
        try:
            trial: Trial = begin(name, example, example.default_sizes(), "scaled", 0, False)
            found = freedom(trial, "neuron")
        except Exception:  # told among the violations
            continue
        if found.claimed < found.true:
            lost.append(f"{found.claimed}/{found.true} {example}")
    return lost


def report(names: list[str]) -> int:
    """Check all examples of some rows; returns how many are broken."""
    broken: list[str] = []
    examples = 0
    for name in names:
        examples += len(EXAMPLES.get(name, []))
        found = violations(name, EXAMPLES.get(name, []))
        broken += found
        lost = _freedoms(name)
        print(f"{name:40s}{len(EXAMPLES.get(name, [])):4d} examples  {len(found) or 'no'} violations", flush=True)
        for line in lost:
            print(f"    gives away: {line}")
    print(f"\n{len(names)} rows, {examples} examples, {len(LAWS)} laws, {len(broken)} violations")
    print("\n".join(broken))
    return len(broken)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(bool(report(sys.argv[1:] or NAMES)))
