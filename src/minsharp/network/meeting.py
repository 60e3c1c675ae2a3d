"""Whether derivatives stay with their sample: values that are the same for all samples hide what meets in them."""

from typing import Any

from torch import Tensor

from ..errors import ReadError
from ..graph.records import Graph, Operation, Value


class Watch:
    """Runs a graph of two samples, and looks at every gradient that passes back through it.

    Refuses a network in which the outputs of one of the two have a derivative in a value of the other.
    """

    def __init__(self, graph: Graph):
        self.graph = graph
        self.sample = 0
        """Whose outputs the gradients are of."""

    def run(self, values: dict[str, Any]) -> Tensor:
        """The outputs, (n, ...); cotangents on their way back from them will be looked at."""
        for operation in self.graph.operations:
            operation.run(values)
            for name in operation.outputs:
                value, made = self.graph.values.get(name), values[name]
                if value is not None and value.samples is not None and made.requires_grad:
                    made.register_hook(lambda g, value=value: self._look(value, g))
        outputs: Tensor = values[self.graph.output]
        return outputs

    def _look(self, value: Value, gradient: Tensor | None) -> None:
        assert value.samples is not None
        if gradient is None:  # nothing comes back to this one of several results
            return
        other = value.samples.split(gradient, 2)[1 - self.sample]
        if bool((other.isfinite() & (other != 0)).any()):
            raise ReadError(
                f"{self._user(value).where} mixes the samples of a batch: the outputs for one sample have a derivative "
                "in a value of another. Curvature is a sum over samples only if each output depends on its own input"
            )

    def _user(self, value: Value) -> Operation:
        """The first operation that reads a value."""
        return next(op for op in self.graph.operations if any(name == value.name for _, name in op.reads))
