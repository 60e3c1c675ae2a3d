"""What many records say together."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from minsharp.operations import TABLE

Record = dict[str, Any]
INNER = {"conv_by_place", "max_over_places", "add_to_channels"}  # made by the engine, not by users


def _kind(text: str) -> str:
    """A message without names, places and numbers."""
    text = re.sub(r"\(.*|'[^']*'|\[[^\]]*\]", "", text)
    return " ".join(re.sub(r"[\d.]+", "#", text).split()[:9])


def _counted(title: str, groups: dict[str, list[int]]) -> list[str]:
    rows = sorted(groups.items(), key=lambda item: -len(item[1]))
    return [title, *(f"  {len(seeds):6d}  {kind}   seeds {', '.join(map(str, seeds[:6]))}" for kind, seeds in rows)]


def _groups(records: Iterable[Record], key: str, forbidden: bool) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for r in records:
        for where, text in r.get(key, [])[:1]:
            kind = f"{where}: {_kind(text)}"
            if r.get("forbidden", False) == forbidden and r["seed"] not in found[kind]:
                found[kind].append(r["seed"])
    return found


def covered(records: Iterable[Record]) -> Counter[str]:
    """How many networks use each operation."""
    return Counter(name for r in records for name in r.get("operations", []))


def summary(records: list[Record], seconds: float) -> str:
    """Counts, refusals, coverage of the table, failures."""
    looked = [r for r in records if not r.get("skipped")]
    skipped = Counter(_kind(r["skipped"]) for r in records if r.get("skipped"))
    read = [r for r in looked if r.get("operations")]
    reached = covered(records)
    rows = set(TABLE) - INNER
    missing = sorted(rows - set(reached))
    own = sum(r.get("seconds", 0) for r in records)
    lines = [
        f"{len(records)} networks in {seconds:.0f} s ({own / max(len(records), 1):.2f} s of one processor each), "
        f"{sum(r.get('checks', 0) for r in records)} checks",
        f"skipped: {sum(skipped.values())} ({dict(skipped)})",
        f"parameters: {sum(r.get('parameters', 0) for r in read)}, exact: {sum(r.get('exact', 0) for r in read)}",
        f"networks exact throughout: {sum(r.get('exact', 0) == r.get('parameters', 0) for r in read)} of {len(read)}",
        *(
            f"groups of dimension > 0, scope {scope!r}: {sum(r.get('dimensions', {}).get(scope, 0) > 0 for r in read)}"
            for scope in ("layer", "neuron")
        ),
        f"operations: {len(reached)}, of the table's {len(rows)} rows {len(rows) - len(missing)}; not reached: "
        + (", ".join(missing) or "none"),
        f"forbidden networks: {sum(r.get('forbidden', False) for r in looked)}, refused: "
        f"{sum(bool(r.get('refusals')) for r in looked if r.get('forbidden'))}",
        *_counted("refusals of networks that may not be refused", _groups(looked, "refusals", False)),
        *_counted("refusals of networks that have to be refused", _groups(looked, "refusals", True)),
        *_counted("failures", _groups(looked, "failures", False)),
        *_counted("failures of networks that have to be refused", _groups(looked, "failures", True)),
    ]
    return "\n".join(lines)
