"""Random networks built from the supported operations, as Hypothesis draws them."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from hypothesis import HealthCheck
from hypothesis import strategies as st
from torch import Tensor, nn

COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck), "print_blob": True}
Draw = Callable[..., int]


class Block(nn.Module):
    """A layer and what is done to its result."""

    def __init__(self, layer: nn.Module, then: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.then = layer, then

    def forward(self, x: Tensor) -> Tensor:
        return self.then(self.layer(x), x)


class Raw(nn.Module):
    """A bare parameter, multiplied in or added along the channels."""

    def __init__(self, shape: tuple[int, ...], kind: int) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.randn(shape))
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        return [x * self.value, x + self.value, x - 0.5 * self.value, self.value * x.abs()][self.kind]


ACTIVATIONS: list[Callable[[Tensor], Tensor]] = [
    F.relu,
    lambda x: F.leaky_relu(x, 0.1),
    torch.abs,
    F.hardtanh,
    lambda x: x,
    lambda x: x.clamp(min=0),
    lambda x: torch.where(x > 0, x, 0.2 * x),
    lambda x: F.relu(x) - 0.3 * F.relu(-x),
    lambda x: -x,
]


def _convolution(draw: Draw, channels: int, size: int) -> nn.Module:
    """Any convolution that fits, plain or transposed."""
    groups = 2 if channels % 2 == 0 and draw(0, 1) else 1
    out = groups * draw(1, 2)
    kernel, stride, dilation = draw(1, min(3, size)), draw(1, 2), draw(1, 2)
    bias = bool(draw(0, 1))
    if draw(0, 3) == 0 and size <= 3:
        return nn.ConvTranspose2d(
            channels, out, kernel, stride=stride, padding=draw(0, (kernel - 1) // 2), groups=groups, bias=bias
        )
    padding = max(draw(0, 1), ((kernel - 1) * dilation + 1 - size + 1) // 2)
    return nn.Conv2d(channels, out, kernel, stride, padding, dilation, groups, bias)


def _spatial_step(draw: Draw, channels: int, size: int) -> nn.Module:
    kind = draw(0, 8)
    activation = ACTIVATIONS[draw(0, len(ACTIVATIONS) - 1)]
    if kind <= 2:
        return Block(_convolution(draw, channels, size), lambda y, x: activation(y))
    if kind == 3:
        return Block(nn.Conv2d(channels, channels, 3, padding=1), lambda y, x: activation(y) + x)
    if kind == 4:
        return Block(nn.Conv2d(channels, 2, 1), lambda y, x: torch.cat([activation(y), x], 1))
    if kind == 5:
        norm = nn.BatchNorm2d(channels)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
        return norm
    if kind == 6:
        return nn.PReLU(channels if draw(0, 1) else 1)
    if kind == 7 and size >= 2:
        pools: list[nn.Module] = [
            nn.MaxPool2d(2),
            nn.AvgPool2d(2, stride=1),
            nn.MaxPool2d(2, 1, 1),
            nn.AdaptiveAvgPool2d(2),
        ]
        return pools[draw(0, 3)]
    return Raw((channels, 1, 1) if draw(0, 1) else (1,), draw(0, 3))


def _flat_step(draw: Draw, width: int) -> nn.Module:
    activation = ACTIVATIONS[draw(0, len(ACTIVATIONS) - 1)]
    kind = draw(0, 4)
    if kind == 0:
        return Block(nn.Linear(width, width), lambda y, x: activation(y) + x)
    if kind == 1:
        return Block(nn.Linear(width, 3, bias=False), lambda y, x: torch.cat([x, activation(y)], 1))
    if kind == 2:
        return Raw((width,), draw(0, 3))
    out = draw(1, 4)
    return Block(nn.Linear(width, out, bias=bool(draw(0, 1))), lambda y, x: activation(y))


@st.composite
def networks(draw: st.DrawFn) -> tuple[nn.Module, Tensor]:
    """A network, its inputs: some spatial steps, some flat ones, a head."""

    def number(low: int, high: int) -> int:
        return draw(st.integers(low, high))

    with torch.random.fork_rng():
        torch.manual_seed(number(0, 10**6))
        x = torch.randn(number(1, 4), number(1, 3), number(2, 5), number(2, 5), dtype=torch.float64)
        steps: list[nn.Module] = []
        probe = x
        for _ in range(number(0, 4)):
            step = _spatial_step(number, probe.shape[1], min(probe.shape[2:])).double().eval()
            result = step(probe)
            if result[0].numel() <= 200:
                steps.append(step)
                probe = result
        steps.append(nn.Flatten())
        width = probe[0].numel()
        for _ in range(number(0, 3)):
            step = _flat_step(number, width).double()
            steps.append(step)
            width = step(torch.zeros(2, width, dtype=torch.float64)).shape[1]
        steps.append(nn.Linear(width, number(2, 4)).double())
    return nn.Sequential(*steps), x
