"""Results print, serialise and stay as they are."""

import copy
import dataclasses
import json
import pickle
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import minsharp as ms
from minsharp.graph.records import Graph, Operation
from minsharp.measures.pacgen import pacgen


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2))


X = torch.tensor([[1.0, 2.0, 3.0], [0.5, -1.0, 2.0]])


def test_table(model: nn.Module) -> None:
    text = repr(ms.hessian_trace(model, X, curvature="ggn"))
    lines = text.splitlines()
    assert lines[0] == "Gauss-Newton trace of CrossEntropyLoss over 2 samples"
    assert lines[1].split() == ["parameter", "trace", "share", "exact"]
    assert [line.split()[0] for line in lines[3:7]] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert [line.split()[-1] for line in lines[3:7]] == ["no", "no", "yes", "yes"]
    assert lines[-1].startswith("total")
    assert repr(ms.hessian_diagonal(model, X, curvature="ggn")) == text


def test_of_a_negative_whole_nothing_is_a_share(model: nn.Module) -> None:
    trace, replace = ms.hessian_trace(model, X, curvature="ggn"), dataclasses.replace
    negative = replace(trace, sum=replace(trace.sum, sums={name: -t for name, t in trace.sum.sums.items()}))
    assert "%" in str(trace)
    assert negative.total == -trace.total
    assert "%" not in str(negative)


def test_plain_data(model: nn.Module) -> None:
    trace = ms.hessian_trace(model, X, curvature="ggn")
    again = json.loads(json.dumps(trace.to_dict()))
    assert again["total"] == trace.total == pytest.approx(sum(again["by_parameter"].values()))
    assert again["exact"] == {"0.weight": False, "0.bias": False, "2.weight": True, "2.bias": True}
    assert (again["samples"], again["curvature"], again["loss"]) == (2, "ggn", "CrossEntropyLoss")
    diagonal = ms.hessian_diagonal(model, X, curvature="ggn")
    assert torch.tensor(json.loads(json.dumps(diagonal.to_dict()))["by_parameter"]["2.weight"]).shape == (2, 4)
    assert diagonal.trace.by_parameter == pytest.approx(trace.by_parameter)


def test_html_escapes_names() -> None:
    class Hostile(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_parameter("<script>alert(1)</script>", nn.Parameter(torch.randn(3, 2)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ next(self.parameters())

    html = ms.hessian_trace(Hostile(), X)._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html


def test_frozen(model: nn.Module) -> None:
    trace = ms.hessian_trace(model, X, curvature="ggn")
    with pytest.raises(dataclasses.FrozenInstanceError):
        trace.kind = "hessian"  # type: ignore[misc]


def held_by(result: Any) -> list[Any]:
    """The mappings that a result holds or hands out."""
    names = [field.name for field in dataclasses.fields(result)] + ["by_parameter"]
    return [value for value in (getattr(result, name, None) for name in names) if isinstance(value, Mapping)]


def every_result(model: nn.Module) -> dict[str, Any]:
    """One of each public type, by the name of the type."""
    minimum = ms.minimum_sharpness(model, X, scope="neuron", curvature="ggn")
    full = ms.minimum_sharpness(model, X, scope="full", curvature="ggn")
    results = [
        ms.hessian_trace(model, X, curvature="ggn"),
        ms.hessian_diagonal(model, X, curvature="ggn"),
        ms.hessian_grams(model, X, curvature="ggn"),
        full,
        full.symmetries,
        full.scales,
        minimum,
        minimum.symmetries,
        ms.relative_minimum_sharpness(model, X),
        ms.relative_sensitivity(model, X),
        ms.margin_sensitivity(model, X),
        ms.predicted_accuracy(model, X, sigma=0.1),
        ms.allocate_bits(model, X, budget=4.0, curvature="ggn"),
        ms.measures.normalized_sharpness(model, X, curvature="ggn"),
        ms.noise_robustness(model, X, trials=2),
        ms.compare(model, X, curvature="ggn"),
        ms.verify(model, X, minimum),
        pacgen(model, X, curvature="ggn"),
        ms.read(model, X),
    ]
    return {type(result).__name__: result for result in results}


def test_every_public_type_is_there(model: nn.Module) -> None:
    named = [(name, getattr(package, name)) for package in (ms, ms.measures) for name in package.__all__]
    public = {name for name, found in named if isinstance(found, type) and not name.endswith("Error")}
    assert public - {"Monitor"} == set(every_result(model))  # a Monitor goes along with training: it must change


def test_results_stay_as_they_are(model: nn.Module) -> None:
    for name, result in every_result(model).items():
        field = dataclasses.fields(result)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(result, field, None)
        for mapping in held_by(result) if name != "Network" else ():
            with pytest.raises(TypeError, match="a result cannot be changed"):
                mapping["0.weight"] = 7.0
            with pytest.raises(TypeError, match="a result cannot be changed"):
                mapping.clear()
            assert json.loads(json.dumps(list(mapping))) == list(mapping)


def tensors_of(thing: Any, depth: int = 6) -> Iterator[Tensor]:
    """Every tensor that a result holds or hands out, through fields, properties, mappings and lists."""
    if isinstance(thing, Tensor):
        yield thing
    elif depth and isinstance(thing, Mapping | list | tuple):
        for item in thing.values() if isinstance(thing, Mapping) else thing:
            yield from tensors_of(item, depth - 1)
    if depth and dataclasses.is_dataclass(thing) and not isinstance(thing, type | Graph | ms.Network):
        kind = type(thing)
        shown = [n for n in dir(kind) if isinstance(getattr(kind, n, None), property) and not n.startswith("_")]
        for name in {*(f.name for f in dataclasses.fields(thing) if f.name != "graph"), *shown}:
            yield from tensors_of(getattr(thing, name), depth - 1)


def test_the_graph_of_a_result_keeps_what_it_holds(model: nn.Module) -> None:
    graph = ms.hessian_trace(model, X, curvature="ggn").graph
    assert graph is not None
    for mapping in (graph.values, graph.constants, graph.operations[0].arguments):
        with pytest.raises(TypeError, match="cannot be changed"):
            mapping["a"] = 1  # type: ignore[index]


def test_writing_into_what_is_handed_out_changes_nothing(model: nn.Module) -> None:
    for name, result in every_result(model).items():
        if name == "Network":
            continue
        before = [tensor.clone() for tensor in tensors_of(result)]
        for tensor in tensors_of(result):
            with torch.no_grad():
                tensor.copy_(tensor + 1)  # whole numbers and truth values too
        assert all(map(torch.equal, before, tensors_of(result))), name
        with pytest.raises(dataclasses.FrozenInstanceError):
            result.foo = 1


def test_numbers_handed_out_are_copies() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    diagonal = ms.hessian_diagonal(model, X, nn.CrossEntropyLoss(reduction="sum"))
    minimum = ms.minimum_sharpness(model, diagonal, scope="neuron")
    before, scales = diagonal.total, minimum.to_dict()["scales"]
    diagonal.by_parameter["0.weight"].zero_()
    minimum.z.zero_()
    factor = minimum.scales["0.weight"]
    assert isinstance(factor, torch.Tensor)
    factor.zero_()
    assert diagonal.total == before
    assert minimum.to_dict()["scales"] == scales


READ_BACK = """
import pickle, sys, torch
with open(sys.argv[1], "rb") as file:
    results = pickle.load(file)
again = torch.load(sys.argv[2], weights_only=False)
assert {n: repr(r) for n, r in again.items()} == {n: repr(r) for n, r in results.items()}
import minsharp as ms
x = torch.tensor([[1.0, 2.0, 3.0], [0.5, -1.0, 2.0]])
results["fresh"] = ms.minimum_sharpness(results["Network"], results["Diagonal"], scope="neuron")
results["sum"] = results["Trace"] + ms.hessian_trace(results["Network"], x, curvature="ggn")
with open(sys.argv[1], "wb") as file:
    pickle.dump(results, file)
"""


def test_results_pickle_into_another_process(model: nn.Module, tmp_path: Path) -> None:
    """There and back: what comes back prints alike, and can be gone on with."""
    results = every_result(model)
    pickled, saved = tmp_path / "results.pickle", tmp_path / "results.pt"
    pickled.write_bytes(pickle.dumps(results))
    torch.save(results, saved)
    subprocess.run([sys.executable, "-c", READ_BACK, str(pickled), str(saved)], check=True)
    back = pickle.loads(pickled.read_bytes())
    for name, result in results.items():
        for other in (back[name], copy.copy(result), copy.deepcopy(result)):
            assert repr(other) == repr(result), name
            if name != "Network":
                assert other == result, name
                assert hash(other) == hash(result), name
    assert back["fresh"].value == results["MinimumSharpness"].value
    assert back["sum"].by_parameter == pytest.approx(results["Trace"].by_parameter)
    assert back["Symmetries"].random(3) == results["Symmetries"].random(3)


def test_an_operation_that_is_not_there() -> None:
    operation = Operation("linear", torch.ops.aten.linear.default, {}, frozenset(), ("%out",))
    state = {**operation.__getstate__(), "target": "aten.no_such_thing.default"}
    with pytest.raises(ms.ReadError, match=r"torch has no operation aten\.no_such_thing\.default here"):
        Operation.__new__(Operation).__setstate__(state)
    assert pickle.loads(pickle.dumps(operation)).target is operation.target


def test_results_compare(model: nn.Module) -> None:
    chain = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    a, b = (ms.minimum_sharpness(chain, X * size, scope="neuron") for size in (1, 2))
    assert a != b
    assert a != dataclasses.replace(a, z=a.z + 1)
    assert ms.hessian_diagonal(model, X, curvature="ggn") != ms.hessian_diagonal(model, 2 * X, curvature="ggn")
    assert ms.hessian_trace(model, X, curvature="ggn") != ms.hessian_diagonal(model, X, curvature="ggn").total


def test_sums(model: nn.Module) -> None:
    parts = [ms.hessian_trace(model, X[i : i + 1], curvature="ggn") for i in range(2)]
    whole = ms.hessian_trace(model, X, curvature="ggn")
    total = sum(parts)
    assert isinstance(total, ms.Trace)
    assert total.by_parameter == pytest.approx(whole.by_parameter)
    assert (total.samples, total.exact) == (2, whole.exact)
    assert ms.minimum_sharpness(model, total).value == pytest.approx(ms.minimum_sharpness(model, whole).value)
    assert sum(parts[:1]) is parts[0]


def test_a_sum_claims_what_both_claim(model: nn.Module) -> None:
    straight = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    straight.load_state_dict(model.state_dict())  # results of other weights are of another network
    a, b = (ms.hessian_diagonal(m, X, curvature="ggn") for m in (straight, model))
    for both in (a + b, b + a):
        assert both.exact == {"0.weight": False, "0.bias": False, "2.weight": True, "2.bias": True}
        assert both.graph is None
        with pytest.raises(ms.InputError, match="do not say of which"):
            ms.minimum_sharpness(model, both)


def test_a_sum_over_networks_is_of_none_of_them(tmp_path: Path) -> None:
    torch.manual_seed(3)
    nets = [nn.Sequential(nn.Linear(3, 4), act, nn.Linear(4, 2)) for act in (nn.ReLU(), nn.Tanh(), nn.LeakyReLU())]
    parts = [ms.hessian_trace(net, X, curvature="ggn") for net in nets]
    total = sum(parts)
    assert isinstance(total, ms.Trace)
    assert (total.samples, total.graph) == (3 * len(X), None)
    assert total.by_parameter == pytest.approx({n: sum(p.by_parameter[n] for p in parts) / 3 for n in total.exact})
    assert not any(total.exact[f"0.{name}"] for name in ("weight", "bias"))
    again = ms.load(parts[1].save(tmp_path / "part.json"))
    with pytest.raises(ms.InputError, match=r"of different networks: the values of \['0.weight'"):
        parts[0] + again  # from a file it could be of any network
    with torch.no_grad():
        nets[0][0].weight[0, 0] += 1e-3  # type: ignore[operator, index]
    with pytest.raises(ms.InputError, match=r"of different networks: the values of \['0.weight'\] differ"):
        parts[0] + ms.hessian_trace(nets[0], X, curvature="ggn")  # another epoch


def test_what_does_not_add_up(model: nn.Module) -> None:
    trace, diagonal = ms.hessian_trace(model, X, curvature="ggn"), ms.hessian_diagonal(model, X, curvature="ggn")
    wide = ms.hessian_diagonal(nn.Sequential(nn.Linear(3, 5), nn.GELU(), nn.Linear(5, 2)), X, curvature="ggn")
    unlike: list[tuple[Any, Any, str]] = [
        (trace, diagonal, "different things: a Trace and Diagonal$"),
        (trace, ms.hessian_trace(model, X, curvature="jacobian"), "curvature ggn and jacobian; loss"),
        (trace, ms.hessian_trace(model, X, curvature="ggn", parameters="2.*"), r"parameters \['0\.bias', '0\.weight'"),
        (diagonal, wide, r"'0\.weight' has the shapes \(4, 3\) and \(5, 3\)"),
    ]
    for a, b, message in unlike:
        with pytest.raises(ms.InputError, match=message):
            a + b
    others: tuple[Any, ...] = (1, "0", None, 0.5)
    for other in others:
        with pytest.raises(TypeError):
            trace + other
        with pytest.raises(TypeError):
            other + trace


def test_networks_print(model: nn.Module) -> None:
    assert repr(ms.read(model, X)) == (
        "Network(Sequential: 4 parameters, 3 operations, not piecewise linear in 2 of them)"
    )


def test_import_is_light() -> None:
    """Nothing that only plots, prints or downloads comes along."""
    heavy = ["matplotlib", "sklearn", "typer", "rich", "scipy", "pooch", "torch._dynamo", "torch._inductor"]
    code = (
        "import sys, torch; before = set(sys.modules); from minsharp import hessian_trace, read;"
        "new = set(sys.modules) - before;"
        f"print([m for m in {heavy} if any(n == m or n.startswith(m + '.') for n in new)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
