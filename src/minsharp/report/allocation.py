"""The section on bits: what each tensor gets, and what that is predicted to cost."""

from collections.abc import Mapping
from typing import Any

from ..experiments import Table
from ..measures.bits import BitAllocation
from ..measures.prices import Costs
from ..text import count
from .charts import lengths, number
from .sections import SHOWN, Tile, largest

MADE_OF: Mapping[Costs, str] = {
    "curvature": "of second order, in step² / 12",
    "measured": "each tensor rounded alone",
    "both": "of second order, and each tensor rounded alone",
}


def allocation(result: BitAllocation) -> dict[str, Any]:
    """The totals in large print, a bar for each tensor, and one number of bits throughout for comparison."""
    weights = sum(result.sizes.values())
    rows = [(n, result.mean_of(n), f"{result.shown(n)} bits of {count(result.sizes[n])}") for n in result.bits]
    cells = [(n, result.shown(n), count(result.sizes[n]), number(result.by_parameter[n])) for n in result.bits]
    total = ("total", number(result.mean_bits, 4), count(weights), number(result.increase))
    uniform = [(bits, count(-(-int(bits) * weights // 8)), number(value)) for bits, value in result.uniform.items()]
    mine = (f"{number(result.mean_bits, 4)} in the mean", count(result.size), number(result.increase))
    return {
        "tiles": [
            Tile("Bits per weight", number(result.mean_bits, 4), f"of at most {number(result.budget, 4)}"),
            Tile("Bytes", count(result.size), f"for {count(weights)} weights"),
            Tile(f"Predicted {result.predicted}", number(result.increase, 3), MADE_OF[result.costs]),
        ],
        "chart": lengths("Bits of each tensor", largest(rows, lambda row: row[1] * result.sizes[row[0]])),
        "shown": min(SHOWN, len(rows)),
        "count": len(rows),
        "table": Table("Bits of each tensor", ("parameter", "bits", "weights", "increase"), (*cells, total)),
        "warning": result.warning,
        "uniform": Table("Beside one number of bits throughout", ("bits", "bytes", "increase"), (mine, *uniform)),
    }
