"""The same curvature as other public libraries compute it, each prepared once and then run.

Every function takes a classifier in eval mode that returns logits and gives back a function that does the work.
The model is copied first, so no peer can alter it. For a network that is piecewise linear in each parameter, the
diagonal of the Hessian of cross-entropy equals that of the Gauss-Newton matrix and of the Fisher information matrix.
"""

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from typing import Any

import torch
from backpack import backpack, extend
from backpack.extensions import DiagGGNExact
from curvlinops import HessianLinearOperator
from nngeometry.layercollection import LayerCollection
from nngeometry.metrics import FIM
from nngeometry.object.pspace import PMatDiag
from pyhessian import hessian as PyHessian
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

Tensors = dict[str, Tensor]


def backpack_diagonal(model: nn.Module, x: Tensor, y: Tensor, batch: int) -> Callable[[], Tensors]:
    """BackPACK's exact diagonal of the Gauss-Newton matrix; its converter is used where the model needs it."""
    copy = extend(deepcopy(model), use_converter=not isinstance(model, nn.Sequential))
    criterion = extend(nn.CrossEntropyLoss())
    held = dict(copy.named_parameters())
    parameters = {name: held[name] for name, _ in model.named_parameters()}

    def run() -> Tensors:
        diagonal = {name: torch.zeros_like(p, requires_grad=False) for name, p in parameters.items()}
        for inputs, labels in zip(x.split(batch), y.split(batch), strict=True):
            copy.zero_grad()
            with backpack(DiagGGNExact()):
                criterion(copy(inputs), labels).backward()
            for name, parameter in parameters.items():
                diagonal[name] += parameter.diag_ggn_exact * (len(inputs) / len(x))
                del parameter.diag_ggn_exact
        return diagonal

    return run


class WholeBatches(Dataset[tuple[Tensor, Tensor]]):
    """Serves a batch as one slice, so that no time goes into stacking its samples one by one."""

    def __init__(self, x: Tensor, y: Tensor):
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        """A range of samples, detached: NNGeometry sets requires_grad on what it is handed."""
        span = slice(indices[0], indices[-1] + 1)
        return self.x[span].detach(), self.y[span]


def as_it_is(batch: Any) -> Any:
    """The collate function for a data set that already serves batches."""
    return batch


def nngeometry_diagonal(model: nn.Module, x: Tensor, y: Tensor, batch: int) -> Callable[[], Tensors]:
    """NNGeometry's exact diagonal Fisher: `FIM` with `PMatDiag`, in its default variant, classif_logits.

    That one divides by 1 - cumsum(p): where float32 is certain of a sample, the whole diagonal becomes NaN.
    """
    return _fisher(deepcopy(model), x, y, batch, "classif_logits", None)


def nngeometry_regression(model: nn.Module, x: Tensor, y: Tensor, batch: int) -> Callable[[], Tensors]:
    """The same by its regression variant on sqrt(p) log p, whose squared gradients sum to the Fisher: no division."""
    copy = deepcopy(model)

    def weighted(inputs: Tensor, _labels: Tensor) -> Tensor:
        log_p: Tensor = copy(inputs).log_softmax(1)
        return (log_p.detach() / 2).exp() * log_p

    return _fisher(copy, x, y, batch, "regression", weighted)


def _fisher(
    model: nn.Module, x: Tensor, y: Tensor, batch: int, variant: str, function: Callable[..., Tensor] | None
) -> Callable[[], Tensors]:
    loader = DataLoader(WholeBatches(x, y), batch_size=batch, collate_fn=as_it_is)
    layers = LayerCollection.from_model(model)
    modules, _ = layers.get_layerid_module_maps(model)
    named = list(layers.named_parameters(modules))

    def run() -> Tensors:
        fisher = FIM(model, loader, PMatDiag, variant=variant, function=function, layer_collection=layers)
        pieces = fisher.get_diag().detach().split([p.numel() for _, p in named])
        return {name: piece.reshape(p.shape) for (name, p), piece in zip(named, pieces, strict=True)}

    return run


def pyhessian_probes(model: nn.Module, x: Tensor, y: Tensor, _setting: int) -> Callable[[], list[float]]:
    """PyHessian: one value of v^T H v for a random sign vector v, by a Hessian-vector product.

    The graph of the gradient is built in the first call and kept. One probe at a time: `trace` stops early otherwise.
    """
    copy = deepcopy(model)

    @cache
    def operator() -> PyHessian:
        return PyHessian(copy, nn.CrossEntropyLoss(), data=(x, y), cuda=False)

    def run() -> list[float]:
        samples: list[float] = operator().trace(maxIter=1)
        return samples

    return run


def curvlinops_probes(model: nn.Module, x: Tensor, y: Tensor, at_once: int) -> Callable[[], list[float]]:
    """curvlinops: values of v^T H v for `at_once` random sign vectors, as one product with its Hessian operator.

    Its `hutchinson_trace` is the mean of these; the single values are needed for their spread.
    """
    copy = deepcopy(model)
    parameters = list(copy.parameters())
    operator = HessianLinearOperator(
        copy, nn.CrossEntropyLoss(), parameters, [(x, y)], check_deterministic=False, num_data=len(x)
    )

    def run() -> list[float]:
        signs = torch.randint(0, 2, (operator.shape[1], at_once)).to(x.dtype) * 2 - 1
        values: list[float] = (signs * (operator @ signs)).sum(0).tolist()
        return values

    return run
