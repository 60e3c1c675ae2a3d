"""The laws that every row of the table obeys, checked on examples; and those of losses.

An example is put into a small network of its own, the probe: every sample argument is multiplied by a parameter of
one sample's shape, every output too, so that each entry that goes in and comes out has a free scale. On it hold

    scale         elements of the rescaling group keep the outputs, in both scopes, for all weights and inputs
    linearity     the Jacobian of a parameter that is called exact does not change along that parameter
    pull          the row's pullback is autograd's
    contraction   trace and diagonal are those of dense Jacobians, one sample at a time
    parts         a part of the result is made of the parts of what goes in that the row names
    samples       where a row says that samples go their own way, along any axis, they do
    untouched     no parameter, buffer, input, argument, cotangent or mode is changed by any of it

`check` tries an operation on several examples, `check_loss` a loss on a batch; both return what is broken as text.
Nothing here looks at the rules themselves, only at what they claim.
"""

from ..operations.examples.notation import Example
from .example import LAWS, Law, check_example
from .loss import check_loss
from .operation import Report, check
from .probe import ENTRIES, Entry, UnfitError
from .scale import Freedom, freedom
from .trial import Trial, begin

__all__ = [
    "ENTRIES",
    "LAWS",
    "Entry",
    "Example",
    "Freedom",
    "Law",
    "Report",
    "Trial",
    "UnfitError",
    "begin",
    "check",
    "check_example",
    "check_loss",
    "freedom",
]
