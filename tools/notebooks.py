"""Run the notebooks of docs/notebooks, keep their outputs, and write a page of the site for each.

`python -m tools.notebooks` does all three; `tests/docs/test_notebooks.py` runs them again and compares what they print.
"""

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def paths() -> list[Path]:
    """The notebooks."""
    return sorted(FOLDER.glob("*.ipynb"))


def executed(path: Path) -> Any:
    """The notebook with the outputs of a new run; an error in a cell is raised."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=300, kernel_name="python3", record_timing=False)
    client.create_kernel_manager().transport = "ipc"
    client.execute()
    return notebook


def printed(notebook: Any) -> list[str]:
    """What each code cell prints or returns, as text."""
    return ["".join(_texts(cell)) for cell in notebook.cells if cell.cell_type == "code"]


def page(path: Path, notebook: Any) -> tuple[str, dict[str, bytes]]:
    """The notebook as Markdown, and its pictures by the names of their files."""
    pictures: dict[str, bytes] = {}
    title, *cells = notebook.cells
    parts = [title.source, f"*A notebook that runs in the test suite: [{path.name}]({path.name}).*"]
    for cell in cells:
        parts += [cell.source] if cell.cell_type == "markdown" else _code(cell, path.stem, pictures)
    return "\n\n".join(parts) + "\n", pictures


def _code(cell: Any, stem: str, pictures: dict[str, bytes]) -> Iterator[str]:
    yield f"```python\n{cell.source}\n```"
    text = "".join(_texts(cell)).rstrip()
    if text:
        yield f"```text\n{text}\n```"
    for output in cell.outputs:
        if "image/png" in output.get("data", {}):
            name = f"{stem}-{len(pictures) + 1}.png"
            pictures[name] = base64.b64decode(output.data["image/png"])
            yield f"![{cell.metadata['alt']}]({name})"


def _texts(cell: Any) -> Iterator[str]:
    for output in cell.outputs:
        if output.output_type == "stream":
            yield _ESCAPES.sub("", output.text)
        elif "image/png" not in output.data:
            yield _ESCAPES.sub("", output.data.get("text/plain", "")) + "\n"


def write(path: Path) -> None:
    """Run one, and keep what came out."""
    notebook = executed(path)
    text, pictures = page(path, notebook)
    nbformat.write(notebook, path)
    path.with_suffix(".md").write_text(text)
    for name, content in pictures.items():
        (path.parent / name).write_bytes(content)


if __name__ == "__main__":
    for found in paths():
        write(found)
        print(found.name)
