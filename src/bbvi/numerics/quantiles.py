"""Quantile functions of gammas and Poissons as fitted polynomials, so that both are drawn by inversion."""

from importlib.resources import files
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float, Int
from numpy.polynomial.chebyshev import cheb2poly

from bbvi.numerics.special import polynomial
from bbvi.numerics.xla import once

_ENDS = np.array([-5.45, -1.2, 5.45])
_MIDDLES, _HALVES = (_ENDS[1:] + _ENDS[:-1]) / 2, (_ENDS[1:] - _ENDS[:-1]) / 2


def _in_powers(file: str, pieces: int, in_s: int | None = None, in_x: int | None = None) -> np.ndarray:
    """Read a table that `tools/` fitted, from Chebyshev polynomials in x to powers; only the first terms if cut."""
    in_chebyshev = np.loadtxt(str(files("bbvi.numerics") / file), delimiter=",")
    degree_s, columns = in_chebyshev.shape
    num = in_x or columns // pieces
    powers = np.array([np.pad(cheb2poly(row[: k + 1]), (0, num - k - 1)) for k, row in enumerate(np.eye(num))])
    return (in_chebyshev.reshape(degree_s, pieces, -1)[:in_s, :, :num] @ powers).reshape(len(in_chebyshev[:in_s]), -1)


_TABLE = _in_powers("gamma_quantile.csv", 2)


@jax.custom_jvp
def log_gamma_quantile(x: Float[Array, ""], concentration: Float[Array, ""]) -> Float[Array, ""]:
    """Return log(z / a) where P(Z < z) = Phi(x), for Z of Gamma(a, 1) with concentration a >= 1, its mean.

    With s = 1 / sqrt(a), log z = log a + s x + s**2 Q(x, s) by the expansion of Cornish and Fisher (1938), and Q is
    a fitted polynomial: of degree 13 in x, on two pieces, with coefficients that depend on s alone and so are common to
    all draws of a factor. The fit is within 1e-7 of log z for |x| < 5.45; beyond, where only double precision gets,
    once in twenty million draws, Q stays constant. Single precision rounds to 2.5e-6 + 2e-7 |log z|, and keeps its digits
    where a is large and z is next to a.
    The derivative in the concentration is the implicit one, that of z at a fixed probability.

    Examples:
        >>> import jax.numpy as jnp
        >>> print(f"{jnp.exp(log_gamma_quantile(0.0, 1.0)):.4f}")  # the median of the exponential, log 2
        0.6931
    """
    return _evaluate(x, concentration)


def _log_gamma_quantile_jvp(primals, tangents):
    x, concentration = primals
    value = _evaluate(x, concentration)
    tangent = jnp.zeros_like(value)
    functions = (lambda x: _evaluate(x, concentration), lambda a: _evaluate(x, a))
    for function, at, change in zip(functions, primals, tangents, strict=True):
        if not isinstance(change, SymbolicZero):
            # one slope per draw: without it the way back would add up powers of x for every coefficient
            tangent = tangent + jax.jvp(function, (at,), (jnp.ones_like(at),))[1] * change
    return value, tangent


log_gamma_quantile.defjvp(_log_gamma_quantile_jvp, symbolic_zeros=True)


def _evaluate(x, concentration):
    s = jax.lax.rsqrt(concentration)
    powers = _coefficients(s)
    left = x < _ENDS[1]
    t = x * jnp.where(left, *(1 / _HALVES)) - jnp.where(left, *(_MIDDLES / _HALVES))
    t = jnp.clip(t, -1, 1)
    q = polynomial(t, [jnp.where(left, powers[0, k], powers[1, k]) for k in range(powers.shape[1])])
    return s * (x + s * q)


def _coefficients(s: Float[Array, ""]) -> Float[Array, "2 degree"]:
    """Return the coefficients of Q in x on either piece, lowest first."""
    chebyshev = jnp.stack([jnp.ones_like(s), 2 * s - 1])
    while len(chebyshev) < len(_TABLE):
        # from T_0 .. T_m-1 as many again at a time, by T_m+k = 2 T_m T_k - T_m-k
        middle = 2 * chebyshev[1] * chebyshev[-1] - chebyshev[-2]
        more = 2 * middle * chebyshev - jnp.concatenate([middle[None], chebyshev[:0:-1]])
        chebyshev = once(jnp.concatenate([chebyshev, more]))
    table = jnp.asarray(_TABLE, s.dtype)
    return jnp.dot(chebyshev[: len(_TABLE)], table, precision=jax.lax.Precision.HIGHEST).reshape(2, -1)


# fewer terms: log z is right to 3e-5
_SHORT = _in_powers("gamma_quantile.csv", 2, 12, 10)


def log_ratio_to_mean(x: Float[Array, "..."], s: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return log(z / a) where P(Z < z) = Phi(x), for Z of Gamma(a, 1) with s = 1 / sqrt(a) <= 1, its sd over its mean.

    For draws that have each a shape of their own: all is elementwise. No digits are lost where a is large and z is
    next to a.

    Examples:
        >>> print(f"{log_ratio_to_mean(2.0, 1e-3):.6f}")
        0.001999
    """
    table = _SHORT if jnp.result_type(x, s) == jnp.float32 else _TABLE
    left = jnp.less(x, _ENDS[1])
    t = (x - jnp.where(left, _MIDDLES[0], _MIDDLES[1])) * jnp.where(left, 1 / _HALVES[0], 1 / _HALVES[1])
    low, high = np.split(table, 2, axis=1)
    y, columns = 2 * s - 1, zip(low.T, high.T, strict=True)
    powers = [jnp.where(left, _clenshaw(y, a), _clenshaw(y, b)) for a, b in columns]
    return s * (x + s * polynomial(jnp.clip(t, -1, 1), powers))


def _clenshaw(y: Array, coefficients: np.ndarray) -> Array:
    """Evaluate the Chebyshev series with these coefficients at y."""
    one: Any = 0.0
    two: Any = 0.0
    for c in coefficients[:0:-1]:
        one, two = 2 * y * one - two + float(c), one
    return y * one - two + float(coefficients[0])


_EDGE = 20.0
_COUNTS = np.arange(72)  # at the edge, one in 1e17 is larger
_POISSON_END = 5.45
_POISSON_TABLE = _in_powers("poisson_quantile.csv", 1)


def poisson_quantile(u: Float[Array, ""], x: Float[Array, ""], log_rate: Float[Array, ""]) -> Int[Array, ""]:
    """Return the smallest k with P(K <= k) >= u = Phi(x), for K of Poisson(exp(log_rate)).

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
    while len(chebyshev) < len(_POISSON_TABLE):
        chebyshev.append(2 * chebyshev[1] * chebyshev[-1] - chebyshev[-2])
    table = jnp.asarray(_POISSON_TABLE, s.dtype)
    powers = jnp.dot(jnp.stack(chebyshev), table, precision=jax.lax.Precision.HIGHEST)
    rest = polynomial(jnp.clip(x / _POISSON_END, -1, 1), [powers[k] for k in range(len(_POISSON_TABLE[0]))])
    # the whole part of the rate is added last: the rest keeps its digits
    whole = jnp.floor(large)
    return jnp.maximum(whole + (jnp.ceil(large - whole + x / s + rest) - 1), 0)
