"""The group is right, complete, and says what it cannot move and why."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import minsharp as ms
from minsharp.graph.forms import ANY, Forms
from tests.support.zoo import BY_NAME, ZOO, Entry, call, network

# For every network of the zoo: the dimension of the group per layer and per neuron. Hidden channels are free unless
# something ties or fixes them; the comments say what.
DIMENSIONS = {
    "mlp": (1, 5),
    "deep_mlp": (3, 15),
    "no_biases": (2, 10),
    "mixed_biases": (2, 10),
    "one_layer": (0, 0),
    "two_classes": (1, 5),
    "functional": (1, 5),
    "raw_parameters": (
        4,
        14,
    ),  # right 5, left 3, transposed 5 channels; a scale of 3 x 5 whose rows sum over channels: 1
    "einsum": (1, 1),  # per neuron the table does not know einsum: tied
    "lenet": (3, 10),
    "deep_cnn": (3, 16),
    "strided_dilated": (2, 5),
    "grouped": (3, 14),
    "transposed": (2, 6),
    "conv1d": (2, 5),
    "conv3d": (2, 4),
    "same_even_kernel": (3, 5),
    "pools": (3, 8),
    "leaky_relu": (1, 5),
    "prelu": (2, 5),  # the slopes are fixed
    "maxout": (1, 3),  # three units, each the maximum of three neurons
    "clipped": (0, 0),  # corners away from zero
    "residual": (2, 9),  # the addition ties the two ends of the block: 4, and 5 inside
    "residual_projected": (3, 14),  # 4 before, 5 inside, 5 after
    "concat": (2, 7),  # per layer the concatenation ties both parts
    "batch_norm": (1, 3),  # what goes into a BatchNorm is fixed; its weight and bias scale with what follows
    "residual_batch_norm": (2, 6),
    "layer_norm": (2, 10),
    "group_norm": (2, 6),
    "embedding": (2, 7),
    "sequence": (2, 9),
    "time_major": (3, 11),
    "frames": (1, 2),
    "transformer": (
        2,
        18,
    ),  # queries against keys 4, values against projection 4, feed-forward 6, last norm against head 4
    "tied_in_a_row": (1, 1),  # the tied layer is fixed, and ties what goes in and out
    "tied_autoencoder": (1, 1),
    "siamese": (1, 1),  # the head is used twice: tied
    "two_inputs": (1, 6),
    "dict_input": (1, 6),
    "frozen": (0, 0),  # the frozen bias fixes its layer
    "in_place": (2, 10),
    "elman": (1, 1),  # a recurrent weight is fixed
    "lstm": (0, 0),
    "weight_norm": (3, 3),
    "gelu": (0, 0),
    "gated": (1, 5),
    "arithmetic": (0, 0),  # one parameter is both added and multiplied in: it fixes what it meets
    "written": (0, 0),
    "filled": (0, 7),  # a number that is no parameter fixes its column, and with it the layer
    "upsampled": (1, 4),  # per layer the concatenation with the input fixes its other half
    "last_state": (0, 0),
    "strided_wide": (3, 14),
    "segmenter": (1, 3),
}


def symmetries_of(entry: Entry, scope: Any) -> ms.Symmetries:
    return ms.symmetries(network(entry), entry.data()[0], scope)


def relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max())


@pytest.mark.parametrize("entry", ZOO, ids=lambda e: e.name)
def test_dimensions_are_known(entry: Entry) -> None:
    found = tuple(symmetries_of(entry, scope).dimension for scope in ("layer", "neuron"))
    assert found == DIMENSIONS[entry.name]


@pytest.mark.parametrize("entry", ZOO, ids=lambda e: e.name)
@pytest.mark.parametrize("scope", ["layer", "neuron"])
def test_random_elements_keep_the_function(entry: Entry, scope: str) -> None:
    """Twenty of them, with factors from 1e-3 to 1e3."""
    model = entry.model().eval()
    inputs, _ = entry.data()
    symmetries = ms.symmetries(network(entry), inputs, scope)  # type: ignore[arg-type]
    with torch.no_grad():
        outputs = call(model, inputs)
        for seed in range(20):
            scales = symmetries.random(seed)
            factors = torch.cat([torch.as_tensor(f, dtype=torch.float64).flatten() for f in [*scales.values(), 1.0]])
            assert 0.99e-3 < float(factors.min()) <= 1 <= float(factors.max()) < 1.01e3
            assert relative(call(ms.rescale(model, scales), inputs), outputs) < 1e-10
    if symmetries.dimension:
        assert max(float(factors.max()), 1 / float(factors.min())) == pytest.approx(1e3)


@pytest.mark.parametrize("entry", ZOO, ids=lambda e: e.name)
def test_the_group_is_complete(entry: Entry) -> None:
    """No infinitesimal rescaling per tensor outside the group keeps the outputs, on data of its own."""
    model = entry.model().eval()
    inputs, _ = entry.data(100)
    symmetries = symmetries_of(entry, "layer")
    named = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}
    rows = []
    for name, parameter in named.items():
        leaf = torch.zeros((), dtype=torch.float64, requires_grad=True)
        held = dict(model.named_parameters(remove_duplicate=False))
        places = {n: parameter * leaf.exp() for n, p in held.items() if p is held[name]}
        args, kwargs = (inputs if isinstance(inputs, tuple) else (inputs,)), {}
        if isinstance(inputs, dict):
            args, kwargs = (), inputs
        result = torch.func.functional_call(model, places, args, kwargs, tie_weights=False).flatten()
        some = result[:: max(1, len(result) // 150)]
        rows.append([torch.autograd.grad(o, leaf, retain_graph=True)[0] for o in some])
    J = torch.tensor(rows, dtype=torch.float64)  # (parameters, outputs): the derivative along each log-scale
    rank = int(torch.linalg.matrix_rank(J, rtol=1e-9))
    assert len(named) - rank == symmetries.dimension + EXTRA.get(entry.name, 0)


# Directions that keep the outputs to first order and are no rescaling by the rules, each for a reason of its own.
EXTRA = {
    "clipped": 1,  # hard corners everywhere: two biases shift the same clipped units
    "residual_batch_norm": 1,  # BatchNorm shifts what the biases shift, too
    "frames": 1,  # the bias before a BatchNorm and the one in it
    "layer_norm": 1,  # RMSNorm in double precision: its epsilon is below rounding
    "weight_norm": 1,  # the length of v in g v / |v| does nothing: kept, or the infimum would lie at infinity
    "arithmetic": 1,  # three parameters shift the same three units
    "group_norm": 1,  # a bias right before InstanceNorm does nothing
}


def test_known_reasons() -> None:
    pinned = symmetries_of(BY_NAME["prelu"], "layer").pinned
    assert set(pinned) == {"1.weight", "3.weight", "5.bias"}
    assert pinned["1.weight"].startswith("prelu in module '1'")
    assert pinned["5.bias"].startswith(("the outputs", "linear in module '5'"))
    pinned = symmetries_of(BY_NAME["batch_norm"], "layer").pinned
    assert "batch_norm in module '1'" in pinned["0.weight"]
    pinned = symmetries_of(BY_NAME["gelu"], "neuron").pinned
    assert "gelu in module '1'" in pinned["0.weight"]
    pinned = symmetries_of(BY_NAME["frozen"], "layer").pinned
    assert pinned["2.weight"] == "not measured, stays as it is"
    text = repr(symmetries_of(BY_NAME["gelu"], "layer"))
    assert text.splitlines()[0] == "Symmetries: 0 free numbers (scope 'layer')"
    assert "pinned 0.weight: gelu in module '1'" in text


def test_plain_networks_have_one_factor_per_hidden_channel() -> None:
    mlp = nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, 3))
    assert ms.symmetries(mlp, torch.zeros(1, 4), "neuron").dimension == 16
    layers: list[nn.Module] = []
    for _ in range(10):
        layers += [nn.Linear(4, 4), nn.ReLU()]
    assert ms.symmetries(nn.Sequential(*layers, nn.Linear(4, 2)), torch.zeros(1, 4)).dimension == 10


class Padded(nn.Module):
    """A shortcut that fills missing channels with zeros: those are free."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Conv2d(1, 2, 1), nn.Conv2d(2, 5, 1), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.a(x))
        x = self.b(x) + nn.functional.pad(x, (0, 0, 0, 0, 0, 3))
        return self.head(torch.relu(x).mean((2, 3)))


def test_channels_padded_with_zeros_are_free() -> None:
    model, x = Padded().double(), torch.randn(3, 1, 2, 2, dtype=torch.float64)
    symmetries = ms.symmetries(model, x, "neuron")
    assert symmetries.dimension == 5  # two tied through the shortcut, three of their own
    with torch.no_grad():
        assert relative(ms.rescale(model, symmetries.random(1))(x), model(x)) < 1e-12


def test_fixed_parameters_stay() -> None:
    entry = BY_NAME["deep_mlp"]
    symmetries = ms.symmetries(network(entry), entry.data()[0], fixed=["2.weight"])
    assert symmetries.dimension == 2
    assert "2.weight" not in symmetries.random(0)


def test_wrong_arguments() -> None:
    entry = BY_NAME["mlp"]
    with pytest.raises(ms.InputError, match="scope='tensor': expected 'layer', 'neuron' or 'full'"):
        ms.symmetries(network(entry), entry.data()[0], "tensor")  # type: ignore[arg-type]
    with pytest.raises(ms.InputError, match="spread=1: expected a factor above 1"):
        ms.symmetries(network(entry), entry.data()[0]).random(spread=1)


def test_forms_solve_their_equations() -> None:
    forms = Forms()
    a, b, c = forms.fresh(3)
    total = forms.combine(forms.combine(a, b), c)
    forms.equate(total, torch.tensor(0), "first")
    forms.equate(a, b, "second")
    assert len(forms.free) == 1
    assert forms.reduced(int(c)) == {int(g): -2 * v for g, v in forms.reduced(int(a)).items()}
    forms.equate(c, torch.tensor(0), "third")
    assert forms.free == []
    assert set(forms.reasons(int(c))) <= {"first", "second", "third"}
    assert int(forms.equate(torch.tensor(ANY), b, "nothing")) == int(b)
    assert int(forms.combine(torch.tensor(ANY), b)) == ANY


@pytest.mark.parametrize("coarse", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("cast", ["to", "type_as", "copy"])
def test_casts_to_few_bits_pin(coarse: torch.dtype, cast: str) -> None:
    """Steps of a tenth are no rounding: what is scaled before them comes out as another number."""

    class Coarse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x).relu()
            if cast == "copy":
                few = torch.empty(h.shape, dtype=coarse).copy_(h)
            else:
                few = h.to(coarse) if cast == "to" else h.type_as(x.to(coarse))
            out: Tensor = self.head(few.to(x.dtype))
            return out

    model, x = Coarse().double(), torch.randn(5, 6, dtype=torch.float64)
    network = ms.read(model, x)
    assert {name: bool(e) for name, e in network.exactness.items()} == {
        "a.weight": False,
        "a.bias": False,
        "head.weight": True,
        "head.bias": True,
    }
    group = ms.symmetries(network, x, "neuron")
    moved = ms.rescale(model, group.random(1, spread=4))
    assert torch.allclose(moved(x), model(x), rtol=1e-12)
