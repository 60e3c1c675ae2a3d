"""The frame law: matrices in all frames that the rules claim keep the outputs."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..network.reader import read
from ..network.symmetry import FullSymmetries, Transformation, group
from ..operations.examples.notation import Example
from .probe import Call, Probe, UnfitError, _in_rows
from .scale import difference

TOLERANCE = 1e-8
SPREAD = 10.0  # condition number of the matrices


class Framed(nn.Module):
    """The example between linear maps: each sample argument is made by one, each output goes into another.

    Where ``rows``, the maps act along the last axis, if that is not the samples' own; else on all of a sample at once.
    """

    def __init__(self, example: Example, sizes: Mapping[str, int], rows: bool, seed: int = 0):
        super().__init__()
        self.plain = Probe(example, sizes, "plain", seed)
        self.rows = rows
        for given in self.plain.samples:
            if given.enters:
                width = self._width(given.one_sample(sizes), rows and given.axis != len(given.axes) - 1)
                self.add_module(f"enter_{given.name}", nn.Linear(width, width, dtype=torch.float64))
        for i, (shape, _) in enumerate(self.plain.axes):
            self.add_module(f"leave_{i}", nn.Linear(self._width(shape, rows), 2, dtype=torch.float64))

    @staticmethod
    def _width(shape: tuple[int, ...], rows: bool) -> int:
        return shape[-1] if rows and shape else torch.Size(shape).numel()

    @property
    def call(self) -> Call:
        """The example's call."""
        return self.plain.call

    def _made(self, inputs: tuple[Tensor, ...]) -> list[Tensor]:
        drawn = dict(zip((given.name for given in self.plain.samples), inputs, strict=False))
        made = []
        for given in self.plain.given:
            if not given.varies:
                made.append(getattr(self.plain, given.name))
                continue
            x = drawn[given.name]
            if given.enters:
                linear, rows = getattr(self, f"enter_{given.name}"), self.rows and given.axis != len(given.axes) - 1
                x = linear(x) if rows and x.dim() > 1 else linear(_in_rows(x)).view(x.shape)
            made.append(x.movedim(0, given.axis) if given.axis else x)
        return made

    def forward(self, *inputs: Tensor) -> Tensor:
        """All outputs, (n, K), each through a linear map of its own."""
        parts = []
        for i, made in enumerate(self.plain.call(*self._made(inputs))):
            _, axis = self.plain.axes[i]
            if axis is None or not made.numel():
                continue
            out = (made.movedim(axis, 0) if axis else made).double()
            linear = getattr(self, f"leave_{i}")
            parts.append(_in_rows(linear(out)) if self.rows and out.dim() > 1 else linear(_in_rows(out)))
        return torch.cat([*parts, inputs[-1]], 1)


def frame_law(example: Example, sizes: Mapping[str, int], seed: int = 0) -> Iterator[str]:
    """Elements of the whole group keep the outputs, with the rules as they are, not tried."""
    for rows in (False, True):
        torch.manual_seed(seed)
        try:
            probe = Framed(example, sizes, rows, seed)
            inputs = probe.plain.draw(4, 77 + seed)
            before = functional_call(probe, dict(probe.named_parameters()), inputs)
            graph = read(probe, probe.plain.draw(3, 1)).graph
        except Exception as error:
            raise UnfitError(f"{type(error).__name__}: {error}") from error
        found = group(graph, "full")
        assert isinstance(found, FullSymmetries)
        change = Transformation({}, found.frames, found.matrices(seed, SPREAD))
        coarsest = max(torch.finfo(v.dtype).eps for v in graph.values.values() if v.dtype.is_floating_point)
        values = {name: change.of(name, p) if name in change.parameters else p for name, p in probe.named_parameters()}
        with torch.no_grad():
            after = functional_call(probe, values, inputs)
        moved = difference(after, before.detach())
        if moved > max(TOLERANCE, 1e4 * coarsest):
            yield f"frames: outputs move by {moved:.2g} under matrices in {', '.join(map(repr, found.frames))}"
