"""transformers: a callback that logs sharpness as a Trainer evaluates. Needs the extra ``transformers``."""

from typing import Any

from ..extras import required
from ..losses import Criterion
from ..measures.monitor import Monitor
from ..subject.batches import Data

_transformers = required("transformers", "SharpnessCallback", "transformers")


class SharpnessCallback(_transformers.TrainerCallback):  # type: ignore[misc, name-defined]
    """Logs what a `Monitor` measures under ``minsharp/...`` whenever the Trainer has evaluated.

    The numbers go into ``trainer.state.log_history``. A callback cannot reach the Trainer that runs it: with
    ``callback.attach(trainer)`` in place of ``callbacks=[callback]`` they go through ``trainer.log``, and so to
    TensorBoard and wherever else it reports. With several processes rank 0 measures. The probe is a batch as the
    collator makes it, on the model's device or not; the other arguments are those of `Monitor`, where ``every`` counts
    optimizer steps. Transformers are smooth: ask for ``curvature="ggn"``. Causal language models shift their labels:

        SharpnessCallback(batch, loss=NextToken(), curvature="ggn", class_axis=-1).attach(trainer)
    """

    def __init__(self, probe: Data, loss: Criterion | None = None, **options: Any) -> None:
        self.monitor: Monitor | None = None
        self._trainer: Any = None
        self._probe, self._loss, self._options = probe, loss, options

    def attach(self, trainer: Any) -> "SharpnessCallback":
        """Add the callback to a Trainer, and log through it."""
        self._trainer = trainer
        trainer.add_callback(self)
        return self

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Read the model: what is wrong is said before it trains."""
        if state.is_world_process_zero:
            self._watch(model)

    def on_evaluate(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Measure, and log."""
        if not state.is_world_process_zero:
            return
        values = self._watch(model)(state.global_step)
        if values and self._trainer is not None:
            self._trainer.log(values)
        elif values:
            state.log_history.append({**values, "epoch": state.epoch, "step": state.global_step})

    def _watch(self, model: Any) -> Monitor:
        """The monitor of a model, made when it is first asked for."""
        if self.monitor is None or self.monitor.model is not model:
            self.monitor = Monitor(model, self._probe, self._loss, **self._options)
        return self.monitor
