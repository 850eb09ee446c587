"""Fit the table of `bbvi.numerics.quantiles`: the quantile function of every Poisson of rate 20 and above.

With x = Phi^-1(u) and s = 1 / sqrt(rate), the a with P(Gamma(a) > rate) = u is rate + x / s + R(x, s). R is smooth in
both: a polynomial in x (Chebyshev) whose coefficients are polynomials in s (Chebyshev, on [0, LARGEST_S]).
"""

from pathlib import Path

import numpy as np
from numpy.polynomial.chebyshev import chebvander
from scipy.special import gammainc, gammaincc, ndtr

END, LARGEST_S, SMALLEST_S = 5.45, 20**-0.5, 0.003
DEGREE_X, DEGREE_S = 15, 8
TABLE = Path(__file__).parents[1] / "src/bbvi/numerics/poisson_quantile.csv"


def exact(x, s):
    """R(x, s) by bisection, each tail on its own side of the median."""
    x, s = np.broadcast_arrays(x, s)
    rate, tail = s**-2, ndtr(-np.abs(x))
    low, high = np.full(x.shape, 1e-9), rate + 8 / s + 30
    for _ in range(100):
        middle = (low + high) / 2
        below = np.where(x < 0, gammaincc(middle, rate) < tail, gammainc(middle, rate) > tail)
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return (low + high) / 2 - rate - x / s


def fit(*, nodes=48):
    t = np.cos(np.pi * (np.arange(nodes) + 0.5) / nodes)
    x, s = END * t, (LARGEST_S + SMALLEST_S) / 2 + (LARGEST_S - SMALLEST_S) / 2 * t
    values = exact(x[:, None], s[None, :])
    # what counts is the probability between the right a and that of the fit
    weight = np.exp(-(x**2) / 4)[:, None] + 0.02
    in_x = np.linalg.lstsq(chebvander(t, DEGREE_X) * weight, values * weight, rcond=None)[0]
    return np.linalg.lstsq(chebvander(2 * s / LARGEST_S - 1, DEGREE_S), in_x.T, rcond=None)[0]


if __name__ == "__main__":
    np.savetxt(TABLE, fit(), fmt="%.10f", delimiter=",")
