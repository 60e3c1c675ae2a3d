"""Checkpoints as people save them: the weights are found wherever they are; where that is not certain, asked for."""

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

import minsharp as ms
from minsharp.io.checkpoints import Expected, weights_in
from minsharp.io.weights import PICKLED, load_weights

State = dict[str, Tensor]


def network(seed: int = 0) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
        for tensor in model.state_dict().values():
            if tensor.dtype.is_floating_point:
                tensor.uniform_(0.5, 1.5)
    return model


def under(prefix: str, state: State) -> State:
    return {prefix + name: tensor for name, tensor in state.items()}


def trained(state: State) -> dict[str, Any]:
    """What a training script keeps beside the weights."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(2, 1, 4, 4)).sum().backward()
    optimizer.step()
    return {"epoch": 3, "best": torch.tensor(0.9), "arch": "net", "optimizer": optimizer.state_dict(), "weights": state}


FORMS: dict[str, tuple[Callable[[State], Any], str]] = {
    "plain": (lambda s: s, ""),
    "ordered": (lambda s: OrderedDict(s), ""),
    "state_dict": (lambda s: {"state_dict": s, "epoch": 1}, "state_dict"),
    "any name": (lambda s: {"the_net": s, "lr": 0.1}, "the_net"),
    "two deep": (lambda s: {"run": {"model": s}}, "run/model"),
    "in a list": (lambda s: [1, s], "1"),
    "beside an optimizer": (trained, "weights"),
    "parallel": (lambda s: {"state_dict": under("module.", s)}, "state_dict"),
    "compiled": (lambda s: under("_orig_mod.", s), ""),
    "both": (lambda s: under("_orig_mod.module.", s), ""),
    "a compiled part": (lambda s: {n.replace("3.", "3._orig_mod."): t for n, t in s.items()}, ""),
    "averaged": (lambda s: {"swa": dict(AveragedModel(loaded(s)).state_dict())}, "swa"),
    "the same twice": (lambda s: {"model": s, "ema": dict(s)}, "model"),
    "a part of a module": (lambda s: {"state_dict": under("model.net.", s)}, "state_dict/model.net."),
    "no counts of batches": (lambda s: {n: t for n, t in s.items() if "num_batches" not in n}, ""),
}


def loaded(state: State) -> nn.Module:
    model = network(1)
    model.load_state_dict(state)
    return model


def save(held: Any, path: Path) -> Path:
    torch.save(held, path)
    return path


@pytest.mark.parametrize("form", FORMS)
def test_the_weights_are_found(form: str, tmp_path: Path) -> None:
    make, key = FORMS[form]
    model, expected = network(1), network(0).state_dict()
    place = load_weights(model, save(make(expected), tmp_path / "checkpoint.th"))
    assert place.key == key
    assert all(torch.equal(t, expected[name]) for name, t in model.state_dict().items())


@pytest.mark.parametrize("suffix", [*PICKLED, ".safetensors"])
def test_files_by_any_name(suffix: str, tmp_path: Path) -> None:
    path, state = tmp_path / f"checkpoint{suffix}", under("module.", network(0).state_dict())
    save_file(state, path) if suffix == ".safetensors" else torch.save(state, path)
    model = network(1)
    load_weights(model, path)
    assert torch.equal(model[0].weight, network(0)[0].weight)


@pytest.mark.parametrize("wrap", [lambda m: nn.DataParallel(m), lambda m: torch.compile(m, backend="eager")])
def test_into_a_model_that_is_wrapped_itself(wrap: Any, tmp_path: Path) -> None:
    state = network(0).state_dict()
    for number, form in enumerate((state, under("module.", state))):
        model = network(1)
        load_weights(wrap(model), save(form, tmp_path / f"{number}.pt"))
        assert torch.equal(model[0].weight, state["0.weight"])


class Named(nn.Module):
    """A model whose own names have a wrapper's word in them, and which needs it to tell them apart."""

    def __init__(self) -> None:
        super().__init__()
        self.module, self.weight = nn.Linear(2, 2, bias=False), nn.Parameter(torch.ones(2, 2))


def test_a_model_with_a_wrappers_word_in_its_names(tmp_path: Path) -> None:
    state = {"module.weight": torch.full((2, 2), 2.0), "weight": torch.full((2, 2), 3.0)}
    model: Any = Named()
    load_weights(model, save(state, tmp_path / "w.pt"))
    assert torch.equal(model.module.weight, state["module.weight"])
    assert torch.equal(model.weight, state["weight"])


def test_tied_weights_need_be_there_once(tmp_path: Path) -> None:
    model: Any = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    load_weights(model, save({"state": {"module.1.weight": torch.eye(3)}}, tmp_path / "w.pt"))
    assert torch.equal(model[0].weight, torch.eye(3))


def test_tied_weights_and_views_are_held_once(tmp_path: Path) -> None:
    """torch.save writes the numbers behind several names once: a language model's words in and out."""
    model: Any = nn.Sequential(nn.Linear(3, 3, bias=False), nn.ReLU(), nn.Linear(3, 3, bias=False))
    model[2].weight = model[0].weight
    state = {"state": model.state_dict(), "view": model[0].weight.detach().t()}
    for new in (True, False):
        path = tmp_path / f"{new}.pt"
        torch.save(state, path, _use_new_zipfile_serialization=new)
        other: Any = nn.Sequential(nn.Linear(3, 3, bias=False), nn.ReLU(), nn.Linear(3, 3, bias=False))
        other[2].weight = other[0].weight
        load_weights(other, path, "state")
        assert torch.equal(other[2].weight, model[0].weight)


def two() -> dict[str, Any]:
    return {"model": network(0).state_dict(), "ema": network(2).state_dict()}


def test_where_two_would_do_the_user_is_asked(tmp_path: Path) -> None:
    path = save(two(), tmp_path / "w.pt")
    match = (
        r"holds weights for this model more than once: 'model' and 'ema'\. Say which: --weights-key model or --weights"
    )
    with pytest.raises(ms.InputError, match=match):
        load_weights(network(1), path)
    for key, seed in (("model", 0), ("ema", 2)):
        model = network(1)
        assert load_weights(model, path, key).key == key
        assert torch.equal(model[0].weight, network(seed)[0].weight)
    with pytest.raises(ms.InputError, match=r"holds no weights at 'mode': expected one of 'model', 'ema'"):
        load_weights(network(1), path, "mode")


def test_a_part_of_something_larger_is_asked_for(tmp_path: Path) -> None:
    state = under("student.", network(0).state_dict())
    path = save({"state_dict": {**state, "loss.weight": torch.ones(3)}}, tmp_path / "w.ckpt")
    match = r"at 'state_dict/student\.', with 1 other tensors beside them\. If that is it: --weights-key state_dict/stu"
    with pytest.raises(ms.InputError, match=match):
        load_weights(network(1), path)
    for key in ("state_dict/student.", "state_dict/student"):
        model = network(1)
        load_weights(model, path, key)
        assert torch.equal(model[0].weight, state["student.0.weight"])
    path = save({**state, **under("teacher.", network(2).state_dict())}, tmp_path / "both.ckpt")
    with pytest.raises(ms.InputError, match=r"at 'student\.' and 'teacher\.', each beside the others\. Say which: --w"):
        load_weights(network(1), path)


def test_what_does_not_fit_is_named_with_what_is_nearest(tmp_path: Path) -> None:
    state = network(0).state_dict()
    state["3.weights"] = state.pop("3.weight")
    state["0.weight"] = torch.zeros(2, 1, 5, 5)
    path = save({"epoch": 1, "net": under("module.", state)}, tmp_path / "w.th")
    match = (
        r"at 'net' do not fit the model: missing: 3\.weight \(nearest: 3\.weights\); unexpected: 3\.weights; of "
        r"another shape: 0\.weight \(2, 1, 5, 5\) instead of \(2, 1, 3, 3\)"
    )
    with pytest.raises(ms.InputError, match=match):
        load_weights(network(1), path)


def test_a_file_without_tensors(tmp_path: Path) -> None:
    with pytest.raises(ms.InputError, match="holds a dict, expected a state dict: names and tensors"):
        load_weights(network(), save({"epoch": 1}, tmp_path / "w.th"))
    with pytest.raises(ms.InputError, match=r"expected a file of weights, \.safetensors or one of \.pt"):
        load_weights(network(), save({}, tmp_path / "w.zip"))


def test_a_dict_that_holds_itself(tmp_path: Path) -> None:
    held: dict[str, Any] = {"state_dict": network(0).state_dict()}
    held["again"] = held
    assert load_weights(network(1), save(held, tmp_path / "w.pt")).key == "state_dict"


def test_lists_in_lists_without_end(tmp_path: Path) -> None:
    held: Any = network(0).state_dict()
    for _ in range(300):
        held = [held]
    with pytest.raises(ms.InputError, match="holds a list, expected a state dict"):
        load_weights(network(1), save(held, tmp_path / "w.pt"))
    wide = {"state_dict": network(0).state_dict(), "log": [[i] for i in range(10_000)]}
    assert load_weights(network(1), save(wide, tmp_path / "w.pt")).key == "state_dict"


def test_many_names_are_looked_at_once() -> None:
    """Else a hundred million comparisons would be noticed."""
    held = {f"layer{i}.weight": torch.zeros(1) for i in range(10_000)}
    with pytest.raises(
        ms.InputError, match=r"at 'layer0\.' do not fit the model: missing: bias; of another shape: weig"
    ):
        weights_in(held, Expected(nn.Linear(2, 2).state_dict()), None, "w.pt")
