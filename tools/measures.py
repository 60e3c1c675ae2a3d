"""Write the table of docs/measures.md: what the registry knows of every measure, and in words what is said here.

`python -m tools.measures` writes it; `tests/docs/test_pages.py` fails where the page is no longer what this makes.
"""

from pathlib import Path
from typing import NamedTuple

from minsharp.measures.catalogue import chosen
from minsharp.measures.registry import Measure
from minsharp.text import markdown_table

PAGE = Path(__file__).parents[1] / "docs" / "measures.md"
START, END = "<!-- made by tools/measures.py -->", "<!-- end -->"


class Words(NamedTuple):
    """What the registry does not say of a measure."""

    formula: str
    when: str
    cost: str = ""
    """Where no shared curvature says it."""


WORDS = {
    "training loss": Words("mean of the criterion", "always: what does not beat it says nothing", "one forward pass"),
    "trace": Words("`Tr[H] = sum_P Tr[H_P]`", "noise of one absolute size on this very network"),
    "minimum sharpness": Words("`min_z sum_P Tr[H_P] exp(-2 (A z)_P)`", "networks compared at equal training loss"),
    "minimum sharpness (neuron)": Words("`min_z sum_e h_e exp(-2 (A z)_e)`", "the same, where channels may differ"),
    "minimum sharpness (full)": Words("least trace over factors and the matrices of heads", "the same, for attention"),
    "relative minimum sharpness": Words(
        "`min_z sum_P E‖dc/dP‖² exp(-2 (A z)_P) / E‖c‖²`", "networks that have interpolated their data"
    ),
    "relative minimum sharpness (neuron)": Words("the same, a factor per channel", "the same, per channel"),
    "relative minimum sharpness (full)": Words("the same, with the matrices of heads", "the same, for attention"),
    "relative sensitivity": Words("`sum_P ‖P‖²/N_P E‖dc/dP‖² / E‖c‖²`", "the generalisation gap under label noise"),
    "relative sensitivity (element)": Words("`sum_i t_i² E‖dc/dt_i‖² / E‖c‖²`", "the same, per channel"),
    "margin sensitivity": Words("`sum_P ‖P‖²/N_P E‖dm/dP‖²/m²`", "predictions that flip, without labels"),
    "margin sensitivity (element)": Words("`sum_i t_i² E(dm/dt_i)²/m²`", "the same, per channel"),
    "minimum margin sensitivity": Words("`min_z sum_P E‖dm/dP‖²/m² exp(-2 (A z)_P)`", "the same, at its least"),
    "minimum margin sensitivity (neuron)": Words("the same, a factor per channel", "the same, per channel"),
    "normalized sharpness": Words(
        "`sum_d min_{s1,s2} <s2, H s1> + <1/s2, W² (1/s1)>`", "Tsuzuku, Sato, Sugiyama (arXiv 1901.04653)"
    ),
    "normalized sharpness (icml)": Words(
        "`sum_d min_s1 sqrt(sum_i (H s1)_i (W² (1/s1))_i)`", "Tsuzuku, Sato, Sugiyama (ICML 2020)"
    ),
    "Fisher-Rao norm": Words(
        "`1/n sum_i (J_i t)ᵀ S_i S_iᵀ (J_i t)`", "Liang et al. (2019): a norm of the function", "one forward-mode pass"
    ),
    "Rangamani flatness": Words(
        "largest eigenvalue of the Hessian on the quotient", "Rangamani et al. (2019)", "products with the Hessian"
    ),
    "largest eigenvalue": Words(
        "`lambda_max(H)`", "how large a step of gradient descent may be", "products with the Hessian, by Lanczos"
    ),
    "Keskar sharpness": Words(
        "`100 max_y (L(t + y) - L(t)) / (1 + L(t))` in a box", "Keskar et al. (2017)", "tens of gradients"
    ),
    "SAM": Words("`max L(t + e) - L(t)` over `‖e‖ <= rho`", "training with SAM", "a gradient and a forward pass"),
    "ASAM": Words("the same, over `‖e/t‖ <= rho`", "training with ASAM", "a gradient and a forward pass"),
    "SAM (average)": Words("`E L(t + e) - L(t)`, Gaussian e", "noise beyond second order", "a forward pass per draw"),
    "ASAM (average)": Words("the same, e as large as each weight", "the same, relative", "a forward pass per draw"),
    "ASAM (normalized logits)": Words(
        "ASAM of `o / std(o)`", "networks whose logits differ in size", "twenty gradients, one per step"
    ),
    "geodesic sharpness": Words(
        "`L(w + x + a/2) - L(w)` along the steepest geodesic",
        "da Silva et al. (2025): attention",
        "a gradient and a forward pass",
    ),
    "parameter corruption": Words(
        "`L(t + a) - L(t)`, `a = epsilon sign(g)`", "Sun et al. (2020)", "a gradient and a forward pass"
    ),
    "pacGen": Words("`sum_i log((abs(t_i) + k_i) max(sqrt(H_ii + rho sqrt(m) k_i), 1/k_i))`", "Wang et al. (2018)"),
    "relative flatness": Words(
        "`sum_{s,r} <w_s, w_r> Tr[H_sr]` of the last layer", "Petzka et al. (2021)", "one trace, of one layer"
    ),
}

COSTS = {
    "trace": "K - 1 backward passes",
    "diagonal": "K - 1 backward passes, a contraction per entry",
    "jacobian": "K - 1 backward passes",
    "margin": "one backward pass",
    "grams": "K - 1 backward passes, a matrix per frame",
    "jacobian_grams": "K - 1 backward passes, a matrix per frame",
}
"""By the curvature that a measure shares with others: it is measured once for all of them."""

INVARIANT = {
    "none": "nothing",
    "layer": "a factor per tensor",
    "neuron": "a factor per channel",
    "full": "factors and matrices in heads",
}


def row(measure: Measure) -> tuple[str, ...]:
    """One measure: name, formula, what cannot change it, cost, labels, what it is for."""
    words = WORDS[measure.name]
    cost, labels = words.cost or COSTS[measure.uses or "trace"], "yes" if measure.needs_labels else "no"
    return (measure.name, words.formula, INVARIANT[measure.invariance], cost, labels, words.when)


def table() -> str:
    """Every registered measure, in the order of `compare`."""
    head = ("measure", "formula", "unchanged by", "cost", "labels", "for")
    return markdown_table(head, [row(measure) for measure in chosen(None)], text=6)


def page(text: str) -> str:
    """The page with the table as it has to be."""
    before, _, rest = text.partition(START)
    return f"{before}{START}\n\n{table()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
