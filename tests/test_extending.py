"""Every block of docs/extending.md is complete, and does what the page says."""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from minsharp.measures.catalogue import chosen
from minsharp.measures.registry import MEASURES
from minsharp.operations import BUILT_IN, TABLE

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, flags=re.S | re.M)


@pytest.fixture(autouse=True)
def taught() -> Iterator[None]:
    """What a block registers is gone after it."""
    measures = {measure.name: measure for measure in chosen(None)}
    torch.manual_seed(0)
    yield
    MEASURES.clear()
    MEASURES.update(measures)
    for name in set(TABLE) - BUILT_IN:
        del TABLE[name]


def _title(block: str) -> str:
    """The heading that a block stands under, and its first line that is not an import."""
    heading = re.findall(r"^## (.*)$", TEXT[: TEXT.index(block)], flags=re.M)[-1]
    lines = [line for line in block.splitlines() if line and not re.match(r"import |from ", line)]
    return f"{heading}: {lines[0]}"


@pytest.mark.parametrize("block", BLOCKS, ids=map(_title, BLOCKS))
def test_block(block: str) -> None:
    """By itself, with nothing of the blocks before it."""
    exec(compile(block, str(PAGE), "exec"), {"__name__": "block"})


def test_every_section_has_its_block() -> None:
    headings = {_title(block).split(":")[0] for block in BLOCKS}
    assert {"An operation", "A loss", "A measure"} <= headings
    files = re.findall(r'^```python title="(.*)"$', TEXT, flags=re.M)
    assert files == ["widths.py"]  # run as a file in tests/experiments/test_own_experiment.py
    assert len(BLOCKS) + len(files) == TEXT.count("```") // 2, "a block of another language runs in no test"


def test_a_broken_block_is_noticed() -> None:
    """A block is run as it stands: an example that says something else does not pass."""
    (block,) = [block for block in BLOCKS if "mylib::scaled_relu" in block]
    broken = block.replace('"x*scale"', '"f(x)*scale"').replace("mylib::", "mylib_broken::")
    with pytest.raises(AssertionError):
        test_block(textwrap.dedent(broken))
