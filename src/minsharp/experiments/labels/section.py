"""The runs on the page of results: their names, their commands, and how their networks ended."""

from collections.abc import Iterator

from ..commands import seeds_option, unless_default
from ..experiment import Results
from ..tables import marked
from .networks import MEASURES, PRESETS, RATIOS

INTRODUCTION = """\
The labels of a fraction of the training set are permuted among themselves; the gap is the accuracy on the training set
minus that on the test set. Tau is Kendall's tau-b with the gap; the partial tau is what is left of it given the
training loss, (t_xy - t_xz t_yz) / sqrt((1 - t_xz²)(1 - t_yz²)); in square brackets, 95 % bootstrap intervals over the
networks. With fixed epochs (the paper's protocol) networks end at different training losses; with equal loss every
network is stopped at the same one, so that the loss cannot rank them: what its column shows there is the rounding of
the stop, and the partial tau says no more than tau."""


def setting(results: Results) -> str:
    """Preset and protocol, in words."""
    protocol = "equal loss" if results.rows[0]["protocol"] == "loss" else "fixed epochs"
    return f"{marked(results.rows[0]['preset'])}, {protocol}"


def words(results: Results) -> Iterator[str]:
    """How many networks fitted their labels, and how many are compared."""
    rows, fitted = results.rows, sum(row["train accuracy"] > 0.99 for row in results.rows)
    text = f"{len(rows)} networks, {fitted} of them with more than 99 % of their training labels right."
    if rows[0]["protocol"] == "loss":
        targets = {recipe["target"] for recipe in (results.settings or {})["recipes"].values()}
        goal = " and ".join(f"{t:g}" for t in sorted(targets))
        text += f" {len(results.analysis.compared)} reached the training loss {goal} and are compared."
    yield text


def command(results: Results) -> str:
    """The command that makes these results."""
    return " ".join(["minsharp reproduce labels", *_options(results)])


def _options(results: Results) -> Iterator[str]:
    settings = results.settings or {}
    preset = PRESETS[settings["preset"]]
    yield f"--preset {settings['preset']} --protocol {settings['protocol']}"
    yield from unless_default(results.models, list(preset.recipes), "--models")
    yield from unless_default(sorted({row["ratio"] for row in results.rows}), RATIOS, "--ratios")
    yield from seeds_option(results.seeds, preset.seeds)
    yield from unless_default(settings["measures"], MEASURES, "--measures")
    yield from unless_default([settings["train"]], [preset.train], "--train")
    epochs = {recipe["epochs"] for recipe in settings["recipes"].values()}
    yield from unless_default(sorted(epochs), sorted({r.epochs for r in preset.recipes.values()}), "--epochs")
    yield from unless_default([settings["device"]], ["cpu"], "--device")
