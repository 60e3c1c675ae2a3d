"""BatchNorm folded into the layer before it: the network as it is deployed."""

import inspect
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain, product
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules import module as torch_module
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from ..errors import InputError, ReadError
from ..subject.model import copied, hook_name, unwrapped
from ..subject.modes import plain_mode, random_state_kept
from ..subject.outputs import plain
from .network import Network

_NORMS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: nn.BatchNorm1d,
    nn.Conv1d: nn.BatchNorm1d,
    nn.Conv2d: nn.BatchNorm2d,
    nn.Conv3d: nn.BatchNorm3d,
    nn.ConvTranspose1d: nn.BatchNorm1d,
    nn.ConvTranspose2d: nn.BatchNorm2d,
    nn.ConvTranspose3d: nn.BatchNorm3d,
}
_MAKE_WEIGHTS = (WeightNorm, SpectralNorm, BasePruningMethod)  # hooks that only compute the weight
_MOST = 16  # ways to call forward, with and without what may be left out


class FoldedNorm(nn.Identity):
    """Stands where a BatchNorm1d or SyncBatchNorm was: lets tensors of as many axes through as it was folded for.

    BatchNorm1d takes (n, features) and (n, channels, length), and normalises the second axis of either.
    """

    def __init__(self, axes: int):
        super().__init__()
        self.axes = axes

    def forward(self, input: Tensor) -> Tensor:
        """What came in."""
        if input.dim() != self.axes:
            raise InputError(
                f"a BatchNorm was folded into the layer before it for tensors of {self.axes} axes, and got one of "
                f"shape {tuple(input.shape)}. There it normalises another axis: use the network without folding"
            )
        return input

    def extra_repr(self) -> str:
        """What it lets through."""
        return f"axes={self.axes}"


@plain_mode()
def fold_batchnorm(model: nn.Module | Network) -> nn.Module:
    """A copy in eval mode with every BatchNorm that follows a convolution or linear layer folded into it.

    That is the network as it is deployed: fewer parameters, no running statistics, and nothing that pins the scales.
    It is in eval mode whatever mode the model was in, for in training BatchNorm is another function. Weights that
    weight_norm and the like compute become plain ones. What stays: a BatchNorm that follows anything else, has no
    running statistics, or whose layer is used twice, shares its weights or has a forward of its own. A hook on either
    of the two is refused, for it would see other numbers.

    >>> model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU())
    >>> fold_batchnorm(model)
    Sequential(
      (0): Conv2d(1, 2, kernel_size=(3, 3), stride=(1, 1))
      (1): Identity()
      (2): ReLU()
    )
    """
    module = unwrapped(model)
    result = plain(copied(module))
    try:
        result.eval()
    except NotImplementedError:  # what torch.export made has no modes, and no layers either
        return result
    if fx.Tracer().is_leaf_module(result, ""):
        return result
    modules = dict(result.named_modules())
    for layer, norm in _foldable(result, modules):
        _refuse_hooks({layer: modules[layer], norm: modules[norm]})
        _replace(result, modules[layer], _fused(layer, modules[layer], modules[norm]))
        _replace(result, modules[norm], _stand_in(modules[layer], modules[norm]))
    return result.eval()


def _stand_in(layer: Any, norm: nn.Module) -> nn.Module:
    """What comes in place of a norm: nothing, or a check of the axes where the norm takes several numbers of them."""
    if not isinstance(norm, (nn.BatchNorm1d, nn.SyncBatchNorm)):
        return nn.Identity()
    return FoldedNorm(2 if isinstance(layer, nn.Linear) else 2 + len(layer.kernel_size))


# Which


def _foldable(root: nn.Module, modules: Mapping[str, nn.Module]) -> list[tuple[str, str]]:
    """Names of layers, each with the BatchNorm that alone takes its output, however forward is called."""
    found = [list(_pairs(traced, modules)) for traced in _traces(root)]
    shared = _shared(root)
    return [
        (layer, norm)
        for layer, norm in found[0]
        if all((layer, norm) in pairs for pairs in found)
        and not any(id(p) in shared for name in (layer, norm) for p in modules[name].parameters())
    ]


def _traces(root: nn.Module) -> Iterator[fx.Graph]:
    """What forward does, with and without each argument that may be left out: it may do something else then."""
    parameters = inspect.signature(root.forward).parameters.values()
    optional = {p.name: p.default for p in parameters if p.default is not p.empty}
    if 2 ** len(optional) > _MOST:
        names = list(optional)
        ways = [set(names), set(), *({name} for name in names)]
    else:
        choices = product((True, False), repeat=len(optional))
        ways = [{name for name, left in zip(optional, way, strict=True) if left} for way in choices]
    for left_out in ways:
        try:
            with warnings.catch_warnings(), random_state_kept(torch.device("cpu")):
                warnings.simplefilter("ignore")  # it cannot check that they are left out
                yield fx.Tracer().trace(root, concrete_args={name: optional[name] for name in left_out} or None)
        except Exception as error:
            raise ReadError(
                f"cannot trace {type(root).__name__} to see which layer each BatchNorm follows: {error}. "
                "Fold by hand with torch.nn.utils.fuse_conv_bn_eval"
            ) from error


def _shared(root: nn.Module) -> set[int]:
    """Parameters that more than one module holds."""
    held = Counter(id(p) for part in root.modules() for p in part._parameters.values())
    return {number for number, times in held.items() if times > 1}


def _pairs(traced: fx.Graph, modules: Mapping[str, nn.Module]) -> Iterator[tuple[str, str]]:
    """Layers, each with the BatchNorm that alone takes its output, both called once and not looked into."""
    calls = [str(node.target) for node in traced.nodes if node.op == "call_module"]
    looked = [str(node.target) for node in traced.nodes if node.op in ("get_attr", "call_module")]
    for node in traced.nodes:
        source: Any = node.args[0] if node.args else node.kwargs.get("input")
        if node.op != "call_module" or not isinstance(source, fx.Node) or source.op != "call_module":
            continue
        layer, norm = str(source.target), str(node.target)
        once = len(source.users) == calls.count(layer) == calls.count(norm) == 1
        alone = not any(place.startswith((f"{layer}.", f"{norm}.")) for place in looked)
        if once and alone and _fit(modules[layer], modules[norm]):
            yield layer, norm


def _fit(layer: nn.Module, norm: Any) -> bool:
    """Whether a norm is one of the layer's outputs, by statistics of its own, and both do what torch's own do."""
    base = _base(layer)
    if base is None or not isinstance(norm, (_NORMS[base], nn.SyncBatchNorm)):
        return False
    plain = type(norm).forward in (_BatchNorm.forward, nn.SyncBatchNorm.forward) and "forward" not in vars(norm)
    outputs = layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels
    return plain and norm.running_mean is not None and norm.num_features == outputs


def _base(layer: nn.Module) -> type[nn.Module] | None:
    """The layer of torch's own that a layer is; none if it has a forward of its own."""
    for base in _NORMS:
        own = isinstance(layer, base) and "forward" not in vars(layer) and type(layer).forward is base.forward
        if own and getattr(type(layer), "_conv_forward", None) is getattr(base, "_conv_forward", None):
            return base
    return None


def _refuse_hooks(pair: Mapping[str, nn.Module]) -> None:
    """Refuse what runs between a layer and its norm, or sees what goes in or out."""
    everywhere = (torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks)
    for hook in chain.from_iterable(hooks.values() for hooks in everywhere):
        raise InputError(f"cannot fold: {hook_name(hook)} is a hook on all modules. Remove it first")
    for path, part in pair.items():
        for hook in chain(part._forward_pre_hooks.values(), part._forward_hooks.values()):
            if not isinstance(hook, _MAKE_WEIGHTS):
                raise InputError(
                    f"cannot fold: '{path}' has the forward hook {hook_name(hook)}, which would see other numbers. "
                    "Remove it first: handle.remove()"
                )


# How


@torch.no_grad()
def _fused(name: str, layer: Any, norm: Any) -> nn.Module:
    """A layer with the outputs of the norm: w' = s w and b' = s (b - mean) + shift, s = gain / sqrt(var + eps)."""
    for hook in layer._forward_pre_hooks.values():
        hook(layer, None)  # those that make weights
    weight, bias = layer.weight, layer.bias
    s = (norm.running_var.double() + norm.eps).rsqrt()
    s = s if norm.weight is None else s * norm.weight.double()
    shift = -norm.running_mean.double() if bias is None else bias.double() - norm.running_mean.double()
    shift = s * shift + (0 if norm.bias is None else norm.bias.double())
    result: Any = _plain(layer)
    _put(name, result.weight, _times(weight.double(), s, layer))
    _put(name, result.bias, shift)
    return result.requires_grad_(any(p.requires_grad for n, p in layer.named_parameters() if n != "bias"))


def _times(weight: Tensor, s: Tensor, layer: Any) -> Tensor:
    """The weight with each output's part multiplied by its factor."""
    if not getattr(layer, "transposed", False):
        return weight * s.reshape(-1, *[1] * (weight.dim() - 1))
    groups, kernel = layer.groups, weight.shape[2:]
    parts = weight.reshape(groups, -1, *weight.shape[1:])  # (groups, inputs, outputs, *kernel), of one group each
    return (parts * s.reshape(groups, 1, -1, *[1] * len(kernel))).reshape(weight.shape)


def _plain(layer: Any) -> nn.Module:
    """A layer of torch's own with the settings of another, and a bias."""
    base: Any = _base(layer)
    like = {"device": layer.weight.device, "dtype": layer.weight.dtype, "bias": True}
    if isinstance(layer, nn.Linear):
        return nn.utils.skip_init(base, layer.in_features, layer.out_features, **like)
    names = ["stride", "padding", "dilation", "groups", "padding_mode"]
    names += ["output_padding"] if layer.transposed else []
    settings = {name: getattr(layer, name) for name in names}
    return nn.utils.skip_init(base, layer.in_channels, layer.out_channels, layer.kernel_size, **settings, **like)


def _put(name: str, place: Tensor, value: Tensor) -> None:
    """Write numbers, rounded once."""
    place.copy_(value)
    if not bool(torch.isfinite(place).all()):
        raise InputError(f"'{name}' does not fit in {place.dtype} with its BatchNorm folded in. Use model.double()")


def _replace(root: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put a module in the place of another, under all of its names."""
    for parent in list(root.modules()):
        for name, child in list(parent._modules.items()):
            if child is old:
                setattr(parent, name, new)
