"""The sections of the report for estimates, the whole group, noise with its predictions, bits, and a history."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import minsharp as ms
from minsharp.report.allocation import allocation
from minsharp.report.charts import Curve, Reading, lengths, plain_curves, shortened
from minsharp.report.history import told
from minsharp.report.noise import noise
from minsharp.report.sections import SHOWN, largest, layers, numbers, scales
from tests.report.test_report import Tree, values

Data = tuple[torch.Tensor, torch.Tensor]


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5, bias=False), nn.Linear(5, 8)).double()


@pytest.fixture(scope="module")
def data(model: nn.Module) -> Data:
    torch.manual_seed(1)
    inputs = torch.randn(40, 4).double()
    return inputs, model(inputs).argmax(1)


def words(path: Path) -> str:
    return " ".join(" ".join(Tree(path.read_text(encoding="utf-8")).words).split())


def test_standard_errors(model: nn.Module, data: Data, tmp_path: Path) -> None:
    many = (
        data[0].repeat(12, 1) + torch.randn(480, 4).double(),
        data[1].repeat(12),
    )  # of few samples none is an estimate
    estimate = ms.hessian_trace(model, many, curvature="ggn", tolerance=0.2, seed=1)
    assert estimate.standard_error > 0
    result = ms.minimum_sharpness(model, estimate)
    trace, least, _ = numbers([result], estimate)["tiles"]
    assert trace.remark.startswith(f"± {estimate.standard_error:.2g}; ")
    assert least.remark.startswith(f"± {result.standard_error:.2g}; ")
    table = layers([result], estimate)[0]["table"]
    assert table.head == ("parameter", "as it is", "±", "flattest", "change")
    assert [row[2] for row in table.rows] == [
        f"{error:.2g}" for error in (*estimate.standard_errors.values(), estimate.standard_error)
    ]
    text = words(ms.write_report(tmp_path / "r.html", minimum=result, curvature=estimate))
    assert "The curvature is estimated" in text
    exact = ms.minimum_sharpness(model, data)
    assert "estimated" not in words(ms.write_report(tmp_path / "r.html", minimum=exact))
    assert "±" not in layers([exact], estimate)[0]["table"].head  # not what this minimum was made of


def test_the_frames_of_the_whole_group(model: nn.Module, data: Data, tmp_path: Path) -> None:
    result = ms.minimum_sharpness(model, data, scope="full")
    change = result.scales
    assert isinstance(change, ms.Transformation)
    (shown,) = scales([result])
    ((name, size, condition, parts),) = shown["frames"].rows
    assert (name, size, parts) == (change.frames[0].name, "5 x 5", "2.weight, 3.weight")
    assert float(condition) == pytest.approx(change.condition, rel=1e-2)
    unframed = getattr(result.symmetries, "unframed")  # noqa: B009
    assert dict(shown["unframed"].rows if shown["unframed"] else ()) == dict(unframed)
    text = words(ms.write_report(tmp_path / "r.html", minimum=result))
    assert "no rescaling or change of basis goes lower" in text
    assert "Of a frame, a place for an invertible matrix, the singular values are shown" in text
    layer = ms.minimum_sharpness(model, data)
    assert "frame" not in words(ms.write_report(tmp_path / "r.html", minimum=layer)).replace("frames", "frame")


def test_predictions_beside_what_was_measured(model: nn.Module, data: Data) -> None:
    sigmas = (0.05, 0.1)
    measured = ms.noise_robustness(model, data, sigmas=sigmas, trials=5)
    assert all(level.accuracy and level.accuracy.standard_error for level in measured.levels)
    predicted = [ms.predicted_accuracy(model, data, sigma=sigma) for sigma in sigmas]
    (shown,) = noise({"net": measured}, {"net": predicted}, None)
    assert shown["compared"]
    assert [row[:3] for row in shown["table"].rows] == [
        *(("net", f"{v.sigma:g}", f"{v.accuracy:.1%}") for v in measured.levels),
        *(("net, predicted", f"{p.sigma:g}", f"{p.accuracy:.1%}") for p in predicted),
    ]
    chart = shown["chart"]
    assert chart.series == ("net",)
    assert chart.dashed == "predicted"
    kinds = [mark.attributes["class"] for mark in chart.marks if mark.tag == "path"]
    assert kinds == ["curve s0", "curve s0 predicted"]
    points = values(chart, "point", "data-words")
    assert (f"net, predicted, size of the noise (absolute) 0.1: {predicted[1].accuracy:.1%}",) in points
    (alone,) = noise({"net": measured}, None, None)
    assert not alone["compared"]
    assert alone["chart"].dashed == ""


def test_rounding_has_an_axis_of_bits(model: nn.Module, data: Data) -> None:
    chosen = ms.allocate_bits(model, data, bits=(2, 4, 8), budget=4.0)
    tried: Any = [2, 4, dict(chosen.bits)]
    measured = ms.noise_robustness(model, data, bits=tried, noise="max")
    drawn = ms.noise_robustness(model, data, sigmas=[0.1], noise="max", trials=2)
    of_noise, of_rounding = noise({"net": [measured, drawn]}, None, chosen)
    assert len(of_noise["table"].rows) == 1
    assert [row[1] for row in of_rounding["table"].rows] == [
        "2 bits",
        "4 bits",
        f"bits by parameter, {chosen.mean_bits:.3g} in the mean",
    ]
    assert len(values(of_rounding["chart"], "point", "class")) == 3
    (unplaced,) = noise({"net": measured}, None, None)  # nobody knows where the mixture belongs
    assert len(values(unplaced["chart"], "point", "class")) == 2


def test_noises_of_hardware_have_their_headings(model: nn.Module, data: Data) -> None:
    kinds: tuple[Any, ...] = ("pcm", "max-per-channel", "relative")
    measured = [ms.noise_robustness(model, data, sigmas=[0.1, 1.0], noise=kind, trials=2) for kind in kinds]
    found = [section["heading"] for section in noise({"net": measured}, None, None)]
    assert [heading.partition(":")[0] for heading in found] == [
        "Relative noise",
        "Noise of a channel's largest weight",
        "Phase-change memory",
    ]


def test_a_minimum_under_noise_is_called_so(model: nn.Module, data: Data, tmp_path: Path) -> None:
    result = ms.minimum_sharpness(model, data, scope="neuron", noise="max")
    text = words(ms.write_report(tmp_path / "r.html", minimum=result))
    assert "The effect of noise 'max' of the Hessian is" in text
    assert "Effect of noise 'max' of each parameter, scope neuron" in text


def test_charts_show_the_largest_rows_in_the_order_of_the_network() -> None:
    """The head of a deep network comes last, and may hold most of the trace."""
    rows = [(str(i), float(i % 50)) for i in range(SHOWN + 30)]
    kept = largest(rows, lambda row: row[1])
    assert len(kept) == SHOWN
    assert kept == [row for row in rows if row in kept]
    assert min(size for _, size in kept) >= max(size for name, size in rows if (name, size) not in kept)
    torch.manual_seed(0)
    deep = nn.Sequential(*(nn.Linear(3, 3, bias=False) for _ in range(SHOWN + 5)), nn.Linear(3, 4)).double()
    result = ms.minimum_sharpness(deep, torch.randn(5, 3).double())
    (shown,), (factors,) = layers([result], None), scales([result])
    assert (shown["shown"], shown["count"]) == (SHOWN, SHOWN + 7)
    assert f"; {SHOWN + 5}.bias: as it is" in shown["chart"].description
    assert len(factors["chart"].description.split("; ")) == factors["shown"] == SHOWN < factors["count"]


def test_names_beside_a_row_can_be_told_apart() -> None:
    long = [f"bert.encoder.layer.{i}.attention.self.{part}.weight" for i in range(3) for part in ("query", "key")]
    assert len({shortened(name) for name in long}) == len(long)
    assert all(len(shortened(name)) <= 32 for name in (*long, "x" * 99, ".".join("abcdefghijklmnopqrst")))
    assert shortened("fc.weight") == "fc.weight"


def test_bits(model: nn.Module, data: Data) -> None:
    result = ms.allocate_bits(model, data, bits=(2, 4, 8), budget=4.5)
    shown = allocation(result)
    assert [tile.value for tile in shown["tiles"]] == [
        f"{result.mean_bits:.4g}",
        f"{result.size}",
        f"{result.increase:.3g}",
    ]
    assert [row[:2] for row in shown["table"].rows[:-1]] == [(n, str(b)) for n, b in result.bits.items()]
    widths = [width for (width,) in values(shown["chart"], "bar", "width")]
    first, *_, last = result.bits
    assert widths[0] / widths[-1] == pytest.approx(result.mean_of(first) / result.mean_of(last))
    assert [row[0] for row in shown["uniform"].rows[1:]] == ["2", "4", "8"]


def test_a_history(model: nn.Module, data: Data) -> None:
    monitor = ms.Monitor(model, data, measures=["trace", "minimum sharpness"], every=2)
    for step in range(5):
        monitor(step)
    trace, least = told(monitor)
    assert (trace["title"], least["title"]) == ("Trace", "Minimum sharpness")
    assert [row[0] for row in trace["table"].rows] == ["0", "2", "4"]
    assert trace["table"].rows[0][1] == f"{monitor.frame()['minsharp/trace'][0]:.6g}"
    assert [section["table"] for section in told(monitor.frame())] == [trace["table"], least["table"]]


def test_a_history_with_holes_and_without_steps() -> None:
    nan = math.nan
    columns = {"step": [0.0, 1.0], "minsharp/trace": [1.0, nan], "minsharp/trace/standard_error": [0.5, nan]}
    (found,) = told(columns)
    assert found["table"].rows == (("0", "1", "0.5"), ("1", "-", "-"))
    assert len(values(found["chart"], "point", "class")) == 1
    assert told({"step": [], "minsharp/trace": []}) == []
    with pytest.raises(ms.InputError, match="columns of one length and 'step'"):
        told({"minsharp/trace": [1.0]})
    with pytest.raises(ms.InputError, match="columns of one length"):
        told({"step": [0.0], "minsharp/trace": [1.0, 2.0]})


def test_plain_curves_and_lengths() -> None:
    drawn = plain_curves("t", "x", "y", [Curve("a", (Reading(0, 1.0), Reading(1, 2.0), Reading(2, 3.0, 0.5)))])
    (x0, y0), (x1, y1), (x2, y2) = values(drawn, "point", "cx", "cy")
    assert x1 == pytest.approx((x0 + x2) / 2)
    assert y1 == pytest.approx((y0 + y2) / 2)
    assert y0 > y2
    assert len(values(drawn, "error", "x1")) == 1
    bars = lengths("t", [("a", 2.0, "two"), ("b", 8.0, "eight")])
    short, long = (width for (width,) in values(bars, "bar", "width"))
    assert long == pytest.approx(4 * short)
