"""Ranges of values: intervals of real numbers whose ends may or may not belong to them."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

_INF = math.inf


class Interval(NamedTuple):
    """All finite numbers from `low` to `high`; an end that is `open` does not belong to it, and infinite ends never do.

    Examples:
        >>> positive = Interval(0.0, low_open=True)
        >>> (positive + Interval(1.0, 2.0)).low, positive.has_zero, (-positive).high
        (1.0, False, -0.0)
    """

    low: float = -_INF
    high: float = _INF
    low_open: bool = False
    high_open: bool = False

    @property
    def has_zero(self) -> bool:
        """Tell whether 0 is in it."""
        return self.may_be_below(0.0, True) and (-self).may_be_below(0.0, True)

    def may_be_below(self, bound: float, or_equal: bool = False) -> bool:
        """Tell whether a number of it is below the bound."""
        return self.low < bound or (or_equal and self.low == bound and not self.low_open)

    def closed(self) -> "Interval":
        """Return it with its ends."""
        return Interval(self.low, self.high)

    def __neg__(self) -> "Interval":
        return Interval(-self.high, -self.low, self.high_open, self.low_open)

    def __add__(self, other: "Interval") -> "Interval":  # type: ignore[override]
        low, high = _sum(self.low, other.low, -_INF), _sum(self.high, other.high, _INF)
        return Interval(low, high, self.low_open or other.low_open, self.high_open or other.high_open)

    def __mul__(self, other: "Interval") -> "Interval":  # type: ignore[override]
        if self.low >= 0 and other.low >= 0:
            low = _product(self.low, other.low)
            low_open = not (self.has_zero or other.has_zero) if low == 0 else self.low_open or other.low_open
            return Interval(low, _product(self.high, other.high), low_open, self.high_open or other.high_open)
        if self.low < 0 >= self.high:
            return -((-self) * other)
        if other.low < 0 >= other.high:
            return -(self * -other)
        largest = _product(max(-self.low, self.high), max(-other.low, other.high))
        return Interval(-largest, largest)

    def union(self, other: "Interval") -> "Interval":
        """Return the smallest interval that holds both."""
        low, low_open = min((self.low, self.low_open), (other.low, other.low_open))
        high, high_closed = max((self.high, not self.high_open), (other.high, not other.high_open))
        return Interval(low, high, low_open, not high_closed)

    def magnitude(self) -> "Interval":
        """Return the range of |x|."""
        if self.low >= 0:
            return self
        if self.high <= 0:
            return -self
        return (-self).larger_of(self)._replace(low=0.0, low_open=False)

    def reciprocal(self) -> "Interval":
        """Return the range of 1 / x where x is never 0."""
        if self.high <= 0:
            return -(-self).reciprocal()
        if self.low < 0:
            return REALS
        low, high = (0.0 if math.isinf(self.high) else 1 / self.high), (_INF if self.low == 0 else 1 / self.low)
        return Interval(low, high, self.high_open or math.isinf(self.high), self.low_open)

    def larger_of(self, other: "Interval") -> "Interval":
        """Return the range of max(x, y)."""
        low, high = max(self.low, other.low), max(self.high, other.high)
        low_open = any(one.low == low and one.low_open for one in (self, other))
        return Interval(low, high, low_open, all(one.high_open or one.high < high for one in (self, other)))

    def smaller_of(self, other: "Interval") -> "Interval":
        """Return the range of min(x, y)."""
        return -(-self).larger_of(-other)

    def under(self, function: Callable[[float], float]) -> "Interval":
        """Return the range of a function that does not decrease, which knows its limits at infinite ends."""
        with np.errstate(all="ignore"):
            low, high = float(function(self.low)), float(function(self.high))
        if math.isnan(low) or math.isnan(high):
            return REALS
        return Interval(low, high, self.low_open or math.isinf(self.low), self.high_open or math.isinf(self.high))

    def total(self) -> "Interval":
        """Return the range of a sum of one or more such numbers."""
        if self.low >= 0:
            return Interval(self.low, _INF, self.low_open)
        return -(-self).total() if self.high <= 0 else REALS


REALS = Interval()
UNIT = Interval(0.0, 1.0)
NO_NUMBERS = Interval(_INF, -_INF)


def _sum(one: float, other: float, if_not: float) -> float:
    return if_not if math.isnan(one + other) else one + other


def _product(one: float, other: float) -> float:
    return 0.0 if one == 0 or other == 0 else one * other


def range_of(array: np.ndarray) -> Interval:
    """Return the range of the finite numbers of an array."""
    finite = array[np.isfinite(array)]
    return Interval(float(finite.min()), float(finite.max())) if finite.size else REALS
