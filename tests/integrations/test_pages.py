"""Every block of docs/training.md and docs/scaling.md is complete, and does what the page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.filterwarnings("ignore")

ROOT = Path(__file__).parents[2]
PAGES = ("training", "scaling")
TEXTS = {page: (ROOT / "docs" / f"{page}.md").read_text() for page in PAGES}
BLOCKS = [
    (page, block) for page in PAGES for block in re.findall(r"^```python\n(.*?)^```", TEXTS[page], flags=re.S | re.M)
]


def _title(page: str, block: str) -> str:
    return page + ": " + re.findall(r"^## (.*)$", TEXTS[page][: TEXTS[page].index(block)], flags=re.M)[-1]


@pytest.mark.parametrize(("page", "block"), BLOCKS, ids=[_title(*item) for item in BLOCKS])
def test_block(page: str, block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block, page, "exec"), {"__name__": "block"})


def test_the_script_for_torchrun(tmp_path: Path) -> None:
    (block,) = re.findall(r'^```python title="measure.py"\n(.*?)^```', TEXTS["scaling"], flags=re.S | re.M)
    (tmp_path / "measure.py").write_text(block)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "measure.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(launch, cwd=tmp_path, capture_output=True, text=True, env=environment, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("over 30 samples") == 1


def test_every_block_is_run() -> None:
    for page, text in TEXTS.items():
        found = sum(name == page for name, _ in BLOCKS) + text.count('```python title="measure.py"')
        assert found == text.count("```") // 2
