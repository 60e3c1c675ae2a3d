"""Draw docs/figures/architecture.svg and the table of docs/architecture.md from the imports, as they are.

`python -m tools.architecture` writes both; `tests/test_architecture.py` fails where the table has become untrue.
"""

import re
import tomllib
from itertools import pairwise
from pathlib import Path

import grimp
from grimp import ImportGraph

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
FIGURE = ROOT / "docs" / "figures" / "architecture.svg"
START, END = "<!-- made by tools/architecture.py -->", "<!-- end -->"

WALKS = {
    "hessian_trace": "minsharp.curvature.hessian",
    "minimum_sharpness": "minsharp.measures.minimum",
    "compare": "minsharp.measures.compare",
    "reproduce labels": "minsharp.cli.reproduce",
    "write_report": "minsharp.report.html",
}
"""What a user calls, and the module where the call begins."""

ASIDE = {
    "laws": -2,
    "reference": 2,
    "results": 2,
    "data": -2,
    "models": -0.9,
    "io": -2,
    "losses": 1.6,
    "solve": 3.1,
    "subject": -0.9,
}
"""How far from the middle a room is drawn; the rooms that are not named stand in the middle of their row."""
GROUND = {"colours", "extras", "files", "frozen", "progress", "errors", "text", "version"}
"""Rooms that every other may use: no arrows lead there."""

Rooms = dict[str, set[str]]


def layers() -> list[list[str]]:
    """The rooms from the top down, as the contract of import-linter has them; rooms side by side in one list."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (listed,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [layer.split(" | ") for layer in listed]


def imports() -> ImportGraph:
    """Which module imports which; the package itself, which names all of them to be loaded later, is left out."""
    graph = grimp.build_graph("minsharp", cache_dir=None)
    for imported in graph.find_modules_directly_imported_by("minsharp"):
        graph.remove_import(importer="minsharp", imported=imported)
    return graph


def room(module: str) -> str:
    """The package of minsharp that a module is in: ``minsharp.network.reader`` is in ``network``."""
    return module.split(".")[1] if "." in module else ""


def rooms(graph: ImportGraph) -> Rooms:
    """For each room the rooms that it imports."""
    found: Rooms = {name: set() for layer in layers() for name in layer}
    for importer in graph.modules:
        for imported in graph.find_modules_directly_imported_by(importer):
            if room(importer) in found and room(imported) in found and room(importer) != room(imported):
                found[room(importer)].add(room(imported))
    return found


def reduced(graph: Rooms) -> Rooms:
    """The imports that no longer way through other rooms stands for: few enough to be drawn."""
    return {name: {other for other in below if not any(other in beyond(graph, b) for b in below)}
            for name, below in graph.items()}  # fmt: skip


def beyond(graph: Rooms, name: str) -> set[str]:
    """Every room that a room leads to."""
    return graph[name].union(*(beyond(graph, other) for other in graph[name]))


def walks(graph: ImportGraph) -> dict[str, dict[str, int]]:
    """For each walk how many modules of each room it may pass."""
    result: dict[str, dict[str, int]] = {}
    for name, start in WALKS.items():
        passed = result[name] = {}
        for module in {start, *graph.find_upstream_modules(start)} - {"minsharp"}:
            passed[room(module)] = passed.get(room(module), 0) + 1
    return result


def table(graph: ImportGraph) -> str:
    """Rooms from the top down, what each imports, and how many of its modules each walk may pass; in Markdown."""
    passed, imports = walks(graph), rooms(graph)
    lines = [f"| room | imports | {' | '.join(f'`{name}`' for name in WALKS)} |", f"|---|---|{'--:|' * len(WALKS)}"]
    order = [name for layer in layers() for name in layer]
    for name in order:
        below = ", ".join(f"`{other}`" for other in order if other in imports[name])
        counts = " | ".join(str(passed[walk].get(name, "")) for walk in WALKS)
        lines.append(f"| `{name}` | {below} | {counts} |")
    return "\n".join(lines)


def page(graph: ImportGraph) -> str:
    """The page with the table of now."""
    made = f"{START}\n\n{table(graph)}\n\n{END}"
    return re.sub(f"{re.escape(START)}.*{re.escape(END)}", lambda _: made, PAGE.read_text(), flags=re.DOTALL)


def draw(graph: ImportGraph) -> None:
    """Rooms in rows, an arrow for each import that is not implied by others; beside them the walks, row by row."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    plt.rcParams |= {"svg.hashsalt": "minsharp", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9}
    rows = layers()
    figure, axes = plt.subplots(figsize=(9, 0.62 * len(rows)))
    where = {
        name: (ASIDE.get(name, (i - (len(row) - 1) / 2) * 1.3 if name in GROUND else 0), -y)
        for y, row in enumerate(rows)
        for i, name in enumerate(row)
    }
    box = {"boxstyle": "round,pad=0.35", "facecolor": "#eef2ff", "edgecolor": "#4f5b93"}
    for name, below in reduced(rooms(graph)).items():
        axes.text(*where[name], name, ha="center", va="center", bbox=box, zorder=3)
        for other in sorted(below - GROUND):
            (x, y), (to_x, to_y) = where[name], where[other]
            arrow = {"arrowstyle": "->", "color": "#8a93b8", "connectionstyle": "arc3,rad=0.05", "shrinkB": 4}
            axes.annotate("", (to_x, to_y + 0.3), (x, y - 0.3), arrowprops=arrow, zorder=1)
    _draw_walks(axes, graph, 4.5)
    axes.set(xlim=(-3, 8.6), ylim=(-len(rows) + 0.4, 1.1))
    axes.axis("off")
    figure.savefig(FIGURE, bbox_inches="tight", metadata={"Date": None}, transparent=False)


def _draw_walks(axes: object, graph: ImportGraph, left: float) -> None:
    """A column for each walk: a dot in each row that it passes, joined from the top down."""
    for column, (name, passed) in enumerate(walks(graph).items()):
        x = left + 0.95 * column
        touched = [-y for y, row in enumerate(layers()) if any(other in passed for other in row)]
        axes.text(x, 0.75, name.replace(" ", "\n").replace("_", "_\n"), ha="center", va="center", fontsize=7.5)  # type: ignore[attr-defined]
        for y, below in pairwise(touched):
            axes.plot([x, x], [y, below], color="#c2571a", lw=1.5, zorder=2)  # type: ignore[attr-defined]
        axes.plot([x] * len(touched), touched, "o", color="#c2571a", ms=5, zorder=3)  # type: ignore[attr-defined]


def main() -> None:
    """Write the figure and the table."""
    graph = imports()
    PAGE.write_text(page(graph))
    draw(graph)


if __name__ == "__main__":
    main()
