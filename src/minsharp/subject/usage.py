"""Which parameters forward uses, found by running it: what the outputs are made of, operation by operation."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from .outputs import picked


def used_parameters(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, nn.Parameter]:
    """The parameters that the outputs are made of, by the first of their names, in the model's order.

    Whether a derivative leads to them does not matter: a threshold is used too.

    >>> model = nn.Linear(2, 3)
    >>> model.idle = nn.Linear(2, 2)
    >>> list(used_parameters(model, (torch.ones(1, 2),), {}))
    ['weight', 'bias']
    """
    held = dict(module.named_parameters())
    apart = {name: parameter.detach().clone() for name, parameter in held.items()}  # each in a memory of its own
    flow = _Flow(apart)
    with torch.no_grad(), flow:
        outputs = picked(functional_call(module, apart, args, kwargs))
    names = flow.behind(outputs)
    return {name: parameter for name, parameter in held.items() if name in names}


class _Flow(TorchDispatchMode):
    """Follows names through operations, memory by memory: views and writes in place share what they are made of."""

    def __init__(self, named: dict[str, Tensor]):
        super().__init__()  # type: ignore[no-untyped-call]
        self._names = {_memory(tensor): frozenset({name}) for name, tensor in named.items()}
        self._alive: list[Tensor] = []  # so that no memory is used twice

    def behind(self, tree: Any) -> frozenset[str]:
        """The names that some tensors are made of."""
        tensors = [t for t in pytree.tree_leaves(tree) if isinstance(t, Tensor)]
        return frozenset().union(*(self._names.get(_memory(t), frozenset()) for t in tensors))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        names = self.behind((args, kwargs))
        reached = (outputs, args, kwargs) if func._schema.is_mutable else outputs
        for tensor in pytree.tree_leaves(reached):
            if isinstance(tensor, Tensor):
                self._alive.append(tensor)
                self._names[_memory(tensor)] = self.behind(tensor) | names
        return outputs


def _memory(tensor: Tensor) -> int:
    """What tells one tensor's memory from another's."""
    return int(tensor.untyped_storage()._cdata) if tensor.layout == torch.strided else id(tensor)
