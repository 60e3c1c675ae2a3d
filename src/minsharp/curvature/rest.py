"""What the Gauss-Newton matrix leaves out of the Hessian, estimated by random signs.

H = G + R with R = sum_i sum_k (dL_i/do_ik) d²o_ik. With a = dL/do held fixed, R is the Hessian of <a, o(w)>: for a
direction v, R v = d/dw (v . d/dw <a, o(w)>), two backward passes, and no difference of large numbers. For random signs
v, E v*(R v) = DIAG[R], and summed over the entries of a parameter P that is Tr[R_P].

Signs for the parameters themselves see much that has no part in the trace: every pair of layers is bilinear. So where a
parameter goes into one operation, and linearly, the signs are drawn for each sample by itself and probe the result of
that operation (see `signs`); other parameters, as tied ones, get theirs directly, anew for each chunk of samples. All
of them go into one product. The errors of the samples are independent, and the spread of the probes tells how large.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import sqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import InputError, LossError, NonFiniteError
from ..frozen import Frozen
from ..graph.records import DEVICE, store
from ..losses import Loss
from ..network.finite import first_non_finite, is_finite
from ..network.network import Network
from ..operations import row
from ..rules.contraction import Use, widest
from ..rules.pullback import wide
from ..subject.batches import Batch
from ..subject.modes import plain_mode
from .schedule import Schedule, Site, Step
from .signs import Place, Share, generator_for, places, signs, takes_signs
from .twice import called_twice_differentiable, twice_differentiable, twice_refused

WORKING_SET = 64 << 20
"""Bytes for the graph of second derivatives of a chunk."""


@dataclass(frozen=True, eq=False)
class RestSum(Frozen):
    """Sums over samples of estimates of R, not yet divided, with the variances of their errors.

    ``sums`` holds a number for each parameter, or a tensor of its shape; ``variances`` those of the traces, and
    ``variance`` that of all traces together. Two parts of the data add up: ``a + b``.
    """

    sums: Mapping[str, Tensor]
    variances: Mapping[str, float]
    variance: float
    samples: int
    probes: int

    @property
    def traces(self) -> dict[str, float]:
        """The estimate of Tr[R_P] for each parameter P, times what a mean divides by."""
        return {name: float(value.sum()) for name, value in self.sums.items()}

    @property
    def total(self) -> float:
        """The estimate of Tr[R], times what a mean divides by."""
        return sum(self.traces.values())

    @property
    def standard_error(self) -> float:
        """Of the total."""
        return sqrt(self.variance)

    @property
    def standard_errors(self) -> dict[str, float]:
        """Of each parameter's trace."""
        return {name: sqrt(variance) for name, variance in self.variances.items()}

    def __add__(self, other: "RestSum") -> "RestSum":
        """The sums over two parts of the data."""
        sums = {name: value + other.sums[name].to(value.device) for name, value in self.sums.items()}
        variances = {name: value + other.variances[name] for name, value in self.variances.items()}
        samples, probes = self.samples + other.samples, min(self.probes, other.probes)
        return RestSum(sums, variances, self.variance + other.variance, samples, probes)

    def refined(self, other: "RestSum") -> "RestSum":
        """The mean of two estimates of the same sums, each counted by its probes; another seed has to be behind it."""
        probes = self.probes + other.probes
        mine, theirs = self.probes / probes, other.probes / probes
        sums = {name: mine * value + theirs * other.sums[name].to(value.device) for name, value in self.sums.items()}
        variances = {name: mine**2 * v + theirs**2 * other.variances[name] for name, v in self.variances.items()}
        variance = mine**2 * self.variance + theirs**2 * other.variance
        return RestSum(sums, variances, variance, self.samples, probes)


class RestProbes:
    """Estimates Tr[R_P] of some parameters of a network, batch by batch; zero where the outputs are piecewise linear.

    For two weights a, b, the output o = tanh(a b x) has curvature in a alone that G leaves out, (o - y) o'' (b x)²:

    >>> import minsharp as ms
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Tanh())
    >>> _ = nn.init.ones_(model[0].weight)
    >>> x, y = torch.ones(1, 1), torch.zeros(1, 1)
    >>> probes = RestProbes(ms.read(model, x), ["0.weight"], ms.losses.as_loss(nn.MSELoss()), seed=0)
    >>> probes.add(Batch(x, y))
    >>> o = torch.tanh(x)
    >>> round(probes.sum.total, 4) == round(float(2 * o * -2 * o * (1 - o**2)), 4)
    True
    """

    def __init__(
        self, network: Network, parameters: Sequence[str], loss: Loss, seed: int, probes: int = 4, samples: int = 0
    ):
        if probes < 2:
            raise InputError(f"probes={probes}: expected at least 2, for a standard error")
        self.network, self.loss = network, loss
        self.seed, self.probes = seed, probes
        exact = network.exactness
        self.parameters = list(parameters)
        self.inexact = [name for name in parameters if not exact[name]]
        self.schedule = Schedule(network.graph, tuple(self.inexact))
        self.sites = {step.operation: self._local(step) for step in self.schedule.steps}
        local = {site.leaf for sites in self.sites.values() for site in sites}
        self.tracked = [name for name in self.inexact if name not in local]
        self.state = network.state()
        self.device: torch.device = self.state[DEVICE.name]
        self.together = samples or self._chunk()
        self._chunks, self._samples = 0, 0
        self._sums = {name: self._zero(self.state[name]) for name in self.parameters}
        self._variances = dict.fromkeys(self.parameters, 0.0)
        self._variance = 0.0

    def _local(self, step: Step) -> tuple[Site, ...]:
        """The parameters that go into this operation and no other, linearly, with a rule that takes signs."""
        if step.operation.many:
            return ()
        products = row(step.operation).formula_of(step.operation).products
        bent = {slot for product in products for slot in product.nonlinear}
        known = {slot for product in products for slot in product.linear} - bent
        return tuple(
            site
            for site in step.sites
            if site.leaf in self.inexact
            and self.schedule.paths[site.leaf].direct
            and site.slot in known
            and takes_signs(site.contraction)
        )

    def _chunk(self) -> int:
        """How many samples at a time keep the graph of second derivatives inside the working set."""
        size = self.network.graph.values[self.network.graph.output].dtype.itemsize
        fixed, _ = self.schedule.floats
        return int(min(max(2, WORKING_SET // (8 * max(size, 4) * max(fixed, 1))), 1024))

    @property
    def sum(self) -> RestSum:
        """What has been added up so far."""
        sums = {name: value.clone() for name, value in self._sums.items()}
        return RestSum(sums, dict(self._variances), self._variance, self._samples, self.probes)

    @plain_mode()
    def add(self, batch: Batch) -> None:
        """Add the samples of a batch, which has to have targets."""
        if not self.inexact:
            self._samples += len(batch)
            return
        for start in range(0, len(batch), self.together):
            self._add_chunk(batch.part(start, start + self.together).to(self.device))

    def _zero(self, like: Tensor) -> Tensor:
        """(*parameter) -> ()."""
        return widest(like.new_zeros(()))

    def _kept(self, product: Tensor) -> Tensor:
        """What of v*(R v), (*parameter), is summed up."""
        return widest(product).sum()

    def _kept_of(self, share: Share, image: Tensor, traces: Tensor) -> Tensor:
        """The same where the signs are those of samples, from B D and each sample's trace."""
        return widest(traces).sum()

    def _add_chunk(self, chunk: Batch) -> None:
        """Add what the probes of some samples come to, and the variance of their mean."""
        generator = generator_for(chunk, self.seed, self._chunks)
        way = self._forward(chunk)
        found = [self._probe(way, generator, chunk) for _ in range(self.probes)]
        for name in self.inexact:
            self._sums[name] += torch.stack([probe.sums[name] for probe in found]).sum(0) / self.probes
        own = torch.stack([probe.by_sample for probe in found])  # (probes, local parameters, n)
        rest = torch.stack([probe.tracked for probe in found])  # (probes, tracked parameters)
        if not is_finite(own) or not is_finite(rest):
            raise NonFiniteError("a second derivative of the outputs is not finite. Measure in double precision")
        names = [name for _, some in way.places for place in some for name in place.parameters]
        spread = [*_variances(own).sum(1).tolist(), *_variances(rest).tolist()]
        for name, variance in zip([*names, *self.tracked], spread, strict=True):
            self._variances[name] += variance / self.probes
        # errors of samples are independent, unless they see the same signs
        together = _variances(own.sum((1, 2)) + rest.sum(1)) if self.tracked else _variances(own.sum(1)).sum()
        self._variance += float(together) / self.probes
        self._chunks += 1
        self._samples += len(chunk)

    def _probe(self, way: "_Way", generator: torch.Generator, chunk: Batch) -> "_Probe":
        """One draw of signs for all parameters at once, and what R makes of it."""
        drawn = [[place.draw(generator) for place in some] for _, some in way.places]
        changes = [torch.stack([d.change for d in some]).sum(0) for some in drawn]
        v = [signs(tuple(leaf.shape), leaf, generator) for leaf in way.tracked]
        images = self._images(way, [*changes, *v], chunk)
        sums: dict[str, Tensor] = {}
        by_sample = []
        for (_, there), some, image in zip(way.places, drawn, images[: len(drawn)], strict=True):
            for place, share in ((place, share) for place, d in zip(there, some, strict=True) for share in d.shares):
                by_sample.append(traces := place.by_sample(wide(share.change) * wide(image)))
                sums[share.parameter] = self._kept_of(share, image, traces)
        products = [wide(s) * wide(image) for s, image in zip(v, images[len(drawn) :], strict=True)]
        sums |= {name: self._kept(product) for name, product in zip(self.tracked, products, strict=True)}
        tracked = torch.tensor([float(widest(product).sum()) for product in products], dtype=torch.float64)
        own = torch.stack(by_sample).cpu() if by_sample else torch.zeros(0, 1, dtype=torch.float64)
        return _Probe(sums, own, tracked)

    def _forward(self, chunk: Batch) -> "_Way":
        """Run the network, with a zero added wherever signs go in, and d<a, o> in these zeros and the parameters."""
        values, n = self._values(chunk), len(chunk)
        tracked = [values[name] for name in self.tracked]
        shifted: list[tuple[Tensor, list[Place]]] = []
        with torch.enable_grad(), twice_differentiable(self.device):
            for operation in self.schedule.prelude:
                store(values, operation, called_twice_differentiable(operation, operation.bind(values)))
            for step in self.schedule.steps:
                made = called_twice_differentiable(step.operation, step.operation.bind(values))
                if self.sites[step.operation]:
                    shift = torch.zeros_like(made).requires_grad_()
                    shifted.append((shift, self._places(step, shift, values, max(n, 2))))
                    made = made + shift
                store(values, step.operation, made)
            outputs = values[self.network.graph.output][:n]
            leaves = [*(shift for shift, _ in shifted), *tracked]
            a = self._slopes(outputs.detach(), chunk)
            gradient: Sequence[Tensor | None] = [None] * len(leaves)
            if outputs.requires_grad:  # a derivative leads to them
                with self._naming(chunk):
                    gradient = torch.autograd.grad(outputs, leaves, a, create_graph=True, allow_unused=True)
        return _Way(shifted, tracked, leaves, gradient)

    def _places(self, step: Step, shift: Tensor, values: Mapping[str, Any], n: int) -> list[Place]:
        operation = step.operation
        needed = {name: _detached(values[name]) for _, name in operation.reads} | {DEVICE.name: self.device}
        output = self.network.graph.values[operation.outputs[0]].shape
        sites = self.sites[operation]
        uses = [
            Use(
                operation=operation,
                argument=site.slot.argument,
                leaf=site.leaf,
                shape=tuple(values[site.leaf].shape),
                bound=operation.bind(needed),
                values=needed,
                samples=step.samples,
                layouts=step.layouts,
                output=output,
                n=n,
                memo={},
                rows={},
            )
            for site in sites
        ]
        return places([(s.leaf, use, s.contraction) for s, use in zip(sites, uses, strict=True)], shift.detach())

    def _values(self, chunk: Batch) -> dict[str, Any]:
        """What the network is run on, with some parameters tracked; a lone sample with a twin, as in the engine."""
        inputs = self.network.bind(chunk.inputs)
        if len(chunk) == 1:
            inputs = {name: torch.cat([tensor, tensor]) for name, tensor in inputs.items()}
        tracked = {name: self.state[name].detach().clone().requires_grad_() for name in self.tracked}
        return {**self.state, **inputs, **tracked}

    def _slopes(self, outputs: Tensor, chunk: Batch) -> Tensor:
        """a = dL/do, (n, *output)."""
        if not is_finite(outputs):
            raise first_non_finite(self.network, self.network.bind(chunk.inputs))
        o = outputs.requires_grad_()
        if chunk.targets is not None:
            self.loss.check(outputs, chunk.targets)
        try:
            (a,) = torch.autograd.grad(self.loss.total(o, chunk.targets), o)
        except Exception as error:
            if chunk.targets is not None:
                raise
            raise LossError(
                f"the rest of the Hessian needs labels: what {self.loss.name} says of the outputs weighs their second "
                'derivatives. Pass data=(inputs, targets), or ask for curvature="ggn"'
            ) from error
        return a

    @contextmanager
    def _naming(self, chunk: Batch) -> Iterator[None]:
        """Name the operation that torch cannot differentiate twice."""
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise twice_refused(self.network, self._values(chunk), error) from error

    def _images(self, way: "_Way", directions: list[Tensor], chunk: Batch) -> list[Tensor]:
        """The Hessian of <a, o> in all zeros and tracked parameters, times a direction."""
        given = zip(way.gradient, directions, strict=True)
        pairs = [(g, v.to(g.dtype)) for g, v in given if g is not None and g.requires_grad]
        if not pairs:
            return [torch.zeros_like(leaf) for leaf in way.leaves]
        rows, weights = zip(*pairs, strict=True)
        with self._naming(chunk), twice_differentiable(self.device):
            found = torch.autograd.grad(rows, way.leaves, weights, retain_graph=True, allow_unused=True)
        return [torch.zeros_like(leaf) if r is None else r for leaf, r in zip(way.leaves, found, strict=True)]


class RestDiagonals(RestProbes):
    """The same for the diagonals of R: ``sum.sums`` holds a tensor for each parameter, of its shape."""

    def _zero(self, like: Tensor) -> Tensor:
        """(*parameter) -> (*parameter)."""
        return widest(torch.zeros_like(like))

    def _kept(self, product: Tensor) -> Tensor:
        return widest(product)

    def _kept_of(self, share: Share, image: Tensor, traces: Tensor) -> Tensor:
        return widest(share.entries(image))


class _Way(NamedTuple):
    """Some samples on their way through the network: what is probed, and d<a, o> in it."""

    places: list[tuple[Tensor, list[Place]]]
    """The zeros that are added, and who goes in there."""
    tracked: list[Tensor]
    leaves: list[Tensor]
    gradient: Sequence[Tensor | None]


class _Probe(NamedTuple):
    """What one draw of signs came to."""

    sums: dict[str, Tensor]
    by_sample: Tensor
    """The traces of parameters that were probed where they go in, (parameters, n), in float64."""
    tracked: Tensor
    """The traces of all others."""


def _variances(found: Tensor) -> Tensor:
    """Over the probes, along the first axis."""
    return (found - found.mean(0)).square().sum(0) / (len(found) - 1)


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value
