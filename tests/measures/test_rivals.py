"""What rescaling does to each rival measure, and what every one of them has to do."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import minsharp as ms
from minsharp.measures.corruption import parameter_corruption
from minsharp.measures.eigenvalue import largest_eigenvalue
from minsharp.measures.fisher_rao import fisher_rao_norm
from minsharp.measures.geodesic import geodesic_sharpness
from minsharp.measures.keskar import keskar_sharpness
from minsharp.measures.normalized_logits import normalized_logits_sharpness
from minsharp.measures.pacgen import pacgen
from minsharp.measures.rangamani import rangamani_flatness
from minsharp.measures.relative_flatness import relative_flatness
from minsharp.measures.sam import asam_sharpness, sam_sharpness
from minsharp.measures.score import Score
from minsharp.measures.training_loss import training_loss
from tests.support.dense import CE, small
from tests.support.zoo import BY_NAME

Measure = Callable[..., Score]

# What rescaling does

INVARIANT: dict[str, Callable[[Any, Any], Score]] = {
    "training loss": training_loss,
    "fisher-rao": fisher_rao_norm,
    "rangamani": lambda m, d: rangamani_flatness(m, d, iterations=1000, tolerance=1e-11),
    "asam": asam_sharpness,
    "asam, 5 steps": lambda m, d: asam_sharpness(m, d, steps=5),
    "asam, average": lambda m, d: asam_sharpness(m, d, average=True),
    "normalized logits": normalized_logits_sharpness,
    "normalized logits, average": lambda m, d: normalized_logits_sharpness(m, d, average=True),
    "geodesic": geodesic_sharpness,
    "geodesic, straight": lambda m, d: geodesic_sharpness(m, d, order=1),
    "relative flatness": relative_flatness,
}
MOVED: dict[str, Callable[[Any, Any], Score]] = {
    "eigenvalue": largest_eigenvalue,
    "keskar": keskar_sharpness,
    "sam": sam_sharpness,
    "sam, 5 steps": lambda m, d: sam_sharpness(m, d, steps=5),
    "sam, average": lambda m, d: sam_sharpness(m, d, average=True),
    "corruption": parameter_corruption,
}


def _changes(measure: Callable[[Any, Any], Score], name: str) -> list[float]:
    """The relative change of a measure under three random rescalings."""
    entry = BY_NAME[name]
    model, data = entry.model(), entry.data()
    symmetries = ms.symmetries(model, data[0])
    assert symmetries.dimension
    before = measure(model, data).value
    rescaled = [ms.rescale(model, symmetries.random(seed, spread=10)) for seed in range(3)]
    return [abs(measure(other, data).value - before) / abs(before) for other in rescaled]


@pytest.mark.parametrize("name", ["mlp", "residual", "pools"])
@pytest.mark.parametrize("measure", INVARIANT)
def test_no_rescaling_changes_it(measure: str, name: str) -> None:
    assert max(_changes(INVARIANT[measure], name)) < 1e-8


@pytest.mark.parametrize("measure", MOVED)
def test_rescaling_changes_it(measure: str) -> None:
    assert max(_changes(MOVED[measure], "mlp")) > 0.5


def test_neuron_rescaling_leaves_asam_and_fisher_rao() -> None:
    model, data = small()
    scales = ms.symmetries(model, data[0], scope="neuron").random(0, spread=10)
    other = ms.rescale(model, scales)
    for measure in (asam_sharpness, fisher_rao_norm):
        assert measure(other, data).value == pytest.approx(measure(model, data).value, rel=1e-8)


# What every one of them has to do

ALL: dict[str, Measure] = {
    "training_loss": training_loss,
    "largest_eigenvalue": largest_eigenvalue,
    "keskar_sharpness": keskar_sharpness,
    "sam_sharpness": sam_sharpness,
    "asam_sharpness": asam_sharpness,
    "normalized_logits_sharpness": normalized_logits_sharpness,
    "geodesic_sharpness": geodesic_sharpness,
    "parameter_corruption": parameter_corruption,
    "fisher_rao_norm": fisher_rao_norm,
    "rangamani_flatness": rangamani_flatness,
    "pacgen": pacgen,
    "relative_flatness": relative_flatness,
}
LABEL_FREE = {"fisher_rao_norm", "pacgen", "relative_flatness"}


@pytest.mark.parametrize("name", ALL)
def test_the_model_comes_back_as_it_was(name: str) -> None:
    model, data = small()
    model = nn.Sequential(*model, nn.Dropout(0.5)).double().train()
    model[2].eval()
    model[0].weight.requires_grad_(False)
    nn.Module.zero_grad(model)
    CE(model(data[0]), data[1]).backward()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    state = torch.get_rng_state()
    score = ALL[name](model, data)
    assert score.measure == name
    assert torch.equal(torch.get_rng_state(), state)
    assert [m.training for m in model.modules()] == [True, True, True, False, True]
    assert [p.requires_grad for p in model.parameters()] == [False, True, True, True]
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    for p, g in zip(model.parameters(), gradients, strict=True):
        assert (p.grad is None) == (g is None)
        assert g is None or torch.equal(p.grad, g)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ALL)
def test_single_precision_network_and_batches(name: str) -> None:
    """float32 agrees with float64, a network that was read with its module, batches with the whole."""
    model, (x, y) = small()
    expected = ALL[name](model, (x, y)).value
    assert ALL[name](ms.read(model, x), [(x[:4], y[:4]), (x[4:], y[4:])]).value == pytest.approx(expected, rel=1e-3)
    single = ALL[name](model.float(), (x.float(), y))
    assert single.value == pytest.approx(expected, rel=5e-3)
    assert isinstance(single.value, float)
    assert single.to_dict()["measure"] == name


@pytest.mark.parametrize("name", ALL)
def test_labels_where_they_are_needed(name: str) -> None:
    model, (x, _) = small()
    if name in LABEL_FREE:
        assert ALL[name](model, x).value > 0 or name == "pacgen"
    else:
        with pytest.raises(ms.LossError, match=r"needs targets: pass data=\(inputs, targets\)"):
            ALL[name](model, x)


@pytest.mark.parametrize("name", ALL)
def test_bad_data_and_models(name: str) -> None:
    model, (x, y) = small()
    with pytest.raises(ms.InputError, match=r"expected a torch\.nn\.Module"):
        ALL[name](x, (x, y))
    with pytest.raises(ms.InputError, match=r"Sequential does not run on a tensor of shape \(9, 2\)"):
        ALL[name](model, (x[:, :2], y))
    with pytest.raises(ms.InputError, match="the data is empty"):
        ALL[name](model, [])
    with pytest.raises(ms.LossError, match="weighs nothing"):
        ALL[name](model, (x, torch.full_like(y, -100)))
    broken, _ = small()
    next(broken.parameters()).data[0, 0] = float("nan")
    with pytest.raises(ms.NonFiniteError, match=r"not finite|holds 1 NaN"):
        ALL[name](broken, (x, y))


@pytest.mark.parametrize(
    ("measure", "options", "text"),
    [
        (largest_eigenvalue, {"iterations": 0}, "iterations=0: expected at least 1"),
        (largest_eigenvalue, {"tolerance": 0.0}, r"tolerance=0\.0: expected a positive number"),
        (rangamani_flatness, {"tolerance": float("nan")}, "tolerance=nan: expected a positive number"),
        (keskar_sharpness, {"epsilon": -1.0}, r"epsilon=-1\.0: expected a positive number"),
        (keskar_sharpness, {"iterations": 0}, "iterations=0: expected at least 1"),
        (sam_sharpness, {"rho": 0.0}, r"rho=0\.0: expected a positive radius"),
        (sam_sharpness, {"steps": 0}, "steps=0: expected at least 1"),
        (asam_sharpness, {"samples": 1}, "samples=1: expected at least 2"),
        (geodesic_sharpness, {"rho": 0.0}, r"rho=0\.0: expected a positive length"),
        (geodesic_sharpness, {"order": 3}, "order=3: expected 1, a straight line, or 2"),
        (parameter_corruption, {"epsilon": 0.0}, r"epsilon=0\.0: expected a positive size"),
        (parameter_corruption, {"p": 0.5}, r"p=0\.5: expected the order of a norm"),
        (parameter_corruption, {"k": 0}, "k=0: expected between 1 and 31"),
        (parameter_corruption, {"k": 32}, "k=32: expected between 1 and 31"),
        (pacgen, {"epsilon": 0.0}, r"epsilon=0\.0, rho=1\.0: expected gamma and rho not negative and epsilon positive"),
        (fisher_rao_norm, {"parameters": "head.*"}, r"nothing matches \['head\.\*'\]"),
    ],
)
def test_bad_options(measure: Measure, options: dict[str, Any], text: str) -> None:
    model, data = small()
    with pytest.raises(ms.InputError, match=text):
        measure(model, data, **options)
