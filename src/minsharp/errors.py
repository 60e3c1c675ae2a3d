"""What can go wrong, as few kinds of error as a caller may want to tell apart."""

from .text import printable_lines


def words_of(error: BaseException) -> str:
    """The text of an error, whatever its class makes of it; of one that ends the program, what it is.

    >>> words_of(ValueError("no")), words_of(SystemExit(0))
    ('no', 'it ends the program (SystemExit: 0)')
    """
    try:
        text = str(error)
    except Exception:
        return f"a {type(error).__name__} that has no words"
    return f"it ends the program (SystemExit: {text})" if isinstance(error, SystemExit) else text


class MinsharpError(Exception):
    """The parent of every error that minsharp raises on purpose; names in its text are made printable."""

    def __init__(self, *args: object):
        super().__init__(*(printable_lines(arg) if isinstance(arg, str) else arg for arg in args))


class ReadError(MinsharpError):
    """The model cannot be read: torch.export failed, or the graph is not one output per sample."""


class InputError(MinsharpError, ValueError):
    """An argument, or a batch of the data, is not what it has to be."""


class LossError(MinsharpError, ValueError):
    """The loss does not fit the outputs or targets, or has no convex Hessian."""


class NotExactError(MinsharpError):
    """The Hessian was asked for where the Gauss-Newton trace is not the Hessian trace."""


class NonFiniteError(MinsharpError, ValueError):
    """A weight, an input or an activation is NaN or infinite."""


class UndefinedError(InputError):
    """A measure has no value at these weights: what it is relative to is zero."""


class NegativeError(InputError):
    """The curvature that a minimum would be of is negative somewhere: there is none."""


class EmptyDataError(InputError):
    """The data holds no sample."""


class WeightlessError(LossError):
    """Every target of the data is ignored, or has weight zero: nothing by itself, but a part of more data may be so."""

    result: object = None
    """The sums over that part: zeros, and how many samples there were."""


class MinsharpWarning(UserWarning):
    """What a result may not be, although it is one; the command line prints it."""


class RankError(MinsharpError):
    """One of several processes that measure together failed or ended: every one of them is told."""
