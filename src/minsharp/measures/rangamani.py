"""Rangamani's flatness: the curvature on the manifold of networks up to rescaling."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..errors import UndefinedError
from ..losses import Criterion
from ..network.network import Network
from ..network.reader import read
from ..network.symmetry import Symmetries, tried_group
from ..reference.objective import Objective
from ..subject.batches import Data
from ..subject.model import Pattern
from ..subject.modes import plain_mode
from .eigenvalue import check_iterations, lanczos, random_start
from .score import Score


@plain_mode()
def rangamani_flatness(
    model: nn.Module | Network,
    data: Data,
    loss: Criterion | None = None,
    *,
    iterations: int = 100,
    tolerance: float = 1e-3,
    parameters: Pattern = None,
    seed: int = 0,
) -> Score:
    """The largest eigenvalue of the Riemannian Hessian on the quotient by the rescalings of layers. Needs targets.

    Rangamani, Nguyen, Kumar, Phan, Chin, Tran (2019): the metric sum_P <., .> / ||P||_F^2 over the parameter tensors is
    invariant under rescaling; on the quotient, tangent vectors are the horizontal ones, orthogonal to all rescalings.
    The Riemannian Hessian at them is the second derivative of the loss along geodesics. With P = r w, ||w|| = 1, the
    metric is d(log r)^2 + ||dw||^2, and the geodesic that leaves with the velocity r (a w + v), v orthogonal to w, has
    the acceleration r ((a^2 - ||v||^2) w + 2 a v); so, with eta the velocity and g the gradient,

        Hess(eta, eta) = eta^T H eta + sum_P r <g_P, (a^2 - ||v||^2) w + 2 a v>

    The second term vanishes at a critical point, and is what keeps the value invariant elsewhere. The eigenvalue is
    found as in `largest_eigenvalue`. The paper takes the rescalings of a chain of layers without biases; here they are
    those that the network really has, `symmetries(model, example)`, biases included. A parameter that is zero has no
    direction, and stays fixed; ``details`` names it.

    Two weights with the product c and the loss (c - 1)^2 on the input 1: all that is left of them on the quotient is
    log c, and its unit tangent moves each log-weight by 1/sqrt(2), log c by sqrt(2). At c = 1 the second derivative
    along it is 2 (sqrt(2))^2 = 4, whatever the scales of the two:

    >>> model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 1, bias=False)).double()
    >>> _ = nn.init.constant_(model[0].weight, 8), nn.init.constant_(model[2].weight, 1 / 8)
    >>> data = (torch.ones(1, 1).double(), torch.ones(1, 1).double())
    >>> round(rangamani_flatness(model, data, nn.MSELoss()).value, 8)
    4.0
    """
    check_iterations(iterations, tolerance)
    everything = Objective(model, data, loss, parameters)
    network = read(model, everything.batches[0].inputs)
    used = [name for name in everything.names if name in network.graph.parameters]
    moving = [name for name in used if bool(everything.parameters[name].any())]
    if not moving:
        raise UndefinedError(
            f"every parameter that is measured is zero: {used}. Measure a network that has been initialised"
        )
    objective = everything.narrowed(moving)
    fixed = [name for name in network.graph.parameters if name not in used]
    rescalings = tried_group(network.graph, network.module, "layer", fixed)
    with objective.prepared():
        objective.value_here()
        quotient = _Quotient(objective, _generators(rescalings, moving))
        start = quotient.horizontal(random_start(objective.vector, seed))
        found = lanczos(quotient.hessian, start, iterations, tolerance)
    details = {**found.details, "dimension": rescalings.dimension, "zero": [n for n in used if n not in moving]}
    return Score("rangamani_flatness", found.value, details=details)


def _generators(symmetries: Symmetries, names: Sequence[str]) -> Tensor:
    """An orthonormal basis of the log-scales that the rescalings give these parameters: (parameters, basis)."""
    columns = []
    for i in range(symmetries.dimension):
        z = torch.zeros(symmetries.dimension, dtype=torch.float64)
        z[i] = 1.0
        t = symmetries.log_scales(z)
        columns.append(torch.stack([t[name].reshape(()) for name in names]))
    if not columns:
        return torch.zeros(len(names), 0, dtype=torch.float64)
    U, sizes, _ = torch.linalg.svd(torch.stack(columns, 1), full_matrices=False)
    return U[:, sizes > 1e-10 * sizes[0]] if bool(sizes[0] > 0) else U[:, :0]


class _Quotient:
    """The Riemannian Hessian on horizontal vectors, in the coordinates xi_P = eta_P / ||P||, which are orthonormal."""

    def __init__(self, objective: Objective, generators: Tensor):
        t = objective.vector
        self.sizes = [p.numel() for p in objective.parameters.values()]
        norms = self._spread(self._norms(t))
        self.norm = norms  # of the tensor that each entry belongs to
        self.w = t / norms
        self.gradient = norms * objective.value_and_slope(t)[1]
        self.product = objective.hessian_product()
        self.generators = generators.to(t)

    def _norms(self, vector: Tensor) -> Tensor:
        return torch.stack([torch.linalg.vector_norm(part) for part in vector.split(self.sizes)])

    def _spread(self, numbers: Tensor) -> Tensor:
        """One number per tensor, repeated for each of its entries."""
        return numbers.repeat_interleave(torch.tensor(self.sizes, device=numbers.device))

    def _along(self, a: Tensor, b: Tensor) -> Tensor:
        """<a_P, b_P> for each tensor P."""
        return torch.stack([part.sum() for part in (a * b).split(self.sizes)])

    def horizontal(self, xi: Tensor) -> Tensor:
        """Without its part along the rescalings, which move each P along itself."""
        a = self._along(xi, self.w)
        return xi - self._spread(self.generators @ (self.generators.T @ a)) * self.w

    def hessian(self, xi: Tensor) -> Tensor:
        """The symmetric operator of the quadratic form, from horizontal vectors to horizontal vectors."""
        bent = self.norm * self.product(self.norm * xi) + self._acceleration(xi)
        return self.horizontal(bent)

    def _acceleration(self, xi: Tensor) -> Tensor:
        """The form c (a^2 - |v|^2) + 2 a <g', v> as an operator, for g = c w + g' and xi = a w + v in each tensor."""
        a, c = (self._spread(self._along(x, self.w)) for x in (xi, self.gradient))
        v, g = xi - a * self.w, self.gradient - c * self.w
        return (c * a + self._spread(self._along(g, v))) * self.w - c * v + a * g
