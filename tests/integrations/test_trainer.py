"""The callback of transformers logs, while a real Trainer trains, what a direct call says."""

from typing import Any

import pytest
import torch

import minsharp as ms
import transformers

pytestmark = pytest.mark.filterwarnings("ignore")


def _model() -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=11, n_positions=6, n_embd=8, n_layer=1, n_head=2, use_cache=False)
    return transformers.GPT2LMHeadModel(config)


BATCH = {"input_ids": torch.arange(18).reshape(3, 6) % 11, "labels": torch.arange(18).reshape(3, 6) % 11}


class _Begun(transformers.TrainerCallback):  # type: ignore[misc]
    """Before the first step the model has been read: what is wrong with it would have been said."""

    def __init__(self, callback: Any) -> None:
        self.callback = callback

    def on_step_begin(self, *given: Any, **more: Any) -> None:
        assert self.callback.monitor is not None


@pytest.mark.parametrize("attached", [False, True])
def test_it_logs_what_a_direct_call_says(attached: bool, tmp_path: Any) -> None:
    from minsharp.integrations.transformers import SharpnessCallback

    options: dict[str, Any] = {"loss": ms.losses.NextToken(), "curvature": "ggn", "class_axis": -1}
    callback = SharpnessCallback(BATCH, measures=["trace"], **options)
    rows = [{name: tensor[i] for name, tensor in BATCH.items()} for i in range(3)]
    arguments = transformers.TrainingArguments(
        str(tmp_path),
        num_train_epochs=2,
        per_device_train_batch_size=3,
        eval_strategy="epoch",
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
        learning_rate=0.01,
    )
    given = {} if attached else {"callbacks": [callback]}
    trainer = transformers.Trainer(_model(), arguments, train_dataset=rows, eval_dataset=rows, **given)
    if attached:
        callback.attach(trainer)
    trainer.add_callback(_Begun(callback))
    trainer.train()
    logged = [row["minsharp/trace"] for row in trainer.state.log_history if "minsharp/trace" in row]
    assert len(logged) == 2
    assert logged[-1] == ms.hessian_trace(trainer.model, BATCH, **options).total
    assert callback.monitor is not None
    assert callback.monitor.frame()["step"] == [1, 2]
