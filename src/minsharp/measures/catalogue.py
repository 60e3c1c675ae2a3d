"""The built-in measures, registered by name in the order in which tables show them."""

from collections.abc import Sequence
from math import inf
from typing import Any

from torch import nn

from ..errors import InputError
from ..network.network import Network
from ..results.curvature import Diagonal, Trace
from ..results.gram import Grams
from .corruption import parameter_corruption
from .eigenvalue import largest_eigenvalue
from .fisher_rao import fisher_rao_norm
from .geodesic import geodesic_sharpness
from .keskar import keskar_sharpness
from .margin import margin_sensitivity
from .minimum import minimum_sharpness
from .normalized import normalized_sharpness
from .normalized_logits import normalized_logits_sharpness
from .pacgen import pacgen
from .rangamani import rangamani_flatness
from .registry import MEASURES, Measure, measure
from .relative import relative_minimum_sharpness, relative_sensitivity
from .relative_flatness import relative_flatness
from .sam import asam_sharpness, sam_sharpness
from .score import Score
from .training_loss import training_loss

Model = nn.Module | Network

measure("training loss", invariance="neuron", needs_labels=True, reads=True)(training_loss)


@measure("trace", uses="trace", reads=True)
def _trace(model: Model, data: Any, loss: Any, trace: Trace) -> Score:
    return Score("trace", trace.total, trace.standard_error or None)


@measure("minimum sharpness", invariance="layer", uses="trace", reads=True)
def _minimum(model: Model, data: Any, loss: Any, trace: Trace) -> Any:
    return minimum_sharpness(model, trace)


@measure("minimum sharpness (neuron)", invariance="neuron", uses="diagonal", reads=True)
def _minimum_per_neuron(model: Model, data: Any, loss: Any, diagonal: Diagonal) -> Any:
    return minimum_sharpness(model, diagonal, scope="neuron")


@measure("minimum sharpness (full)", invariance="full", uses="grams", reads=True)
def _minimum_over_frames(model: Model, data: Any, loss: Any, grams: Grams) -> Any:
    return minimum_sharpness(model, grams, scope="full")


@measure("relative minimum sharpness", invariance="layer", uses="jacobian", reads=True)
def _relative_minimum(model: Model, data: Any, loss: Any, jacobian: Diagonal) -> Any:
    return relative_minimum_sharpness(model, jacobian)


@measure("relative minimum sharpness (neuron)", invariance="neuron", uses="jacobian", reads=True)
def _relative_minimum_per_neuron(model: Model, data: Any, loss: Any, jacobian: Diagonal) -> Any:
    return relative_minimum_sharpness(model, jacobian, scope="neuron")


@measure("relative minimum sharpness (full)", invariance="full", uses="jacobian_grams", reads=True)
def _relative_minimum_over_frames(model: Model, data: Any, loss: Any, jacobian_grams: Grams) -> Any:
    return relative_minimum_sharpness(model, jacobian_grams, scope="full")


@measure("relative sensitivity", invariance="layer", uses="jacobian", reads=True)
def _relative_sensitivity(model: Model, data: Any, loss: Any, jacobian: Diagonal) -> Any:
    return relative_sensitivity(model, jacobian)


@measure("relative sensitivity (element)", invariance="neuron", uses="jacobian", reads=True)
def _relative_sensitivity_per_element(model: Model, data: Any, loss: Any, jacobian: Diagonal) -> Any:
    return relative_sensitivity(model, jacobian, scope="element")


@measure("margin sensitivity", invariance="layer", uses="margin", reads=True)
def _margin_sensitivity(model: Model, data: Any, loss: Any, margin: Diagonal) -> Any:
    return margin_sensitivity(model, margin)


@measure("margin sensitivity (element)", invariance="neuron", uses="margin", reads=True)
def _margin_sensitivity_per_element(model: Model, data: Any, loss: Any, margin: Diagonal) -> Any:
    return margin_sensitivity(model, margin, scope="element")


@measure("minimum margin sensitivity", invariance="layer", uses="margin", reads=True)
def _minimum_margin(model: Model, data: Any, loss: Any, margin: Diagonal) -> Any:
    return minimum_sharpness(model, margin)


@measure("minimum margin sensitivity (neuron)", invariance="neuron", uses="margin", reads=True)
def _minimum_margin_per_neuron(model: Model, data: Any, loss: Any, margin: Diagonal) -> Any:
    return minimum_sharpness(model, margin, scope="neuron")


@measure("normalized sharpness", invariance="neuron", uses="diagonal", reads=True)
def _normalized(model: Model, data: Any, loss: Any, diagonal: Diagonal) -> Any:
    return normalized_sharpness(model, diagonal)


@measure("normalized sharpness (icml)", invariance="neuron", uses="diagonal", reads=True)
def _normalized_icml(model: Model, data: Any, loss: Any, diagonal: Diagonal) -> Any:
    return normalized_sharpness(model, diagonal, objective="icml")


measure("Fisher-Rao norm", invariance="neuron", reads=True)(fisher_rao_norm)
measure("Rangamani flatness", invariance="layer", needs_labels=True, reads=True)(rangamani_flatness)
measure("largest eigenvalue", needs_labels=True, reads=True)(largest_eigenvalue)
measure("Keskar sharpness", needs_labels=True, reads=True)(keskar_sharpness)
measure("SAM", needs_labels=True, reads=True)(sam_sharpness)
measure("ASAM", invariance="neuron", needs_labels=True, reads=True)(asam_sharpness)


@measure("SAM (average)", needs_labels=True, reads=True)
def _average_sam(model: Model, data: Any, loss: Any) -> Score:
    return sam_sharpness(model, data, loss, average=True)


@measure("ASAM (average)", invariance="neuron", needs_labels=True, reads=True)
def _average_asam(model: Model, data: Any, loss: Any) -> Score:
    return asam_sharpness(model, data, loss, average=True)


measure("ASAM (normalized logits)", invariance="neuron", needs_labels=True, reads=True)(normalized_logits_sharpness)
measure("geodesic sharpness", invariance="full", needs_labels=True, reads=True)(geodesic_sharpness)


@measure("parameter corruption", needs_labels=True, reads=True)
def _corruption(model: Model, data: Any, loss: Any) -> Score:
    return parameter_corruption(model, data, loss, epsilon=0.001, p=inf)  # with p = 2 it would be SAM again


@measure("pacGen", uses="diagonal", reads=True)
def _pacgen(model: Model, data: Any, loss: Any, diagonal: Diagonal) -> Score:
    return pacgen(model, data, loss, diagonal=diagonal)


measure("relative flatness", invariance="layer", reads=True)(relative_flatness)


def chosen(names: Sequence[str] | None) -> list[Measure]:
    """The measures of these names; all of them if none are given."""
    if names is None:
        return list(MEASURES.values())
    if isinstance(names, str):
        names = [names]
    unknown = [name for name in names if name not in MEASURES]
    if unknown or not names:
        trouble = f"unknown {unknown}" if unknown else "there is nothing to measure"
        raise InputError(f"measures={list(names)!r}: {trouble}. Known are {', '.join(map(repr, MEASURES))}")
    return [MEASURES[name] for name in dict.fromkeys(names)]
