"""What a measure returns when it is one number."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..frozen import Frozen
from ..text import printable


@dataclass(frozen=True, repr=False)
class Score(Frozen):
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
        error = "" if self.standard_error is None else f" ± {self.standard_error:.2g}"
        details = ", ".join(f"{printable(name)} {_text(value)}" for name, value in self.details.items())
        return f"{printable(self.measure)} {self.value:.6g}{error}" + (f" ({details})" if details else "")


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else printable(value)
