"""Numbers as people read them; a dash where there is none."""

from math import isnan

NONE = "-"
_DURATIONS = ((86400 * 365, "years"), (86400, "days"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"))


def number(value: float | None, digits: int = 6) -> str:
    """So many significant digits.

    >>> number(582.3812345), number(0.0213, 2), number(1.5e-7), number(None), number(float("nan"))
    ('582.381', '0.021', '1.5e-07', '-', '-')
    """
    return NONE if value is None or isnan(value) else f"{value:.{digits}g}"


def rounded(value: float | None, digits: int = 3) -> str:
    """So many significant digits, of larger numbers all that stand before the point.

    >>> rounded(582.38), rounded(12345.6), rounded(0.0213), rounded(None)
    ('582', '12,346', '0.0213', '-')
    """
    if value is None or isnan(value) or not 10**digits <= abs(value) < 1e7:
        return number(value, digits)
    return f"{value:,.0f}"


def decimals(value: float | None, digits: int = 2) -> str:
    """So many digits after the point.

    >>> decimals(0.126), decimals(None)
    ('0.13', '-')
    """
    return NONE if value is None else f"{value:.{digits}f}"


def magnitude(value: float | None, digits: int = 1) -> str:
    """An error, or a gap, of which the power of ten is what matters.

    >>> magnitude(0.000123), magnitude(0.000123, 0), magnitude(None)
    ('1.2e-04', '1e-04', '-')
    """
    return NONE if value is None else f"{value:.{digits}e}"


def percent(share: float | None, digits: int = 1) -> str:
    """A share of one.

    >>> percent(0.1234), percent(0.5, 0), percent(None)
    ('12.3%', '50%', '-')
    """
    return NONE if share is None else f"{share:.{digits}%}"


def count(of: int) -> str:
    """How many.

    >>> count(60000)
    '60,000'
    """
    return f"{of:,}"


def interval(low: float, high: float, digits: int = 3) -> str:
    """From the least to the largest.

    >>> interval(0.5, 2.0)
    '0.5 to 2'
    """
    return f"{number(low, digits)} to {number(high, digits)}"


def plus_minus(value: float, standard_error: float | None) -> str:
    """An estimate with its standard error.

    >>> plus_minus(0.804691, 0.4213), plus_minus(0.804691, None)
    ('0.804691 ± 0.42', '0.804691')
    """
    return number(value) if standard_error is None else f"{number(value)} ± {number(standard_error, 2)}"


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them.

    >>> duration(0.0123), duration(7200)
    ('12.3 ms', '2.00 h')
    """
    size, unit = next((d for d in _DURATIONS if seconds >= d[0]), _DURATIONS[-1])
    return f"{_three_digits(seconds / size)} {unit}"


def times(ratio: float) -> str:
    """How many times as much.

    >>> times(12.345), times(1234.5)
    ('12.3x', '1,234x')
    """
    return f"{_three_digits(ratio)}x"


def _three_digits(value: float) -> str:
    """Never in scientific notation."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
