"""Names may hold anything: what is shown obeys no terminal, and what is written starts no formula."""

import csv
import io
import pickle
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import minsharp as ms
from minsharp.errors import InputError
from minsharp.experiments.store import write_csv
from minsharp.experiments.tables import Table
from minsharp.measures.compare import Comparison, Measurement
from minsharp.measures.score import Score
from minsharp.measures.verify import Check, Verification
from minsharp.report.templating import environment
from minsharp.text import csv_cell, markdown_cell, markdown_table, plain_table, printable, printable_lines

EVIL = "evil\x1b[31m\r\x07\x9b2J\u202e\u2066\u200b\u2028\ud800|<b>"
X = torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def shown_well(text: str) -> bool:
    return all(c.isprintable() or c == "\n" for c in text)


def evil_model(*parts: nn.Module) -> nn.Sequential:
    model = nn.Sequential()
    for i, part in enumerate(parts):
        model.add_module(f"{EVIL}{i}", part.double())
    return model


def linear() -> nn.Sequential:
    return evil_model(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def test_every_character_that_is_not_shown_is_spelled_out() -> None:
    for code in range(0x110000):
        c = chr(code)
        shown = printable(c)
        if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
            assert shown.isascii(), hex(code)
            assert shown.isprintable(), hex(code)
        assert shown.isprintable(), hex(code)
    assert printable("π/weight_重み") == "π/weight_重み"
    assert printable("a\ufe0f\u3164") == "a\\ufe0f\\u3164"
    assert printable_lines("a\r\nb") == "a\\r\nb"


RESULTS: dict[str, Callable[[], Any]] = {
    "trace": lambda: ms.hessian_trace(linear(), X),
    "diagonal": lambda: ms.hessian_diagonal(linear(), X),
    "minimum": lambda: ms.minimum_sharpness(linear(), X),
    "minimum per neuron": lambda: ms.minimum_sharpness(linear(), X, scope="neuron"),
    "pinned": lambda: ms.minimum_sharpness(evil_model(nn.Linear(6, 3), nn.GELU()), X, curvature="ggn"),
    "symmetries": lambda: ms.symmetries(evil_model(nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 3)), X),
    "network": lambda: ms.read(type(EVIL.replace("\ud800", ""), (nn.Linear,), {})(6, 3).double(), X),
    "normalized": lambda: ms.measures.normalized_sharpness(linear(), X),
    "relative minimum": lambda: ms.relative_minimum_sharpness(linear(), X),
    "relative sensitivity": lambda: ms.relative_sensitivity(linear(), X),
    "comparison": lambda: Comparison((Measurement(EVIL, None, None, 0.0, None, "none", EVIL),), 3, 0, "layer"),
    "verification": lambda: Verification((Check(EVIL, 0.0, 0.0),)),
    "score": lambda: Score(EVIL, 1.0, details={EVIL: EVIL}),
    "table": lambda: Table(EVIL, (EVIL, "x"), ((EVIL, EVIL),)),
}


@pytest.mark.parametrize("name", RESULTS)
def test_results_show_names_without_control_characters(name: str) -> None:
    result = RESULTS[name]()
    for text in (repr(result), str(result), str(getattr(result, "status", ""))):
        assert shown_well(text), text
    for page in ("_repr_html_", "markdown"):
        if hasattr(result, page):
            text = getattr(result, page)()
            assert shown_well(text), text
            assert "<b>" not in text
    assert "evil" in repr(result) or not hasattr(result, "by_parameter")


REFUSED: dict[str, Callable[[], Any]] = {
    "not exact": lambda: ms.hessian_trace(evil_model(nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 3)), X),
    "a pattern": lambda: ms.hessian_trace(linear(), X, parameters="nothing"),
    "a factor": lambda: ms.rescale(linear(), {EVIL: 2.0}),
    "an input": lambda: ms.hessian_trace(linear(), {EVIL: 3}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_errors_quote_names_without_control_characters(name: str) -> None:
    with pytest.raises(ms.MinsharpError) as error:
        REFUSED[name]()
    assert shown_well(str(error.value))
    assert shown_well(repr(error.value))


def test_errors_stay_what_they_are() -> None:
    error = InputError("one\ntwo\x1b", 3)
    assert error.args == ("one\ntwo\\x1b", 3)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.args) == (InputError, error.args)


def test_markup_is_free_of_control_characters() -> None:
    template = environment().from_string('<p title="{{ name }}"{{ {"class": name}|shown|xmlattr }}>{{ name }}</p>')
    text = template.render(name=f'{EVIL}" onclick="')
    assert shown_well(text)
    assert "<b>" not in text
    assert text.count('"') == 4


def test_reports_are_free_of_control_characters(tmp_path: Path) -> None:
    path = ms.write_report(
        tmp_path / "r.html", title=EVIL, minimum=ms.minimum_sharpness(linear(), X), settings={EVIL: EVIL}, story=EVIL
    )
    assert shown_well(path.read_text(encoding="utf-8"))


FORMULAS = ["=1+1", "+1+1", "-1+cmd", "@SUM(1)", "\t=1", "\r=1", " =1", "＝1"]  # noqa: RUF001


@pytest.mark.parametrize("text", FORMULAS)
def test_no_cell_of_a_table_starts_a_formula(text: str, tmp_path: Path) -> None:
    write_csv(tmp_path / "t.csv", [{"model": text, text: 1, "value": -1.5, "e": f"a{EVIL}"}])
    comparison = Comparison((Measurement(text, -1.5, None, 0.0, None, "none", text),), 3, 0, "layer")
    for written in ((tmp_path / "t.csv").read_text(encoding="utf-8"), comparison.to_csv()):
        cells = [cell for line in csv.reader(io.StringIO(written)) for cell in line]
        assert shown_well(written)
        assert not [c for c in cells if c.lstrip().startswith(tuple("=+-@\t\r＝")) and c != "-1.5"]  # noqa: RUF001
        assert "-1.5" in cells


def test_numbers_stay_numbers() -> None:
    assert [csv_cell(v) for v in (-1.5, -3, "-3e-7", None, True)] == [-1.5, -3, "-3e-7", None, True]


def test_a_table_is_aligned_as_it_is_shown() -> None:
    lines = plain_table(("name", "value"), [("evil\x1b[31m", "1"), ("b", "20")], total=("total", "")).split("\n")
    assert lines == [
        "name          value",
        "-------------------",
        "evil\\x1b[31m      1",
        "b                20",
        "-------------------",
        "total",
    ]


def test_a_cell_of_markdown_stays_one() -> None:
    name = "a|b`c`\n<script>"
    table = markdown_table(("name", "value"), [(markdown_cell(name), "1")])
    assert len(table.split("\n")) == 3
    assert table.split("\n")[2].count("|") == 3
    assert "<script>" not in table
    assert "`" not in table
