"""Second derivatives by autograd: without kernels that lack them, and naming the operation where torch has none."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..errors import ReadError, words_of
from ..graph.records import DEVICE, Operation
from ..network.network import Network
from ..operations import row
from ..subject.modes import LOCK


@contextmanager
def twice_differentiable(device: torch.device) -> Iterator[None]:
    """Without fused kernels that lack second derivatives; they are chosen for the whole process."""
    with ExitStack() as stack:
        stack.enter_context(LOCK)
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        if device.type == "cuda":
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        yield


def called_twice_differentiable(operation: Operation, bound: Mapping[str, Any]) -> Any:
    """Run an operation; where torch cannot differentiate its own twice, as what it is made of."""
    made_of = row(operation).twice
    return (operation if made_of is None else replace(operation, target=made_of)).call(bound)


def twice_refused(network: Network, values: dict[str, Any], error: RuntimeError) -> ReadError:
    """An error that names what torch has no second derivative of, found by trying each operation by itself."""
    culprit = "the network"
    for operation in network.graph.operations:
        if not _differentiable_twice(operation, values, values[DEVICE.name]):
            culprit = operation.where
            break
        with torch.no_grad():
            operation.run(values)
    cause = next(iter(words_of(error).splitlines()), "no message")
    return ReadError(
        f"torch cannot differentiate {culprit} twice, which the Hessian beyond the Gauss-Newton matrix needs: {cause} "
        'Ask for the Gauss-Newton matrix: curvature="ggn"'
    )


def _differentiable_twice(operation: Operation, values: Mapping[str, Any], device: torch.device) -> bool:
    """Whether the second derivatives of one operation in what goes into it can be taken."""
    names = {name for _, name in operation.reads if isinstance(values.get(name), Tensor)}
    leaves = {n: values[n].detach().requires_grad_() for n in names if values[n].dtype.is_floating_point}
    try:
        with torch.enable_grad(), twice_differentiable(device):
            made = called_twice_differentiable(operation, operation.bind({**values, **leaves}))
            parts = [t for t in (made if operation.many else [made]) if isinstance(t, Tensor) and t.requires_grad]
            if not parts:
                return True
            total = torch.stack([part.square().sum() for part in parts]).sum()
            first = torch.autograd.grad(total, list(leaves.values()), create_graph=True, allow_unused=True)
            again = [g.sum() for g in first if g is not None and g.requires_grad]
            if again:
                torch.autograd.grad(torch.stack(again).sum(), list(leaves.values()), allow_unused=True)
    except RuntimeError:
        return False
    return True
