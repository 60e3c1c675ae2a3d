"""The stories in words and tables, with their numbers."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..text import Rows, aligned, count, decimals, number, percent
from .fooled import Fooled
from .quantized import NETWORKS, Quantized
from .transformer import Transformer

if TYPE_CHECKING:
    from ..experiments import Results


def stories(fooled: Fooled, transformer: Transformer, quantized: Quantized) -> Iterator[str]:
    """The three stories, line by line."""
    yield from _first(fooled)
    yield from _second(transformer)
    yield from _third(quantized)


def _first(fooled: Fooled) -> Iterator[str]:
    checks, neuron = fooled.checked.checks, fooled.neuron
    yield from ("", "1. A trace that rescaling fools, and a minimum that it does not.")
    yield f"   A network that reads digits, {percent(fooled.accuracy)} of the test images right, in six sets of weights"
    yield "   that compute the same outputs:"
    names = ("as trained", *(f"rescaled {i}" for i, _ in enumerate(fooled.rescaled, 1)))
    results = (fooled.layer, *fooled.rescaled)
    rows = [(name, number(r.trace, 4), number(r.value, 5)) for name, r in zip(names, results, strict=True)]
    yield from _indented([("", "trace", "minimum sharpness"), *rows], least=(12, 9, 17))
    yield f"   With a factor for every neuron the least trace is {number(neuron.value, 4)}: {neuron.status}."
    yield f"   {sum(c.holds for c in checks)} of {len(checks)} claims hold when measured afresh."


def _second(transformer: Transformer) -> Iterator[str]:
    trace, hutchinson, full = transformer.trace, transformer.hutchinson, transformer.full
    size = f"{count(transformer.weights)} weights, {count(transformer.samples)} images"
    yield from ("", "2. A transformer, measured with an error bar.")
    yield f"   One block of attention and GELU, {percent(transformer.accuracy)} right; {size}."
    yield "   The trace of its Hessian:"
    yield from _indented(
        [
            ("minsharp, tolerance=0.01", _estimate(trace.total, trace.standard_error)),
            (
                f"Hutchinson, {len(hutchinson.probes)} products with the Hessian",
                _estimate(hutchinson.value, hutchinson.standard_error),
            ),
            (f"exact, {count(transformer.weights)} double backward passes", decimals(transformer.exact)),
        ],
        least=(40, 14),
    )
    yield "   Over all transformers that compute the same, with any invertible matrix in each head, the Gauss-Newton"
    yield f"   trace goes from {number(full.trace, 4)} down to {number(full.value, 4)}: {full.status}."


def _third(quantized: Quantized) -> Iterator[str]:
    yield from ("", "3. A quantized network, made better.")
    yield f"   {NETWORKS} convolutional networks, {percent(quantized.accuracy)} right on average, and their flattest"
    yield "   equivalents for weights that are rounded to nearest with one scale per tensor. They compute the same"
    yield "   before that; mean test accuracy after it:"
    rows = [(str(bits), percent(was), percent(quantized.after[bits])) for bits, was in quantized.before.items()]
    yield from _indented([("bits", "as trained", "flattest"), *rows], text=0, least=(4, 12, 12))


def besides(labels: "Results", report: Path) -> Iterator[str]:
    """What else was measured, and where to go on."""
    yield ""
    yield f"Besides: {len(labels.rows)} networks with label noise. Kendall's tau with the generalisation gap:"
    taus = [(c.measure, decimals(c.kendall.value)) for c in labels.analysis.correlations]
    yield from _indented(taus, least=(28, 4))
    yield "   The training loss is in the list because sharpness falls with it: a tau says little unless it beats that."
    yield from ("", f"Report and figures: {report.parent}/ (open {report} in a browser)", "", "What next:")
    yield "  minsharp measure your_package.your_module:your_factory --weights weights.safetensors --data digits"
    yield "  minsharp flatten model.pt2 --data inputs.npz --out flat.safetensors"
    yield "  minsharp compare minsharp.models:digits_mlp --data digits --samples 200"
    yield "  minsharp reproduce --help"


def _indented(rows: Rows, *, text: int = 1, least: Sequence[int]) -> Iterator[str]:
    return (f"   {line}" for line in aligned(rows, text=text, least=least))


def _estimate(value: float, error: float) -> str:
    return f"{decimals(value)} ± {decimals(error)}"
