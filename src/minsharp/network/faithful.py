"""Whether the records do what the model itself does: outputs and derivatives for one sample, in its own precision.

torch.export sees forward once, with two samples. What forward does for a single one, and beside others where nobody
exports it, what it draws from generators other than torch's, and derivatives that are not those of its operations show
only when it runs.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ..errors import ReadError
from ..subject.inputs import Inputs, call_form
from ..subject.modes import eval_mode, random_state_kept
from ..subject.outputs import picked
from .apart import difference, largest, moved
from .meeting import Watch
from .network import Network

_TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-2}
_COARSE = 0.2  # half precision
_NOISE = 1e-10  # of the largest slope: less than this is no slope
_OTHER_WEIGHTS = (1, 2, 3, 4, 5, 6)
_TWICE = [0, 0]
"""The first sample for a batch: torch's derivative of batch_norm is wrong for a single image whose cotangents lie in
memory with the channels last."""
_SAFETY = 100  # times what the numbers move if inputs and parameters move by a rounding error


@dataclass(frozen=True)
class Alone:
    """The outputs for one sample, (1, ...), and how a random combination of them depends on each parameter."""

    outputs: Tensor
    slopes: Mapping[str, Tensor] | None
    weights: Mapping[str, Tensor] | None = None
    """Other weights than the model's own."""
    beside: bool = False
    """Whether another sample went through with it."""

    def all(self) -> Iterator[tuple[str, Tensor]]:
        """The outputs under an empty name, and the slopes."""
        yield "", self.outputs
        yield from (self.slopes or {}).items()

    def get(self, name: str, like: Tensor) -> Tensor:
        """The slope in a parameter: none of it where the parameter is not used; unknown where nothing is known."""
        if not name:
            return self.outputs
        return like if self.slopes is None else self.slopes.get(name, torch.zeros_like(like))


def run_alone(model: nn.Module, args: Any, kwargs: Any) -> list[Alone]:
    """The model on the first sample alone, and beside another; nothing if it does not take it, or autograd not it.

    Where a torch.autograd.Function or a hook takes part, with other weights too: their derivatives may be anything, and
    weights for which they vanish do not show it.
    """
    try:
        own, by_hand = _run_one(model, (args, kwargs), None, _TWICE)
        others = [_run_one(model, (args, kwargs), seed, _TWICE)[0] for seed in _OTHER_WEIGHTS] if by_hand else []
        return [own, _beside_another(model, (args, kwargs)), *others]
    except Exception:
        return []


def _run_one(model: nn.Module, given: Any, seed: int | None, rows: list[int]) -> tuple[Alone, bool]:
    """The model with its own weights, or others, and whether somebody's own code takes part in the derivatives.

    Slopes are taken with these rows for a batch, the first sample in each.
    """
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    if seed is not None:
        generator = torch.Generator("cpu").manual_seed(seed)
        parameters = {name: _drawn_anew(p, generator) for name, p in parameters.items()}
    weights = None if seed is None else {name: p.clone() for name, p in parameters.items()}
    hooks = _Hooks()
    with _without_backward_hooks(model), torch.enable_grad():
        _track(parameters.values())
        with hooks:
            outputs = _called(model, parameters, _rows(given, rows))
        slopes, by_hand = _slopes(outputs, parameters), hooks.seen or _any_by_hand(outputs.grad_fn)
    if rows == [0]:
        return Alone(outputs.detach(), slopes, weights), by_hand
    with torch.no_grad():
        alone = _called(model, parameters, _rows(given, [0])).detach()  # forward may switch gradients on
        return Alone(alone, slopes, weights), by_hand


def _beside_another(model: nn.Module, given: Any) -> Alone:
    """The outputs for the first of two samples, without gradients."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    with torch.no_grad():
        return Alone(_called(model, parameters, given).detach()[:1], None, beside=True)


class _Hooks(TorchFunctionMode):
    """Notices whether a tensor gets a hook, or its place in autograd's graph is looked at, where hooks go too."""

    _WAYS = (
        Tensor.register_hook,
        Tensor.register_post_accumulate_grad_hook,
        vars(torch._C.TensorBase)["grad_fn"].__get__,
    )

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen = self.seen or func in self._WAYS
        return func(*args, **(kwargs or {}))


def _called(model: nn.Module, parameters: Mapping[str, Tensor], given: tuple[Any, Any]) -> Tensor:
    """The outputs with other parameters; what forward writes into buffers, it writes into copies."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    return picked(functional_call(model, {**parameters, **buffers}, *given))


def _rows(given: Any, rows: list[int]) -> Any:
    """Some of the samples, as forward takes them."""
    return pytree.tree_map_only(Tensor, lambda t: t[rows], given)


def _drawn_anew(parameter: Tensor, generator: torch.Generator) -> Tensor:
    """Noise of a parameter's size in its place, so that other units are at work."""
    if not parameter.dtype.is_floating_point or not parameter.numel():
        return parameter
    noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64, device="cpu")
    size = parameter.double().square().mean().sqrt().clamp_min(0.1)
    return (noise.to(parameter.device) * size).to(parameter.dtype)


def _any_by_hand(node: Any) -> bool:
    """Whether a torch.autograd.Function of the user's is among the steps back from a result."""
    seen, waiting = set(), [node]
    while waiting:
        at = waiting.pop()
        if isinstance(at, torch.autograd.function.BackwardCFunction):
            return True
        if at is not None and at not in seen:
            seen.add(at)
            waiting += [other for other, _ in at.next_functions]
    return False


@contextmanager
def _without_backward_hooks(model: nn.Module) -> Iterator[None]:
    """What hooks make of gradients is no derivative."""
    kept = [(m, m._backward_hooks, m._backward_pre_hooks) for m in model.modules()]
    try:
        for m, hooks, pre_hooks in kept:
            m._backward_hooks, m._backward_pre_hooks = type(hooks)(), type(pre_hooks)()
        yield
    finally:
        for m, hooks, pre_hooks in kept:
            m._backward_hooks, m._backward_pre_hooks = hooks, pre_hooks


def _track(tensors: Any) -> None:
    for tensor in tensors:
        if tensor.dtype.is_floating_point:
            tensor.requires_grad_()


def _slopes(
    outputs: Tensor, parameters: Mapping[str, Tensor], sample: int = 0, keep: bool = False
) -> dict[str, Tensor]:
    """The gradient of a fixed random combination of a sample's outputs; ``keep`` what further ones are made of."""
    used = {name: p for name, p in parameters.items() if p.requires_grad}
    if not outputs.requires_grad:
        return {name: torch.zeros_like(p) for name, p in used.items()}
    combined = _combined(outputs, sample)
    found = torch.autograd.grad(combined, list(used.values()), retain_graph=keep, allow_unused=True)
    return {n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(used.items(), found, strict=True)}


def _combined(outputs: Tensor, sample: int) -> Tensor:
    """A fixed random combination of a sample's outputs."""
    generator = torch.Generator("cpu").manual_seed(0)
    weights = torch.randn(outputs.shape[1:], generator=generator, dtype=torch.float64, device="cpu").to(outputs)
    return (outputs[sample] * weights).sum()


def apart_now(network: Network, example: Inputs) -> float:
    """How far the module's outputs for two samples are by now from those of the records, relative to the largest.

    What no weight shows makes them differ: a hook, another attribute, another forward.
    """
    device = next((p.device for p in network.parameters.values()), torch.device("cpu"))
    given = pytree.tree_map_only(Tensor, lambda t: t[[0, -1]].to(device), call_form(network.module, example))
    with torch.no_grad(), eval_mode(network.module), random_state_kept(device):
        own = picked(network.module(*given[0], **given[1]))
        inputs = zip((v.name for v in network.graph.inputs), pytree.tree_leaves(given), strict=True)
        records = network.graph.run(network.state() | dict(inputs))[network.graph.output]
    if not own.isfinite().all():
        return inf if bool(records.isfinite().all()) else 0.0
    return difference(own, records) / (largest(own) or 1.0)


def agrees(network: Network, inputs: Mapping[str, Tensor], args: Any, kwargs: Any) -> bool:
    """Whether model and records do the same with the first sample by itself, for samples that are known to stay apart.

    What runs need not be what was recorded: so the model runs beside another sample too. Nothing is said where they do
    not, or where a derivative is written by hand: then `check_faithful` has to decide.
    """
    try:
        model, by_hand = _run_one(network.module, (args, kwargs), None, [0])
        beside = _beside_another(network.module, (args, kwargs))
    except Exception:
        return False
    if by_hand or not model.outputs.isfinite().all() or beside.outputs.shape != model.outputs.shape:
        return False
    try:
        other = _other_slopes(network, inputs, model)
    except RuntimeError:  # an operation that autograd has no derivative of
        return False
    return other is not None and not _apart(network, model, other) and not _apart(network, beside, other)


def _other_slopes(network: Network, inputs: Mapping[str, Tensor], model: Alone) -> Alone | None:
    """What the records make of the first sample, with those slopes that are not the model's to the bit.

    Each slope is compared as soon as it is there, and let go: one as large as the network has to be made only once.
    None where outputs have another shape.
    """
    values = network.state() | {name: tensor[:1] for name, tensor in inputs.items()}
    parameters = {name: values[name] for name in network.graph.parameters}
    slopes = dict(model.slopes or {})
    missing = set(slopes)

    def compare(name: str, parameter: Tensor) -> None:
        found, parameter.grad = parameter.grad, None
        missing.discard(name)
        if found is not None and name in slopes and not torch.equal(found, slopes[name]):
            slopes[name] = found

    with torch.enable_grad():
        _track(parameters.values())
        for name, parameter in parameters.items():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(partial(compare, name))
        outputs: Tensor = network.graph.run(values)[network.graph.output]
        if outputs.shape != model.outputs.shape:
            return None
        if outputs.requires_grad:
            _combined(outputs, 0).backward(inputs=[p for p in parameters.values() if p.requires_grad])
    return Alone(outputs.detach(), slopes | {name: torch.zeros_like(slopes[name]) for name in missing})


def check_faithful(network: Network, inputs: Mapping[str, Tensor], models: list[Alone]) -> None:
    """Refuse a model whose own trials on the first sample are not those of the records."""
    records = _alone(network, inputs, watch=Watch(network.graph))
    for model in models:
        own = records if model.weights is None else _alone(network, inputs, weights=model.weights)
        _compare(network, inputs, model, own)


def _compare(network: Network, inputs: Mapping[str, Tensor], model: Alone, records: Alone) -> None:
    if model.outputs.shape != records.outputs.shape or not model.outputs.isfinite().all():
        return
    apart = _apart(network, model, records)
    noises = [_alone(network, inputs, seed, model.weights) for seed in (1, 2, 3)] if apart else []
    for name, distance in apart.items():
        own = records.get(name, records.outputs)
        if distance > _SAFETY * max(difference(own, noise.get(name, own)) for noise in noises):
            raise ReadError(_message(network, name, distance, model.beside))


def _apart(network: Network, model: Alone, records: Alone) -> dict[str, float]:
    """How far the two are from each other, by name, where it is farther than rounding goes in most networks."""
    types = {v.dtype for v in network.graph.values.values() if v.dtype.is_floating_point}
    tolerance = max((_TOLERANCES.get(t, _COARSE) for t in types), default=0.0)
    pairs = {name: (a, records.get(name, a)) for name, a in model.all()}
    pairs = {name: pair for name, pair in pairs.items() if not _identical(*pair) and bool(pair[0].isfinite().all())}
    apart = {name: difference(*pair) for name, pair in pairs.items()}
    bad = {name: d for name, d in apart.items() if d > tolerance * max(map(largest, pairs[name]))}
    whole = max((largest(a) for name, a in model.all() if name and a.isfinite().all()), default=0.0) if bad else 0.0
    return {name: d for name, d in bad.items() if not name or d > _NOISE * whole}  # rounding leaves a part of the whole


def _identical(a: Tensor, b: Tensor) -> bool:
    return a is b or torch.equal(a, b)


def _message(network: Network, name: str, apart: float, beside: bool) -> str:
    kind = type(network.module).__name__
    if beside:
        return (
            f"{kind} run on two samples returns other numbers for the first than torch.export recorded: they differ by "
            f"{apart:.2g}. forward looks at the whole batch when it runs, and did not while it was read, as "
            "torch.compiler.is_exporting() lets it: it has to do the same in both"
        )
    if not name:
        return (
            f"{kind} run on one sample returns other numbers than torch.export recorded: they differ by {apart:.2g}. "
            "Either forward does something else for a batch of one, or it depends on more than its inputs and weights, "
            "such as random numbers of Python or NumPy, which have no place in it"
        )
    return (
        f"the derivative of {kind}'s outputs in '{name}' that autograd takes is not that of the operations that "
        f"torch.export recorded: they differ by {apart:.2g}. A torch.autograd.Function with a backward of its own, a "
        "hook on a tensor, or torch.no_grad inside torch.autocast does that: write it with plain operations, and "
        "tensor.detach() where no derivative shall pass"
    )


def _alone(
    network: Network,
    inputs: Mapping[str, Tensor],
    seed: int | None = None,
    weights: Mapping[str, Tensor] | None = None,
    watch: Watch | None = None,
) -> Alone:
    """What the records make of the first sample, twice in a batch; with a seed, after a move by a rounding error."""
    values = network.state() | {name: tensor[_TWICE] for name, tensor in inputs.items()}
    if weights is not None:
        values |= {name: weights[name].clone() for name in network.graph.parameters if name in weights}
    if seed is not None:
        values = {name: moved(tensor, seed) for name, tensor in values.items()}
    parameters = {name: values[name] for name in network.graph.parameters}
    try:
        with torch.enable_grad():
            _track(parameters.values())
            if watch is None:
                outputs: Tensor = network.graph.run(dict(values))[network.graph.output]
                return Alone(outputs[:1].detach(), _slopes(outputs, parameters))
            outputs = watch.run(dict(values))
            slopes = _slopes(outputs, parameters, keep=True)
            watch.sample = 1  # for what is seen on the way back
            _slopes(outputs, parameters, sample=1)
            return Alone(outputs[:1].detach(), slopes)
    except RuntimeError:  # an operation that autograd has no derivative of, or one that does not run at all
        with torch.no_grad():
            return Alone(network.graph.run(values)[network.graph.output][:1], None)
