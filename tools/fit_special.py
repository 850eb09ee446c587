"""Fit the polynomials of `bbvi.numerics.special` and of the inverse normal; prints what `special.csv` holds, and the errors on stderr."""

import sys

import numpy as np
import scipy.special
from minimax import minimax

EDGE = 2.5  # below it a polynomial, above it Stirling's series
HALF = (EDGE - 1) / 2  # the polynomials are in the distance from the middle
ROOT = 1.4616321449683623  # of digamma


def away(x, value, *others):
    """Step off the removable singularities."""
    for other in others:
        x = np.where(np.abs(x - other) < 1e-9, other + 1e-9, x)
    return value(x)


def log_gamma_middle(t):
    return away(t + HALF, lambda b: scipy.special.gammaln(1 + b) / (b * (b - 1)), 0, 1)


def digamma_middle(t):
    return away(t + HALF, lambda b: scipy.special.digamma(1 + b) / (b - (ROOT - 1)), ROOT - 1)


def log_gamma_rest(v):
    """Of x = v**-0.5, times x: what Stirling's formula leaves out, by its own series at x + 20."""
    x = 1 / np.sqrt(v.astype(np.longdouble))
    far = x + 20
    series = 1 / (12 * far) - 1 / (360 * far**3) + 1 / (1260 * far**5) - 1 / (1680 * far**7)

    def stirling(x):
        return (x - np.longdouble(0.5)) * np.log(x) - x

    product = sum(np.log(x + k) for k in range(20))
    return ((stirling(far) + series - product - stirling(x)) * x).astype(np.float64)


def digamma_rest(v):
    """Of x = v**-0.5, times x**2: log(x) - 1/(2x) - digamma(x), in the same way."""
    x = 1 / np.sqrt(v.astype(np.longdouble))
    far = x + 20
    tail = (
        np.log(far) - 1 / (2 * far) - 1 / (12 * far**2) + 1 / (120 * far**4) - 1 / (252 * far**6) + 1 / (240 * far**8)
    )
    value = tail - sum(1 / (x + k) for k in range(20))
    return ((np.log(x) - 1 / (2 * x) - value) * x**2).astype(np.float64)


def logarithm(f):
    return away(f, lambda f: np.log1p(f) / f, 0)


def sine(v):
    return np.sin(np.pi * np.sqrt(v)) / np.sqrt(v)


def cotangent(v):
    return np.pi * np.sqrt(v) / np.tan(np.pi * np.sqrt(v))


def inverse_normal(t):
    """x / (2u - 1) where t = -1 - log(4u(1 - u)) / scale runs from -1 to 1."""
    w = np.maximum((t + 1) * NORMAL_SCALE, 1e-12)
    v = np.sqrt(-np.expm1(-w))
    return -scipy.special.ndtri(np.exp(-w) / (2 * (1 + v))) / v


NORMAL_SCALE = 7.65  # w runs from 0 to just over -log(4 * 2**-24) = 15.25

if __name__ == "__main__":
    one = np.ones_like
    fits = {
        "log_gamma_middle": minimax(log_gamma_middle, lambda t: np.abs((t + HALF) * (t + HALF - 1)), (-HALF, HALF), 9),
        "log_gamma_rest": minimax(log_gamma_rest, np.sqrt, (1e-4, EDGE**-2), 2),
        "digamma_middle": minimax(digamma_middle, lambda t: np.abs(t + HALF - ROOT + 1), (-HALF, HALF), 11),
        "digamma_rest": minimax(digamma_rest, lambda v: v, (1e-4, EDGE**-2), 3),
        "logarithm": minimax(logarithm, one, (np.sqrt(0.5) - 1, np.sqrt(2) - 1), 8),
        "sine": minimax(sine, one, (1e-9, 0.25), 4),
        "cotangent": minimax(cotangent, one, (1e-9, 0.25), 6),
        "inverse_normal": minimax(inverse_normal, lambda t: np.sqrt(-np.expm1(-(t + 1) * NORMAL_SCALE)), (-1, 1), 15),
    }
    for name, (coefficients, error) in fits.items():
        print(f"{name}: error {error:.1e}", file=sys.stderr)
        print(name, *(f"{c:.9g}" for c in coefficients), sep=",")
