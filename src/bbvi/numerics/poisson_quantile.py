"""The quantile function of the Poisson distribution: a table for small rates, one polynomial for all large ones."""

from importlib.resources import files

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jaxtyping import Array, Float, Int
from numpy.polynomial.chebyshev import cheb2poly

from bbvi.numerics.special import polynomial

_EDGE = 20.0
_COUNTS = np.arange(72)  # at the edge, one in 1e17 is larger
_END = 5.45


def _read() -> np.ndarray:
    """The table of `tools/fit_poisson_quantile.py`, from Chebyshev polynomials in x to powers."""
    in_chebyshev = np.loadtxt(str(files("bbvi.numerics") / "poisson_quantile.csv"), delimiter=",")
    powers = np.zeros((in_chebyshev.shape[1],) * 2)
    for k, row in enumerate(np.eye(len(powers))):
        powers[k, : k + 1] = cheb2poly(row)[: k + 1]
    return in_chebyshev @ powers


_TABLE = _read()


def poisson_quantile(u: Float[Array, ""], x: Float[Array, ""], log_rate: Float[Array, ""]) -> Int[Array, ""]:
    """The smallest k with P(K <= k) >= u = Phi(x), for K of Poisson(exp(log_rate)).

    Up to a rate of 20 the distribution function is tabulated, once for all draws of a factor. Above it,
    P(K <= k) = P(Gamma(k + 1) > rate), and the a with P(Gamma(a) > rate) = u is rate + x sqrt(rate) + R, where R is a
    fitted polynomial: of degree 15 in x, with coefficients that depend on the rate alone. The fit moves no probability
    by more than 3e-9; single precision, at the rate as it is rounded, moves none by more than 3e-7.

    Examples:
        >>> import jax.numpy as jnp
        >>> print(poisson_quantile(jnp.array(0.5), jnp.array(0.0), jnp.log(3.0)))
        3
    """
    rate = jnp.exp(log_rate)
    return jnp.where(rate < _EDGE, _tabulated(u, log_rate), _fitted(x, rate)).astype(int)


def _tabulated(u, log_rate):
    small = jnp.minimum(log_rate, np.log(_EDGE))
    below = jnp.cumsum(jnp.exp(_COUNTS * small - jnp.exp(small) - scipy.special.gammaln(_COUNTS + 1.0)))
    return (u > below / below[-1]).sum(dtype=u.dtype)


def _fitted(x, rate):
    large = jnp.maximum(rate, _EDGE)
    s = jax.lax.rsqrt(large)
    chebyshev = [jnp.ones_like(s), 2 * np.sqrt(_EDGE) * s - 1]
    while len(chebyshev) < len(_TABLE):
        chebyshev.append(2 * chebyshev[1] * chebyshev[-1] - chebyshev[-2])
    table = jnp.asarray(_TABLE, s.dtype)
    powers = jnp.dot(jnp.stack(chebyshev), table, precision=jax.lax.Precision.HIGHEST)
    rest = polynomial(jnp.clip(x / _END, -1, 1), [powers[k] for k in range(len(_TABLE[0]))])
    # the whole part of the rate is added last: the rest keeps its digits
    whole = jnp.floor(large)
    return jnp.maximum(whole + (jnp.ceil(large - whole + x / s + rest) - 1), 0)
