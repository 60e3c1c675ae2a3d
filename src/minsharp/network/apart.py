"""Whether each sample goes its own way through a network: run, and compared to rounding.

The engine takes the samples in batches of any size, in any order. So what becomes of a sample must not change with the
other samples, with its place among them, or with their number: not at the outputs, and at no value that depends on
parameters. Where the records alone do not prove it (`proof`), the same samples run in batches of 5, 3 and 2, in other
places and with other neighbours each time, in double precision. Where the values are all alike, or whole numbers, they
do not tell: there each operation is tried by itself (`mixing`), and what samples met in stays so through whatever
treats them one by one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

import torch
from torch import Tensor

from ..errors import ReadError
from ..graph.records import DEVICE, Graph, Operation, Value, store, with_double_types
from ..operations import dependence, row
from .mixing import Alone, called, needs_trial, of_the_size_alone, told_apart, uneven
from .network import Network

FEW = 5
"""Samples that the comparison takes."""

_BATCHES = ((0, 1, 2, 3, 4), (3, 0, 1), (2, 4))
_BATCHES_OF_LARGE = ((0, 1, 2), (2, 0))
_MANY = 257  # samples in a further batch, where forward looks at their number
_ENTRIES = 1 << 24  # values of it at most
_LARGE = 500_000  # values per sample, all activations together
_ROUNDING = 1e-9  # of the largest number in a tensor
_SAFETY = 1e3  # times what the numbers move if inputs and parameters move by a rounding error


class _Run:
    """A graph on several batches at once, operation by operation; nothing is kept longer than it is read."""

    def __init__(self, network: Network, inputs: list[dict[str, Tensor]], wide: bool, seeds: tuple[int, ...] = ()):
        self.graph = network.graph
        self.wide = wide
        self.state = network.state()
        self.runs: list[dict[str, Any]] = inputs
        self.seeds = seeds  # batches after the first are copies of it, moved by a rounding error
        self.known: list[dict[str, Any]] = []
        """What went into the last operation by name, batch by batch."""

    def __iter__(self) -> Iterator[tuple[Operation, list[Mapping[str, Any]]]]:
        """Each operation, and the values of each batch after it."""
        held: dict[str, list[Any]] = {}
        for operation, dead in zip(self.graph.operations, self.graph.dead_after, strict=True):
            for _, name in operation.reads:
                if name in self.state and name not in held:
                    held[name] = self._versions(name)
            self.known = [self._reads(operation, held, k) for k in range(len(self.runs))]
            for run, known in zip(self.runs, self.known, strict=True):
                store(run, operation, self._called(operation, known))
            yield operation, list(self.runs)
            for name in dead:
                held.pop(name, None)
                for run in self.runs:
                    run.pop(name, None)

    def _reads(self, operation: Operation, held: Mapping[str, list[Any]], k: int) -> dict[str, Any]:
        known = {name: held[name][k] if name in held else self.runs[k][name] for _, name in operation.reads}
        return {**known, DEVICE.name: self.state[DEVICE.name]}

    def _versions(self, name: str) -> list[Any]:
        """A tensor that the model holds, for each batch."""
        tensor = self._widened(self.state[name])
        return [tensor, *(moved(tensor, seed) for seed in self.seeds)] if self.seeds else [tensor] * len(self.runs)

    def _called(self, operation: Operation, known: Mapping[str, Any]) -> Any:
        bound = operation.bind(known)
        made = called(operation, with_double_types(bound) if self.wide else bound)
        return [self._widened(t) for t in made] if operation.many else self._widened(made)

    def _widened(self, made: Any) -> Any:
        if self.wide and isinstance(made, Tensor) and made.dtype.is_floating_point:
            return made.double()
        return made


def moved(tensor: Any, seed: int) -> Any:
    """Each number by a rounding error or so."""
    if not isinstance(tensor, Tensor) or not tensor.dtype.is_floating_point:
        return tensor
    generator = torch.Generator(tensor.device).manual_seed(seed)
    noise = torch.rand(tensor.shape, generator=generator, dtype=tensor.dtype, device=tensor.device)
    return tensor * (1 + 4 * torch.finfo(tensor.dtype).eps * (2 * noise - 1))


@dataclass(frozen=True)
class _Suspect:
    """A value of a sample that was not the same in two batches."""

    operation: Operation
    value: Value
    apart: float


def check_samples_apart(network: Network, example: list[Tensor]) -> None:
    """Refuse a network in which samples meet, or count each other; ``example`` holds a few of them per input."""
    failed: Exception | None = None
    for wide in (True, False):
        for samples in _pools(example):
            try:
                check = _Check(network, samples, wide)
                with torch.no_grad():
                    check.run()
            except (RuntimeError, TypeError, ValueError, IndexError) as error:  # not made for such samples or types
                failed = error
                continue
            if check.finite or samples is example:
                check.judge()
                return
    if failed is not None:
        raise failed


def _pools(example: list[Tensor]) -> Iterator[list[Tensor]]:
    """Samples that differ, as far as the network takes such; the example's own where there are enough of them."""
    for strength in (1.0, 0.01):
        yield [_unlike(tensor, strength) for tensor in example]
    yield example


def _unlike(tensor: Tensor, strength: float) -> Tensor:
    """A few samples, each unlike the others."""
    few = tensor[torch.arange(FEW, device=tensor.device) % len(tensor)]
    if not tensor.numel() or (len(tensor) >= FEW and len(few.reshape(FEW, -1).unique(dim=0)) == FEW):
        return few
    generator = torch.Generator("cpu").manual_seed(0)
    rest = few[1:]
    if tensor.dtype.is_floating_point:
        finite = tensor[tensor.isfinite()].double()
        size = float((finite - finite.mean()).square().mean().sqrt()) if finite.numel() else 0.0
        noise = torch.randn(rest.shape, generator=generator, dtype=torch.float64, device="cpu")
        rest = rest + (strength * (size or 1) * noise).to(tensor)
    else:
        rest = torch.stack([_shuffled(sample, i + 1, strength == 1) for i, sample in enumerate(rest)])
    return torch.cat([few[:1], rest])


def _shuffled(sample: Tensor, places: int, bold: bool) -> Tensor:
    """Whole numbers or truth values in another order; if all are the same and one is bold, with another among them."""
    flat = sample.flatten().roll(places)
    if bold and flat.numel() and bool((flat == flat[0]).all()):
        flat = flat.clone()
        flat[places % len(flat)] = ~flat[0] if flat.dtype == torch.bool else flat[0] + 1
    return flat.view_as(sample)


class _Check:
    """The same samples in several batches, compared value by value."""

    def __init__(self, network: Network, samples: list[Tensor], wide: bool):
        self.network, self.graph, self.wide = network, network.graph, wide
        self.samples = samples
        size = sum(v.numel for v in self.graph.values.values() if v.samples is not None)
        self.batches = _BATCHES_OF_LARGE if size > _LARGE else _BATCHES
        if any(op.name == "sym_size" for op in self.graph.operations) and _MANY * size <= _ENTRIES:
            self.batches = (*self.batches, tuple(i % len(self.batches[0]) for i in range(_MANY)))
        self.rounding = _ROUNDING if wide else 32 * self._coarsest()
        self.sized = of_the_size_alone(self.graph)
        self.uneven: set[str] | None = None
        self.rounded: set[str] = set()
        """Suspects in which only rounding differs."""
        self._start()

    def _start(self) -> None:
        self.suspects: dict[str, _Suspect] = {}
        self.uniform: set[str] = set()
        """Values whose samples are alike, or whole numbers: what is made of them says little of the operation."""
        self.met: dict[str, Operation] = {}
        """Values in which samples may have met, whether or not these numbers show it, and where they did."""
        self.finite = False

    def _coarsest(self) -> float:
        types = {v.dtype for v in self.graph.values.values() if v.dtype.is_floating_point}
        return max((torch.finfo(t).eps for t in types), default=0.0)

    def _inputs(self, batch: tuple[int, ...]) -> dict[str, Tensor]:
        few = [(t.double() if self.wide and t.dtype.is_floating_point else t) for t in self.samples]
        order = [i % len(few[0]) for i in batch]
        return {v.name: t[order].contiguous() for v, t in zip(self.graph.inputs, few, strict=True)}

    def run(self) -> None:
        """Find the values of a sample that differ between the batches, and those that may differ for other numbers."""
        inputs = [self._inputs(batch) for batch in self.batches]
        self.uniform.update(name for name, tensor in inputs[0].items() if not told_apart(tensor))
        run = _Run(self.network, inputs, self.wide)
        for operation, runs in run:
            for name in operation.outputs:
                if name in self.graph.values:
                    self._compare(operation, self.graph.values[name], [values[name] for values in runs])
                if name == self.graph.output:
                    self.finite = all(bool(values[name].isfinite().all()) for values in runs)
            for name in operation.outputs:
                origin = self._origin(operation, name, run.known) if name in self.graph.values else None
                if origin is not None:
                    self.met[name] = origin

    def _compare(self, operation: Operation, value: Value, made: list[Tensor]) -> None:
        first = self._by_sample(value, made[0], 0)
        apart = 0.0
        for k, tensor in enumerate(made[1:], 1):
            expected = first if value.samples is None else first[list(self.batches[k])]
            apart = max(apart, difference(expected, self._by_sample(value, tensor, k)))
        if apart and apart > self.rounding * largest(first) and value.name not in self.rounded:
            self.suspects[value.name] = _Suspect(operation, value, apart)
        if value.samples is not None and not told_apart(first):
            self.uniform.add(value.name)

    def _origin(self, operation: Operation, name: str, known: list[dict[str, Any]]) -> Operation | None:
        """Where samples met that one of an operation's results may depend on; none where each depends on its own."""
        ignored = row(operation).ignores
        behind = [self.met[v] for slot, v in operation.reads if v in self.met and slot.argument not in ignored]
        meets = name in self.suspects
        if not meets and name in self.sized:
            meets = self._is_uneven(name)
        elif not meets and behind:
            meets = self._alone(operation, known).one_by_one(name)
        elif not meets and needs_trial(self.graph, operation, self.uniform):
            meets = self._alone(operation, known).mixes(name)
        return next(iter(behind), operation) if meets else None

    def _is_uneven(self, name: str) -> bool:
        if self.uneven is None:
            self.uneven = uneven(self.graph, self.network.state(), self.sized)
        return name in self.uneven

    def _alone(self, operation: Operation, known: list[dict[str, Any]]) -> Alone:
        return Alone(self.graph, operation, self.batches, known, self.wide)

    def _by_sample(self, value: Value, tensor: Tensor, k: int) -> Tensor:
        """Samples in front: (n, ...)."""
        return tensor if value.samples is None else value.samples.split(tensor, len(self.batches[k]))

    def judge(self) -> None:
        """Refuse, unless what differs is rounding, or where samples met no parameter and no output comes in."""
        if self._guilty() is None:
            return
        measured = {name for name in self.suspects if name not in self.sized}
        noise = self._noise(measured)
        self.rounded = {name for name in measured if self.suspects[name].apart <= _SAFETY * noise[name]}
        if self.rounded:
            self._start()
            with torch.no_grad():
                self.run()
        blame = self._guilty()
        if blame is not None:
            raise ReadError(_message(self.graph, blame))

    def _guilty(self) -> Operation | None:
        """Where samples met that a value with parameters behind it, or the outputs, may depend on."""
        depends = {*dependence(self.graph, self.graph.parameters), self.graph.output}
        return next((origin for name, origin in self.met.items() if name in depends), None)

    def _noise(self, names: set[str]) -> dict[str, float]:
        """How far values move if inputs and parameters move by a rounding error."""
        seeds = (1, 2, 3)
        inputs = self._inputs(self.batches[0])
        runs = [inputs, *({name: moved(t, seed) for name, t in inputs.items()} for seed in seeds)]
        result: dict[str, float] = {}
        with torch.no_grad():
            for operation, values in _Run(self.network, runs, self.wide, seeds):
                for name in names.intersection(operation.outputs):
                    result[name] = max(difference(values[0][name], run[name]) for run in values[1:])
        return result


def difference(a: Tensor, b: Tensor) -> float:
    """The largest difference; none where both are NaN, or the same infinity."""
    if a.shape != b.shape:
        return inf
    if torch.equal(a, b) or not a.numel():
        return 0.0
    if a.dtype != b.dtype or a.dtype not in (torch.float32, torch.float64):
        a, b = a.double(), b.double()
    apart = float((a - b).abs_().amax())
    if isfinite(apart):
        return apart
    a, b = a.double(), b.double()
    same = (a == b) | (a.isnan() & b.isnan())
    return float((a - b).abs().masked_fill(same, 0.0).nan_to_num(nan=inf).amax())


def largest(tensor: Tensor) -> float:
    """The largest of the finite numbers in size."""
    if tensor.dtype.is_floating_point and tensor.numel():
        low, high = tensor.aminmax()
        size = max(-float(low), float(high))
        if isfinite(size):
            return size
    finite = tensor[tensor.isfinite()].double()
    return float(finite.abs().amax()) if finite.numel() else 0.0


def _message(graph: Graph, blame: Operation) -> str:
    counts = any(name not in graph.values for _, name in blame.reads)
    hint = ". Where the number of samples cancels later, leave it out in both places" if counts else ""
    how = "it uses the number of samples" if counts else "it looks at other samples, or at places in the batch"
    return (
        "the outputs for one sample change with the other samples of the batch, or with how many they are, even in "
        f"eval mode. It starts at {blame.where}: {how}. Curvature is a sum over samples only if each output depends "
        f"on its own input{hint}"
    )
