"""Results print, serialise and stay as they are."""

import dataclasses
import json
import subprocess
import sys

import pytest
import torch
from torch import nn

import minsharp as ms


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2))


X = torch.tensor([[1.0, 2.0, 3.0], [0.5, -1.0, 2.0]])


def test_table(model: nn.Module) -> None:
    text = repr(ms.hessian_trace(model, X, curvature="ggn"))
    lines = text.splitlines()
    assert lines[0] == "Gauss-Newton trace of CrossEntropyLoss over 2 samples"
    assert lines[1].split() == ["parameter", "trace", "share", "exact"]
    assert [line.split()[0] for line in lines[3:7]] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert [line.split()[-1] for line in lines[3:7]] == ["no", "no", "yes", "yes"]
    assert lines[-1].startswith("total")
    assert repr(ms.hessian_diagonal(model, X, curvature="ggn")) == text


def test_plain_data(model: nn.Module) -> None:
    trace = ms.hessian_trace(model, X, curvature="ggn")
    again = json.loads(json.dumps(trace.to_dict()))
    assert again["total"] == trace.total == pytest.approx(sum(again["by_parameter"].values()))
    assert again["exact"] == {"0.weight": False, "0.bias": False, "2.weight": True, "2.bias": True}
    assert (again["samples"], again["curvature"], again["loss"]) == (2, "ggn", "CrossEntropyLoss")
    diagonal = ms.hessian_diagonal(model, X, curvature="ggn")
    assert torch.tensor(json.loads(json.dumps(diagonal.to_dict()))["by_parameter"]["2.weight"]).shape == (2, 4)
    assert diagonal.trace.by_parameter == pytest.approx(trace.by_parameter)


def test_html_escapes_names() -> None:
    class Hostile(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_parameter("<script>alert(1)</script>", nn.Parameter(torch.randn(3, 2)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ next(self.parameters())

    html = ms.hessian_trace(Hostile(), X)._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html


def test_frozen(model: nn.Module) -> None:
    trace = ms.hessian_trace(model, X, curvature="ggn")
    with pytest.raises(dataclasses.FrozenInstanceError):
        trace.kind = "hessian"  # type: ignore[misc]


def test_networks_print(model: nn.Module) -> None:
    assert repr(ms.read(model, X)) == (
        "Network(Sequential: 4 parameters, 3 operations, not piecewise linear in 2 of them)"
    )


def test_import_is_light() -> None:
    """Nothing that only plots, prints or downloads comes along."""
    heavy = ["matplotlib", "sklearn", "typer", "rich", "scipy", "pooch", "torch._dynamo", "torch._inductor"]
    code = (
        "import sys, torch; before = set(sys.modules); from minsharp import hessian_trace, read;"
        "new = set(sys.modules) - before;"
        f"print([m for m in {heavy} if any(n == m or n.startswith(m + '.') for n in new)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
