"""The whole symmetry group of transformers that somebody else wrote: nothing moves the minimum, and descent finds no
lower one."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import minsharp as ms
from minsharp.measures.full import FullMinimumSharpness
from tests.support.descent import Dense, descended

from .case import Case, _columns, logits, parted
from .transformers_models import DECODERS, ENCODERS, VISION

SIZES = {
    "Bert": (4,) * 16,
    "GPT2": (4,) * 16,
    "ViT": (4,) * 16,
    # two layers with two key heads each: a factor for each pair of channels and of each gated unit, a matrix for values
    "Llama": (1,) * (8 + 48) + (4,) * 4,
}
"""The sizes of the frames."""


def tripled(case: Case) -> Case:
    """With three batches in one: of three samples alone, the class token's gradients have too low a rank."""

    def batch() -> Any:
        parts = [case.batch() for _ in range(3)]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    return Case(case.name, case.build, batch, case.loss)


CASES = {case.name: tripled(case) for case in (*ENCODERS, *DECODERS, *VISION) if case.name in SIZES}


@cache
def measured(name: str) -> tuple[Any, ms.Network, FullMinimumSharpness]:
    """Model, network and minimum; embeddings that the output shares are held fixed by the walk itself."""
    case = CASES[name]
    model, data = case.model(), case.data()
    network = ms.read(model, data if isinstance(data, Mapping) else data[0])
    found = ms.minimum_sharpness(network, data, case.loss, scope="full", curvature="ggn")
    assert isinstance(found, FullMinimumSharpness)
    return model, network, found


def gradients(case: Case, model: Any) -> dict[str, Tensor]:
    """S^T J of all samples by plain autograd, over the root of how many terms the loss has: (1, rows, *parameter)."""
    inputs, labels = parted(case.data())
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    rows: dict[str, list[Tensor]] = {name: [] for name in parameters}
    for i in range(len(labels)):
        one = {k: v[[i]] for k, v in inputs.items()} if isinstance(inputs, dict) else inputs[[i]]
        o = logits(model, one)[0]
        for column in _columns(o.detach(), labels[i]):
            found = torch.autograd.grad(o, list(parameters.values()), column, retain_graph=True, allow_unused=True)
            for (name, p), g in zip(parameters.items(), found, strict=True):
                rows[name].append(torch.zeros_like(p) if g is None else g)
    terms = int((labels != -100).sum())
    return {name: torch.stack(found).unsqueeze(0) / terms**0.5 for name, found in rows.items()}


@pytest.mark.parametrize("name", SIZES)
def test_frames_are_found_and_the_flattest_network_is_the_same_function(name: str) -> None:
    model, network, found = measured(name)
    assert tuple(sorted(frame.size for frame in found.symmetries.frames)) == SIZES[name]
    inputs, _ = parted(CASES[name].data())
    flat = ms.rescale(model, found.scales)
    with torch.no_grad():
        before, after = logits(model, inputs), logits(flat, inputs)
    tolerance = 1e-6 if name == "Llama" else 1e-12  # its norms and rotary angles are in single precision
    assert float((after - before).abs().max()) < tolerance * float(before.abs().max())
    fresh = ms.hessian_trace(flat, CASES[name].data(), CASES[name].loss, curvature="ggn")
    assert found.attained
    assert fresh.total == pytest.approx(found.value, rel=1e-5 if name == "Llama" else 1e-8)
    layer = ms.minimum_sharpness(network, CASES[name].data(), CASES[name].loss, curvature="ggn")
    assert found.value < layer.value < found.trace * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
def test_descent_over_matrices_finds_the_same_and_nothing_below(name: str) -> None:
    model, _, found = measured(name)
    dense = Dense(found, gradients(CASES[name], model))
    least = min(descended(dense, seed) for seed in range(2))
    tolerance = 1e-5 if name == "Llama" else 1e-10
    assert found.value <= least * (1 + tolerance)
    assert least == pytest.approx(found.value, rel=max(tolerance, 1e-7))
