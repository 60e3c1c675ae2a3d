"""Options of `minsharp reproduce`: what they are unless given, and lists in one word."""

import inspect
from typing import Any

import pytest
import typer

from minsharp.cli import lists, reproduce
from minsharp.experiments import approximations, labels, stability, trace, vits

EXPERIMENTS: Any = {
    reproduce.trace: trace,
    reproduce.labels: labels,
    reproduce.approximations: approximations,
    reproduce.stability: stability,
    reproduce.vits: vits,
}


@pytest.mark.parametrize("command", EXPERIMENTS)
def test_defaults_are_those_of_the_plan(command: Any) -> None:
    plan = inspect.signature(EXPERIMENTS[command].plan).parameters
    for name, option in inspect.signature(command).parameters.items():
        if (
            name in plan
            and isinstance(option.default, int | float)
            and plan[name].default is not inspect.Parameter.empty
        ):
            assert option.default == plan[name].default, name


@pytest.mark.parametrize(
    ("text", "seeds"), [(None, [0, 1]), ("3", [0, 1, 2]), ("3-5", [3, 4, 5]), ("1,3,1", [1, 3]), ("3,", [3])]
)
def test_seeds(text: str | None, seeds: list[int]) -> None:
    assert lists.seeds_of(text, 2) == seeds


@pytest.mark.parametrize("text", ["three", "5-", "0-100000"])
def test_what_are_no_seeds(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="expected"):
        lists.seeds_of(text, 2)
