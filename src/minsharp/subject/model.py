"""Which module is meant, and which of its parameters.

Wrappers that only run another module are taken off, and what cannot be measured is named.
"""

import copy
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any

from torch import Tensor, jit, nn
from torch.nn.parameter import is_lazy
from torch.optim.swa_utils import AveragedModel
from torch.utils import _pytree as pytree

from ..errors import InputError, words_of
from .inputs import describe
from .modes import LOCK

Pattern = str | Sequence[str] | None

_WRAPPERS = (nn.parallel.DistributedDataParallel, nn.DataParallel, AveragedModel)
_SHARDS = "FullyShardedDataParallel"
_QUANTIZED = (
    "torch.ao.nn.quantized",
    "torch.ao.nn.intrinsic.quantized",
    "torch.nn.quantized",
    "bitsandbytes.",
    "torchao.",
)
_OBSERVERS = ("torch.ao.quantization.observer", "torch.ao.quantization.fake_quantize")


class ReadModel(ABC):
    """A model that has been read, and can be passed wherever a model goes: `Network` is one."""

    module: nn.Module
    class_axis: int | None = None
    """The axis of the outputs that runs over the classes, where the user has said so."""

    @property
    @abstractmethod
    def parameters(self) -> Mapping[str, Tensor]:
        """The parameters that forward uses, by name, in the model's order."""


Model = nn.Module | ReadModel


def unwrapped(model: object) -> nn.Module:
    """The module itself, with the names that its parameters have in it: out of a `Network`, torch.compile and
    DistributedDataParallel, DataParallel and AveragedModel, in whatever order they were put around it.

    >>> inner = nn.Linear(2, 3)
    >>> unwrapped(nn.DataParallel(inner)) is inner
    True
    """
    if isinstance(model, ReadModel):
        return model.module
    module = model
    while isinstance(module, nn.Module):
        inside = _inside(module)
        if inside is None:
            with LOCK:  # while another thread reads it, a model holds tensors without values
                _refuse_parts(module)
            return module
        _refuse_hooks(module)
        module = inside
    raise InputError(_expected(module))


def parameters_of(model: object) -> dict[str, nn.Parameter]:
    """All parameters of the module itself, by each of their names; no other thread reads it meanwhile.

    >>> list(parameters_of(nn.DataParallel(nn.Linear(2, 3))))
    ['weight', 'bias']
    """
    module = unwrapped(model)
    with LOCK:  # while another thread reads it, a model holds tensors without values
        return dict(module.named_parameters(remove_duplicate=False))


def _inside(module: nn.Module) -> nn.Module | None:
    """What a wrapper runs; none if the module is no wrapper of torch's own, or one with a forward of its own."""
    if isinstance(module, _loaded("torch._dynamo.eval_frame", "OptimizedModule")):
        return module._modules["_orig_mod"]
    if _is_sharded(module):
        return None  # refused as a part, like those inside of a model
    for wrapper in _WRAPPERS:
        if isinstance(module, wrapper):
            return module.module if type(module).forward is wrapper.forward else None
    return None


def _loaded(module: str, name: str) -> Any:
    """A class of a module that may be loaded; nothing is an instance of it if it is not."""
    return getattr(sys.modules.get(module), name, ())


def copied(module: nn.Module) -> nn.Module:
    """A copy of a module; what it has computed from its parameters, and keeps, comes along as numbers.

    >>> model = nn.utils.parametrizations.weight_norm(nn.Linear(2, 3))
    >>> copied(model).parametrizations.weight.original0 is model.parametrizations.weight.original0
    False
    """
    try:
        with LOCK, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch copies its own modules by ways that it calls deprecated
            held = pytree.tree_leaves([dict(vars(part)) for part in module.modules()])  # also in dicts and lists
            made = {id(t): t.detach().clone() for t in held if isinstance(t, Tensor) and not t.is_leaf}
            return copy.deepcopy(module, dict(made))
    except Exception as error:
        cause = next(iter(words_of(error).splitlines()), "no message")
        raise InputError(f"{type(module).__name__} cannot be copied: {type(error).__name__}: {cause}") from error


def hooks_of(module: nn.Module) -> Iterator[str]:
    """The names of the hooks that see or change what goes into a module, or what comes out of it."""
    for hook in chain(module._forward_pre_hooks.values(), module._forward_hooks.values()):
        yield hook_name(hook)


def hook_name(hook: object) -> str:
    """What a hook is called."""
    return str(getattr(hook, "__qualname__", type(hook).__qualname__))


def _refuse_hooks(wrapper: nn.Module) -> None:
    hooks = list(hooks_of(wrapper))
    if hooks:
        raise InputError(
            f"{type(wrapper).__name__} around the model has forward hooks of its own, {hooks}, that would be left out. "
            "Register them on the module inside it, or remove them"
        )


def _is_sharded(module: nn.Module) -> bool:
    return isinstance(module, _loaded("torch.distributed.fsdp", _SHARDS))


def _refuse_parts(module: nn.Module) -> None:
    """Refuse a model that holds what has no weights to measure."""
    for path, part in module.named_modules():
        trouble = _trouble(part, path)
        if trouble:
            raise InputError(f"the model's '{path}' {trouble}" if path else f"the model {trouble}")
    for name, tensor in chain(module.named_parameters(), module.named_buffers()):
        _refuse_tensor(name, tensor, type(module).__name__)


def _trouble(part: nn.Module, path: str) -> str:
    """Why a module cannot be measured as it comes, and what to pass instead; nothing if it can."""
    kind = f"{type(part).__module__}.{type(part).__name__}"
    if isinstance(part, jit.ScriptModule):
        return (
            f"is a torch.jit.ScriptModule ({_script(part)}): pass the module it was made of, with its weights in it, "
            "as in model.load_state_dict(scripted.state_dict())"
        )
    if _is_sharded(part):
        return (
            f"is a {_SHARDS}: each process holds a part of its parameters. Measure the plain module with the full "
            "state dict loaded into it"
        )
    if path and isinstance(part, nn.parallel.DistributedDataParallel):
        return f"is a DistributedDataParallel inside of it: put its .module there, model.{path} = model.{path}.module"
    if kind.startswith(_QUANTIZED):
        return (
            f"is quantised ({kind}): its weights are integers, and the loss has no derivative in them. Pass the model "
            "as it was before quantization"
        )
    if kind.startswith(_OBSERVERS):
        return (
            f"watches values for quantization, or rounds them ({kind}): what it does depends on the whole batch, or "
            "has no derivative. Pass the model as it was before it was prepared for quantization"
        )
    return ""


def _script(part: Any) -> str:
    return str(getattr(part, "original_name", type(part).__name__))


def _refuse_tensor(name: str, tensor: Tensor, kind: str) -> None:
    """Refuse a parameter or buffer that holds no numbers here."""
    if is_lazy(tensor):
        raise InputError(f"'{name}' of {kind} has no shape yet (a lazy module): run the model once on a batch first")
    if tensor.is_quantized or type(tensor).__module__.startswith("torchao."):
        raise InputError(
            f"'{name}' of {kind} is quantised ({type(tensor).__name__}, {tensor.dtype}): the loss has no derivative in "
            "it. Pass the model as it was before quantization"
        )
    if isinstance(tensor, _loaded("torch._subclasses.fake_tensor", "FakeTensor")):
        raise InputError(
            f"'{name}' of {kind} is a FakeTensor, and has no values: make the model outside of FakeTensorMode"
        )
    if tensor.is_meta:
        raise InputError(
            f"'{name}' of {kind} is on the meta device, and has no values: load weights into it, as in "
            'model.to_empty(device="cpu") and model.load_state_dict(state)'
        )
    if isinstance(tensor, _loaded("torch.distributed.tensor", "DTensor")):
        raise InputError(
            f"'{name}' of {kind} is a DTensor: each process holds a part of it. Measure a plain copy of the model with "
            "the full tensors, parameter.full_tensor(), loaded into it"
        )


def _expected(given: object) -> str:
    """What is wrong with something that is no module."""
    text = "expected a torch.nn.Module, or a Network from minsharp.read, got "
    if isinstance(given, _loaded("torch.export", "ExportedProgram")):
        return text + "an ExportedProgram: pass program.module()"
    if isinstance(given, type):
        return f"{text}the class {given.__name__}: pass an instance of it, as in {given.__name__}(...)"
    if isinstance(given, Mapping) and given and all(isinstance(value, Tensor) for value in given.values()):
        return f"{text}{len(given)} tensors by name (a state dict?): load them into a model, model.load_state_dict(...)"
    if callable(given):
        return f"{text}the function {getattr(given, '__qualname__', type(given).__name__)}: pass the module itself"
    return text + describe(given)


def counted(used: Mapping[str, Tensor], pattern: Pattern) -> list[str]:
    """The parameters that count: of those that forward uses, all that match, or all that require a gradient."""
    if not used:
        raise InputError("the model's forward pass uses no parameters")
    if pattern is None:
        chosen = [name for name, parameter in used.items() if parameter.requires_grad]
        if not chosen:
            raise InputError('no parameter requires a gradient. To measure frozen ones, ask for them: parameters="*"')
        return chosen
    patterns = [pattern] if isinstance(pattern, str) else list(pattern) if isinstance(pattern, Sequence) else [None]
    if not all(isinstance(p, str) for p in patterns):
        raise InputError(f"parameters={pattern!r}: expected a pattern such as 'encoder.*', or a list of patterns")
    found = {p: {p} if p in used else {name for name in used if fnmatchcase(name, p)} for p in patterns}
    idle = [p for p, names in found.items() if not names]
    if idle or not patterns:
        raise InputError(f"parameters={pattern!r}: nothing matches {idle or 'it'}. The parameters are {list(used)}")
    return [name for name in used if any(name in names for names in found.values())]
