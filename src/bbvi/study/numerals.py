"""How the report writes numbers: with as many decimals as their errors justify, and a dash when there is no number."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

NOTHING = "–"


def number(value: Any, decimals: int = 2) -> str:
    """Write a number with a true minus sign; a dash for None.

    Examples:
        >>> number(-1234.5678, 1), number(None), number(float("-inf")), number(float("nan"))
        ('−1,234.6', '–', '−∞', 'NaN')
    """
    if value is None:
        return NOTHING
    value = float(value)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value + 0.0:,.{decimals}f}".replace("-", "−")


def decimals_for(errors: Iterable[Any]) -> int:
    """Count the decimals, 0 to 4, that show the smallest error above 0 by two digits; 2 if there is no such error.

    Examples:
        >>> decimals_for([0.013, 2.0]), decimals_for([140.0]), decimals_for([None, 0])
        (3, 0, 2)
    """
    errors = [float(e) for e in errors if e is not None]
    finite = [e for e in errors if math.isfinite(e) and e > 0]
    return min(4, max(0, 1 - math.floor(math.log10(min(finite))))) if finite else 2


def with_error(value: Any, error: Any, decimals: int | None = None) -> str:
    """Write a number with its standard error.

    Examples:
        >>> with_error(-1.23456, 0.0123), with_error(3, None)
        ('−1.235 ± 0.012', '3.00')
    """
    decimals = decimals_for([error]) if decimals is None else decimals
    return number(value, decimals) + ("" if error is None else f" ± {number(error, decimals)}")


def significant(value: Any, digits: int = 3, *, keep_zeros: bool = False) -> str:
    """Write a number by its leading digits, with a power of ten from a million on and below a millionth.

    Examples:
        >>> significant(123456.7), significant(0.000123456), significant(16.666), significant(1.0), significant(-4.3e8)
        ('123,000', '0.000123', '16.7', '1', '−4.30 × 10⁸')
        >>> significant(0.13), significant(0.13, keep_zeros=True)
        ('0.13', '0.130')
    """
    if value is None or not math.isfinite(float(value)):
        return number(value)
    value = float(value)
    if value == 0:
        return "0"
    exponent = int(f"{value:.{digits - 1}e}".split("e")[1])
    if not -6 <= exponent < 6:
        return power_of_ten(value, digits)
    places = digits - 1 - exponent
    text = f"{round(value, places):,.{max(0, places)}f}"
    return (text if keep_zeros else _without_zeros(text)).replace("-", "−")


def power_of_ten(value: Any, digits: int = 2) -> str:
    """Write a number as a multiple of a power of ten.

    Examples:
        >>> power_of_ten(-430436317.0), power_of_ten(0.00012, 3)
        ('−4.3 × 10⁸', '1.20 × 10⁻⁴')
    """
    if value is None or not math.isfinite(float(value)):
        return number(value)
    mantissa, exponent = f"{float(value):.{digits - 1}e}".split("e")
    return f"{mantissa} × 10{str(int(exponent)).translate(_RAISED)}".replace("-", "−")


_RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def _without_zeros(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


def duration(seconds: Any) -> str:
    """Write seconds in the unit that suits them.

    Examples:
        >>> duration(0.25), duration(42.4), duration(600), duration(9000), duration(None)
        ('0.25 s', '42 s', '10 min', '2.5 h', '–')
    """
    if seconds is None or not math.isfinite(float(seconds)):
        return number(seconds)
    seconds = float(seconds)
    if seconds < 10:
        return f"{significant(seconds, 2)} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def percent(share: Any) -> str:
    """Write a share in percent, with a decimal below ten.

    Examples:
        >>> percent(0.0834), percent(0.39), percent(None)
        ('8.3 %', '39 %', '–')
    """
    if share is None or not math.isfinite(float(share)):
        return number(share)
    return f"{100 * float(share):.{1 if 0 < abs(float(share)) < 0.0995 else 0}f} %"


def floats(values: Any) -> np.ndarray:
    """Return an array of floats, NaN where a list from JSON holds None."""
    return np.asarray(values, dtype=object).astype(float)
