"""Results go into files and come back as they were; damaged and hostile files are refused in one line."""

import copy
import json
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import minsharp as ms
from minsharp.results.codec import document_of, listed, unlisted, value_of
from minsharp.results.files import KINDS

torch.manual_seed(0)
MODEL = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
LINEAR = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 3))  # with a frame
SMOOTH = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
X, Y = torch.randn(12, 4), torch.randint(3, (12,))
RESULTS: dict[str, Callable[[], Any]] = {
    "trace": lambda: ms.hessian_trace(MODEL, X),
    "diagonal": lambda: ms.hessian_diagonal(MODEL, X, curvature="jacobian"),
    "minimum": lambda: ms.minimum_sharpness(MODEL, X),
    "minimum (neuron)": lambda: ms.minimum_sharpness(MODEL, X, scope="neuron", power_of_two=True),
    "relative minimum": lambda: ms.relative_minimum_sharpness(MODEL, X),
    "relative sensitivity": lambda: ms.relative_sensitivity(MODEL, X),
    "normalized": lambda: ms.measures.normalized_sharpness(MODEL, X),
    "score": lambda: ms.measures.largest_eigenvalue(MODEL, (X, Y)),
    "comparison": lambda: ms.compare(MODEL, X, measures=["trace", "SAM", "minimum sharpness"], rescalings=1),
    "robustness": lambda: ms.noise_robustness(MODEL, (X, Y), sigmas=[0.1], trials=2),
    "rounded": lambda: ms.noise_robustness(MODEL, (X, Y), noise="max", bits=[4, {"0.weight": 4, "2.weight": 3}]),
    "noisy minimum": lambda: ms.minimum_sharpness(MODEL, X, scope="neuron", noise="max", curvature="margin"),
    "margin": lambda: ms.margin_sensitivity(MODEL, X),
    "predicted": lambda: ms.predicted_accuracy(MODEL, (X, Y), noise="max", bits=4),
    "bits": lambda: ms.allocate_bits(MODEL, X, budget=4.0),
    "verification": lambda: ms.verify(MODEL, (X, Y), ms.minimum_sharpness(MODEL, X)),
    "grams": lambda: ms.hessian_grams(LINEAR, X),
    "minimum (full)": lambda: ms.minimum_sharpness(LINEAR, X, scope="full"),
    "relative minimum (full)": lambda: ms.relative_minimum_sharpness(LINEAR, X, scope="full"),
    "estimated": lambda: ms.hessian_trace(SMOOTH, (X, Y), tolerance=0.3),
    "estimated minimum": lambda: ms.minimum_sharpness(SMOOTH, (X, Y), tolerance=0.3),
}


def test_every_kind_of_result_is_here() -> None:
    assert {type(make()).__name__ for make in RESULTS.values()} == {k for k, kind in KINDS.items() if _ours(kind)}


def _ours(kind: type) -> bool:
    return kind.__module__.startswith("minsharp.")


@pytest.mark.parametrize("suffix", ["json", "safetensors"])
@pytest.mark.parametrize("name", RESULTS)
def test_a_result_comes_back_as_it_was(name: str, suffix: str, tmp_path: Path) -> None:
    result = RESULTS[name]()
    again = ms.load(result.save(tmp_path / f"result.{suffix}"))
    assert again == result
    assert repr(again) == repr(result)
    assert again.to_dict() == result.to_dict()
    assert [path.name for path in tmp_path.iterdir()] == [f"result.{suffix}"]


def test_what_was_loaded_goes_on(tmp_path: Path) -> None:
    parts = [ms.hessian_diagonal(MODEL, X[i : i + 5]).save(tmp_path / f"{i}.safetensors") for i in (0, 5, 10)]
    whole, total = ms.hessian_diagonal(MODEL, X), sum(map(ms.load, parts))
    assert total.samples == 12
    assert total.total == pytest.approx(whole.total, rel=1e-6)
    network = ms.read(MODEL, X)
    expected = ms.minimum_sharpness(network, whole, scope="neuron").value
    assert ms.minimum_sharpness(network, total, scope="neuron").value == pytest.approx(expected, rel=1e-6)


def test_numbers_that_json_does_not_have(tmp_path: Path) -> None:
    from minsharp.measures.score import Score

    score = Score("odd", float("-inf"), None, {"nothing": float("nan"), "word": "inf", "list": [1, 2.5]})
    again = ms.load(score.save(tmp_path / "score.json"))
    assert (again.value, again.details["word"], again.details["list"]) == (float("-inf"), "inf", (1, 2.5))
    assert again.details["nothing"] != again.details["nothing"]
    json.loads((tmp_path / "score.json").read_text(), parse_constant=lambda name: pytest.fail(name))


def test_fields_that_come_later_need_no_change() -> None:
    @dataclass(frozen=True)
    class Old:
        value: float

    @dataclass(frozen=True)
    class New:
        value: float
        error: dict[str, Tensor] = field(default_factory=dict)
        drawn: int | None = None

    new = New(1.5, {"a": torch.tensor([1.0, float("nan")], dtype=torch.float64)}, 3)
    again = value_of(New, json.loads(json.dumps(document_of(new, listed))), unlisted)
    assert torch.equal(again.error["a"].isnan(), torch.tensor([False, True]))
    assert (again.value, again.drawn) == (1.5, 3)
    assert value_of(New, document_of(Old(2.0), listed), unlisted) == New(2.0)
    with pytest.raises(ValueError, match=r"a Old of this version of minsharp does not know \['error', 'drawn'\]"):
        value_of(Old, document_of(new, listed), unlisted)


@pytest.mark.parametrize("suffix", ["json", "safetensors"])
@pytest.mark.parametrize("name", ["trace", "minimum"])
def test_damaged_files(name: str, suffix: str, tmp_path: Path) -> None:
    path = RESULTS[name]().save(tmp_path / f"whole.{suffix}")
    whole, draw = path.read_bytes(), random.Random(0)
    broken = tmp_path / f"broken.{suffix}"
    for length in range(0, len(whole) - 1, 97):
        broken.write_bytes(whole[:length])
        with pytest.raises(ms.InputError, match="broken"):
            ms.load(broken)
    for _ in range(60):
        place = draw.randrange(len(whole))
        broken.write_bytes(whole[:place] + bytes([draw.randrange(256)]) + whole[place + 1 :])
        with suppress(ms.InputError):  # nothing else; or none, for another digit is another number
            ms.load(broken)


JUNK: list[Any] = [None, 0, -1, 1e308, "x", [], {}, True, {"float": "nan"}, 1 << 70]
JUNK += [{"type": "float64", "shape": [], "values": [1.0]}, {"type": "float64", "shape": [0], "values": []}]


@pytest.mark.parametrize("name", RESULTS)
def test_junk_in_any_field(name: str, tmp_path: Path) -> None:
    """It is refused; or it is a number that may stand there, and the result can be used."""
    text, draw = RESULTS[name]().save(tmp_path / "whole.json").read_text(), random.Random(0)
    broken = tmp_path / "broken.json"
    places = list(_places(json.loads(text)["fields"]))
    for place in draw.sample(places, min(40, len(places))):
        for junk in draw.sample(JUNK, 4):
            broken.write_text(text)
            _changed(broken, _set("fields", *place, to=junk))
            with suppress(ms.InputError):
                found: Any = ms.load(broken)
                assert repr(found)
                assert found.to_dict() is not None


def _places(document: Any) -> Any:
    """Where there is something in a document; of lists, the first few."""
    items = document.items() if isinstance(document, dict) else enumerate(document[:3])
    for name, item in items:
        yield (name,)
        if isinstance(item, dict | list):
            yield from ((name, *rest) for rest in _places(item))


def _changed(path: Path, change: Callable[[Any], None]) -> Path:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    return path


def _set(*place: Any, to: Any) -> Callable[[Any], None]:
    def change(document: Any) -> None:
        for name in place[:-1]:
            document = document[name]
        document[place[-1]] = to

    return change


BOMB = {"type": "float64", "shape": [1 << 40], "values": [0.0]}
WRONG: list[tuple[str, Callable[[Any], None], str]] = [
    ("trace", _set("minsharp", to=2), "it has format '2', this version of minsharp reads 1"),
    ("trace", _set("kind", to="Popen"), "it holds a 'Popen'; known are BitAllocation, Comparison, Diagonal"),
    ("trace", _set("kind", to="Diagonal/../os"), "it holds a 'Diagonal/../os'"),
    ("trace", _set("fields", "__class__", to="os.system"), r"a Trace of this version of minsharp does not know"),
    ("trace", _set("fields", "kind", to="hesse"), r"'kind' is 'hesse', expected one of \('hessian'"),
    ("trace", _set("fields", "mean", to=1), "'mean' is '1', expected a bool"),
    ("trace", _set("fields", "exact", to={}), "it has numbers for"),
    ("trace", _set("fields", "sum", "samples", to="12"), "'sum/samples' is '12', expected a int"),
    ("trace", _set("fields", "sum", "weight", to={"float": "nan"}), "its weight is not one of a measurement"),
    ("trace", _set("fields", "sum", "sums", "0.bias", to=BOMB), "has 1 numbers"),
    ("trace", _set("fields", "sum", "sums", "0.bias", "type", to="qint8"), "a tensor of type 'qint8'"),
    ("trace", _set("fields", "sum", to=[]), "'sum' is"),
    ("diagonal", _set("kind", to="Trace"), "the sums of '0.weight' are not one of a measurement"),
    ("minimum", _set("fields", "symmetries", "nodes", "count", to=1 << 50), "does not fit"),
    ("minimum", _set("fields", "symmetries", "nodes", "number", "values", 0, to=77), "its scales cannot be made"),
    ("minimum", _set("fields", "status", "case", to="SURE"), "expected a status"),
    ("minimum", _set("fields", "before", to={}), "its fields speak of different parameters"),
]


@pytest.mark.parametrize(("name", "change", "reason"), WRONG, ids=[reason for *_, reason in WRONG])
def test_hostile_files(name: str, change: Callable[[Any], None], reason: str, tmp_path: Path) -> None:
    path = _changed(RESULTS[name]().save(tmp_path / "result.json"), change)
    with pytest.raises(ms.InputError, match=reason):
        ms.load(path)


def test_what_is_no_result(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(2)}, tmp_path / "weights.safetensors")
    with pytest.raises(ms.InputError, match="it holds tensors, and no word of a result"):
        ms.load(tmp_path / "weights.safetensors")
    (tmp_path / "list.json").write_text("[1, 2]")
    with pytest.raises(ms.InputError, match="it does not say that it is a result"):
        ms.load(tmp_path / "list.json")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(ms.InputError, match=r"deep.json' is damaged"):
        ms.load(tmp_path / "deep.json")
    with pytest.raises(ms.InputError, match=r"expected a .json or .safetensors file that a result was saved to"):
        ms.load(tmp_path / "result.pkl")
    with pytest.raises(ms.InputError, match="No such file"):
        ms.load(tmp_path / "none.json")


def test_a_name_that_says_no_format(tmp_path: Path) -> None:
    with pytest.raises(ms.InputError, match=r"expected a name that ends in .json or .safetensors"):
        RESULTS["trace"]().save(tmp_path / "trace.pt")


def test_results_of_different_networks_do_not_add_up(tmp_path: Path) -> None:
    trace, other = ms.hessian_trace(MODEL, X), copy.deepcopy(MODEL)
    with torch.no_grad():
        other.get_parameter("2.bias")[0] += 1e-3
    later = ms.load(ms.hessian_trace(other, X).save(tmp_path / "later.json"))
    with pytest.raises(
        ms.InputError, match=r"these results are of different networks: the values of \['2.bias'\] differ"
    ):
        trace + later
    with pytest.raises(ms.InputError, match=r"loss CrossEntropyLoss and MSELoss"):
        trace + ms.hessian_trace(MODEL, X, nn.MSELoss())
    with pytest.raises(ms.InputError, match=r"parameters \['2.bias', '2.weight'\] and \[\], beside"):
        trace + ms.hessian_trace(MODEL, X, parameters="0.*")
    assert (trace + ms.hessian_trace(MODEL, X[:1])).samples == 13
