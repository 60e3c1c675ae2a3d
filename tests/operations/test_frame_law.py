"""Every rule for frames is held to its law: matrices in the frames that it lets through keep the outputs."""

import warnings
from dataclasses import replace

import pytest

from minsharp import operations
from minsharp.laws.frames import frame_law
from minsharp.laws.probe import UnfitError
from minsharp.network.frames import frame_rule
from minsharp.operations.examples import EXAMPLES, Example
from minsharp.rules.frames import FrameRule, added_frames, passed

TABLE = operations.TABLE
NAMES = [name for name in EXAMPLES if frame_rule(TABLE[name]) is not None]


def broken(name: str, examples: list[Example]) -> list[str]:
    """What is broken on some examples; one that does not run between linear maps tells nothing."""
    found = []
    for i, example in enumerate(examples):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found += [f"{name} #{i} {example}: {what}" for what in frame_law(example, example.default_sizes())]
            except UnfitError:
                continue
    return found


def first_with(rule: FrameRule | None) -> str:
    return next(name for name in NAMES if TABLE[name].frames is rule)


RULES = [first_with(rule) for rule in dict.fromkeys(TABLE[name].frames for name in NAMES)]
"""One row for each rule."""


@pytest.mark.parametrize("name", RULES)
def test_the_law_holds_on_a_few_examples(name: str) -> None:
    assert broken(name, EXAMPLES[name][:2]) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_law_holds_on_all_examples(name: str) -> None:
    assert broken(name, EXAMPLES[name]) == []


@pytest.mark.parametrize(("name", "wrong"), [("relu", passed), ("abs", passed), ("maximum", added_frames)])
def test_a_wrong_rule_breaks_the_law(name: str, wrong: FrameRule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TABLE, name, replace(TABLE[name], frames=wrong))
    assert any("frames: outputs move by" in line for line in broken(name, EXAMPLES[name][:3]))
