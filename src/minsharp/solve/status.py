"""How a minimisation ended: an enumeration whose texts are what a result says."""

from enum import Enum

from ..text import printable


class Status(Enum):
    """The ways in which a minimisation ends; the value is the message, with places for what it speaks of."""

    MINIMUM = "minimum, certified to {gap}"
    INFIMUM = (
        "infimum, not attained: rescaling for ever makes the curvature of {names} vanish, in whole or in part; "
        "the scales go part of the way"
    )
    INFIMUM_OF_LAYERS = "infimum, certified to {gap}, not attained in {names}: some entries can be scaled away for ever"
    INFIMUM_OF_FRAMES = (
        "infimum, certified to {gap}, not attained in the frames {names}: matrices with condition numbers of at most "
        "{condition} come {above}"
    )
    NO_CURVATURE = "zero: the curvature vanishes on this data"
    NO_MATRIX = "zero: no weight matrix has both curvature and size on this data"
    NO_NOISE = "zero: no weight that the noise reaches has both curvature and size on this data"
    PINNED = "nothing to rescale, the minimum is the trace; pinned by {reasons}"
    SAME_FOR_LAYERS = (
        "nothing to gain from a factor per layer: noise that grows with a tensor's own weights is the same for each; "
        'scope="neuron" can lower it'
    )
    POWERS_OF_TWO = "powers of two; {distance}"
    NO_FLATTER_POWER = "powers of two: none that was tried is flatter than the network as it is; {distance}"

    def told(self, **parts: str) -> "StatusText":
        """The message with its places filled in.

        >>> Status.MINIMUM.told(gap="1e-16")
        'minimum, certified to 1e-16'
        """
        return StatusText(printable(self.value.format(**parts)), self)


class StatusText(str):
    """What a result says of its status: a text like any other, which knows the case of `Status` that it tells.

    >>> Status.NO_CURVATURE.told().case is Status.NO_CURVATURE
    True
    """

    case: Status

    def __new__(cls, message: str, case: Status) -> "StatusText":
        """The message that was made of a case."""
        told = super().__new__(cls, message)
        told.case = case
        return told

    def __getnewargs__(self) -> tuple[str, Status]:  # type: ignore[override]
        return str(self), self.case
