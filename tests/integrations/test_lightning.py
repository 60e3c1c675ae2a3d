"""The Lightning callback logs, while a real Trainer fits, what a direct call says."""

from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import minsharp as ms

pytestmark = pytest.mark.filterwarnings("ignore")

X, Y = torch.randn(24, 4, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 3


class Net(pl.LightningModule):  # type: ignore[misc, name-defined]
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


class Written(pl.loggers.Logger):  # type: ignore[misc, name-defined]
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
