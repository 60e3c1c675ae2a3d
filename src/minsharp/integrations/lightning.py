"""Lightning: a callback that logs sharpness while a Trainer fits. Needs the extra ``lightning``."""

from typing import Any, Literal

from ..errors import InputError
from ..extras import required
from ..losses import Criterion
from ..measures.monitor import Monitor
from ..subject.batches import Data

_pytorch = required("lightning.pytorch", "SharpnessMonitor", "lightning")


class SharpnessMonitor(_pytorch.Callback):  # type: ignore[misc, name-defined]
    """Logs what a `Monitor` measures under ``minsharp/...``, through ``self.log``.

    ``interval="epoch"`` measures at the end of training epochs, ``"step"`` after batches; ``every`` then counts epochs
    or optimizer steps. The LightningModule itself is measured, or the submodule that ``module`` names. With several
    processes rank 0 measures, on the whole probe. The other arguments are those of `Monitor`; ``.monitor`` is it.

        Trainer(callbacks=[SharpnessMonitor((x[:200], y[:200]), interval="step", budget=0.05)])
    """

    def __init__(
        self,
        probe: Data,
        loss: Criterion | None = None,
        *,
        interval: Literal["epoch", "step"] = "epoch",
        module: str = "",
        **options: Any,
    ) -> None:
        super().__init__()
        if interval not in ("epoch", "step"):
            raise InputError(f"interval={interval!r}: expected 'epoch' or 'step'")
        self.monitor: Monitor | None = None
        self._probe, self._loss, self._interval, self._module, self._options = probe, loss, interval, module, options

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Read the model once."""
        if trainer.is_global_zero:
            self.monitor = Monitor(pl_module.get_submodule(self._module), self._probe, self._loss, **self._options)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """After a step."""
        if self._interval == "step":
            self._log(trainer, trainer.global_step)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """After an epoch."""
        if self._interval == "epoch":
            self._log(trainer, trainer.current_epoch)

    def _log(self, trainer: Any, step: int) -> None:
        if self.monitor is None or trainer.sanity_checking:
            return
        values = self.monitor(step)
        if values:
            by_step = self._interval == "step"
            self.log_dict(values, on_step=by_step, on_epoch=not by_step, batch_size=1, rank_zero_only=True)
