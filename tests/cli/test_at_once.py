"""What is asked before any work is done answers without torch: help, the version, the shell's completion."""

import os
import subprocess
import sys

import pytest

from minsharp.cli import names
from minsharp.data import NAMES, TRAINING_IMAGES
from minsharp.experiments.labels.networks import PRESETS
from minsharp.io.weights import PICKLED
from minsharp.measures.catalogue import chosen

HEAVY = ("torch", "numpy", "scipy", "matplotlib", "jinja2", "safetensors", "sklearn")
COMMANDS = ("measure", "merge", "flatten", "bits", "compare", "bench", "doctor", "demo", "figures", "reproduce")
LOADED = """
import sys
from minsharp.cli.main import run
try:
    code = run(sys.argv[1:])
except SystemExit as left:
    code = left.code
print(code, *sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
"""


def loaded(*arguments: str, **environment: str) -> tuple[str, set[str]]:
    """What is printed, and which packages a fresh process has loaded by then."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    code, *modules = done.stderr.split()
    assert code == "0"
    return done.stdout, set(modules)


def complete(words: str) -> tuple[list[str], set[str]]:
    told = {"_MINSHARP_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    out, modules = loaded(**told)
    return out.split("\n")[:-1], modules


@pytest.mark.parametrize(
    "arguments",
    [["--version"], ["--help"], *([command, "--help"] for command in COMMANDS), ["reproduce", "labels", "--help"]],
    ids=" ".join,
)
def test_help_loads_nothing_that_is_slow(arguments: list[str]) -> None:
    out, modules = loaded(*arguments)
    assert out
    assert modules.isdisjoint(HEAVY)
    assert "typer" in modules  # a set that never holds anything would pass, too


def test_the_version_is_not_formatted() -> None:
    """Nothing of rich is loaded for it, beyond what older typers load by themselves."""
    listed = "import sys, typer; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", listed], capture_output=True, text=True, check=True)
    _, modules = loaded("--version")
    assert "typer" in done.stdout.split()
    assert "rich" not in modules - set(done.stdout.split())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("minsharp compare m.pt2 --measures rel", [n for n in map(names.word, names.MEASURES) if n.startswith("rel")]),
        ("minsharp compare m.pt2 --measure asa", ["asam", "asam-average", "asam-normalized-logits"]),
        ("minsharp measure m.pt2 --data ", list(names.DATA)),
        ("minsharp measure m.pt2 --data c", ["cifar-10"]),
        ("minsharp measure m.pt2 --curvature ", ["hessian", "ggn", "margin"]),
        ("minsharp flatten m.pt2 --noise max", ["max", "max-per-channel"]),
        ("minsharp reproduce trace --data m", ["mnist"]),
        ("minsharp reproduce labels --preset ", list(names.PRESETS)),
        ("minsharp reproduce labels --protocol l", ["loss"]),
        ("minsharp reproduce labels --measures trace,pac", ["trace,pacgen"]),
        ("minsharp do", ["doctor"]),
    ],
)
def test_completion_loads_nothing_that_is_slow(
    words: str, expected: list[str], tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("empty"))
    found, modules = complete(words)
    assert found == expected
    assert modules.isdisjoint(HEAVY)


def test_the_names_are_those_of_what_is_loaded_later() -> None:
    built_in = [m.name for m in chosen(None) if m.function.__module__.startswith("minsharp.")]
    assert list(names.MEASURES) == built_in
    assert names.DATA == NAMES
    assert tuple(TRAINING_IMAGES) == names.IMAGES_TO_TRAIN_ON
    assert tuple(PRESETS) == names.PRESETS
    assert (".safetensors", *PICKLED) == names.WEIGHTS


def test_every_measure_has_a_word_of_its_own() -> None:
    words = [names.word(name) for name in names.MEASURES]
    assert len(set(words)) == len(words)
    assert [names.named(word, names.MEASURES) for word in words] == list(names.MEASURES)
