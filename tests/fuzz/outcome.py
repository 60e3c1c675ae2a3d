"""What came of a case, and which refusals are in order."""

import re
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Outcome:
    """What came of a case."""

    seed: int
    skipped: str = ""
    failures: list[tuple[str, str]] = field(default_factory=list)
    refusals: list[tuple[str, str]] = field(default_factory=list)
    operations: list[str] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    parameters: int = 0
    exact: int = 0
    dimensions: dict[str, int] = field(default_factory=dict)
    forbidden: bool = False
    seconds: float = 0.0
    checks: int = 0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


LEGITIMATE = (
    ("uses no parameters|no parameter requires a gradient|weighs nothing", ""),
    (
        "fixes the batch size|what was read holds where Eq",
        r"len\(|take_along_dim|chain_matmul|multi_dot|kron",
    ),  # torch.export reads a plain number
    (
        r"\bu\d+\b|data-dependent|makes a size of the values",
        r"tensor\(\[(True|False)|kept\d+\]",
    ),  # an index by a mask: how many, nobody can tell
    ("second derivatives, and in .* is not implemented", "hardsigmoid"),  # torch has the first only
    ("fake tensor in the exported program", r"\.data\b"),
)
"""Refusals that networks may meet: words of the message, words of the network."""


def legitimate(message: str, source: str) -> bool:
    """Whether a network of this source may meet this refusal."""
    return any(re.search(words, message) and re.search(code, source) for words, code in LEGITIMATE)
