"""What the paper and its archive report, to stand beside what we measure."""

SECONDS = {
    ("SmallMLP", "baseline"): {10: 11.11, 100: 11.05, 1000: 12.23},
    ("SmallMLP", "proposal"): {10: 0.018, 100: 0.019, 1000: 0.021},
    ("SmallCNN", "baseline"): {10: 10.19, 100: 10.73, 1000: 21.22},
    ("SmallCNN", "proposal"): {10: 0.026, 100: 0.036, 1000: 0.334},
}
"""Mean seconds on one GPU."""


def speed_up(model: str, samples: int) -> float | None:
    """How many times faster than the baseline the paper's method was."""
    slow, fast = SECONDS.get((model, "baseline"), {}), SECONDS.get((model, "proposal"), {})
    return slow[samples] / fast[samples] if samples in slow else None


CORRELATIONS = {
    ("MLP", "minimum sharpness"): {"pearson": 0.913, "spearman": 0.958, "kendall": 0.864, "partial": 0.08},
    ("MLP", "normalized sharpness"): {"pearson": 0.967, "spearman": 0.995, "kendall": 0.942, "partial": 0.70},
    ("MLP", "training loss"): {"kendall": 0.892},
    ("LeNet", "minimum sharpness"): {"pearson": 0.739, "spearman": 0.855, "kendall": 0.678, "partial": 0.41},
    ("LeNet", "normalized sharpness"): {"pearson": 0.858, "spearman": 0.883, "kendall": 0.723, "partial": 0.52},
    ("LeNet", "training loss"): {"kendall": 0.590},
}
"""Over the archived runs; the partial ones and those of the training loss over the runs that fitted their data."""

SIBLINGS = {"CNN": "LeNet"}
"""Whose published numbers stand beside a network that the paper does not have."""

MEANS = {
    "MLP": {"minimum sharpness": {0.0: 2.3, 0.5: 61.0, 1.0: 98.0}, "gap": {0.0: 0.017, 0.5: 0.41, 1.0: 0.90}},
    "LeNet": {"minimum sharpness": {0.0: 5.8, 0.5: 82.0, 1.0: 92.0}, "gap": {0.0: 0.010, 0.5: 0.42, 1.0: 0.90}},
}


def correlation(model: str, measure: str, statistic: str) -> float | None:
    """The published correlation of a measure with the gap, if there is one."""
    return CORRELATIONS.get((SIBLINGS.get(model, model), measure), {}).get(statistic)
