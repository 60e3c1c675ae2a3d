"""The networks by what they drew, and the measures: for the terminal and the page."""

from statistics import fmean

from ...text import magnitude, number, rounded
from ..experiment import Results
from ..tables import Table
from .networks import HYPERPARAMETERS


def tables(results: Results) -> list[Table]:
    """Mean gaps by hyperparameter, and every measure's drift and correlations."""
    return [_hyperparameters(results), _measures(results)]


def _hyperparameters(results: Results) -> Table:
    lines = []
    for name in HYPERPARAMETERS:
        for value in sorted({row[name] for row in results.analysis.compared}):
            own = [row for row in results.analysis.compared if row[name] == value]
            means = [fmean(float(row[column]) for row in own) for column in ("test accuracy", "gap", "test loss")]
            lines.append((name, number(value), str(len(own)), *(rounded(mean) for mean in means)))
    head = ("drawn", "value", "networks", "test accuracy", "gap", "test loss")
    return Table("Means over the networks that drew a value", head, tuple(lines))


def _measures(results: Results) -> Table:
    lines = [
        (
            s.measure,
            magnitude(s.drift) if s.drift == s.drift else "-",
            str(s.gap.kendall),
            str(s.gap.partial),
            str(s.given_size.partial),
            str(s.test_loss.kendall),
        )
        for s in results.analysis.standings
    ]
    head = ("measure", "drift", "tau with the gap", "given the loss", "given the size", "tau with the test loss")
    title = (
        f"Every measure over {len(results.analysis.compared)} networks: drift under the whole group, and correlation"
    )
    return Table(title, head, tuple(lines))
