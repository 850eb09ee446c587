"""Polynomials of least largest error, by reweighted least squares (Lawson 1961)."""

import numpy as np
from numpy.polynomial import chebyshev, polynomial


def minimax(function, weight, interval, degree, *, nodes=600, rounds=400):
    """Coefficients in powers of x, lowest first, and the largest weighted error over `interval`."""
    low, high = interval
    t = np.cos(np.pi * (np.arange(nodes) + 0.5) / nodes)
    x = (low + high) / 2 + (high - low) / 2 * t
    target, scale = function(x), weight(x)
    basis = chebyshev.chebvander(t, degree)
    importance = np.ones(nodes)
    best, smallest = None, np.inf
    for _ in range(rounds):
        rows = scale * importance
        found = np.linalg.lstsq(basis * rows[:, None], target * rows, rcond=None)[0]
        error = np.abs(basis @ found - target) * scale
        if error.max() < smallest:
            best, smallest = found, error.max()
        importance *= (error / error.max() + 1e-3) ** 0.3
        importance /= importance.max()
    # from Chebyshev in t to powers of x = middle + half * t
    in_t = polynomial.Polynomial(chebyshev.cheb2poly(best))
    return in_t(polynomial.Polynomial([-(low + high) / (high - low), 2 / (high - low)])).coef, smallest
