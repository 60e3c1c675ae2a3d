"""Products that an equation describes."""

from ..graph.records import Operation
from ..rules.channels import UnfitError
from ..rules.frames import FrameWalk, Labels
from ..rules.row import Row
from .product_frames import product_frames
from .products import EinsumFactor, Equation, pull_einsum


def einsum_frames(walk: FrameWalk, operation: Operation) -> Labels:
    """Of two factors, by what each letter is."""
    names = [tensor.name for tensor in operation.arguments["tensors"]]
    if len(names) != 2:
        raise UnfitError
    ranks = [len(walk.graph.values[name].shape) for name in names]
    return product_frames(walk, names, Equation.of(operation.arguments["equation"], ranks), operation)


ROWS: dict[str, Row] = {
    "einsum": Row("prod(tensors)", pull_einsum, {"tensors": EinsumFactor()}, frames=einsum_frames),
}
