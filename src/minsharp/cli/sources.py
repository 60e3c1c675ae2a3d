"""Models and data as the command line names them."""

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from ..errors import InputError
from ..files import is_file
from ..io.npz import arrays_of
from ..io.pt2 import load_pt2
from ..io.weights import load_weights, safetensors_of
from .output import watched

NAMED_DATA = ("digits", "mnist", "fashion-mnist")
LOSSES: dict[str, Callable[[], nn.Module]] = {
    "cross-entropy": nn.CrossEntropyLoss,
    "bce": nn.BCEWithLogitsLoss,
    "mse": nn.MSELoss,
}


class Loaded(NamedTuple):
    """Inputs, targets if there are any, and the batches made of them."""

    inputs: Any
    targets: Tensor | None
    batches: Any


def load_model(model: str, weights: Path | None = None) -> nn.Module:
    """A model from a `.pt2` file or from ``package.module:factory``, with weights from a file if one is given."""
    if model.lower().endswith(".pt2"):
        path = Path(model)
        if not is_file(path):
            raise InputError(f"there is no file '{model}'")
        module = load_pt2(path)
    elif re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", model):
        module = _made(model)
    else:
        raise InputError(
            f"'{model}' is not a model: expected a .pt2 file (torch.export.save), or package.module:factory, "
            "a callable without arguments that returns the network"
        )
    if weights is not None:
        load_weights(module, weights)
    return module


def _made(model: str) -> nn.Module:
    """What a factory returns; the current folder is on the path, as with ``python -m``."""
    name, _, attribute = model.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    with _asked(f"cannot import '{name}' for the model '{model}'"):
        factory: Any = importlib.import_module(name)
    for part in attribute.split("."):
        with _asked(f"'{name}' cannot tell its '{attribute}', which the model '{model}' asks for"):
            known = hasattr(factory, part)
        if not known:
            raise InputError(f"'{name}' has no '{attribute}', which the model '{model}' asks for")
        factory = getattr(factory, part)
    with _asked(f"'{model}' could not be called without arguments"):
        module = factory if isinstance(factory, nn.Module) else factory()
    if not isinstance(module, nn.Module):
        raise InputError(f"'{model}' returns a {type(module).__name__}, expected a torch.nn.Module")
    return module


@contextmanager
def _asked(trouble: str) -> Iterator[None]:
    """Other people's code: whatever it raises, also to end the program, is an error that names it."""
    try:
        yield
    except (KeyboardInterrupt, InputError):
        raise
    except ImportError as error:
        raise InputError(f"{trouble}: {error}") from error
    except BaseException as error:
        raise InputError(f"{trouble}: {type(error).__name__}: {error}") from error


def load_data(
    name: str, model: nn.Module, samples: int | None = None, batch_size: int | None = None, data_dir: Path | None = None
) -> Loaded:
    """Data by name or from a file, in the model's precision, as batches."""
    inputs, targets = _named_data(name, data_dir) if name in NAMED_DATA else _data_file(name)
    if samples is not None:
        inputs = _each(inputs, lambda t: t[:samples])
        targets = None if targets is None else targets[:samples]
    n = len(next(iter(_leaves(inputs))))
    if n == 0:
        raise InputError(f"'{name}' holds no samples")
    inputs = _each(_in_order(inputs, model), lambda t: _fitting(t, model))
    if targets is not None and targets.is_floating_point():
        targets = _fitting(targets, model)
    if batch_size is None or batch_size >= n:
        return Loaded(inputs, targets, (inputs, targets))
    starts = range(0, n, batch_size)
    batches = [
        (_each(inputs, lambda t, i=i: t[i : i + batch_size]), None if targets is None else targets[i : i + batch_size])
        for i in starts
    ]
    return Loaded(inputs, targets, batches)


def _in_order(inputs: Any, model: nn.Module) -> Any:
    """Inputs by name in the order of forward's arguments, which a file does not keep."""
    if not isinstance(inputs, dict):
        return inputs
    order = [name for name in inspect.signature(model.forward).parameters if name in inputs]
    return {name: inputs[name] for name in [*order, *(n for n in inputs if n not in order)]}


def _each(inputs: Any, change: Callable[..., Tensor]) -> Any:
    if isinstance(inputs, dict):
        return {key: change(tensor) for key, tensor in inputs.items()}
    return tuple(map(change, inputs)) if isinstance(inputs, tuple) else change(inputs)


def _leaves(inputs: Any) -> list[Tensor]:
    if isinstance(inputs, dict):
        return list(inputs.values())
    return list(inputs) if isinstance(inputs, tuple) else [inputs]


def _fitting(tensor: Tensor, model: nn.Module) -> Tensor:
    """Floating point in the model's precision, everything on its device."""
    like = next((p for p in model.parameters() if p.is_floating_point()), None)
    if like is None:
        return tensor
    return tensor.to(like.device, like.dtype) if tensor.is_floating_point() else tensor.to(like.device)


def _named_data(name: str, data_dir: Path | None) -> tuple[Tensor, Tensor | None]:
    from ..data import load

    held = load(name, data_dir, progress=watched())
    return held.train_x, held.train_y


def _data_file(name: str) -> tuple[Any, Tensor | None]:
    path = Path(name)
    suffix = path.suffix.lower()
    if suffix not in (".npz", ".safetensors"):
        raise InputError(
            f"'{name}' is not data: expected {', '.join(NAMED_DATA)}, or an .npz or .safetensors file that holds 'x' "
            "(the inputs, samples along the first axis) and may hold 'y' (the targets)"
        )
    if not is_file(path):
        raise InputError(f"there is no file '{name}'")
    arrays = arrays_of(path) if suffix == ".npz" else safetensors_of(path)
    targets = arrays.pop("y", None)
    if not arrays:
        raise InputError(f"'{name}' holds no 'x': expected the inputs under that name")
    for key, tensor in arrays.items():
        if tensor.dim() == 0:
            raise InputError(f"'{key}' in '{name}' is a single number: expected samples along the first axis")
    if set(arrays) == {"x"}:
        return arrays["x"], targets
    numbered = [f"x{i}" for i in range(len(arrays))]
    if set(arrays) == set(numbered):
        return tuple(arrays[key] for key in numbered), targets
    return arrays, targets


def load_loss(name: str) -> nn.Module:
    """A criterion by its name on the command line."""
    if name not in LOSSES:
        raise InputError(f"--loss {name}: expected {', '.join(LOSSES)}")
    return LOSSES[name]()
