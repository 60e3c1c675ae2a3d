"""Tables of text: aligned for a terminal, or in Markdown."""

from collections.abc import Sequence
from html import escape

from .names import printable

Rows = Sequence[Sequence[str]]


def aligned(rows: Rows, *, text: int = 1, least: Sequence[int] = ()) -> list[str]:
    """A line for each row: the first ``text`` columns start, the others end, below each other.

    ``least`` holds widths that columns have at least.

    >>> aligned([("layer", "value"), ("0.weight", "12")])
    ['layer     value', '0.weight     12']
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    widths = [max(pair) for pair in zip(widths, [*least, *[0] * (len(widths) - len(least))], strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i < text else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def plain_table(
    head: Sequence[str], rows: Rows, *, total: Sequence[str] | None = None, text: int = 1, least: Sequence[int] = ()
) -> str:
    """A table with a rule below its head, and one above the total if there is a total.

    >>> print(plain_table(("layer", "trace"), [("a", "1"), ("b", "20")], total=("total", "21")))
    layer  trace
    ------------
    a          1
    b         20
    ------------
    total     21
    """
    totals = [] if total is None else [total]
    lines = aligned([head, *rows, *totals], text=text, least=least)
    rule = "-" * max(map(len, lines))
    last = len(lines) - len(totals)
    return "\n".join([lines[0], rule, *lines[1:last], *([rule] if totals else []), *lines[last:]])


def markdown_table(head: Sequence[str], rows: Rows, *, text: int = 1) -> str:
    """A table in Markdown, of cells that are Markdown; columns after the first ``text`` are aligned to the right.

    >>> print(markdown_table(("layer", "trace"), [("a", "1")]))
    | layer | trace |
    | --- | ---: |
    | a | 1 |
    """
    rule = ["---" if i < text else "---:" for i in range(len(head))]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *rows))


def markdown_cell(content: object) -> str:
    """Text that stays one cell of a Markdown table, and only text.

    >>> markdown_cell("a|b<c")
    'a&#124;b&lt;c'
    """
    return escape(printable(content), quote=False).replace("|", "&#124;").replace("`", "&#96;")
