"""What a measure returns when it is one number."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..frozen import Frozen
from ..results.files import Saved
from ..text import number, plus_minus, printable


@dataclass(frozen=True, repr=False)
class Score(Frozen, Saved):
    """The value of a measure, the standard error where it is an estimate, and what else is worth knowing of it."""

    measure: str
    value: float
    standard_error: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain Python: ready for json."""
        return {
            "measure": self.measure,
            "value": self.value,
            "standard_error": self.standard_error,
            "details": dict(self.details),
        }

    def __repr__(self) -> str:
        details = ", ".join(f"{printable(name)} {_text(value)}" for name, value in self.details.items())
        head = f"{printable(self.measure)} {plus_minus(self.value, self.standard_error)}"
        return f"{head} ({details})" if details else head


def _text(value: Any) -> str:
    return number(value, 4) if isinstance(value, float) else printable(value)
