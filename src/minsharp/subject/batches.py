"""Data of any form as a stream of chunks of the size the engine wants."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..errors import EmptyDataError, InputError
from .inputs import Inputs, describe, tensors_of

Data = Tensor | tuple[Any, Any] | Mapping[str, Any] | Iterable[Any]

_FORMS = (
    "expected a tensor of inputs, a pair (inputs, targets), or an iterable of such batches (a DataLoader); "
    "several inputs go in a tuple or a dict: ((a, b), targets)"
)


DIFFERENT_SIZES = (
    'bring all to one size, as a tokenizer does with padding="max_length", or add up what each batch comes to: '
    "sum(minsharp.hessian_trace(model, batch) for batch in loader)"
)
"""What to do about samples of several sizes."""


@dataclass(frozen=True)
class Batch:
    """Some samples: inputs, and targets if there are any."""

    inputs: Inputs
    targets: Tensor | None

    @cached_property
    def _samples(self) -> int:
        return int(tensors_of(self.inputs)[0].shape[0])

    def __len__(self) -> int:
        return self._samples

    def part(self, start: int, stop: int) -> "Batch":
        """The samples of a range."""
        if start == 0 and stop >= len(self):
            return self
        inputs = pytree.tree_map(lambda t: t[start:stop], self.inputs)
        return Batch(inputs, None if self.targets is None else self.targets[start:stop])

    def pick(self, which: Tensor) -> "Batch":
        """Some of the samples, by their numbers."""
        return Batch(*pytree.tree_map_only(Tensor, lambda t: t[which.to(t.device)], (self.inputs, self.targets)))

    def copy(self) -> "Batch":
        """The same samples in memory of their own."""
        return Batch(*pytree.tree_map_only(Tensor, torch.clone, (self.inputs, self.targets)))

    def to(self, device: torch.device) -> "Batch":
        """The samples on a device."""
        if all(t.device == device for given in self.given for t in tensors_of(given)):
            return self
        return Batch(*pytree.tree_map_only(Tensor, lambda t: t.to(device), (self.inputs, self.targets)))

    def double(self) -> "Batch":
        """The samples in double precision; whole numbers stay as they are."""
        return Batch(*pytree.tree_map_only(Tensor, _double, (self.inputs, self.targets)))

    @property
    def given(self) -> tuple[Any, ...]:
        """The samples as a user would give them: inputs, and targets if there are any."""
        return (self.inputs,) if self.targets is None else (self.inputs, self.targets)


def _double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.dtype.is_floating_point else tensor


def _batch(given: Any) -> Batch:
    """One batch: inputs, or a pair of inputs and targets."""
    inputs: Any
    targets: Any
    if isinstance(given, Mapping):
        inputs, targets = _labelled(given)
    elif isinstance(given, Tensor):
        inputs, targets = given, None
    elif isinstance(given, tuple | list) and len(given) == 1:
        inputs, targets = given[0], None
    elif isinstance(given, tuple | list) and len(given) == 2:
        inputs, targets = given
    else:
        raise InputError(f"a batch is {describe(given)}; {_FORMS}")
    if isinstance(inputs, list):
        inputs = tuple(inputs)
    elif isinstance(inputs, Mapping):
        inputs = {name: value for name, value in inputs.items() if value is not None}  # what is not there is not passed
        _refuse_values(inputs)
    leaves = tensors_of(inputs)
    if not leaves or not all(isinstance(t, Tensor) and t.dim() for t in leaves):
        raise InputError(f"the inputs of a batch are {describe(inputs)}; {_FORMS}")
    if any(t.layout != torch.strided for t in leaves):
        raise InputError("the inputs are sparse; pass them as dense tensors: inputs.to_dense()")
    if targets is not None and not isinstance(targets, Tensor):
        raise InputError(f"the targets of a batch are {describe(targets)}, expected a tensor; {_FORMS}")
    n = leaves[0].shape[0]
    if targets is not None and (targets.dim() == 0 or targets.shape[0] != n):
        raise InputError(f"{n} inputs, but targets of shape {tuple(targets.shape)}; {_FORMS}")
    for leaf in leaves:
        if leaf.shape[0] != n:
            raise InputError(f"the inputs hold different numbers of samples: {describe(inputs)}")
    if any(t.is_inference() for t in (*leaves, *([] if targets is None else [targets]))):
        inputs, targets = pytree.tree_map_only(Tensor, _tracked, (inputs, targets))
    return Batch(inputs, targets)


def _refuse_values(inputs: Mapping[str, Any]) -> None:
    """Refuse a dict in which something is no tensor of samples, by its key."""
    for name, value in inputs.items():
        if not all(isinstance(t, Tensor) and t.dim() for t in tensors_of(value)):
            raise InputError(
                f"'{name}' among the inputs of a batch is {describe(value)}, expected a tensor with the samples on "
                "axis 0: leave it out of the dict; what is the same for all samples belongs into the model"
            )


def _labelled(given: Mapping[str, Any]) -> tuple[dict[str, Any], Tensor | None]:
    """A dict of inputs; the ``labels`` that a collator put beside them are the targets."""
    inputs = dict(given)
    return inputs, inputs.pop("labels", None)


def _tracked(tensor: Tensor) -> Tensor:
    """A tensor that autograd may hold on to, also where it was made in inference mode."""
    with torch.inference_mode(False):
        return tensor.clone()


def _is_one_batch(data: Any) -> bool:
    if isinstance(data, Tensor | Mapping):
        return True
    pair = isinstance(data, tuple) and len(data) == 2
    return pair and (data[1] is None or isinstance(data[1], Tensor))


def batches(data: Data) -> Iterator[Batch]:
    """The batches of the data as they come, empty ones left out.

    Those of a stream are copies: who makes the next batch may write it where the last one was.
    """
    if _is_one_batch(data):
        stream: Iterator[Any] = iter([data])
    elif isinstance(data, Iterable) and not isinstance(data, str | bytes):
        stream = iter(data)
    else:
        raise InputError(f"the data is {describe(data)}; {_FORMS}")
    made = map(_batch, stream)
    stays = _is_one_batch(data) or isinstance(data, list | tuple)
    return (batch if stays else batch.copy() for batch in made if len(batch))


def held(data: Data) -> list[tuple[Any, ...]]:
    """All batches, to be read more than once."""
    return [batch.given for batch in batches(data)]


def first_of(stream: Iterator[Batch]) -> tuple[Batch, Iterator[Batch]]:
    """The first batch, and the whole stream with it."""
    first = next(stream, None)
    if first is None:
        raise EmptyDataError(f"the data is empty: it holds no sample; {_FORMS}")

    def whole() -> Iterator[Batch]:
        yield first
        yield from stream

    return first, whole()


def count(data: Data) -> int | None:
    """The number of samples, where it can be known beforehand."""
    if _is_one_batch(data):
        return len(_batch(data))
    dataset = getattr(data, "dataset", None)
    if dataset is not None and hasattr(dataset, "__len__") and not getattr(data, "drop_last", False):
        return len(dataset)
    return sum(len(_batch(b)) for b in data) if isinstance(data, list) else None


def chunks(stream: Iterator[Batch], size: int) -> Iterator[Batch]:
    """The same samples in chunks of one size, whatever the batches were; the last may be smaller."""
    waiting: list[Batch] = []
    held = 0
    for batch in stream:
        start = 0
        while start < len(batch):
            part = batch.part(start, start + size - held)
            waiting.append(part)
            start += len(part)
            held += len(part)
            if held == size:
                yield _joined(waiting)
                waiting, held = [], 0
    if waiting:
        yield _joined(waiting)


def _hint(parts: list[Batch]) -> str:
    """What to do about batches of several forms."""
    alike = len({pytree.tree_structure(part.given) for part in parts}) == 1
    return DIFFERENT_SIZES if alike else _FORMS


def _joined(parts: list[Batch]) -> Batch:
    if len(parts) == 1:
        return parts[0]
    forms = list(dict.fromkeys(describe(p.part(0, 0).given) for p in parts))
    if len(forms) > 1:
        found = "; then ".join(form.replace("(0, ", "(n, ").replace("(0,)", "(n,)") for form in forms)
        raise InputError(f"the batches differ in form: {found}; {_hint(parts)}")
    columns = zip(*(tensors_of(p.inputs) for p in parts), strict=True)
    inputs = pytree.tree_unflatten([torch.cat(c) for c in columns], pytree.tree_structure(parts[0].inputs))
    targets = [p.targets for p in parts if p.targets is not None]
    return Batch(inputs, torch.cat(targets) if targets else None)
