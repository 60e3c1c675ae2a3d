"""BatchNorm folded away: the same outputs, or a reason."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import prune

import minsharp as ms
from minsharp.network.fold import FoldedNorm
from tests.support.zoo import BY_NAME, call

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def randomised(model: nn.Module, seed: int = 0) -> Any:
    """Double precision, with statistics and affine maps that are not the ones of a fresh BatchNorm."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.double().modules():
        if isinstance(module, NORMS):
            for name, tensor in [*module.named_buffers(), *module.named_parameters()]:
                if tensor.dtype.is_floating_point:
                    drawn = torch.rand(tensor.shape, generator=generator, dtype=torch.float64)
                    tensor.data.copy_(drawn + 0.5 if name == "running_var" else 2 * drawn - 1)
    return model


def norms_in(model: nn.Module) -> list[str]:
    return [name for name, part in model.named_modules() if isinstance(part, NORMS)]


def folds_to_the_same(model: nn.Module, *inputs: Any, left: list[str] | None = None) -> Any:
    """Fold; compare outputs to rounding, and what stays."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = [m.training for m in model.modules()]
    folded = ms.fold_batchnorm(model)
    assert [m.training for m in model.modules()] == modes
    assert not any(m.training for m in folded.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert norms_in(folded) == (left or [])
    with torch.no_grad():
        expected = model.eval()(*inputs)
        assert torch.allclose(folded(*inputs), expected, rtol=1e-12, atol=1e-12 * float(expected.abs().max()))
    return folded


class Folding(nn.Module):
    """Every kind of layer that a BatchNorm may follow, with a residual connection, and one it cannot be folded into."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3)
        self.up, self.up_norm = nn.ConvTranspose2d(3, 3, 3, padding=1), nn.BatchNorm2d(3, affine=False)
        self.after_sum = nn.BatchNorm2d(3)
        self.linear, self.linear_norm = nn.Linear(3, 4), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.conv(x)))
        x = self.after_sum(self.up_norm(self.up(x)) + x)
        return self.linear_norm(self.linear(torch.relu(x).mean((2, 3))))


def test_folding() -> None:
    torch.manual_seed(0)
    model = randomised(Folding())
    assert model.training
    folds_to_the_same(model, torch.randn(5, 1, 4, 4, dtype=torch.float64), left=["after_sum"])


def test_a_folded_network_has_more_freedom() -> None:
    entry = BY_NAME["residual_batch_norm"]
    inputs, _ = entry.data()
    folded = ms.fold_batchnorm(entry.model())
    with torch.no_grad():
        assert torch.allclose(call(folded, inputs), call(entry.model().eval(), inputs), rtol=1e-12)
    free, held = (ms.symmetries(m, inputs, "neuron") for m in (folded, entry.model()))
    assert free.dimension == held.dimension == 6
    assert {"a.weight", "skip.0.weight"} == {n for n in held.pinned if n != "head.bias"}
    assert set(free.pinned) == {"head.bias"}
    hint = "BatchNorm pins weights before it: fold_batchnorm(model) folds it into the layer that it follows"
    for scope in ("layer", "neuron", "full"):
        free, held = (ms.symmetries(m, inputs, scope) for m in (folded, entry.model()))
        assert hint in repr(held)
        assert "BatchNorm" not in repr(free)
    assert hint in repr(ms.minimum_sharpness(entry.model(), entry.data(), curvature="ggn"))
    assert "BatchNorm" not in repr(ms.minimum_sharpness(folded, entry.data(), curvature="ggn"))


def test_folding_what_cannot_be_traced() -> None:
    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(ms.ReadError, match="cannot trace Branching"):
        ms.fold_batchnorm(Branching())


@st.composite
def layers(draw: st.DrawFn) -> tuple[Any, int]:
    """A convolution of any kind and setting, and the number of axes it slides over."""
    axes, groups = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    channels = [groups * draw(st.integers(1, 2)) for _ in range(2)]
    kernel, stride, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    options: dict[str, Any] = {"stride": stride, "dilation": dilation, "groups": groups, "bias": draw(st.booleans())}
    if draw(st.booleans()):
        kind: Any = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[axes - 1]
        options["output_padding"] = draw(st.integers(0, max(stride, dilation) - 1))
        options["padding"] = draw(st.integers(0, 1))
    else:
        kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[axes - 1]
        modes = ["zeros", "circular", "replicate", *(["reflect"] if axes < 3 else [])]
        options["padding_mode"] = draw(st.sampled_from(modes))
        options["padding"] = draw(st.integers(0, 2))
        if stride == 1 and draw(st.booleans()):
            options["padding"] = draw(st.sampled_from(["same", "valid"]))
    return kind(*channels, kernel, **options), axes


@settings(max_examples=150, deadline=None)
@given(layers(), st.booleans(), st.integers(0, 1000))
def test_every_convolution(drawn: tuple[Any, int], affine: bool, seed: int) -> None:
    layer, axes = drawn
    norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[axes - 1](layer.out_channels, affine=affine)
    model = randomised(nn.Sequential(layer, norm), seed)
    x = torch.randn(
        2, layer.in_channels, *[6] * axes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    folds_to_the_same(model, x)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_linear(affine: bool, bias: bool) -> None:
    model = randomised(nn.Sequential(nn.Linear(6, 4, bias=bias), nn.BatchNorm1d(4, affine=affine), nn.ReLU()))
    folded = folds_to_the_same(model, torch.randn(5, 6, dtype=torch.float64))
    assert folded[0].weight.requires_grad
    assert folded[0].bias.requires_grad


def test_a_norm_of_another_axis_is_not_taken_for_the_features() -> None:
    """BatchNorm1d after a linear layer on (n, length, features) normalises the length."""
    model = randomised(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)))
    folded = ms.fold_batchnorm(model)
    x = torch.randn(5, 4, 6, dtype=torch.float64)
    assert model.eval()(x).shape == (5, 4, 4)
    with pytest.raises(ms.InputError, match=r"for tensors of 2 axes, and got one of shape \(5, 4, 4\)"):
        folded(x)
    wide = randomised(nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(4)))
    folds_to_the_same(wide, x, left=["1"])
    image = randomised(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm2d(4)))
    folds_to_the_same(image, torch.randn(5, 4, 2, 6, dtype=torch.float64), left=["1"])


def test_a_folded_network_is_read() -> None:
    model = randomised(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)))
    folded = ms.fold_batchnorm(model)
    assert isinstance(folded.get_submodule("1"), FoldedNorm)
    assert ms.symmetries(folded, torch.zeros(1, 6).double(), "neuron").dimension == 4
    assert repr(folded.get_submodule("1")) == "FoldedNorm(axes=2)"


def old_weight_norm(layer: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.utils.weight_norm(layer)


REPARAMETRISED: dict[str, Callable[[nn.Module], nn.Module]] = {
    "weight norm": nn.utils.parametrizations.weight_norm,
    "weight norm by hooks": old_weight_norm,
    "spectral norm": nn.utils.parametrizations.spectral_norm,
    "spectral norm by hooks": nn.utils.spectral_norm,
    "pruned": lambda layer: prune.l1_unstructured(layer, "weight", amount=0.5),
}


@pytest.mark.parametrize("name", REPARAMETRISED)
@pytest.mark.parametrize("kind", ["linear", "conv", "transposed"])
def test_weights_that_are_computed(name: str, kind: str) -> None:
    torch.manual_seed(0)
    layers: dict[str, tuple[nn.Module, nn.Module, tuple[int, ...]]] = {
        "linear": (nn.Linear(6, 4), nn.BatchNorm1d(4), (5, 6)),
        "conv": (nn.Conv2d(2, 4, 3, groups=2), nn.BatchNorm2d(4), (5, 2, 4, 4)),
        "transposed": (nn.ConvTranspose2d(2, 4, 3, groups=2), nn.BatchNorm2d(4), (5, 2, 4, 4)),
    }
    layer, norm, shape = layers[kind]
    model = randomised(nn.Sequential(REPARAMETRISED[name](layer.double()), norm, nn.ReLU()))
    x = torch.randn(shape, dtype=torch.float64)
    model(x).sum().backward()  # leaves behind what a plain copy chokes on
    folded = folds_to_the_same(model, x)
    assert type(folded[0]) in (nn.Linear, nn.Conv2d, nn.ConvTranspose2d)
    assert [n for n, _ in folded.named_parameters()] == ["0.weight", "0.bias"]


def watch(module: nn.Module, *args: Any) -> None:
    """A hook that does nothing."""


@contextmanager
def hooked(how: str, model: Any) -> Iterator[None]:
    everywhere = nn.modules.module
    register: dict[str, Callable[[], Any]] = {
        "layer": lambda: model[0].register_forward_hook(watch),
        "before the layer": lambda: model[0].register_forward_pre_hook(watch),
        "norm": lambda: model[1].register_forward_hook(watch),
        "before the norm": lambda: model[1].register_forward_pre_hook(watch),
        "global": lambda: everywhere.register_module_forward_hook(watch),
        "before, global": lambda: everywhere.register_module_forward_pre_hook(watch),
    }
    handle = register[how]()
    try:
        yield
    finally:
        handle.remove()


@pytest.mark.parametrize("how", ["layer", "before the layer", "norm", "before the norm", "global", "before, global"])
def test_hooks_are_refused_by_name(how: str) -> None:
    model = randomised(nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)))
    with hooked(how, model), pytest.raises(ms.InputError, match=r"cannot fold: .*watch"):
        ms.fold_batchnorm(model)
    folds_to_the_same(model, torch.randn(2, 2, 5, 5).double())


def test_a_hook_elsewhere_is_none_of_our_business() -> None:
    model = randomised(nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU()))
    model[2].register_forward_hook(lambda module, args, output: 2 * output)
    folds_to_the_same(model, torch.randn(2, 2, 5, 5).double())


class Odd(nn.Module):
    """A convolution and a norm, and something about them that keeps them from being folded, or does not."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.conv, self.norm, self.other = nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2), nn.Conv2d(2, 2, 1)
        if how == "shared weight":
            self.other = nn.Conv2d(2, 2, 3, padding=1)
            self.other.weight = self.conv.weight
        if how == "no statistics":
            self.norm = nn.BatchNorm2d(2, track_running_stats=False)
        if how == "second name":
            self.body = nn.Sequential(self.conv, self.norm)

    def forward(self, x: Tensor, extra: Tensor | None = None) -> Tensor:
        if self.how == "second name":
            return self.other(self.body(x))
        h = self.conv(x)
        if self.how == "by keyword":
            return self.other(self.norm(input=h))
        if self.how == "layer twice":
            h = self.conv(h)
        if self.how == "output used":
            return self.norm(h) + h
        if self.how == "in place":
            h.relu_()
        if self.how == "weight used":
            h = self.norm(h)
            return self.other(h) * self.conv.weight.sum()
        if (self.how == "optional" and extra is None) or (self.how == "other option" and extra is not None):
            h = torch.relu(h)
        h = self.norm(h)
        if self.how == "norm twice":
            h = self.norm(h)
        return self.other(h)


STAYS = ["layer twice", "norm twice", "output used", "in place", "weight used", "shared weight", "no statistics"]


@pytest.mark.parametrize("how", [*STAYS, "optional", "other option", "by keyword", "second name", "plain"])
def test_what_stays(how: str) -> None:
    torch.manual_seed(0)
    left = [] if how in ("by keyword", "second name", "plain") else ["norm"]
    folds_to_the_same(randomised(Odd(how)), torch.randn(3, 2, 5, 5, dtype=torch.float64), left=left)


@pytest.mark.parametrize("how", ["optional", "other option"])
def test_both_ways_to_call_an_optional_argument(how: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 2, 5, 5, dtype=torch.float64)
    folds_to_the_same(randomised(Odd(how)), x, x, left=["norm"])


class Standardised(nn.Conv2d):
    """A layer of the user's own: its weight is not what it is multiplied with."""

    def forward(self, input: Tensor) -> Tensor:
        return self._conv_forward(input, self.weight / self.weight.norm(), self.bias)


def test_layers_with_a_forward_of_their_own_stay() -> None:
    x = torch.randn(3, 2, 5, 5, dtype=torch.float64)
    Standardised.__module__ = "torch.nn.mine"  # as torch.fx sees layers of torch's own
    folds_to_the_same(randomised(nn.Sequential(Standardised(2, 4, 3), nn.BatchNorm2d(4))), x, left=["1"])
    patched = randomised(nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)))
    patched[0].forward = lambda x: torch.relu(nn.Conv2d.forward(patched[0], x))
    folds_to_the_same(patched, x, left=["1"])


def test_synchronised_norms() -> None:
    model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU()))
    folds_to_the_same(randomised(model), torch.randn(3, 2, 5, 5, dtype=torch.float64))


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_mixed_precision_keeps_types(kind: torch.dtype) -> None:
    model = randomised(nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4))).float()
    model[0].to(kind)
    folded = ms.fold_batchnorm(model)
    x = torch.randn(3, 2, 5, 5).to(kind)
    assert {p.dtype for p in folded.parameters()} == {kind}
    with torch.no_grad():
        a, b = folded(x), model.eval()(x)
    assert a.dtype == b.dtype
    assert torch.allclose(a.double(), b.double(), atol=20 * torch.finfo(kind).eps)


def test_what_does_not_fit() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)).half()
    nn.init.constant_(model.get_parameter("1.weight"), 6e4)
    nn.init.constant_(model.get_parameter("0.weight"), 6e4)
    with pytest.raises(ms.InputError, match=r"'0' does not fit in torch\.float16 with its BatchNorm folded in"):
        ms.fold_batchnorm(model)


def test_frozen_layers_stay_frozen() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3).requires_grad_(False), nn.BatchNorm2d(4))
    assert not any(p.requires_grad for p in ms.fold_batchnorm(model).parameters())


def test_lazy_modules() -> None:
    with pytest.raises(ms.InputError, match="has no shape yet"):
        ms.fold_batchnorm(nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d()))


@pytest.mark.parametrize("model", [nn.BatchNorm1d(3), nn.Linear(3, 2), nn.Identity()], ids=repr)
def test_a_layer_alone(model: nn.Module) -> None:
    x = torch.randn(4, 3)
    assert torch.equal(ms.fold_batchnorm(model)(x), model.eval()(x))
