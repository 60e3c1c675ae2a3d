"""The study of vision transformers: a small part of it, and what the full run in the docs says."""

from pathlib import Path

import pytest
import torch

import minsharp as ms
from minsharp.cli.main import run as cli
from minsharp.errors import InputError
from minsharp.experiments import find, read_results, run, vits
from minsharp.report.outputs import write_outputs

DOCS = Path(__file__).parents[2] / "docs" / "results" / "vits"
FEW = ["trace", "minimum sharpness", "minimum sharpness (full)", "geodesic sharpness"]


@pytest.mark.slow
def test_a_short_run(tmp_path: Path) -> None:
    plan = vits.plan(networks=3, train=40, target=0.5, rescalings=1, measures=FEW)
    assert plan.cells[:2] == vits.plan(networks=2, train=40).cells
    run(find("vits"), plan, tmp_path)
    results = read_results(tmp_path)
    for row in results.rows:
        assert row["reached"]
        assert row["training loss"] == pytest.approx(0.5, rel=1e-3)
        assert row["drift of minimum sharpness (full)"] < 1e-8
        assert row["drift of geodesic sharpness"] < 1e-8
        assert row["drift of trace"] > 0.1
        assert row["minimum sharpness (full)"] <= row["minimum sharpness"] <= row["trace"]
    written = {path.name for path in write_outputs(tmp_path)}
    assert {"measures.png", "scatter.png", "summary.json"} <= written
    assert "geodesic sharpness" in str(results.tables[1])
    command = results.experiment.section.command(results)
    assert command == "minsharp reproduce vits --networks 3 --train 40 --target 0.5 --rescalings 1"
    words = " ".join(results.experiment.section.words(results))
    assert "3 reached the training loss 0.5" in words
    assert len(list(results.experiment.plots(results))) == len(FEW)


def test_the_networks_have_a_frame_for_each_head() -> None:
    torch.manual_seed(0)
    model = vits.VisionTransformer(patch=4, width=16, heads=2, depth=2)
    group = ms.symmetries(model, torch.randn(2, 1, 8, 8), scope="full")
    assert [frame.size for frame in group.frames] == [8] * 8  # type: ignore[attr-defined]


def test_the_run_of_the_docs() -> None:
    results = read_results(DOCS)
    standings = {s.measure: s for s in results.analysis.standings}
    assert len(results.rows) == 30
    assert len(results.analysis.compared) >= 25
    kept = {name for name, s in standings.items() if s.stands}
    assert {"minimum sharpness (full)", "geodesic sharpness", "Fisher-Rao norm"} <= kept
    assert not kept & {"trace", "minimum sharpness", "ASAM", "SAM"}


def test_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="networks=0, limit=200, rescalings=3: expected at least 1 of each"):
        vits.plan(networks=0)
    with pytest.raises(InputError, match="train=2000: digits has 1000 training images"):
        vits.plan(train=2000)
    with pytest.raises(InputError, match=r"target=0: expected a training loss above 0"):
        vits.plan(target=0)
    assert cli(["reproduce", "vits", "--address", "auto"]) == 2
    assert "an address is a Ray cluster's" in capsys.readouterr().err
