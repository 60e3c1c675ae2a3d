"""The probe: an example with a free scale at every entry that goes in or comes out."""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..errors import InputError
from ..operations.examples.notation import Example, Given

Entry = Literal["scaled", "relu", "linear", "plain"]
ENTRIES: tuple[Entry, ...] = ("scaled", "relu", "linear", "plain")
"""How the samples reach the call: times a parameter; made positive as well; through a linear layer; as they are."""


class UnfitError(InputError):
    """The call itself does not run at these sizes."""


class Call(nn.Module):
    """The example's call, as a module of its own: operations are known to be its by their module's name."""

    def __init__(self, example: Example, sizes: Mapping[str, int]):
        super().__init__()
        self.example, self.sizes = example, sizes

    def forward(self, *tensors: Tensor) -> list[Tensor]:
        """Every tensor that the call returns."""
        made = self.example.run(tensors, self.sizes)
        return [leaf for leaf in pytree.tree_leaves(made) if isinstance(leaf, Tensor)]


class Probe(nn.Module):
    """The example with a free scale at every entry that goes in or comes out."""

    def __init__(self, example: Example, sizes: Mapping[str, int], entry: Entry = "scaled", seed: int = 0):
        super().__init__()
        self.entry, self.sizes = entry, sizes
        self.given = example.tensors
        self.samples = tuple(g for g in self.given if g.varies)
        self.call = Call(example, sizes)
        generator = torch.Generator().manual_seed(seed)
        for given in self.given:
            if not given.varies:
                self._hold(given, generator)
            elif given.enters and entry == "linear":
                width = torch.Size(given.one_sample(sizes)).numel()
                self.add_module(f"enter_{given.name}", nn.Linear(width, width, dtype=torch.float64))
            elif given.enters and entry != "plain":
                self.register_parameter(f"enter_{given.name}", _parameter(given.one_sample(sizes), generator))
        self.axes = self._sample_axes()
        for i, (shape, _) in enumerate(self.axes):
            self.register_parameter(f"leave_{i}", _parameter(shape, generator))
        if not any(torch.Size(shape).numel() for shape, _ in self.axes):
            self.register_parameter("anchor", _parameter((1,), generator))
        with torch.no_grad():
            for name, value in weights(self, generator).items():
                self.get_parameter(name).copy_(value)

    def _hold(self, given: Given, generator: torch.Generator) -> None:
        value = given.draw(self.sizes, generator)
        if given.constant or not value.dtype.is_floating_point:
            self.register_buffer(given.name, value)
        else:
            self.register_parameter(given.name, nn.Parameter(value))

    def draw(self, n: int, seed: int) -> tuple[Tensor, ...]:
        """A batch of inputs: one per sample argument, and last one number per sample."""
        generator = torch.Generator().manual_seed(seed)
        drawn = [given.draw(self.sizes, generator, n) for given in self.samples]
        return (*drawn, torch.randn(n, 1, generator=generator, dtype=torch.float64))

    def _sample_axes(self) -> list[tuple[tuple[int, ...], int | None]]:
        """For each output, one sample's shape and the axis that runs over the samples: run with two, and three."""
        try:
            with torch.no_grad():
                two, three = (self.call(*self.arguments(self.draw(n, 0))) for n in (2, 3))
        except Exception as error:
            raise UnfitError(f"{type(error).__name__}: {error}") from error
        return [_sample_axis(a.shape, b.shape) for a, b in zip(two, three, strict=True)]

    def arguments(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """What the call gets: from the inputs, and from the parameters and constants."""
        drawn = dict(zip((given.name for given in self.samples), inputs, strict=False))
        return [
            self._enter(given, drawn[given.name]) if given.varies else getattr(self, given.name) for given in self.given
        ]

    def _enter(self, given: Given, x: Tensor) -> Tensor:
        """From an input, samples first, to the argument."""
        if given.enters and self.entry == "linear":
            x = getattr(self, f"enter_{given.name}")(_in_rows(x)).view(-1, *given.one_sample(self.sizes))
        elif given.enters and self.entry != "plain":
            x = x * getattr(self, f"enter_{given.name}")
        if given.enters and self.entry == "relu":
            x = torch.relu(x)
        return x.movedim(0, given.axis) if given.axis else x

    def forward(self, *inputs: Tensor) -> Tensor:
        """All outputs of the call side by side, (n, K), each entry times a parameter of its own."""
        parts = []
        for i, made in enumerate(self.call(*self.arguments(inputs))):
            _, axis = self.axes[i]
            out = made if made.dtype == torch.float64 else made.to(torch.float64)
            out = (out.movedim(axis, 0) if axis else out) * getattr(self, f"leave_{i}")
            parts.append(inputs[-1] * out.flatten() if axis is None else _in_rows(out))
        if hasattr(self, "anchor"):
            anchor: Tensor = self.anchor  # type: ignore[assignment]
            parts.append(inputs[-1] * anchor)
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def _in_rows(x: Tensor) -> Tensor:
    return x.flatten(1) if x.dim() > 1 else x.unsqueeze(1)


def _parameter(shape: Sequence[int], generator: torch.Generator) -> nn.Parameter:
    return nn.Parameter(torch.randn(tuple(shape), generator=generator, dtype=torch.float64))


def _sample_axis(two: torch.Size, three: torch.Size) -> tuple[tuple[int, ...], int | None]:
    axes = [d for d, (a, b) in enumerate(zip(two, three, strict=True)) if a != b]
    if not axes:
        return tuple(two), None
    if len(axes) > 1 or (two[axes[0]], three[axes[0]]) != (2, 3):
        raise InputError(
            f"an output has shape {tuple(two)} for two samples, {tuple(three)} for three: expected one axis n"
        )
    return (*two[: axes[0]], *two[axes[0] + 1 :]), axes[0]


def weights(probe: Probe, generator: torch.Generator) -> dict[str, Tensor]:
    """Parameters at random: none near zero, signs at random, those that have to be positive positive."""
    held = {given.name: given for given in probe.given}
    drawn: dict[str, Tensor] = {}
    for name, parameter in probe.named_parameters():
        if name in held:
            drawn[name] = held[name].draw(probe.sizes, generator)
        else:
            numbers = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            drawn[name] = numbers + 0.2 * numbers.sign()
    return drawn
