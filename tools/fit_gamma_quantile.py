"""Fit the table of `bbvi.numerics.quantiles`: the quantile function of every gamma of shape 1 and above.

With x = Phi^-1(u) and s = 1 / sqrt(a), the quantile z of Gamma(a, 1) is log z = log a + s x + s**2 Q(x, s), where Q
is analytic in both. Its nearest singularities in x lie about -2.5 +- 2.5 i over s, so that x is cut in two pieces; each
gets a polynomial in x (Chebyshev, on the piece) whose coefficients are polynomials in s (Chebyshev, on [0, 1]).
"""

from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.polynomial.chebyshev import chebvander
from scipy.special import gammainccinv, gammaincinv, ndtr

ENDS = (-5.45, -1.2, 5.45)  # uniforms of 23 bits give |x| < 5.3
DEGREE_X, DEGREE_S = 13, 24
SMALLEST_S = 0.003  # below, SciPy's inverse is off in the lower tail
TABLE = Path(__file__).parents[1] / "src/bbvi/numerics/gamma_quantile.csv"


def exact(x, s):
    """Q(x, s) from SciPy's inverses, each on its own side of the median."""
    tail = ndtr(-np.abs(x))
    log_z = np.log(np.where(x < 0, gammaincinv(s**-2, tail), gammainccinv(s**-2, tail)) * s**2)
    return (log_z - s * x) / s**2


def fit(low, high, *, nodes=48):
    t = np.cos(np.pi * (np.arange(nodes) + 0.5) / nodes)
    x, s = (low + high) / 2 + (high - low) / 2 * t, (1 + SMALLEST_S) / 2 + (1 - SMALLEST_S) / 2 * t
    values = exact(x[:, None], s[None, :])
    in_x = np.linalg.lstsq(chebvander(t, DEGREE_X), values, rcond=None)[0]
    weight = s + 0.03  # what counts is s**2 Q and its derivative in log a, most of all where s is large
    return np.linalg.lstsq(chebvander(2 * s - 1, DEGREE_S) * weight[:, None], (in_x * weight).T, rcond=None)[0]


if __name__ == "__main__":
    pieces = [fit(low, high) for low, high in pairwise(ENDS)]
    np.savetxt(TABLE, np.concatenate(pieces, axis=1), fmt="%.10f", delimiter=",")
