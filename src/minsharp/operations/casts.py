"""Other types, and tensors made from nothing."""

from dataclasses import replace

from ..rules.channels import entrywise, zeros
from ..rules.frames import passed
from ..rules.row import Row

_entry = Row("self", channels=entrywise, frames=passed)

_zeros = Row("0", channels=zeros, ignores=("self",))

_blank = Row("1", ignores=("self",))

ROWS: dict[str, Row] = {
    "to": _entry,
    "_to_copy": _entry,
    "type_as": replace(_entry, ignores=("other",)),
    "zeros": _zeros,
    "zeros_like": _zeros,
    "new_zeros": _zeros,
    "ones_like": _blank,
    "full_like": _blank,
    "empty_like": _blank,
    "new_ones": _blank,
    "new_full": _blank,
    "new_empty": _blank,
}
