"""The command line, as a user meets it: numbers, refusals, exit codes, and what it leaves behind."""

import io
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
import weakref
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.export import Dim
from torch.utils import _pytree as pytree

import minsharp as ms
from minsharp.cli.main import run
from tests.support.processes import hears_interrupts
from tests.support.zoo import ZOO, Entry, call

CLI = [sys.executable, "-m", "minsharp"]


def factory() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)).double()


def wide() -> nn.Module:
    print("made", file=sys.stderr, flush=True)
    return nn.Sequential(nn.Linear(64, 700), nn.ReLU(), nn.Linear(700, 700), nn.ReLU(), nn.Linear(700, 10))


def interrupted_in_a_callback() -> nn.Module:
    """Ctrl-C where Python cannot raise it."""
    gone = nn.Module()
    watch = weakref.ref(gone, lambda _: os.kill(os.getpid(), signal.SIGINT))
    del gone
    assert watch() is None
    return wide()


def smooth() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 4)).double()


def broken() -> nn.Module:
    model = factory()
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")  # type: ignore[index]
    return model


def not_a_model() -> int:
    return 3


def raises() -> nn.Module:
    raise RuntimeError("out of order")


def export(model: nn.Module, inputs: Any, path: Path) -> Path:
    """As a user would: in eval mode, with a free batch size."""
    args, kwargs = (
        ((), inputs) if isinstance(inputs, dict) else (inputs if isinstance(inputs, tuple) else (inputs,), {})
    )
    free = pytree.tree_map_only(Tensor, lambda _: {0: Dim.AUTO}, (args, kwargs))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(model.eval(), args, kwargs, dynamic_shapes=free[0] or free[1], strict=False)
    torch.export.save(program, path)
    return path


def save_data(inputs: Any, targets: Tensor | None, path: Path) -> Path:
    if isinstance(inputs, tuple):
        arrays = {f"x{i}": tensor for i, tensor in enumerate(inputs)}
    else:
        arrays = dict(inputs) if isinstance(inputs, dict) else {"x": inputs}
    if targets is not None:
        arrays["y"] = targets
    if path.suffix == ".npz":
        np.savez(path, **{name: tensor.numpy() for name, tensor in arrays.items()})
    else:
        save_file({name: tensor.contiguous() for name, tensor in arrays.items()}, path)
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return save_data(*ZOO[0].data(12), tmp_path / "data.npz")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(ZOO[0].model(), ZOO[0].data()[0], tmp_path_factory.mktemp("exported") / "model.pt2")


@pytest.fixture
def model(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(exported, tmp_path))


Capture = pytest.CaptureFixture[str]


def refused(capsys: Capture, arguments: list[object], match: str, code: int = 2) -> None:
    """One line on stderr that says why, nothing on stdout, and the exit code."""
    assert run([str(a) for a in arguments]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert re.search(match, err), err


def documents(capsys: Capture, arguments: list[object]) -> Any:
    """What --json prints: one document, without NaN."""
    code = run([*map(str, arguments), "--json"])
    out, err = capsys.readouterr()
    assert code == 0, err

    def no_constant(text: str) -> None:
        raise AssertionError(text)

    return json.loads(out, parse_constant=no_constant)


# Numbers


QUICK = {
    *("mlp", "raw_parameters", "lenet", "batch_norm", "embedding", "tied_autoencoder", "siamese", "dict_input"),
    *("frozen", "lstm", "written", "transformer", "same_even_kernel", "prelu", "weight_norm"),
}
"""Of every kind one; all the others run with the slow tests."""


@pytest.mark.parametrize(
    "entry", [pytest.param(e, id=e.name, marks=[] if e.name in QUICK else pytest.mark.slow) for e in ZOO]
)
def test_exported_networks_give_the_numbers_of_the_python_call(entry: Entry, tmp_path: Path, capsys: Capture) -> None:
    inputs, targets = entry.data()
    path = export(entry.model(), inputs, tmp_path / "model.pt2")
    file = save_data(inputs, targets, tmp_path / "data.safetensors")
    found = documents(capsys, ["measure", path, "--data", file, "--curvature", "ggn"])

    net = ms.read(entry.model(), inputs)
    diagonal = ms.hessian_diagonal(net, (inputs, targets), curvature="ggn")
    total = diagonal.total
    expected = {name: float(block.sum()) for name, block in diagonal.by_parameter.items()}
    assert list(found["trace"]["by_parameter"]) == list(expected)
    for name, value in expected.items():
        assert found["trace"]["by_parameter"][name] == pytest.approx(value, rel=1e-9, abs=1e-12 * total)
    assert found["exact"] == dict(diagonal.exact)
    for scope in ("layer", "neuron"):
        result = ms.minimum_sharpness(net, diagonal, scope=scope)
        mine = found["minimum_sharpness"][scope]
        assert mine["value"] == pytest.approx(result.value, rel=1e-7)
        assert mine["attained"] == result.attained
        assert set(mine["pinned"]) == set(result.pinned)


def test_a_loaded_network_computes_what_was_exported(model: Path) -> None:
    from minsharp.cli.choices import ModelChoice
    from minsharp.cli.factories import load_model

    inputs, _ = ZOO[0].data(7)
    loaded = load_model(ModelChoice(str(model)))
    original = ZOO[0].model().eval()
    assert torch.equal(call(loaded, inputs), call(original, inputs))
    assert list(loaded.state_dict()) == list(original.state_dict())


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".pth"])
def test_a_factory_with_weights(suffix: str, data: Path, tmp_path: Path, capsys: Capture) -> None:
    entry = ZOO[0]
    weights = tmp_path / f"weights{suffix}"
    state = entry.model().state_dict()
    save_file(state, weights) if suffix == ".safetensors" else torch.save(state, weights)
    found = documents(capsys, ["measure", f"{__name__}:factory", "--weights", weights, "--data", data])
    expected = ms.hessian_trace(entry.model(), entry.data(12))
    assert found["trace"]["total"] == pytest.approx(expected.total, rel=1e-12)
    assert found["samples"] == 12


def test_batches_samples_scope_parameters_and_loss(model: Path, data: Path, capsys: Capture) -> None:
    base = ["measure", model, "--data", data]
    inputs, _ = ZOO[0].data(12)
    assert isinstance(inputs, Tensor)
    whole = documents(capsys, base)
    parts = documents(capsys, [*base, "--batch-size", 5])
    assert parts["trace"]["total"] == pytest.approx(whole["trace"]["total"], rel=1e-12)
    few = documents(
        capsys, [*base, "--samples", 3, "--scope", "layer", "--parameters", "0.*", "--parameters", "2.bias"]
    )
    expected = ms.minimum_sharpness(ZOO[0].model(), inputs[:3], parameters=["0.*", "2.bias"])
    assert few["samples"] == 3
    assert list(few["minimum_sharpness"]) == ["layer"]
    assert few["minimum_sharpness"]["layer"]["value"] == pytest.approx(expected.value, rel=1e-9)
    assert list(few["trace"]["by_parameter"]) == ["0.weight", "0.bias", "2.bias"]
    bare = save_data(inputs[:3], None, data.with_name("bare.npz"))
    squared = documents(capsys, ["measure", model, "--data", bare, "--loss", "mse", "--scope", "layer"])
    mse = ms.hessian_trace(ZOO[0].model(), (inputs[:3], torch.zeros(3, 4).double()), nn.MSELoss())
    assert squared["trace"]["total"] == pytest.approx(mse.total, rel=1e-9)


def test_named_data(capsys: Capture) -> None:
    found = documents(capsys, ["measure", "minsharp.models:digits_small_mlp", "--data", "digits", "--samples", 20])
    assert found["samples"] == 20
    assert found["data"] == "digits"


def test_measure_prints_a_table_and_verifies(model: Path, data: Path, capsys: Capture) -> None:
    assert run(["measure", str(model), "--data", str(data), "--verify"]) == 0
    out, err = capsys.readouterr()
    assert "0.weight" in out
    assert "Minimum sharpness, scope neuron" in out
    assert "certified" in out
    assert "FAILS" not in out
    assert "error" not in err


def test_measure_writes_a_report(model: Path, data: Path, tmp_path: Path, capsys: Capture) -> None:
    report = tmp_path / "out.html"
    assert documents(capsys, ["measure", model, "--data", data, "--report", report])["verification"]["layer"]["holds"]
    text = report.read_text(encoding="utf-8")
    assert "0.weight" in text
    assert "Under noise on the weights" in text
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data.npz", "model.pt2", "out.html"]


# Flatten


@pytest.mark.parametrize("power_of_two", [False, True])
def test_flatten_writes_an_equivalent_network(
    power_of_two: bool, model: Path, data: Path, tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "flat.safetensors"
    extra = ["--power-of-two"] if power_of_two else []
    found = documents(capsys, ["flatten", model, "--data", data, "--out", out, *extra])
    assert found["verification"]["holds"]
    original, flat = ZOO[0].model().eval(), ZOO[0].model().eval()
    flat.load_state_dict(load_file(out))
    inputs, _ = ZOO[0].data(12)
    same = torch.equal if power_of_two else torch.allclose
    assert same(call(original, inputs), call(flat, inputs))
    least = ms.minimum_sharpness(original, inputs, scope="neuron").value
    trace = ms.hessian_trace(flat, inputs).total
    assert trace == pytest.approx(least, rel=0.5 if power_of_two else 1e-8)
    assert trace <= ms.hessian_trace(original, inputs).total
    assert documents(capsys, ["measure", model, "--weights", out, "--data", data])["trace"]["total"] == (
        pytest.approx(trace, rel=1e-9)
    )


def test_flatten_ties_what_was_tied(tmp_path: Path, capsys: Capture) -> None:
    entry = next(e for e in ZOO if e.name == "tied_autoencoder")
    inputs, targets = entry.data()
    path, out = export(entry.model(), inputs, tmp_path / "m.pt2"), tmp_path / "flat.safetensors"
    file = save_data(inputs, targets, tmp_path / "d.npz")
    documents(capsys, ["flatten", path, "--data", file, "--out", out, "--curvature", "ggn"])
    assert "table.weight" in load_file(out)
    assert documents(capsys, ["measure", path, "--weights", out, "--data", file, "--curvature", "ggn"])


def test_flatten_writes_nothing_if_a_claim_fails(
    model: Path, data: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from minsharp.cli import flatten
    from minsharp.measures.verify import Check, Verification

    false = Verification((Check("the earth is flat", 1.0, 0.0),))
    monkeypatch.setattr(flatten, "verify", lambda *_, **__: false)
    out = tmp_path / "flat.safetensors"
    assert run(["flatten", str(model), "--data", str(data), "--out", str(out)]) == 1
    text, err = capsys.readouterr()
    assert "FAILS" in text
    assert err.startswith("error: the verification fails")
    assert not out.exists()


# Compare and bench


def test_compare(model: Path, data: Path, tmp_path: Path, capsys: Capture) -> None:
    table = tmp_path / "table.csv"
    options: list[object] = [
        "--measures",
        "trace",
        "--measures",
        "minimum sharpness",
        "--rescalings",
        2,
        "--csv",
        table,
    ]
    found = documents(capsys, ["compare", model, "--data", data, *options])
    rows = {row["name"]: row for row in found["rows"]}
    assert rows["trace"]["value"] == pytest.approx(ms.hessian_trace(ZOO[0].model(), ZOO[0].data(12)).total)
    assert rows["trace"]["drift"] > 1e-2
    assert rows["minimum sharpness"]["drift"] < 1e-8
    assert table.read_text().splitlines()[0].startswith("name,value")
    assert run(["compare", str(model), "--data", str(data), "--measures", "trace", "--rescalings", "0"]) == 0
    assert "trace" in capsys.readouterr().out
    refused(capsys, ["compare", model, "--data", data, "--measures", "beauty"], "beauty")


def test_bench(model: Path, data: Path, capsys: Capture) -> None:
    (row,) = documents(capsys, ["bench", model, "--data", data, "--repeat", 1])["networks"]
    assert row["samples"] == 12
    assert all(row[key] > 0 for key in row if key.endswith("_seconds"))
    refused(capsys, ["bench", model], "--data digits")
    refused(capsys, ["bench", "--data", data], "belong to a model")


# What is refused


def test_wrong_use(model: Path, data: Path, tmp_path: Path, capsys: Capture) -> None:
    missing = tmp_path / "nowhere"
    refused(capsys, ["measure", missing / "m.pt2", "--data", data], "there is no file")
    refused(capsys, ["measure", model, "--data", missing / "d.npz"], "there is no file")
    refused(
        capsys, ["measure", model, "--data", "cifar"], "expected digits, mnist, fashion-mnist, cifar-10, or an .npz"
    )
    refused(capsys, ["measure", model, "--data", "cifar10"], r"Did you mean cifar-10\?")
    refused(capsys, ["measure", "nonsense", "--data", data], "expected a .pt2 file")
    refused(capsys, ["measure", "./src/nets.py:Net", "--data", data], "as it is imported, src.nets:Net")
    refused(capsys, ["measure", f"{__name__}:factori", "--data", data], "; it has 'factory'")
    refused(capsys, ["measure", "best.pth", "--data", data], "package.module:factory --weights best.pth")
    refused(capsys, ["measure", "no.such.module:f", "--data", data], "cannot import")
    refused(capsys, ["measure", f"{__name__}:nothing", "--data", data], "has no 'nothing'")
    refused(capsys, ["measure", f"{__name__}:not_a_model", "--data", data], "returns a int")
    refused(capsys, ["measure", f"{__name__}:raises", "--data", data], "RuntimeError: out of order")
    refused(capsys, ["measure", model], r"Missing option '--data'. \(minsharp measure --help tells what there is\)")
    refused(capsys, ["measure", model, "--data", data, "--scope", "x"], "'--scope': 'x' is not one of 'layer'")
    more = ["--rescalings", "0", "--measure", "sharpness"]
    refused(
        capsys, ["compare", model, "--data", data, *more], "expected some of training-loss, trace, minimum-sharpness,"
    )
    refused(capsys, ["measure", model, "--data", data, "--loss", "hinge"], "hinge")
    refused(capsys, ["measure", model, "--data", data, "--samples", "0"], "samples")
    refused(capsys, ["measure", model, "--data", data, "--parameters", "x.*"], "nothing matches")
    refused(capsys, ["measure", model, "--data", data, "--weights", missing], "there is no file")
    refused(capsys, ["frobnicate"], "frobnicate")
    refused(capsys, ["measure", model, "--data", data, "--frobnicate"], "frobnicate")


def test_measured_failures(data: Path, capsys: Capture) -> None:
    refused(capsys, ["measure", f"{__name__}:smooth", "--data", data], "not piecewise linear", code=1)
    refused(capsys, ["measure", f"{__name__}:broken", "--data", data], "1 NaN", code=1)


def test_unwritable_output(model: Path, data: Path, tmp_path: Path, capsys: Capture) -> None:
    nowhere, folder = tmp_path / "no" / "out", tmp_path / "folder.html"
    folder.mkdir()
    refused(capsys, ["measure", model, "--data", data, "--report", f"{nowhere}.html"], "there is no folder")
    refused(capsys, ["measure", model, "--data", data, "--report", folder], "it is a folder")
    refused(capsys, ["measure", model, "--data", data, "--report", tmp_path / "r.txt"], "ends in .html")
    refused(capsys, ["flatten", model, "--data", data, "--out", f"{nowhere}.safetensors"], "there is no folder")
    refused(capsys, ["compare", model, "--data", data, "--csv", f"{nowhere}.csv"], "there is no folder")


def test_a_full_disk_leaves_no_half_file(tmp_path: Path) -> None:
    from minsharp.files import write_atomically

    target = tmp_path / "report.html"
    target.write_text("old")

    def write(path: Path) -> None:
        path.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(ms.InputError, match="No space left"):
        write_atomically(target, write)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("suffix", [".pt2", ".npz", ".safetensors", ".pt", ".pth"])
def test_truncated_and_garbage_files(suffix: str, model: Path, data: Path, tmp_path: Path, capsys: Capture) -> None:
    whole = {".pt2": model, ".npz": data}.get(suffix, tmp_path / f"whole{suffix}")
    state = ZOO[0].model().state_dict()
    if suffix == ".safetensors":
        save_file(state, whole)
    elif suffix in (".pt", ".pth"):
        torch.save(state, whole)
    content = whole.read_bytes()
    files = {
        "empty": b"",
        "garbage": os.urandom(1000),
        "text": b"hello",
        "half": content[: len(content) // 2],
        "short": content[:-30],
    }
    for name, part in files.items():
        path = tmp_path / f"{name}{suffix}"
        path.write_bytes(part)
        arguments: list[object] = ["measure", f"{__name__}:factory", "--data", data, "--weights", path]
        if suffix == ".pt2":
            arguments = ["measure", path, "--data", data]
        elif suffix == ".npz":
            arguments = ["measure", model, "--data", path]
        refused(capsys, arguments, f"'{re.escape(str(path))}' is (not a|refused)")


def test_weights_that_do_not_fit(data: Path, tmp_path: Path, capsys: Capture) -> None:
    state = dict(ZOO[0].model().state_dict())
    state["extra"] = state.pop("0.bias")
    state["2.weight"] = torch.zeros(4, 6)
    path = tmp_path / "w.safetensors"
    save_file(state, path)
    match = r"missing: 0.bias; unexpected: extra; of another shape: 2.weight \(4, 6\) instead of \(4, 5\)"
    refused(capsys, ["measure", f"{__name__}:factory", "--weights", path, "--data", data], match)


def test_data_that_does_not_fit(model: Path, tmp_path: Path, capsys: Capture) -> None:
    wrong = save_data(torch.zeros(3, 7), None, tmp_path / "wrong.npz")
    refused(capsys, ["measure", model, "--data", wrong], "7")
    empty = save_data(torch.zeros(0, 6), None, tmp_path / "empty.npz")
    refused(capsys, ["measure", model, "--data", empty], "no samples")
    np.savez(tmp_path / "y.npz", y=np.zeros(3))
    refused(capsys, ["measure", model, "--data", tmp_path / "y.npz"], "holds no 'x'")
    np.savez(tmp_path / "s.npz", x=np.float64(1))
    refused(capsys, ["measure", model, "--data", tmp_path / "s.npz"], "a single number")


def test_a_fixed_batch_size_is_named(data: Path, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "fixed.pt2"
    torch.export.save(torch.export.export(factory().eval(), (torch.zeros(5, 6).double(),)), path)
    refused(capsys, ["measure", path, "--data", data], "for batches of 5 samples.*dynamic_shapes")


# Hostile files: each would leave a mark


class Bomb:
    """Unpickling it runs code."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.system, (f"touch {self.mark}",)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "mark"


def test_hostile_pickles_are_refused(mark: Path, data: Path, tmp_path: Path, capsys: Capture) -> None:
    for name, content in {"bomb": Bomb(mark), "nested": {"0.weight": Bomb(mark)}}.items():
        for suffix in (".pt", ".pth"):
            path = tmp_path / f"{name}{suffix}"
            torch.save(content, path)
            refused(capsys, ["measure", f"{__name__}:factory", "--weights", path, "--data", data], "is refused")
            path.write_bytes(pickle.dumps(content))
            refused(
                capsys, ["measure", f"{__name__}:factory", "--weights", path, "--data", data], "is refused|not a whole"
            )
    np.savez(tmp_path / "bomb.npz", x=np.array([Bomb(mark)], dtype=object))
    refused(capsys, ["measure", f"{__name__}:factory", "--data", tmp_path / "bomb.npz"], "is refused")
    assert not mark.exists()


Records = dict[str, bytes]
WEIGHTS = "data/weights/model_weights_config.json"
CONSTANTS = "data/constants/model_constants_config.json"


def torch_bytes(content: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def in_example_inputs(records: Records, mark: Path) -> None:
    records["data/sample_inputs/model.pt"] = torch_bytes(((Bomb(mark),), {}))


def in_a_weight(records: Records, mark: Path) -> None:
    config = json.loads(records[WEIGHTS])
    next(iter(config["config"].values())).update(use_pickle=True, path_name="weight_9", tensor_meta=None)
    records[WEIGHTS] = json.dumps(config).encode()
    records["data/weights/weight_9"] = torch_bytes(Bomb(mark))


def in_old_weights(records: Records, mark: Path) -> None:
    records["data/weights/model.pt"] = torch_bytes(Bomb(mark))


def in_an_opaque_constant(records: Records, mark: Path) -> None:
    payload = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}
    records[CONSTANTS] = json.dumps({"config": {"c": payload}}).encode()
    records["data/constants/opaque_obj_0"] = pickle.dumps(Bomb(mark))


def change_model(records: Records, change: Callable[[Any], None]) -> None:
    model = json.loads(records["models/model.json"])
    change(model)
    records["models/model.json"] = json.dumps(model).encode()


def in_a_size(records: Records, mark: Path) -> None:
    text = records["models/model.json"].decode()
    code = f"__import__('os').system('touch {mark}')"
    records["models/model.json"] = re.sub(r'"expr_str": ?"Symbol[^"]*"', f'"expr_str": "{code}"', text).encode()


def in_an_operation(records: Records, mark: Path) -> None:
    def change(model: Any) -> None:
        model["graph_module"]["graph"]["nodes"][0].update(target="torch.os.system", inputs=[])

    change_model(records, change)


def in_a_file_operation(records: Records, mark: Path) -> None:
    def change(model: Any) -> None:
        model["graph_module"]["graph"]["nodes"][0].update(target="torch.ops.aten.from_file.default", inputs=[])

    change_model(records, change)


def in_the_form_of_inputs(records: Records, mark: Path) -> None:
    def change(model: Any) -> None:
        signature = model["graph_module"]["module_call_graph"][0]["signature"]
        protocol, tree = json.loads(signature["in_spec"])
        tree["context"] = json.dumps({"__enum__": True, "fqn": "antigravity:x", "name": "y"})
        signature["in_spec"] = json.dumps([protocol, tree])

    change_model(records, change)


def in_a_parameter_name(records: Records, mark: Path) -> None:
    name = f'x")+__import__("os").system("touch {mark}")+("'
    for file in ("models/model.json", WEIGHTS):
        records[file] = records[file].replace(b'"0.weight"', json.dumps(name).encode())


def as_compiled_code(records: Records, mark: Path) -> None:
    records["data/aotinductor/model/code.so"] = b"\x7fELF"


HOSTILE = [
    in_example_inputs,
    in_a_weight,
    in_old_weights,
    in_an_opaque_constant,
    in_a_size,
    in_an_operation,
    in_a_file_operation,
    in_the_form_of_inputs,
    in_a_parameter_name,
    as_compiled_code,
]


def tampered(source: Path, target: Path, change: Callable[[Records, Path], None], mark: Path) -> Path:
    with zipfile.ZipFile(source) as archive:
        root = archive.namelist()[0].partition("/")[0]
        records = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    before = dict(records)
    change(records, mark)
    assert records != before
    writer = torch._C.PyTorchFileWriter(str(target))
    for name, content in records.items():
        if not name.startswith(".data") and name not in ("byteorder", "version"):
            writer.write_record(name, content, len(content))
    writer.write_end_of_file()
    assert root
    return target


@pytest.mark.parametrize("change", HOSTILE, ids=lambda f: f.__name__)
def test_hostile_archives_are_refused(
    change: Callable[[Records, Path], None], model: Path, data: Path, mark: Path, tmp_path: Path, capsys: Capture
) -> None:
    path = tampered(model, tmp_path / "hostile.pt2", change, mark)
    refused(capsys, ["measure", path, "--data", data], "is refused: .* Nothing in it was run")
    assert not mark.exists()


@pytest.mark.parametrize("change", [in_example_inputs, in_a_weight, in_an_opaque_constant, in_a_size])
@pytest.mark.filterwarnings("ignore")
def test_the_hostile_archives_are_hostile(
    change: Callable[[Records, Path], None], model: Path, mark: Path, tmp_path: Path
) -> None:
    """Loaded without the check they do run."""
    path = tampered(model, tmp_path / "hostile.pt2", change, mark)
    with suppress(Exception):
        torch.export.load(path)
    assert mark.exists()


def test_code_in_guards_is_left_out(model: Path, data: Path, mark: Path, tmp_path: Path, capsys: Capture) -> None:
    def change(records: Records, mark: Path) -> None:
        code = f"__import__('os').system('touch {mark}') == 0"
        change_model(records, lambda m: m.update(guards_code=[code]))

    path = tampered(model, tmp_path / "guarded.pt2", change, mark)
    assert documents(capsys, ["measure", path, "--data", data]) | {"model": ""} == (
        documents(capsys, ["measure", model, "--data", data]) | {"model": ""}
    )
    assert not mark.exists()


def test_two_records_of_one_name_are_refused(model: Path, data: Path, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "double.pt2"
    shutil.copy(model, path)
    with zipfile.ZipFile(path) as archive:
        name = next(n for n in archive.namelist() if n.endswith("models/model.json"))
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name, b"{}")
    refused(capsys, ["measure", path, "--data", data], "two files of the same name")


# The terminal


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    root = Path(__file__).resolve().parents[2]
    places = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": places, "OMP_NUM_THREADS": "1", "COLUMNS": "100"}


def test_help_is_complete_and_plain(capsys: Capture) -> None:
    assert run(["--help"]) == 0
    out, _ = capsys.readouterr()
    for command in ("measure", "flatten", "compare", "reproduce", "figures", "demo", "bench"):
        assert command in out
    assert "To begin: minsharp demo" in out
    for command in ("measure", "flatten", "compare", "demo", "bench", "bits", "merge", "doctor"):
        assert run([command, "--help"]) == 0
        text, _ = capsys.readouterr()
        assert f"minsharp {command}" in text.partition("Example")[2]
        assert "\x1b" not in text


def test_without_a_command_there_is_help(capsys: Capture) -> None:
    assert run([]) in (0, 2)  # 0 before click 8.2
    out, err = capsys.readouterr()
    assert "Usage: minsharp" in out
    assert err == ""


def test_piped_output_has_no_control_characters(
    model: Path, data: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    report = tmp_path / "r.html"
    command = [*CLI, "measure", str(model), "--data", str(data), "--report", str(report)]
    done = subprocess.run(command, capture_output=True, env=environment, check=True, text=True)
    assert "Minimum sharpness" in done.stdout
    assert "wrote" in done.stderr
    for text in (done.stdout, done.stderr):
        assert all(c.isprintable() or c == "\n" for c in text)


def test_interruption_leaves_no_traceback_and_no_half_file(tmp_path: Path, environment: dict[str, str]) -> None:
    data = save_data(torch.randn(60_000, 64), None, tmp_path / "big.npz")
    out = tmp_path / "flat.safetensors"
    command = [*CLI, "flatten", f"{__name__}:wide", "--data", str(data), "--out", str(out)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True, preexec_fn=hears_interrupts
    )
    try:
        assert process.stderr is not None
        assert process.stderr.readline() == "made\n"
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode in (130, -signal.SIGINT)  # the same to a shell; Python chooses by where it was
    assert err.endswith("\ninterrupted\n")
    assert "Traceback" not in err
    assert [p.name for p in tmp_path.iterdir()] == ["big.npz"]


def test_an_interruption_is_heard_wherever_it_comes(tmp_path: Path, environment: dict[str, str]) -> None:
    data = save_data(torch.randn(60_000, 64), None, tmp_path / "big.npz")
    command = [*CLI, "measure", f"{__name__}:interrupted_in_a_callback", "--data", str(data)]
    done = subprocess.run(
        command, capture_output=True, env=environment, text=True, preexec_fn=hears_interrupts, timeout=60, check=False
    )
    assert done.returncode in (130, -signal.SIGINT)
    assert done.stderr.endswith("\ninterrupted\n")
    assert "Traceback" not in done.stderr


def test_completion(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "net.pt2").touch()
    monkeypatch.chdir(tmp_path)

    def complete(words: str) -> list[str]:
        monkeypatch.setenv("_MINSHARP_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
        with pytest.raises(SystemExit) as left:
            run([])
        assert left.value.code == 0
        return capsys.readouterr().out.split()

    assert complete("minsharp me") == ["measure", "merge"]
    assert complete("minsharp measure n") == ["net.pt2"]
    assert complete("minsharp measure net.pt2 --data fa") == ["fashion-mnist"]
    assert complete("minsharp measure net.pt2 --sco") == ["--scope"]
    monkeypatch.setenv("_MINSHARP_COMPLETE", "source_bash")
    with pytest.raises(SystemExit):
        run([])
    assert "_MINSHARP_COMPLETE=complete_bash" in capsys.readouterr().out


def bent(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    layers = [nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 5), nn.GELU(), nn.Linear(5, 4)]
    return nn.Sequential(*layers).double()


def test_a_scope_without_a_minimum_leaves_the_others(tmp_path: Path, capsys: Capture) -> None:
    """The Hessian of a smooth network has negative entries: then there is none per neuron, the rest is shown."""
    torch.manual_seed(0)
    data = save_data(torch.randn(30, 6).double(), torch.randint(4, (30,)), tmp_path / "data.npz")
    arguments = ["measure", f"{__name__}:bent", "--arg", "seed=0", "--data", str(data), "--tolerance", "0.05"]
    assert run(arguments) == 0
    out, err = capsys.readouterr()
    assert "Minimum sharpness, scope layer" in out
    assert "scope neuron" not in out
    assert re.search(r"^warning: there is no minimum in one scope: .* expected none negative", err, flags=re.M)
    assert run([*arguments, "--json"]) == 0
    assert [*json.loads(capsys.readouterr().out)["minimum_sharpness"]] == ["layer"]
    assert run([*arguments, "--scope", "neuron"]) == 2
    out, err = capsys.readouterr()
    assert "4.weight" in out
    assert err.startswith("error: ")
    assert "expected none negative" in err


def test_a_trace_is_shown_where_there_is_no_minimum(tmp_path: Path, capsys: Capture) -> None:
    """Neither per layer nor per neuron: what was asked for by name is an error, a trace with a warning is none."""
    torch.manual_seed(0)
    data = save_data(torch.randn(30, 6).double(), torch.randint(4, (30,)), tmp_path / "data.npz")
    arguments = ["measure", f"{__name__}:bent", "--arg", "seed=1", "--data", str(data), "--tolerance", "0.05"]
    assert run(arguments) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Hessian trace of CrossEntropyLoss over 30 samples")
    assert re.fullmatch(r"warning: there is no minimum per layer, nor per neuron: .* expected none negative.*\n", err)
    assert run([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["minimum_sharpness"] == {}
    assert set(found["trace"]) == {"total", "by_parameter", "standard_error", "standard_errors"}
    for more in (["--scope", "layer"], ["--verify"], ["--report", str(tmp_path / "r.html")]):
        assert run([*arguments, *more]) == 2
        assert "expected none negative" in capsys.readouterr().err


def test_what_is_of_the_network_is_verified_once(model: Path, data: Path, capsys: Capture) -> None:
    """v^T H v takes most of the time, and is the same for both scopes; every other claim is checked for each."""
    found = documents(capsys, ["measure", str(model), "--data", str(data), "--verify"])["verification"]
    layer, neuron = ([row["claim"] for row in found[scope]["checks"]] for scope in ("layer", "neuron"))
    curved = [claim for claim in layer if claim.startswith("v^T H v")]
    assert curved
    assert layer == [*neuron, *curved]
    alone = documents(capsys, ["measure", str(model), "--data", str(data), "--verify", "--scope", "neuron"])
    assert [row["claim"] for row in alone["verification"]["neuron"]["checks"]] == layer


def test_a_tolerance(tmp_path: Path, capsys: Capture) -> None:
    """An estimate says its error, in the table and as JSON; a bad tolerance is refused before anything is loaded."""
    x, y = torch.randn(60, 6).double(), torch.arange(60) % 4
    data = save_data(x, y, tmp_path / "data.npz")
    arguments = ["measure", f"{__name__}:smooth", "--data", str(data), "--scope", "layer", "--curvature", "ggn"]
    assert run([*arguments, "--tolerance", "0.1", "--seed", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    direct = ms.hessian_trace(smooth(), (x, y), curvature="ggn", tolerance=0.1, seed=3)
    assert found["trace"]["total"] == pytest.approx(direct.total)
    assert found["trace"].get("standard_error", 0.0) == pytest.approx(direct.standard_error)
    assert found["tolerance"] == 0.1
    assert run([*arguments, "--tolerance", "0.1"]) == 0
    assert ("±" in capsys.readouterr().out) == (direct.standard_error > 0)
    assert run(["measure", "no.such:thing", "--data", str(data), "--tolerance", "nan"]) == 2
    assert "--tolerance nan: expected a relative standard error below 1" in capsys.readouterr().err
