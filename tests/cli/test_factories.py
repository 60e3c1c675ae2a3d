"""Models as the command line names them: factories with arguments, outputs, class axes, checkpoints."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import minsharp as ms
from minsharp.cli.choices import arguments_of
from minsharp.cli.main import run
from minsharp.errors import InputError
from tests.cli.test_cli import Capture, documents, refused, save_data

X = torch.randn(12, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 4
HERE = f"{__name__}:"
NET, PAIR, LANGUAGE = f"{HERE}net", f"{HERE}pair", f"{HERE}Language"


def net(width: int, *, act: str = "relu", sizes: tuple[int, ...] = (), seed: int = 3) -> nn.Module:
    """Layers of some width."""
    torch.manual_seed(seed)
    acts = {"relu": nn.ReLU, "leaky": nn.LeakyReLU}
    widths = [6, width, *sizes]
    layers = [m for a, b in pairwise(widths) for m in (nn.Linear(a, b), acts[act]())]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 4)).double()


def keywords(**options: Any) -> nn.Module:
    return net(**options)


def fails(width: int = 3) -> nn.Module:
    raise ValueError("not today")


ready = net(5)


class Pair(nn.Module):
    """Two results, in a tuple or by name."""

    def __init__(self, named: bool) -> None:
        super().__init__()
        self.inside, self.named = net(5), named

    def forward(self, x: Tensor) -> Any:
        first = self.inside(x)
        return {"hidden": x, "scores": first} if self.named else (x, first)


def pair(named: bool = False) -> nn.Module:
    return Pair(named)


class Language(nn.Module):
    """A causal language model: logits (n, positions, classes), and its own loss from unshifted labels."""

    def __init__(self, classes: int = 7, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed, self.head = nn.Embedding(classes, 4), nn.Linear(4, classes)
        self.double()

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.head((self.embed(input_ids) * attention_mask.unsqueeze(-1)).cumsum(1).relu())
        if labels is None:
            return {"logits": logits}
        return {"loss": F.cross_entropy(logits[:, :-1].mT, labels[:, 1:]), "logits": logits}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return save_data(X, Y, tmp_path / "data.npz")


def total(capsys: Capture, *arguments: object) -> float:
    return float(documents(capsys, ["measure", *arguments])["trace"]["total"])


def test_arguments_are_literals_or_text() -> None:
    words = ["a=1", "b=-2.5e3", "c=True", "d=None", "e=text", "f=", "g=[1, 'x']", "h=(2,3)", 'i="4"', "j=a=b", "k=x y"]
    assert arguments_of(words) == {
        "a": 1,
        "b": -2500.0,
        "c": True,
        "d": None,
        "e": "text",
        "f": "",
        "g": [1, "x"],
        "h": (2, 3),
        "i": "4",
        "j": "a=b",
        "k": "x y",
    }
    assert arguments_of(["a=__import__('os').system('true')"]) == {"a": "__import__('os').system('true')"}
    assert arguments_of(["a=" + "(" * 10_000]) == {"a": "(" * 10_000}
    for word in ("a", "=3", "a b=3", "a-b=3"):
        with pytest.raises(InputError, match="expected name=value, as in --arg num_classes=10"):
            arguments_of([word])
    with pytest.raises(InputError, match="--arg a=2: 'a' was given before, as 1"):
        arguments_of(["a=1", "a=2"])


@pytest.mark.parametrize("text", ["true", "FALSE", "none", "null", " false "])
def test_words_of_other_languages_are_no_text(text: str) -> None:
    meant = {"true": "True", "false": "False"}.get(text.strip().lower(), "None")
    with pytest.raises(InputError, match=rf"is text here.* Write --arg bias={meant}, or --arg \"bias='{text.strip()}'"):
        arguments_of([f"bias={text}"])
    assert arguments_of([f"bias='{text}'"]) == {"bias": text}


@pytest.mark.parametrize("factory", [NET, f"{HERE}keywords"])
def test_a_factory_with_arguments(factory: str, data: Path, capsys: Capture) -> None:
    arguments = ["--arg", "width=7", "--arg", "act=leaky", "--arg", "sizes=(3,)"]
    found = documents(capsys, ["measure", factory, *arguments, "--data", data])
    assert found["trace"]["total"] == ms.hessian_trace(net(7, act="leaky", sizes=(3,)), X).total
    assert found["arguments"] == {"width": 7, "act": "leaky", "sizes": [3]}


def test_every_command_takes_them(data: Path, tmp_path: Path, capsys: Capture) -> None:
    options: list[object] = [PAIR, "--arg", "named=True", "--outputs", "scores", "--data", data]
    expected = ms.minimum_sharpness(net(5), X, scope="neuron").value
    flat = documents(capsys, ["flatten", *options, "--out", tmp_path / "flat.safetensors"])
    assert flat["minimum_sharpness"]["value"] == pytest.approx(expected, rel=1e-9)
    names = ["--measures", "minimum sharpness", "--rescalings", "1"]
    (row,) = documents(capsys, ["compare", *options, *names])["rows"]
    assert row["error"] is None
    (row,) = documents(capsys, ["bench", *options, "--repeat", "1"])["networks"]
    assert row["samples"] == 12
    report = tmp_path / "report.html"
    assert run([*map(str, ["measure", *options, "--verify", "--report", report])]) == 0
    assert "scores" in report.read_text()
    capsys.readouterr()


@pytest.mark.parametrize("words", [["--outputs", "1"], ["--arg", "named=True", "--outputs", "scores"]])
def test_outputs_by_index_and_by_name(words: list[str], data: Path, capsys: Capture) -> None:
    assert total(capsys, PAIR, *words, "--data", data) == pytest.approx(ms.hessian_trace(net(5), X).total, rel=1e-12)


def test_outputs_that_are_not_there(data: Path, capsys: Capture) -> None:
    refused(capsys, ["measure", PAIR, "--data", data], r"Say which: --outputs 0 or --outputs 1")
    refused(capsys, ["measure", PAIR, "--data", data, "--outputs", "logits"], "--outputs logits, but the model returns")


def language_data(path: Path, **others: Tensor) -> Path:
    ids = torch.randint(7, (6, 5), generator=torch.Generator().manual_seed(1))
    return save_data({"input_ids": ids, "attention_mask": torch.ones_like(ids), **others}, None, path)


def test_class_axis(tmp_path: Path, capsys: Capture) -> None:
    file = language_data(tmp_path / "d.npz")
    refused(capsys, ["measure", LANGUAGE, "--data", file], "which axis runs over the classes cannot be told")
    with np.load(file) as held:
        inputs = {name: torch.from_numpy(held[name]) for name in held}
    expected = ms.hessian_trace(Language(), inputs, class_axis=-1).total
    assert total(capsys, LANGUAGE, "--data", file, "--class-axis", "-1") == pytest.approx(expected, rel=1e-12)


def test_labels_of_a_causal_language_model(tmp_path: Path, capsys: Capture) -> None:
    ids = torch.randint(7, (6, 5), generator=torch.Generator().manual_seed(1))
    file = language_data(tmp_path / "d.npz", labels=ids)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    model = Language()
    weight = model.head.weight

    def own(flat: Tensor) -> Tensor:
        return torch.func.functional_call(model, {"head.weight": flat.view_as(weight)}, (), batch)["loss"]

    hessian: Any = torch.autograd.functional.hessian(own, weight.detach().flatten())
    found = documents(capsys, ["measure", LANGUAGE, "--data", file, "--loss", "next-token"])
    assert found["trace"]["by_parameter"]["head.weight"] == pytest.approx(float(hessian.trace()), rel=1e-9)
    assert found["loss"] == "NextToken() on axis -1"
    assert run(["measure", LANGUAGE, "--data", str(file)]) == 0
    warned = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert len(set(warned)) == 1
    assert "--loss next-token" in warned[0]
    np.savez(tmp_path / "two.npz", x=X.numpy(), y=Y.numpy(), labels=Y.numpy())
    refused(capsys, ["measure", NET, "--arg", "width=5", "--data", tmp_path / "two.npz"], "holds 'y' and 'labels'")


def test_calls_that_do_not_go(data: Path, capsys: Capture) -> None:
    def wrong(match: str, factory: str, *words: str) -> None:
        arguments = [part for word in words for part in ("--arg", word)]
        refused(capsys, ["measure", factory, *arguments, "--data", data], match)

    shown = r"It takes net\(width, \*, act='relu', sizes=\(\), seed=3\)\. Call it with: "
    wrong(rf"missing a required argument: 'width'\. {shown}{NET} --arg width=VALUE", NET)
    wrong(rf"it has no argument 'withd'\. {shown}{NET} --arg width=4 *$", NET, "withd=4")
    wrong(
        r"could not be called with width=3 \(it takes fails\(width=3\)\): ValueError: not today",
        f"{HERE}fails",
        "width=3",
    )
    wrong("ready' is a Sequential already, and takes no arguments", f"{HERE}ready", "width=3")
    wrong("cannot be called|is not callable", f"{HERE}HERE")


def test_a_pt2_file_takes_no_arguments(tmp_path: Path, data: Path, capsys: Capture) -> None:
    (tmp_path / "m.pt2").touch()
    refused(capsys, ["measure", tmp_path / "m.pt2", "--arg", "a=1", "--data", data], "a .pt2 file takes no arguments")


def test_a_checkpoint_as_people_save_it(tmp_path: Path, data: Path, capsys: Capture) -> None:
    one, other = ({f"module.{n}": t for n, t in net(5, seed=seed).state_dict().items()} for seed in (1, 2))
    path = tmp_path / "best.pth.tar"
    torch.save({"epoch": 3, "state_dict": one}, path)
    options: list[object] = ["measure", NET, "--arg", "width=5", "--data", data, "--weights", path]
    assert run([*map(str, options), "--json"]) == 0
    out, err = capsys.readouterr()
    assert f"the weights in '{path}' are at 'state_dict'" in err
    assert str(ms.hessian_trace(net(5, seed=1), X).total) in out
    torch.save({"state_dict": one, "state_dict_ema": other}, path)
    refused(capsys, options, "more than once: 'state_dict' and 'state_dict_ema'")
    assert total(capsys, *options[1:], "--weights-key", "state_dict_ema") == ms.hessian_trace(net(5, seed=2), X).total
    refused(capsys, [*options[:-2], "--weights-key", "ema"], "--weights-key ema: of which file")


class WordlessError(RuntimeError):
    def __str__(self) -> str:
        raise ValueError("no words")


def wordless() -> nn.Module:
    raise WordlessError


def test_a_factory_whose_error_cannot_be_printed(tmp_path: Path, capsys: Capture) -> None:
    data = save_data(X, Y, tmp_path / "data.npz")
    assert run(["measure", f"{HERE}wordless", "--data", str(data)]) == 2
    assert "wordless' could not be called without arguments" in capsys.readouterr().err
