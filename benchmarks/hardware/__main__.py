"""Real networks on noisy hardware: certificates, rounding, predictions, bit assignments, pruning.

    python -m benchmarks.hardware --resnet20 resnet20.safetensors --resnet56 resnet56.safetensors \
        --train train.npz --test test.npz

prints all tables, and writes them to docs/hardware-results.md. What has been measured is in
benchmarks/hardware-results, one small file for each cell; only what is missing there is measured, so that the same
command goes on where it stopped, and without files it writes the page anew.

The weights are those of akamaster/pytorch_resnet_cifar10 (resnet20-12fca82f.th and resnet56-4bfd9763.th, their
state_dict saved as safetensors without "module."), the data CIFAR-10 as npz files with x, uint8 (n, 3, 32, 32), and y:
the first 5,000 training images, and the test set.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console

from benchmarks.report import Table
from minsharp.files import write_text

from . import assignments, certificates, predictions, pruning, rounding, summary
from .bench import Bench

PAGE = Path("docs/hardware-results.md")
RESULTS = Path("benchmarks/hardware-results")
INTRODUCTION = """# Noisy hardware, measured

This page is written by `python -m benchmarks.hardware`; none of its numbers is typed by hand. What they mean, and what
to do with them, is said in [Networks for noisy hardware](hardware.md).

ResNet-20 and ResNet-56 are the public networks of
[akamaster/pytorch_resnet_cifar10](https://github.com/akamaster/pytorch_resnet_cifar10) for
[CIFAR-10](https://www.cs.toronto.edu/~kriz/cifar.html); the depthwise network is trained by the benchmark on 4,000
images of CIFAR-10, the two small ones on the digits of scikit-learn. BatchNorm is folded everywhere, and biases are
exact under noise that grows with the largest weight. `±` is one standard error: of a share of the test images, or where
it says so over draws. *Cross-layer* equalisation makes the largest weights on both sides of every pair of layers equal
(Nagel et al., ICCV 2019), *equal norms* their norms (Stock et al., ICLR 2019); both are written by hand for these
networks. *Flattest* is `minsharp.flattest` for noise of one absolute size, *matched* the same for the noise that
rounding makes, on the diagonal of the Hessian or of the margin."""
PARTS: dict[str, Callable[[Bench], Iterator[Table]]] = {
    "rounding": rounding.tables,
    "predicted": predictions.tables,
    "assignments": assignments.tables,
    "pruning": pruning.tables,
    "certificates": certificates.tables,
}
LATER = 3  # exit code: the same command goes on


def options() -> argparse.Namespace:
    """What the command is told."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.hardware", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("resnet20", "resnet56", "train", "test"):
        parser.add_argument(f"--{name}", type=Path, help="needed only for what is not measured yet")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the cells are")
    parser.add_argument("--cache", type=Path, default=Path("results/hardware"), help="where curvature is kept")
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--samples", type=int, default=10_000, help="the first images of the test set")
    parser.add_argument("--samples-resnet56", type=int, default=10_000, help="likewise, of the one that takes longest")
    parser.add_argument("--samples-bits", type=int, default=10_000, help="likewise, for allocated bits")
    parser.add_argument("--networks", nargs="+", default=list(rounding.NETWORKS), choices=rounding.NETWORKS)
    parser.add_argument("--calibration", type=int, default=1000, help="training images that curvature is measured on")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no new cell after that")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS), help="the page needs all")
    return parser.parse_args()


def main() -> int:
    """Measure what is missing, print, write."""
    given = options()
    bench, console = Bench(given), Console(width=150)
    found = [table for part in given.parts for table in tables(bench, part)]
    for table in found:
        console.print(table.rich())
    if set(given.parts) == set(PARTS):
        write(bench, given.page, found)
        console.print(f"Written to {given.page}.")
    if bench.missing:
        console.print(f"For later, by the same command: {', '.join(dict.fromkeys(bench.missing))}.", markup=False)
    return LATER if bench.missing else 0


def tables(bench: Bench, part: str) -> list[Table]:
    """Those of a part; none where it is not whole."""
    return next(iter(bench.whole(part, lambda: list(PARTS[part](bench)))), [])


def write(bench: Bench, page: Path, found: list[Table]) -> None:
    """The page of all tables, its figure, and the summary on the page on hardware."""
    bench.whole("the figure", lambda: predictions.draw(bench, page.parent))
    summary.write(bench, page.with_name("hardware.md"))
    later = f"Not measured yet: {', '.join(dict.fromkeys(bench.missing))}." if bench.missing else ""
    parts = [INTRODUCTION, later, *(table.markdown() for table in found)]
    write_text(page, "\n\n".join(part for part in parts if part) + "\n")


if __name__ == "__main__":
    sys.exit(main())
