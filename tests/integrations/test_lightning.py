"""The Lightning callback logs, while a real Trainer fits, what a direct call says."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import minsharp as ms

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.filterwarnings("ignore")

X, Y = torch.randn(24, 4, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 3


class Net(pl.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        self.direct: list[float] = []

    def forward(self, x: torch.Tensor) -> Any:
        return self.net(x)

    def training_step(self, batch: Any, index: int) -> Any:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("loss", nn.functional.cross_entropy(self(batch[0]), batch[1]))

    def on_train_batch_end(self, *given: Any) -> None:
        self.direct.append(ms.hessian_trace(self.net, X).total)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Written(pl.loggers.Logger):  # type: ignore[misc]
    """What was logged, by step."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, float]] = []

    name, version = "written", "0"

    def log_metrics(self, metrics: Any, step: Any = None) -> None:
        self.rows.append(dict(metrics))

    def log_hyperparams(self, *given: Any, **more: Any) -> None:
        pass


@pytest.mark.parametrize(("interval", "module"), [("step", ""), ("epoch", "net")])
def test_it_logs_what_a_direct_call_says(interval: Any, module: str, tmp_path: Any) -> None:
    from minsharp.integrations.lightning import SharpnessMonitor

    callback = SharpnessMonitor((X, Y), interval=interval, module=module)
    net, logger = Net(), Written()
    options: dict[str, Any] = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(
        max_epochs=2,
        callbacks=[callback],
        logger=logger,
        log_every_n_steps=1,
        default_root_dir=tmp_path,
        enable_checkpointing=False,
        num_sanity_val_steps=1,
        **options,
    )
    loader = DataLoader(TensorDataset(X, Y), batch_size=8)
    trainer.fit(net, loader, loader)
    logged = [row["minsharp/trace"] for row in logger.rows if "minsharp/trace" in row]
    expected = net.direct if interval == "step" else net.direct[2::3]
    assert logged == pytest.approx(expected, rel=1e-6)  # Lightning logs float32
    assert callback.monitor is not None
    assert callback.monitor.frame()["minsharp/trace"] == expected
    assert trainer.callback_metrics["minsharp/minimum_sharpness"] == pytest.approx(
        ms.minimum_sharpness(net.net, X).value, rel=1e-6
    )


def test_what_is_wrong() -> None:
    from minsharp.integrations.lightning import SharpnessMonitor

    with pytest.raises(ms.InputError, match="interval='batch': expected 'epoch' or 'step'"):
        SharpnessMonitor(X, interval="batch")  # type: ignore[arg-type]


SCRIPT = """
import json, os, sys
from pathlib import Path
import tests.integrations
import torch, lightning.pytorch as pl
from torch.utils.data import DataLoader, TensorDataset
import minsharp as ms
from minsharp.integrations.lightning import SharpnessMonitor
from tests.integrations.test_lightning import Net, Written, X, Y

class Watched(Net):
    def on_train_batch_end(self, *given):
        self.direct.append(ms.hessian_trace(self.net, X).total)

callback, net, logger = SharpnessMonitor((X, Y), interval="step"), Watched(), Written()
trainer = pl.Trainer(
    max_epochs=2, callbacks=[callback], logger=logger, log_every_n_steps=1, enable_checkpointing=False,
    num_sanity_val_steps=2, accelerator="cpu", devices=2, strategy="ddp", enable_progress_bar=False,
    enable_model_summary=False,
)
loader = DataLoader(TensorDataset(X, Y), batch_size=4)
trainer.fit(net, loader, loader)
found = {
    "logged": [row["minsharp/trace"] for row in logger.rows if "minsharp/trace" in row],
    "direct": net.direct,
    "steps": callback.monitor and callback.monitor.frame()["step"],
    "size": trainer.world_size,
}
Path(sys.argv[1], f"{trainer.global_rank}.json").write_text(json.dumps(found))
"""


def test_two_processes(tmp_path: Path) -> None:
    """Rank 0 measures the model that both train, never while Lightning checks sanity."""
    (tmp_path / "train.py").write_text(SCRIPT)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    paths = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [*launch, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first["size"] == 2
    assert first["steps"] == [1, 2, 3, 4, 5, 6]
    assert first["logged"] == pytest.approx(first["direct"], rel=1e-6)  # Lightning logs float32
    assert second["direct"] == first["direct"]
    assert (second["steps"], second["logged"]) == (None, [])
