"""Small networks that differ in kind. Every claim of the package is tested on all of them.

To teach minsharp an operation, add its row to the table and a network that uses it here.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import minsharp as ms

Inputs = Tensor | tuple[Tensor, ...] | dict[str, Tensor]


@dataclass(frozen=True)
class Entry:
    """A network, inputs for it, and what is known about it beforehand."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[int], Inputs]
    classes: int = 4
    positions: tuple[int, ...] = ()
    inexact: frozenset[str] = frozenset()

    def model(self, dtype: torch.dtype = torch.float64) -> nn.Module:
        """The network, the same every time, in train mode as users leave it."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = self.build()
            for module in model.modules():
                if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                    assert module.running_mean is not None
                    assert module.running_var is not None
                    module.running_mean.normal_(0, 0.3)
                    module.running_var.uniform_(0.5, 2)
            for parameter in model.parameters():
                if parameter.dim() == 1:  # biases and norm weights away from zero and one
                    parameter.data.add_(0.3 * torch.randn_like(parameter))
        return model.to(dtype)

    def data(self, n: int = 5, dtype: torch.dtype = torch.float64) -> tuple[Inputs, Tensor]:
        """Inputs and targets, the same every time."""
        with torch.random.fork_rng():
            torch.manual_seed(1)
            inputs = self.inputs(n)
            targets = torch.randint(self.classes, (n, *self.positions))
        return cast(inputs, dtype), targets


def cast(inputs: Any, dtype: torch.dtype) -> Any:
    """Floating point inputs in another precision."""
    if isinstance(inputs, Tensor):
        return inputs.to(dtype) if inputs.dtype.is_floating_point else inputs
    if isinstance(inputs, dict):
        return {name: cast(item, dtype) for name, item in inputs.items()}
    return tuple(cast(item, dtype) for item in inputs)


def call(model: nn.Module, inputs: Inputs) -> Tensor:
    """The model on its inputs."""
    if isinstance(inputs, Tensor):
        return model(inputs)
    return model(**inputs) if isinstance(inputs, dict) else model(*inputs)


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 5), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.dropout(torch.relu(self.first(x)), 0.3, self.training))


class RawParameters(nn.Module):
    """Parameters that no layer wraps: multiplied from both sides, added, multiplied in, transposed, reshaped."""

    def __init__(self) -> None:
        super().__init__()
        self.right = nn.Parameter(torch.randn(6, 5))
        self.transposed = nn.Parameter(torch.randn(5, 5) / 2)
        self.flat = nn.Parameter(torch.randn(20) / 2)
        self.left = nn.Parameter(torch.randn(3, 2))
        self.shift = nn.Parameter(torch.randn(5))
        self.scale = nn.Parameter(torch.randn(3, 5))
        self.divided = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:  # (n, 2, 6)
        shrink = 1 + x.square().sum((1, 2))
        x = torch.relu(x @ self.right - self.shift)
        x = torch.relu(self.left @ x)  # (n, 3, 5)
        x = torch.relu(x * self.scale @ self.transposed.t())
        return x.sum(1) @ self.flat.view(5, 4) + self.divided / shrink[:, None]


class Pools(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(1, 3, 2), nn.Conv2d(3, 3, 2, padding=1), nn.Conv2d(3, 2, 1)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.a(x)), 3, stride=2, padding=1)
        x = F.avg_pool2d(F.relu(self.b(x)), 2, stride=1)
        x = F.adaptive_avg_pool2d(F.relu(self.c(x)), 3)
        return self.head(F.adaptive_max_pool2d(x, 2).flatten(1))


class Maxout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(6, 9), nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(x).view(x.size(0), 3, 3).max(dim=2).values)


class Residual(nn.Module):
    def __init__(self, project: bool) -> None:
        super().__init__()
        width = 5 if project else 4
        self.stem, self.a, self.b = nn.Linear(6, 4), nn.Linear(4, 5), nn.Linear(5, width)
        self.skip = nn.Linear(4, width, bias=False) if project else nn.Identity()
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        return self.head(F.relu(self.b(F.relu(self.a(x))) + self.skip(x)))


class Concat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (
            nn.Conv2d(1, 2, 3, padding=1),
            nn.Conv2d(2, 3, 3, padding=1),
            nn.Conv2d(5, 2, 1),
        )
        self.head = nn.Linear(2 * 16, 4)

    def forward(self, x: Tensor) -> Tensor:
        first = F.relu(self.a(x))
        both = torch.cat([first, F.relu(self.b(first))], dim=1)
        return self.head(F.relu(self.c(both)).flatten(1))


class ResidualBatchNorm(nn.Module):
    """A block as in ResNets: in-place ReLU, in-place addition, a strided projection with its own BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.na = nn.Conv2d(2, 3, 3, padding=1, stride=2, bias=False), nn.BatchNorm2d(3)
        self.b, self.nb = nn.Conv2d(3, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3)
        self.skip = nn.Sequential(nn.Conv2d(2, 3, 1, stride=2, bias=False), nn.BatchNorm2d(3))
        self.relu = nn.ReLU(inplace=True)
        self.head = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        out = self.nb(self.b(self.relu(self.na(self.a(x)))))
        out += self.skip(x)
        return self.head(self.relu(out).mean((2, 3)))


class EmbeddingBag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 3, padding_idx=0)
        self.hidden, self.head = nn.Linear(3, 4), nn.Linear(4, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(F.relu(self.hidden(self.table(tokens))).mean(1))


class TimeMajor(nn.Module):
    """Samples along the second axis, then merged with time from either side."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.head = nn.Linear(9, 4)

    def forward(self, x: Tensor) -> Tensor:  # (n, 3, 3)
        n = x.shape[0]
        x = F.relu(self.a(x.transpose(0, 1)))  # (T, n, 4)
        x = F.relu(self.b(x.reshape(3 * n, 4))).view(3, n, 4)  # time before samples
        x = F.relu(self.c(x.transpose(0, 1).reshape(n * 3, 4)))  # samples before time
        return self.head(x.view(n, 9))


class Frames(nn.Module):
    """Convolutions on frames that share the batch axis."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:  # (n, 3, 1, 4, 4)
        frames = F.relu(self.norm(self.conv(x.flatten(0, 1))))
        return self.head(frames.unflatten(0, (-1, 3)).mean(1).flatten(1))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 4))
        self.position = nn.Parameter(torch.randn(1, 4, 4))
        self.encoder = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.1, batch_first=True)
        self.head = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:  # (n, 3, 4)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.position
        return self.head(self.encoder(x)[:, 0])


class TiedInARow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.core, self.head = nn.Linear(6, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        return self.head(F.relu(self.core(F.relu(self.core(x)))))


class TiedAutoencoder(nn.Module):
    """The same matrix on the way in and, transposed, on the way out."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3)
        self.core = nn.Linear(3, 3)
        self.out = nn.Linear(3, 5, bias=False)
        self.out.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(F.relu(self.core(self.table(tokens).sum(1))))


class Siamese(nn.Module):
    """One tower on two inputs, side by side along the batch; and the head's weight used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.tower, self.head = nn.Linear(6, 5), nn.Linear(5, 4)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        a, b = F.relu(self.tower(torch.cat([left, right]))).chunk(2)
        return self.head(a) + 0.5 * F.linear(b, self.head.weight)


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image, self.vector, self.head = nn.Conv2d(1, 2, 3), nn.Linear(5, 4), nn.Linear(12, 4)

    def forward(self, image: Tensor, vector: Tensor) -> Tensor:
        parts = [F.relu(self.image(image)).flatten(1), F.relu(self.vector(vector))]
        return self.head(torch.cat(parts, dim=-1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTM(3, 3, batch_first=True), nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


class Elman(nn.Module):
    """A ReLU recurrence written out: the weights are used at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.back, self.head = nn.Linear(3, 4), nn.Linear(4, 4, bias=False), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:  # (n, 3, 3)
        h = x.new_zeros(x.shape[0], 4)
        for step in x.unbind(1):
            h = F.relu(self.into(step) + self.back(h))
        return self.head(h)


class Arithmetic(nn.Module):
    """Sums with factors, quotients, and data of lower rank than what it is multiplied with."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Parameter(torch.randn(4, 1, 3))
        self.shift, self.scale = nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(3))
        self.over = nn.Parameter(torch.randn(4, 1))
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:  # (n, 3)
        x = torch.sub(torch.add(self.layer(x), self.shift, alpha=0.5), self.scale, alpha=2.0)
        x = torch.add(F.relu(x), x, alpha=-0.3) / (1 + x.shape[1])
        lifted = (F.relu(x) * self.lift).sum(-1)  # (4, n)
        return (lifted + self.over / 3 + self.over * x.mean(1)).t()


class Filled(nn.Module):
    """Columns set to numbers, some of which are parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.numbers, self.head = nn.Linear(6, 6), nn.Parameter(torch.rand(2)), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        y[:, 0] = 0
        y[:, 1] = 0.5
        y[:, 2] = self.numbers[0]
        y[:, 3].fill_(self.numbers[1])
        y[:, 4].zero_()
        out: Tensor = self.head(F.leaky_relu(y))
        return out


class Written(nn.Module):
    """Writes into parts of a tensor, and reads what it wrote over."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        kept = F.relu(h)
        h[:, 0] += 1
        h[:, 1:3] = 2 * kept[:, :2]
        pooled = F.max_pool1d(F.relu(kept).unsqueeze(1), 2)
        return self.b(h) + pooled.sum((1, 2)).unsqueeze(1) * torch.tensor([1.0, -1, 0.5, 2]).to(x)


class Upsampled(nn.Module):
    """A small U-Net: down, up by interpolation, and across."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.mid, self.up = nn.Conv2d(1, 2, 2, stride=2), nn.Conv2d(2, 2, 1), nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        low = F.relu(self.mid(F.relu(self.down(x))))
        return self.up(torch.cat([F.interpolate(low, scale_factor=2, mode="nearest"), x], 1))


class LastState(nn.Module):
    """The final state of a recurrent network, with the samples along its second axis."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRU(2, 3, num_layers=2, batch_first=True), nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[1][-1])


class Einsum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(5, 3, 2) / 2)
        self.head = nn.Parameter(torch.randn(4, 5) / 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("no,ko->nk", torch.einsum("nij,oij->no", x, self.first).relu(), self.head)


class Clipped(nn.Module):
    """Piecewise linear, though not homogeneous."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = nn.Linear(6, 5), nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.hardtanh(self.b(F.relu6(self.a(x))), -0.5, 1.5)
        x = torch.where(x > 0.1, self.c(x), 0.3 * x) + 1.0
        return self.d(x.clamp(min=0).abs() - x.maximum(x.mean(1, keepdim=True)))


class Gated(nn.Module):
    """Smooth, and a product of two branches."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.value, self.head = nn.Linear(6, 5), nn.Linear(6, 5), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gate(x) * self.value(x).sigmoid())


class Normed(nn.Module):
    """Weights that are made of parameters before they meet the data."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = weight_norm(nn.Linear(6, 4)), nn.Linear(4, 4)
        self.left, self.right = nn.Parameter(torch.randn(4, 2)), nn.Parameter(torch.randn(2, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.relu(F.linear(F.relu(self.a(x)), self.left @ self.right)))


class Segmenter(nn.Module):
    """Logits at every position: (n, K, height, width)."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(1, 3, 2, stride=2), nn.ConvTranspose2d(3, 3, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(F.relu(self.down(x)))


def _frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 4))
    for parameter in model[2].parameters():
        parameter.requires_grad_(False)
    return model


def _normal(*shape: int) -> Callable[[int], Tensor]:
    return lambda n: torch.randn(n, *shape)


def _sequential(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers)


_ATTENTION = {f"encoder.self_attn.in_proj_{kind}" for kind in ("weight", "bias")}
_BEFORE_NORMS = {
    *_ATTENTION,
    *(f"encoder.self_attn.out_proj.{k}" for k in ("weight", "bias")),
    *(f"encoder.linear{i}.{k}" for i in (1, 2) for k in ("weight", "bias")),
    *(f"encoder.norm1.{k}" for k in ("weight", "bias")),
    "token",
    "position",
}

ZOO: list[Entry] = [
    Entry("mlp", lambda: _sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)), _normal(6)),
    Entry(
        "deep_mlp",
        lambda: _sequential(
            nn.Linear(6, 5),
            nn.ReLU(),
            nn.Linear(5, 5),
            nn.ReLU(),
            nn.Linear(5, 5),
            nn.ReLU(),
            nn.Linear(5, 4),
        ),
        _normal(6),
    ),
    Entry(
        "no_biases",
        lambda: _sequential(
            nn.Linear(6, 5, bias=False),
            nn.ReLU(),
            nn.Linear(5, 5, bias=False),
            nn.ReLU(),
            nn.Linear(5, 4, bias=False),
        ),
        _normal(6),
    ),
    Entry(
        "mixed_biases",
        lambda: _sequential(
            nn.Linear(6, 5, bias=False), nn.ReLU(), nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 4, bias=False)
        ),
        _normal(6),
    ),
    Entry("one_layer", lambda: nn.Linear(6, 4), _normal(6)),
    Entry("two_classes", lambda: _sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)), _normal(6), classes=2),
    Entry("functional", Functional, _normal(6)),
    Entry("raw_parameters", RawParameters, _normal(2, 6)),
    Entry("einsum", Einsum, _normal(3, 2)),
    Entry(
        "lenet",
        lambda: _sequential(
            nn.Conv2d(1, 2, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2, 1),
            nn.Conv2d(2, 3, 2),
            nn.ReLU(),
            nn.MaxPool2d(2, 2),
            nn.Flatten(),
            nn.Linear(12, 5),
            nn.ReLU(),
            nn.Linear(5, 4),
        ),
        _normal(1, 6, 6),
    ),
    Entry(
        "deep_cnn",
        lambda: _sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 6, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 6, 1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(6, 4),
        ),
        _normal(1, 4, 4),
    ),
    Entry(
        "strided_dilated",
        lambda: _sequential(
            nn.Conv2d(2, 3, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(3, 2, (2, 3), dilation=(2, 1), padding=(1, 2)),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(48, 4),
        ),
        _normal(2, 7, 7),
    ),
    Entry(
        "grouped",
        lambda: _sequential(
            nn.Conv2d(4, 6, 3, groups=2),
            nn.ReLU(),
            nn.Conv2d(6, 6, 3, groups=6, padding=1),
            nn.ReLU(),
            nn.Conv2d(6, 2, 1),
            nn.Flatten(),
            nn.Linear(8, 4),
        ),
        _normal(4, 4, 4),
    ),
    Entry(
        "transposed",
        lambda: _sequential(
            nn.ConvTranspose2d(2, 4, 3, stride=2, padding=1, output_padding=1, groups=2),
            nn.ReLU(),
            nn.ConvTranspose2d(4, 2, 2, dilation=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(72, 4),
        ),
        _normal(2, 2, 2),
    ),
    Entry(
        "conv1d",
        lambda: _sequential(
            nn.Conv1d(2, 3, 3, padding="same", dilation=2),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.ConvTranspose1d(3, 2, 2),
            nn.ReLU(),
            nn.AvgPool1d(2),
            nn.Flatten(),
            nn.Linear(4, 4),
        ),
        _normal(2, 7),
    ),
    Entry(
        "conv3d",
        lambda: _sequential(
            nn.Conv3d(1, 2, 2, padding=1, stride=(1, 2, 1)),
            nn.ReLU(),
            nn.MaxPool3d(2),
            nn.ConvTranspose3d(2, 2, 2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(36, 4),
        ),
        _normal(1, 3, 3, 3),
    ),
    Entry(
        "same_even_kernel",
        lambda: _sequential(
            nn.Conv2d(1, 2, 3, padding="valid"),
            nn.ReLU(),
            nn.Conv2d(2, 2, (2, 4), padding="same"),
            nn.ReLU(),
            nn.Conv2d(2, 1, 3, padding=1, padding_mode="circular"),
            nn.Flatten(),
            nn.Linear(9, 4),
        ),
        _normal(1, 5, 5),
    ),
    Entry("pools", Pools, _normal(1, 6, 6)),
    Entry("leaky_relu", lambda: _sequential(nn.Linear(6, 5), nn.LeakyReLU(0.2), nn.Linear(5, 4)), _normal(6)),
    Entry(
        "prelu",
        lambda: _sequential(
            nn.Conv2d(1, 3, 2), nn.PReLU(3), nn.Conv2d(3, 2, 2), nn.PReLU(), nn.Flatten(), nn.Linear(8, 4)
        ),
        _normal(1, 4, 4),
    ),
    Entry("maxout", Maxout, _normal(6)),
    Entry("clipped", Clipped, _normal(6)),
    Entry("residual", lambda: Residual(project=False), _normal(6)),
    Entry("residual_projected", lambda: Residual(project=True), _normal(6)),
    Entry("concat", Concat, _normal(1, 4, 4)),
    Entry(
        "batch_norm",
        lambda: _sequential(
            nn.Conv2d(1, 3, 3),
            nn.BatchNorm2d(3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(12, 5),
            nn.BatchNorm1d(5, affine=False),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(5, 4),
        ),
        _normal(1, 4, 4),
    ),
    Entry("residual_batch_norm", ResidualBatchNorm, _normal(2, 4, 4)),
    Entry(
        "layer_norm",
        lambda: _sequential(
            nn.Linear(6, 5), nn.LayerNorm(5), nn.ReLU(), nn.Linear(5, 5), nn.RMSNorm(5), nn.Linear(5, 4)
        ),
        _normal(6),
        inexact=frozenset({"0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"}),
    ),
    Entry(
        "group_norm",
        lambda: _sequential(
            nn.Conv2d(1, 4, 2),
            nn.GroupNorm(2, 4),
            nn.ReLU(),
            nn.Conv2d(4, 2, 2),
            nn.InstanceNorm2d(2, affine=True),
            nn.Flatten(),
            nn.Linear(8, 4),
        ),
        _normal(1, 4, 4),
        inexact=frozenset({"0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"}),
    ),
    Entry("embedding", EmbeddingBag, lambda n: torch.randint(7, (n, 5))),
    Entry(
        "sequence",
        lambda: _sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 4)),
        _normal(4, 3),
    ),
    Entry("time_major", TimeMajor, _normal(3, 3)),
    Entry("frames", Frames, _normal(3, 1, 4, 4)),
    Entry("transformer", Transformer, _normal(3, 4), inexact=frozenset(_BEFORE_NORMS)),
    Entry("tied_in_a_row", TiedInARow, _normal(6), inexact=frozenset({"core.weight"})),
    Entry(
        "tied_autoencoder",
        TiedAutoencoder,
        lambda n: torch.randint(5, (n, 3)),
        classes=5,
        inexact=frozenset({"table.weight"}),
    ),
    Entry("siamese", Siamese, lambda n: (torch.randn(n, 6), torch.randn(n, 6))),
    Entry("two_inputs", TwoInputs, lambda n: (torch.randn(n, 1, 4, 4), torch.randn(n, 5))),
    Entry("dict_input", TwoInputs, lambda n: {"vector": torch.randn(n, 5), "image": torch.randn(n, 1, 4, 4)}),
    Entry("frozen", _frozen, _normal(6)),
    Entry(
        "in_place",
        lambda: _sequential(
            nn.Linear(6, 5),
            nn.ReLU(inplace=True),
            nn.Linear(5, 5),
            nn.LeakyReLU(0.1, inplace=True),
            nn.Linear(5, 4),
        ),
        _normal(6),
    ),
    Entry("elman", Elman, _normal(3, 3), inexact=frozenset({"back.weight"})),
    Entry(
        "lstm",
        Recurrent,
        _normal(3, 3),
        inexact=frozenset({f"cell.{k}_{g}_l0" for k in ("weight", "bias") for g in ("ih", "hh")}),
    ),
    Entry(
        "weight_norm",
        Normed,
        _normal(6),
        inexact=frozenset({"a.parametrizations.weight.original1"}),
    ),
    Entry(
        "gelu",
        lambda: _sequential(nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 4)),
        _normal(6),
        inexact=frozenset({"0.weight", "0.bias"}),
    ),
    Entry("gated", Gated, _normal(6), inexact=frozenset({"value.weight", "value.bias"})),
    Entry("arithmetic", Arithmetic, _normal(3)),
    Entry("written", Written, _normal(6)),
    Entry("filled", Filled, _normal(6), classes=3),
    Entry("upsampled", Upsampled, _normal(1, 2, 2), classes=3, positions=(2, 2)),
    Entry(
        "last_state",
        LastState,
        _normal(3, 2),
        inexact=frozenset({f"cell.{k}_{g}_l{i}" for k in ("weight", "bias") for g in ("ih", "hh") for i in (0, 1)}),
    ),
    Entry(
        "strided_wide",
        lambda: _sequential(
            nn.Conv2d(8, 6, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(6, 6, (3, 2), stride=(2, 1), dilation=(1, 2), padding=2),
            nn.ReLU(),
            nn.ConvTranspose2d(6, 2, 2, dilation=2, output_padding=1),
            nn.Flatten(),
            nn.Linear(96, 4),
        ),
        _normal(8, 6, 6),
    ),
    Entry("segmenter", Segmenter, _normal(1, 2, 2), classes=3, positions=(2, 2)),
]

BY_NAME = {entry.name: entry for entry in ZOO}
assert len(BY_NAME) == len(ZOO)


@cache
def network(entry: Entry, dtype: torch.dtype = torch.float64) -> ms.Network:
    return ms.read(entry.model(dtype), entry.data(5, dtype)[0])


def rescaled(net: ms.Network, scales: Any) -> ms.Network:
    """The network with other weights: no need to read it again."""
    return replace(net, module=ms.rescale(net, scales))
