"""The page on the architecture tells the imports as they are, and the code keeps to its sizes."""

import ast
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

pytest.importorskip("grimp", reason="reads the imports")

from tools import architecture

SOURCE = architecture.ROOT / "src" / "minsharp"


def test_the_page_is_true() -> None:
    assert architecture.page(architecture.imports()) == architecture.PAGE.read_text(), (
        "run python -m tools.architecture"
    )


def test_the_figure_names_every_room() -> None:
    drawn = architecture.FIGURE.read_text()
    for layer in architecture.layers():
        for room in layer:
            assert f">{room}</text>" in drawn, f"{room}: run python -m tools.architecture"


def _functions(path: Path) -> Iterator[tuple[str, int]]:
    """The functions of a file, and how many lines each has; docstrings and decorators not counted."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
            docstring = first.lineno - node.body[0].lineno if ast.get_docstring(node) else 0
            yield f"{path.name}:{node.name}", (node.end_lineno or node.lineno) - node.lineno + 1 - docstring


def test_modules_and_functions_are_short() -> None:
    files = list(SOURCE.rglob("*.py"))
    assert {str(p): n for p in files if (n := len(p.read_text().splitlines())) > 400} == {}
    functions = dict(item for path in files for item in _functions(path))
    assert {name: lines for name, lines in functions.items() if lines >= 50} == {}
    assert median(functions.values()) < 8
