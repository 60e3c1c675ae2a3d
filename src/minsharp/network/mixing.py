"""Whether an operation alone treats samples one by one, whatever numbers go in.

A comparison of what a network makes of a few samples sees nothing where their values are all alike: no sample of the
comparison may have an entry above 3, and one of the data does. So an operation is tried on other values than those that
reach it, each sample's unlike the others', and told by what becomes of these.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..graph.records import DEVICE, Graph, Operation, Samples, store, with_double_types
from ..operations import TABLE

Batches = Sequence[tuple[int, ...]]
"""The same samples in several batches, by their numbers; the first holds them all, in order."""

_ODD = 2  # the sample that is unlike the others in a draw
_MANY = 4099  # samples for what is made of the size of the batch alone
_ENTRIES = 1 << 22  # of such a value at most
_UNSET = frozenset({"empty", "empty_like", "new_empty"})
_FAILURES = (RuntimeError, TypeError, ValueError, IndexError)


def called(operation: Operation, bound: Mapping[str, Any]) -> Any:
    """The result of an operation; zeros where it is whatever the memory holds, which is there to be overwritten."""
    made = operation.call(bound)
    return made.zero_() if operation.name in _UNSET else made


def told_apart(rows: Tensor) -> bool:
    """Whether each sample of (n, ...) is unlike the others, as numbers are that come of different samples."""
    if not rows.dtype.is_floating_point or not rows.numel():
        return False
    wide = rows if rows.dtype.itemsize > 1 else rows.double()  # torch does not add up numbers of eight bits
    sums: list[float] = wide.reshape(len(rows), -1).sum(1).tolist()
    return len(set(sums)) == len(sums)


def picked_samples(tensor: Tensor, samples: Samples, batch: tuple[int, ...], n: int) -> Tensor:
    """Some of the n samples of a tensor, where they sit in it."""
    places = torch.arange(samples.outer * n * samples.inner, device=tensor.device)
    chosen = places.view(samples.outer, n, samples.inner)[:, list(batch)].flatten()
    return tensor.index_select(samples.axis, chosen)


class Alone:
    """One operation on values of its own: the same samples in each batch, whatever the network makes of them."""

    def __init__(
        self, graph: Graph, operation: Operation, batches: Batches, bound: Sequence[Mapping[str, Any]], wide: bool
    ):
        self.graph, self.operation, self.batches, self.wide = graph, operation, batches, wide
        self.known = [{name: _on_cpu(value) for name, value in known.items()} for known in bound]
        """What goes in by name, batch by batch."""

    def one_by_one(self, result: str) -> bool:
        """Whether samples stay apart in a result, if those that go in are what the first batch makes of them.

        An index that names places of the batch fails then, or takes other samples: it does not treat them one by one.
        """
        return self._apart(result, self.known[0]) is True

    def mixes(self, result: str) -> bool:
        """Whether samples meet in a result for some values that might go in."""
        return any(self._apart(result, {**self.known[0], **drawn}) is False for drawn in self._draws())

    def _draws(self) -> Iterator[dict[str, Tensor]]:
        """Other values for what differs from sample to sample."""
        varying = {name: self.known[0][name] for _, name in self.operation.reads if self._samples(name) is not None}
        generator = torch.Generator().manual_seed(0)
        yield {name: _in_disorder(tensor, generator) for name, tensor in varying.items()}
        if any(not tensor.dtype.is_floating_point for tensor in varying.values()):
            for odd in (True, False):
                yield {name: self._one_unlike(name, tensor, odd) for name, tensor in varying.items()}

    def _samples(self, name: str) -> Samples | None:
        value = self.graph.values.get(name)
        return None if value is None else value.samples

    def _one_unlike(self, name: str, tensor: Tensor, odd: bool) -> Tensor:
        """One sample of a kind and the others of another; floating point numbers as they are."""
        samples, n = self._samples(name), len(self.batches[0])
        if samples is None or tensor.dtype.is_floating_point or not tensor.numel():
            return tensor
        low, high = (0, 1) if tensor.dtype == torch.bool else (int(tensor.min()), int(tensor.max()))
        high = high + (low == high)
        result = torch.full_like(tensor, low if odd else high)
        places = torch.arange(samples.outer * n * samples.inner).view(samples.outer, n, samples.inner)
        result.index_fill_(samples.axis, places[:, _ODD].flatten(), high if odd else low)
        return result

    def _apart(self, result: str, first: Mapping[str, Any]) -> bool | None:
        """Whether samples that go in alike come out alike in every batch; unknown where the operation fails."""
        samples, expected = self._samples(result), None
        if samples is None:
            return True
        try:
            for k, batch in enumerate(self.batches):
                made = samples.split(self._made(first, k)[result], len(batch))
                expected = made if expected is None else expected
                if not _alike(expected[list(batch)], made):
                    return False
        except _FAILURES:
            return None
        return True

    def _made(self, first: Mapping[str, Any], k: int) -> dict[str, Any]:
        """The results for the samples of a batch."""
        n, known = len(self.batches[0]), dict(self.known[k])
        for _, name in self.operation.reads:
            samples = self._samples(name)
            if samples is not None:
                known[name] = first[name] if k == 0 else picked_samples(first[name], samples, self.batches[k], n)
        made: dict[str, Any] = {}
        with torch.no_grad():
            given = self.operation.bind(known)
            store(made, self.operation, called(self.operation, with_double_types(given) if self.wide else given))
        return made


def _on_cpu(value: Any) -> Any:
    """Where an index out of range is an error like any other."""
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return value.detach().cpu() if isinstance(value, Tensor) else value


def _in_disorder(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Entries of a tensor that differ from sample to sample: noise on numbers, truth values and whole ones drawn."""
    if tensor.dtype.is_floating_point:
        noise = torch.rand(tensor.shape, generator=generator, dtype=torch.float64)
        return ((tensor.double() + noise).nan_to_num(0.0, 0.0, 0.0) + noise).to(tensor.dtype)
    if tensor.dtype == torch.bool:
        return torch.rand(tensor.shape, generator=generator) < 0.5
    low, high = (int(tensor.min()), int(tensor.max())) if tensor.numel() else (0, 0)
    return torch.randint(low, high + 1 + (low == high), tensor.shape, generator=generator).to(tensor.dtype)


def _alike(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape:
        return False
    if not a.dtype.is_floating_point:
        return torch.equal(a, b)
    eps, a, b = torch.finfo(a.dtype).eps, a.double(), b.double()
    scale = max(float(a.nan_to_num(0.0, 0.0, 0.0).abs().amax()), 1e-300) if a.numel() else 0.0
    return torch.allclose(a, b, rtol=0.0, atol=max(1e-9, 32 * eps) * scale, equal_nan=True)


def needs_trial(graph: Graph, operation: Operation, uniform: set[str]) -> bool:
    """Whether the numbers that reached an operation say little of it: they are alike, or whole, or it is not known."""
    reads = [name for _, name in operation.reads if name in graph.values and graph.values[name].samples is not None]
    return bool(reads) and (operation.name not in TABLE or any(name in uniform for name in reads))


def of_the_size_alone(graph: Graph) -> set[str]:
    """The values that follow from the number of samples and from what forward holds, but from no input or weight."""
    moving = {v.name for v in graph.values.values() if v.kind in ("input", "parameter")}
    for operation in graph.operations:
        ignored = TABLE[operation.name].ignores if operation.name in TABLE else ()
        if any(name in moving and slot.argument not in ignored for slot, name in operation.reads):
            moving.update(name for name in operation.outputs if name in graph.values)
    return {v.name for v in graph.values.values() if v.kind == "activation" and v.name not in moving}


def uneven(graph: Graph, state: Mapping[str, Any], names: set[str]) -> set[str]:
    """Those of these values in which some place of a large batch is unlike the first: `arange(n) > 100`."""
    varying = [graph.values[name] for name in names if graph.values[name].samples is not None]
    if not varying:
        return set()
    n = min(_MANY, _ENTRIES // max(1, *(v.numel for v in varying)))
    known: dict[str, Any] = {**state, DEVICE.name: torch.device("cpu")}
    known |= {v.name: torch.zeros((), dtype=v.dtype).expand(n, *v.shape[1:]) for v in graph.inputs}
    found: set[str] = set()
    for operation in graph.operations:
        made = [name for name in operation.outputs if name in graph.values]
        if not names.issuperset(made) or any(name not in known for _, name in operation.reads):
            continue
        try:
            store(known, operation, called(operation, operation.bind(known)))
        except _FAILURES:
            continue
        found.update(name for name in made if _uneven(graph, name, known[name], n))
    return found


def _uneven(graph: Graph, name: str, made: Tensor, n: int) -> bool:
    samples = graph.values[name].samples
    if samples is None or not made.numel():
        return False
    rows = samples.split(made, n)
    return not _alike(rows[:1].expand_as(rows), rows)
