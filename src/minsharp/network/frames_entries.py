"""Which entries of a parameter a value is a view of: shapes and strides alone, no numbers."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..graph.records import Graph, Operation, store
from ..operations import row
from ..rules.channels import moved


@dataclass(frozen=True)
class Strided:
    """Which entries of a contiguous tensor: a shape, how far apart neighbours are, and where the first one is."""

    shape: tuple[int, ...]
    steps: tuple[int, ...]
    start: int

    def of(self, tensor: Tensor) -> Tensor:
        """These entries of a tensor; a view."""
        return tensor.as_strided(self.shape, self.steps, self.start)

    def span(self, first: int, last: int) -> tuple[int, int]:
        """The first and the last place that some of the rows may hold; (0, -1) of nothing."""
        if last < first or not all(self.shape):
            return 0, -1
        inner = sum((size - 1) * step for size, step in zip(self.shape[1:], self.steps[1:], strict=True))
        return self.start + first * self.steps[0], self.start + last * self.steps[0] + inner


@dataclass(frozen=True)
class Entries:
    """A view of a parameter, on the meta device."""

    parameter: str
    view: Tensor

    def holds(self, other: Tensor) -> bool:
        """Whether another tensor is a view of the same parameter."""
        return other.untyped_storage()._cdata == self.view.untyped_storage()._cdata

    @property
    def strided(self) -> Strided:
        """The view as plain numbers."""
        return Strided(tuple(self.view.shape), tuple(self.view.stride()), int(self.view.storage_offset()))

    def of(self, tensor: Tensor) -> Tensor:
        """The same entries of the parameter itself, or of anything contiguous of its shape; a view."""
        return self.strided.of(tensor)


def entries_of(graph: Graph, fixed: frozenset[str]) -> dict[str, Entries]:
    """By value, the entries of a parameter that it is a view of, where each of them is used in this one place only."""
    found = {
        name: Entries(name, torch.empty(graph.values[name].shape, device="meta"))
        for name in graph.parameters
        if graph.values[name].dtype.is_floating_point
    }
    uses: Counter[str] = Counter([graph.output])
    for operation in graph.operations:
        for name, view in _views(operation, graph, found).items():
            found[name] = view
        if not any(name in found for name in operation.outputs):
            uses.update(name for _, name in operation.reads if name in found)
    leaves = [name for name in found if uses[name]]
    return {name: found[name] for name in leaves if found[name].parameter not in fixed | _shared(found, leaves, uses)}


def _views(operation: Operation, graph: Graph, found: dict[str, Entries]) -> dict[str, Entries]:
    """The results that are views of the one tensor that goes in; nothing where they are more than that."""
    known, reads = row(operation), [name for _, name in operation.reads]
    if len(reads) != 1 or reads[0] not in found or known.detaches or not (known.rearranges or known.channels is moved):
        return {}
    source, made = found[reads[0]], dict[str, Any]()
    try:
        store(made, operation, operation.call(operation.bind({reads[0]: source.view})))
    except Exception:  # whatever torch has against tensors without values
        return {}
    if not all(isinstance(t, Tensor) and source.holds(t) and t.shape == graph.values[n].shape for n, t in made.items()):
        return {}
    return {name: Entries(source.parameter, tensor) for name, tensor in made.items()}


def _shared(found: dict[str, Entries], leaves: list[str], uses: Counter[str]) -> set[str]:
    """The parameters of which some entry is used in two places."""
    shared = {found[name].parameter for name in leaves if uses[name] > 1}
    by_parameter: dict[str, list[str]] = {}
    for name in leaves:
        by_parameter.setdefault(found[name].parameter, []).append(name)
    for parameter, names in by_parameter.items():
        if len(names) > 1 or not _apart(found[names[0]].view):
            whole = found[parameter].view
            count = torch.zeros(whole.numel(), dtype=torch.uint8)
            places = torch.arange(whole.numel()).view(whole.shape)
            for name in names:
                count.index_add_(0, found[name].of(places).flatten(), torch.ones(found[name].view.numel()).to(count))
            if int(count.max() if count.numel() else 0) > 1:
                shared.add(parameter)
    return shared


def _apart(view: Tensor) -> bool:
    """Whether strides alone tell that no entry is seen twice: each steps over all that smaller ones reach."""
    reach = 0
    for step, size in sorted((step, size) for step, size in zip(view.stride(), view.shape, strict=True) if size > 1):
        if step <= reach:
            return False
        reach += step * (size - 1)
    return True
