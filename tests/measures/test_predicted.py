"""Accuracy under noise without a draw: against dense gradients, and against draws."""

from math import erf, sqrt
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import minsharp as ms
from minsharp.losses import Margin
from minsharp.measures.noise import programming_variance
from tests.support.zoo import BY_NAME, ZOO, Entry, call, network


def phi(x: float) -> float:
    return (1 + erf(x / sqrt(2))) / 2


def variance(weight: Tensor, noise: str) -> Tensor:
    """By the definition."""
    squares = weight.square()
    if noise == "absolute":
        return torch.ones_like(weight)
    if noise == "relative":
        return squares.mean().expand_as(weight)
    if noise == "max" or weight.dim() < 2:
        return squares.max().expand_as(weight)
    return squares.flatten(1).max(1).values.view(-1, *[1] * (weight.dim() - 1)).expand_as(weight)


def expected(entry: Entry, noise: str, sigma: float, biases: str) -> tuple[float, float]:
    """Agreement and accuracy, sample by sample with autograd."""
    model = entry.model().eval()
    inputs, targets = entry.data()
    net = network(entry)
    names = [n for n, p in net.parameters.items() if p.requires_grad]
    held = dict(model.named_parameters())
    outputs = call(model, inputs)
    flat = outputs.flatten(2) if outputs.dim() > 2 else outputs.unsqueeze(2)
    labels = targets.reshape(len(outputs), -1)
    stays = right = 0.0
    for i in range(flat.shape[0]):
        for k in range(flat.shape[2]):
            order = flat[i, :, k].argsort(descending=True)
            m = flat[i, order[0], k] - flat[i, order[1], k]
            grads = torch.autograd.grad(m, [held[n] for n in names], retain_graph=True, allow_unused=True)
            s2 = sum(
                float((sigma**2 * variance(held[n].detach(), noise) * g.square()).sum())
                for n, g in zip(names, grads, strict=True)
                if g is not None and (biases == "noisy" or held[n].dim() > 1)
            )
            stay = phi(float(m.detach()) / sqrt(s2)) if s2 else 1.0
            stays += stay
            label = int(labels[i, k])
            right += stay if label == order[0] else 1 - stay if label == order[1] else 0.0
    count = flat.shape[0] * flat.shape[2]
    return stays / count, right / count


@pytest.mark.parametrize("entry", ZOO, ids=lambda e: e.name)
def test_against_dense_gradients(entry: Entry) -> None:
    found = ms.predicted_accuracy(network(entry), entry.data(), noise="max-per-channel", sigma=0.1)
    agreement, accuracy = expected(entry, "max-per-channel", 0.1, "exact")
    assert found.agreement == pytest.approx(agreement, abs=1e-9)
    assert found.accuracy == pytest.approx(accuracy, abs=1e-9)


@pytest.mark.parametrize("noise", ["absolute", "relative", "max", "max-per-channel"])
@pytest.mark.parametrize("biases", ["exact", "noisy"])
def test_every_noise(noise: Any, biases: Any) -> None:
    entry = BY_NAME["lenet"]
    found = ms.predicted_accuracy(network(entry), entry.data(), noise=noise, sigma=0.2, biases=biases)
    assert (found.agreement, found.accuracy) == pytest.approx(expected(entry, noise, 0.2, biases), abs=1e-9)


def test_bits_are_a_size_of_noise() -> None:
    entry = BY_NAME["lenet"]
    net, data = network(entry), entry.data()
    by_bits = ms.predicted_accuracy(net, data, noise="max", bits=3)
    by_size = ms.predicted_accuracy(net, data, noise="max", sigma=1 / (3 * sqrt(12)))
    by_name = ms.predicted_accuracy(net, data, noise="max", bits=dict.fromkeys(net.parameters, 3))
    assert by_bits.agreement == pytest.approx(by_size.agreement, rel=1e-12)
    assert by_bits.agreement == pytest.approx(by_name.agreement, rel=1e-12)
    assert "3 bits" in repr(by_bits)
    assert by_bits.to_dict()["bits"] == 3


@pytest.mark.parametrize("noise", ["absolute", "relative", "max", "pcm"])
def test_draws_agree(noise: Any) -> None:
    """A linear network is what the prediction is exact for, up to the runner-up being the only rival: two classes."""
    torch.manual_seed(0)
    model = nn.Linear(6, 2, bias=False)
    x = torch.randn(40, 6)
    data = (x, model(x).argmax(1))
    sigma = {"pcm": 2.0}.get(noise, 0.3)
    found = ms.predicted_accuracy(model, data, noise=noise, sigma=sigma)
    (level,) = ms.noise_robustness(model, data, noise=noise, sigmas=[sigma], trials=400).levels
    assert level.accuracy is not None
    assert found.accuracy == found.agreement
    assert abs(level.agreement.mean - found.agreement) < 4 * level.agreement.standard_error
    assert level.agreement.mean < 0.99


def test_phase_change_memory_by_its_published_polynomial() -> None:
    """sigma(g) = -1.1731 g² + 1.9650 g + 0.2635 microsiemens of 25, for each device of a pair; the other holds zero."""
    found = programming_variance(torch.tensor([[2.0, -1.0], [0.0, 0.5]], dtype=torch.float64))
    by_hand = [
        (2 / 25) ** 2 * ((-1.1731 * g * g + 1.9650 * g + 0.2635) ** 2 + 0.2635**2) for g in (1.0, 0.5, 0.0, 0.25)
    ]
    assert found.flatten().tolist() == pytest.approx(by_hand, rel=1e-12)
    assert torch.equal(programming_variance(torch.zeros(2, 2)), torch.zeros(2, 2))
    assert programming_variance(torch.zeros(0, 2)).shape == (0, 2)


def test_chunks_and_single_samples_change_nothing() -> None:
    entry = BY_NAME["lenet"]
    inputs, targets = entry.data(7)
    assert isinstance(inputs, Tensor)
    whole = ms.predicted_accuracy(network(entry), (inputs, targets), sigma=0.1)
    ones = [(inputs[i : i + 1], targets[i : i + 1]) for i in range(7)]
    each = [ms.predicted_accuracy(network(entry), one, sigma=0.1).agreement for one in ones]
    assert ms.predicted_accuracy(network(entry), ones, sigma=0.1).agreement == pytest.approx(whole.agreement, rel=1e-12)
    assert sum(each) / 7 == pytest.approx(whole.agreement, rel=1e-12)
    assert ms.predicted_accuracy(network(entry), inputs, sigma=0.1).accuracy is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "expected one of them"),
        ({"sigma": 0.1, "bits": 4}, "quantizers make the noises"),
        ({"noise": "max", "sigma": 0.1, "bits": 4}, "expected one of them"),
        ({"noise": "max", "bits": 1}, "bits=1: expected a whole number from 2"),
        ({"noise": "max", "bits": 2.5}, r"bits=2\.5: expected a whole number"),
        ({"noise": "max", "bits": {"0.weight": 4}}, "there is none for '2.weight'"),
        ({"noise": "shot", "sigma": 0.1}, "noise='shot': expected one of"),
        ({"sigma": -1.0}, r"sigma=-1\.0: expected a size of noise"),
        ({"sigma": "0.1"}, "sigma='0.1': expected a size of noise"),
        ({"sigma": True}, "sigma=True: expected a size of noise"),
    ],
)
def test_what_is_refused(options: dict[str, Any], message: str) -> None:
    entry = BY_NAME["mlp"]
    with pytest.raises(ms.InputError, match=message):
        ms.predicted_accuracy(network(entry), entry.data(), **options)


@pytest.mark.parametrize(
    "sigmas",
    [0.1, [], [-0.1], [float("nan")], [float("inf")], ["large"], torch.tensor(0.1), 1j, object(), {0.1: 1}, [[1]]],
)
def test_sizes_that_are_none(sigmas: Any) -> None:
    entry = BY_NAME["mlp"]
    with pytest.raises(ms.InputError, match=r"sigmas=.*: expected sizes of noise"):
        ms.noise_robustness(network(entry), entry.data(), sigmas=sigmas)


@pytest.mark.parametrize("measured", [True, False])
def test_numbers_to_come_near_to_are_no_classes(measured: bool) -> None:
    """Accuracy is for whole numbers and truth values, and for floats that are all 0 or 1, of all batches."""

    def accuracy(targets: Tensor, loss: nn.Module | None = None, size: int = 40) -> float | None:
        torch.manual_seed(0)
        model = nn.Linear(6, 1)
        x = torch.randn(40, 6, generator=torch.Generator().manual_seed(1))
        data = list(zip(x.split(size), targets.split(size), strict=True))
        if not measured:
            return ms.predicted_accuracy(model, data, loss, sigma=1e-9).accuracy
        level = ms.noise_robustness(model, data, loss, sigmas=[0.0], trials=2).levels[0]
        assert loss is None or level.loss is not None
        return None if level.accuracy is None else level.accuracy.mean

    real, classes = torch.randn(40, 1), (torch.arange(40) % 2 == 0)[:, None]
    mixed = torch.cat([classes[:20].float(), real[20:]])
    for loss in (nn.MSELoss(), nn.HuberLoss()):
        assert accuracy(real, loss) is None
        assert accuracy(mixed, loss, 20) is None
    assert accuracy(classes.float(), nn.MSELoss()) is None
    assert accuracy(classes * 0.5, nn.BCEWithLogitsLoss()) is None
    share = accuracy(classes.float(), nn.BCEWithLogitsLoss(), 8)
    assert share is not None
    assert 0 < share < 1


@pytest.mark.parametrize("classes", [2, 3, 10, 100])
def test_of_equal_outputs_the_first_counts(classes: int) -> None:
    """In the prediction, in draws and in the margin alike."""
    model = nn.Linear(6, classes)
    for p in model.parameters():
        nn.init.zeros_(p)
    with torch.no_grad():
        model.bias[0] = -1.0  # a tie of all the others
    x = torch.randn(20, 6)
    for label in range(classes):
        data = (x, torch.full((20,), label))
        accuracy = ms.predicted_accuracy(model, data, sigma=0.0).accuracy
        (level,) = ms.noise_robustness(model, data, sigmas=[0.0], trials=2).levels
        assert level.accuracy is not None
        assert accuracy == level.accuracy.mean == float(label == 1)
    directions = Margin(0.1).directions(torch.tensor([[0.0, 3.0, 3.0, 3.0], [5.0, 1.0, 5.0, 1.0]]))
    assert directions.tolist() == [[0, 1, -1, 0], [1, 0, -1, 0]]


def test_sizes_of_the_noise_that_is_usual() -> None:
    """The device itself for phase-change memory; numbers of any kind, in any iterable."""
    entry = BY_NAME["mlp"]
    net, data = network(entry), entry.data()

    def sizes(**options: Any) -> list[float | None]:
        return [level.sigma for level in ms.noise_robustness(net, data, trials=2, **options).levels]

    assert sizes(noise="pcm") == [1.0]
    assert sizes(noise="relative") == sizes() == sizes(sigmas=None) == [0.01, 0.03, 0.1]
    given = [0.5, 0.25]
    for sigmas in (tuple(given), torch.tensor(given), np.array(given), iter(given), [np.float32(0.5), 0.25]):
        assert sizes(sigmas=sigmas) == given
