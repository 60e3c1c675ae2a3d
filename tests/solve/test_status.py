"""A status is a text to whoever reads it, and a case of an enumeration to whoever asks."""

import copy
import json
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import minsharp as ms
from minsharp.solve.status import Status, StatusText


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False))


def test_it_is_its_text_and_knows_its_case() -> None:
    told = Status.INFIMUM_OF_LAYERS.told(gap="1e-16", names="a{b}, c\x1b")
    assert told == "infimum, certified to 1e-16, not attained in a{b}, c\\x1b: some entries can be scaled away for ever"
    assert told.case is Status.INFIMUM_OF_LAYERS
    assert json.dumps(told) == json.dumps(str(told))
    for twin in (copy.copy(told), copy.deepcopy(told), pickle.loads(pickle.dumps(told))):
        assert isinstance(twin, StatusText)
        assert (twin, twin.case) == (told, told.case)


def test_results_tell_their_case(model: nn.Module) -> None:
    x = torch.randn(16, 4)
    cases: dict[Status, Any] = {
        Status.MINIMUM: ms.minimum_sharpness(model, x),
        Status.NO_FLATTER_POWER: ms.minimum_sharpness(model, x, power_of_two=True),
        Status.POWERS_OF_TWO: ms.minimum_sharpness(model, x, scope="neuron", power_of_two=True),
        Status.NO_CURVATURE: ms.minimum_sharpness(model, 0 * x),
        Status.PINNED: ms.minimum_sharpness(nn.Linear(4, 3), x),
        Status.NO_MATRIX: ms.normalized_sharpness(model, 0 * x),
    }
    for case, result in cases.items():
        assert result.status.case is case
        assert type(result.to_dict()["status"]) is str
    assert ms.relative_minimum_sharpness(model, x).status.case is Status.MINIMUM


def test_what_vanishes_for_ever_is_named(model: nn.Module) -> None:
    last = nn.Linear(8, 3)
    nn.init.zeros_(last.weight)
    biased = nn.Sequential(next(model.children()), nn.ReLU(), last)
    result = ms.minimum_sharpness(biased, torch.randn(16, 4))
    assert result.status.case is Status.INFIMUM
    assert "the curvature of 2.weight vanish" in result.status
