"""The random networks of `make fuzz`: a few of them with every claim, and that a broken claim is noticed."""

import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import minsharp as ms
from tests.fuzz import run
from tests.fuzz.cases import Case, case, script
from tests.fuzz.checks import Examiner, examine
from tests.fuzz.draft import Draft
from tests.fuzz.pieces import PIECES
from tests.fuzz.program import Given
from tests.fuzz.shrink import smallest
from tests.fuzz.summary import summary

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("start", range(0, 40, 10))
def test_every_claim_on_some_networks(start: int) -> None:
    for seed in range(start, start + 10):
        assert not examine(seed).failures, f"python -m tests.fuzz --seed {seed} --minimise"


@pytest.mark.slow
@pytest.mark.parametrize("start", range(100, 2100, 100))
def test_every_claim_on_many_networks(start: int) -> None:
    for seed in range(start, start + 100):
        assert not examine(seed).failures, f"python -m tests.fuzz --seed {seed} --minimise"


def test_a_seed_is_a_network() -> None:
    first, second = case(123), case(123)
    assert first.program == second.program
    x = first.inputs()
    assert torch.equal(first.call(first.program.model().eval(), x), second.call(second.program.model().eval(), x))
    assert case(124).program.source != first.program.source


def test_every_piece_fits_somewhere() -> None:
    """Each piece can be written, runs, and leaves a value with the samples in front."""
    shapes = [(4,), (6,), (2, 4), (4, 4), (3, 6), (4, 2, 2), (4, 4, 4), (1, 2, 3, 3)]
    for piece in PIECES:
        for attempt in range(400):
            shape = shapes[attempt % len(shapes)]
            d = Draft(attempt, (Given("x", shape), Given("z", (3,))))
            d.attempt(next(p for p in PIECES if p.name == "shared layer"))  # something to tie to
            if d.attempt(piece):
                break
        else:
            pytest.fail(f"{piece.name} fits nowhere: {d.errors}")


@cache
def plain() -> Case:
    """A case whose groups have some dimensions and whose parameters are exact."""
    found = (case(seed) for seed in range(1000))
    good = {"layer", "neuron"}
    for candidate in found:
        outcome = Examiner(candidate).run()
        smooth = outcome.parameters > 0 and outcome.exact == outcome.parameters
        if smooth and not outcome.refusals and all(outcome.dimensions.get(s, 0) > 1 for s in good):
            return candidate
    raise AssertionError


def _moved(model: Any, scales: Any) -> nn.Module:
    wrong = {name: factor * 1.01 for name, factor in scales.items()}
    return _rescale(model, wrong)


_rescale = ms.rescale


def _raises(*args: Any, **kwargs: Any) -> Any:
    raise KeyError("not one of ours")


def _refuses(*args: Any, **kwargs: Any) -> Any:
    raise ms.ReadError("I would rather not")


def _draws(*args: Any, **kwargs: Any) -> Any:
    torch.rand(1)
    return _flattest(*args, **kwargs)


_flattest = ms.flattest
BREAKS: dict[str, tuple[str, Callable[..., Any], str]] = {
    "a group that moves the outputs": ("rescale", _moved, "group"),
    "an exception of another kind": ("hessian_trace", _raises, "raw exception"),
    "a refusal of a plain network": ("symmetries", _refuses, "refused"),
    "random numbers drawn": ("flattest", _draws, "untouched"),
    "a flattest network that is not": ("flattest", lambda model, *args, **kwargs: _rescale(model, {}), "flattest"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_what_is_broken_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attribute, broken, word = BREAKS[name]
    good = plain()
    monkeypatch.setattr(ms, attribute, broken)
    failures = Examiner(good).run().failures
    assert any(word in check for check, _ in failures), failures


def test_a_failure_is_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    good = plain()
    monkeypatch.setattr(ms, "rescale", _moved)
    how = next(check for check, _ in Examiner(good).run().failures if check.startswith("group"))
    small = smallest(good, how)
    assert len(small.program.steps) <= len(good.program.steps)
    assert any(check == how for check, _ in Examiner(small).run().failures)


def test_the_script_stands_alone() -> None:
    good = case(5)
    scope: dict[str, Any] = {}
    exec(script(good, "seed 5"), scope)
    theirs, ours = scope["model"], good.program.model()
    for a, b in zip(theirs.parameters(), ours.parameters(), strict=True):
        assert torch.equal(a, b)


def _dies_at_three(seed: int) -> dict[str, Any]:
    if seed == 3:
        os._exit(9)
    return {"seed": seed, "failures": []}


def test_a_process_that_dies_takes_one_seed_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "one", _dies_at_three)
    out = tmp_path / "results.jsonl"
    done = run.Pool(range(6), 2, out).run()
    assert sorted(done) == [0, 1, 2, 3, 4, 5]
    assert [seed for seed, r in done.items() if r["failures"]] == [3]
    with open(out, "a") as file:
        file.write('{"seed": 6, "fail')  # cut short
    again = run.Pool(range(7), 1, out)
    assert [seed for portion in again.waiting for seed in portion] == [6]


def test_the_summary_counts() -> None:
    records = [json.loads(json.dumps(examine(seed).to_dict())) for seed in (0, 1, 2)]
    records[1]["failures"] = [["group, layer", "outputs move by 0.1, relative (draw 0)"]]
    text = summary(records, 1.0)
    assert "3 networks" in text
    assert "group, layer: outputs move by #, relative   seeds 1" in text
