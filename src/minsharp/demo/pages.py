"""The files of the demo: a report, a picture, figures and a table."""

from pathlib import Path

from ..experiments import Results
from ..experiments.store import write_csv
from ..report import write_report
from ..report.figures import draw
from ..report.overview import Estimates, draw_overview
from .fooled import Fooled
from .quantized import Quantized
from .transformer import Transformer

SHOWN = ("minimum sharpness", "relative sensitivity")


def write(folder: Path, fooled: Fooled, transformer: Transformer, quantized: Quantized, labels: Results) -> Path:
    """All of them into a folder; the path of the report."""
    write_csv(folder / "label-noise.csv", labels.rows)
    draw(labels, folder)
    overview(fooled, transformer, quantized, folder / "overview.png")
    plots = [plot for plot in labels.experiment.plots(labels) if plot.x_label in SHOWN]
    return write_report(
        folder / "report.html",
        title="How sharp is a network that reads digits?",
        minimum=[fooled.layer, fooled.neuron],
        comparison=fooled.comparison,
        verification=fooled.checked,
        robustness=fooled.noisy,
        experiments=plots,
        settings={
            "network": "64-128-32-128-10, ReLU",
            "data": "1,000 handwritten digits for training, 797 for testing",
            "training": "SGD with batches of 16 to a loss of 0.01",
            "noise": "20 trials per size, on the test images",
            "other measures": "on 200 training images",
        },
    )


def overview(fooled: Fooled, transformer: Transformer, quantized: Quantized, path: Path) -> Path:
    """The three stories in one picture."""
    trace, hutchinson = transformer.trace, transformer.hutchinson
    estimates = Estimates(
        {
            f"Hutchinson,\n{len(hutchinson.probes)} products": (hutchinson.value, hutchinson.standard_error),
            "minsharp,\ntolerance=0.01": (trace.total, trace.standard_error),
        },
        transformer.exact,
    )
    rounded = {"as trained": quantized.before, "flattest": quantized.after}
    return draw_overview([fooled.layer, *fooled.rescaled], estimates, rounded, path)
