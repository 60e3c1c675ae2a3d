"""The program of docs/transformers.md does what the page says."""

import re
from pathlib import Path

import torch

PAGE = Path(__file__).parents[1] / "docs" / "transformers.md"


def test_the_program_runs() -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.S | re.M)
    torch.manual_seed(0)
    exec(compile(block, str(PAGE), "exec"), {"__name__": "page"})
