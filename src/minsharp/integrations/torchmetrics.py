"""torchmetrics: curvature as metrics that add up over batches and processes. Needs the extra ``torchmetrics``."""

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..curvature.hessian import hessian_trace
from ..errors import InputError
from ..extras import required
from ..frozen import held
from ..losses import Criterion
from ..measures.minimum import minimum_sharpness
from ..network.network import Network
from ..network.reader import read
from ..results.curvature import Trace
from ..results.sums import CurvatureSum
from ..rules.contraction import widest
from ..subject.model import unwrapped

_torchmetrics = required("torchmetrics", "metrics of curvature", "torchmetrics")
_read: WeakKeyDictionary[nn.Module, dict[str, Any]] = WeakKeyDictionary()
"""What metrics of one model share: in a `MetricCollection` only one of those with equal states is updated."""


class _Model:
    """The live model: not a part of the metric, and not copied with it."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __deepcopy__(self, memo: object) -> "_Model":
        return self


class HessianTrace(_torchmetrics.Metric):  # type: ignore[misc, name-defined]
    """Tr[H] of a model over all batches it was updated with, on all processes: the number of `hessian_trace`.

    ``update(inputs, targets)`` measures a batch with the weights of that moment; between the first and ``compute()``
    they have to stay. ``.by_parameter`` are the parts of the last ``compute()``. ``options`` are those of
    `hessian_trace`; all further arguments go to `torchmetrics.Metric`.

        metric = HessianTrace(model)
        for x, y in loader:
            metric.update(x, y)
        metric.compute()
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = False
    sums: Tensor
    weight: Tensor
    samples: Tensor

    def __init__(
        self,
        model: nn.Module,
        loss: Criterion | None = None,
        options: Mapping[str, Any] | None = None,
        **metric: Any,
    ) -> None:
        super().__init__(**metric)
        self._model, self._loss, self._options = _Model(unwrapped(model)), loss, dict(options or {})
        self._names = [name for name, _ in self._model.module.named_parameters()]
        zero = widest(torch.zeros((), device=next(self._model.module.parameters()).device))
        self.add_state("sums", zero.repeat(len(self._names)), dist_reduce_fx="sum")
        self.add_state("weight", zero.clone(), dist_reduce_fx="sum")
        self.add_state("samples", zero.clone(), dist_reduce_fx="sum")
        self.by_parameter: Mapping[str, float] = {}

    def update(self, inputs: Any, targets: Tensor | None = None) -> None:
        """Add a batch."""
        network = self._network(inputs)
        trace = hessian_trace(network, (inputs, targets), self._loss, **self._options)
        _read[self._model.module]["form"] = (trace.kind, trace.loss, trace.mean, dict(trace.exact), trace.graph)
        found = [held(trace.sum, "sums").get(name) for name in self._names]
        zero = self.sums.new_zeros(())
        self.sums += torch.stack([zero if value is None else value.to(self.sums) for value in found])
        self.weight += trace.sum.weight
        self.samples += trace.samples

    def _network(self, inputs: Any) -> Network:
        module = self._model.module
        if module not in _read:
            _read[module] = {"network": read(module, inputs)}
        network: Network = _read[module]["network"]
        return network

    def _trace(self) -> Trace:
        held = _read.get(self._model.module, {})
        if "form" not in held:
            raise InputError("nothing was measured on this process: update the metric with at least one batch on each")
        kind, loss, mean, exact, graph = held["form"]
        values = dict(zip(self._names, self.sums.cpu(), strict=True))
        whole = CurvatureSum({name: values[name] for name in exact}, float(self.weight), int(self.samples))
        return Trace(whole, kind, loss, mean, exact, graph)

    def compute(self) -> Tensor:
        """Tr[H]."""
        trace = self._trace()
        self.by_parameter = trace.by_parameter
        return self.sums.new_tensor(trace.total)


class MinimumSharpness(HessianTrace):
    """The least Tr[H] over all rescalings of the layers, over all batches and processes, as `minimum_sharpness`."""

    def compute(self) -> Tensor:
        """The minimum."""
        result = minimum_sharpness(_read.get(self._model.module, {}).get("network", self._model.module), self._trace())
        self.by_parameter = result.by_parameter
        return self.sums.new_tensor(result.value)
