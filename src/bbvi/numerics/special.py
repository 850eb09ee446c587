"""log Gamma and its derivative in single precision, at the price of a few logarithms.

Below 2.5 a polynomial, with the roots as factors and one step of the recurrence under 1; above it Stirling's
series; left of zero the reflection formulas. All of it is arithmetic and selects, without loops or tables, so that
it vectorises. `tools/fit_special.py` fits the polynomials.
"""

import csv
import math
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.nn import sigmoid, softplus
from jaxtyping import Array, Float

# the coefficients that `tools/fit_special.py` found, by name
_ROWS = csv.reader((files("bbvi.numerics") / "special.csv").read_text().splitlines())
_FITTED = {name: tuple(map(float, coefficients)) for name, *coefficients in _ROWS}
_EDGE = 2.5
_ALL_INTEGERS = 2.0**23  # single precision has no fractions from here on
_HALF_LOG_2PI, _LOG_PI = 0.9189385332046727, 1.1447298858494002
# the root of digamma, less 1, as the sum of two single precision numbers
_ROOT = (np.float32(0.46163213), np.float32(0.4616321449683623 - np.float64(np.float32(0.46163213))))
# x trigamma(x) - 1 = 1 / (2 x) + sum of these times x**-2, x**-4, ..., from the edge on
_EXCESS_EDGE = 4
_EXCESS = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66)
# the same as log_gamma_rest in double precision, from an edge on where these terms of Stirling's series are enough
_SERIES_EDGE = 16.0
_SERIES = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
# (exp(x) - 1 - x) / x**2 for |x| below the edge
_EXPONENTIAL_EDGE = 0.25
_EXPONENTIAL = tuple(1 / math.factorial(k) for k in range(2, 13))


@jax.custom_jvp
def lgamma(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return log |Gamma(x)|, with an error below 1e-6 max(1, |value|).

    Left of -2.5, next to its roots, the terms of the reflection formula cancel: there the error is below
    1e-6 log Gamma(-x). Numbers that the processor flushes to zero count as zero. Other precisions than single are
    passed to `jax.lax.lgamma`.

    Examples:
        >>> print(f"{lgamma(5.0):.4f}")
        3.1781
    """
    if jnp.result_type(x) != jnp.float32:
        return jax.lax.lgamma(x)
    size, below_one, b, r = _pieces(x)
    log_size, inverse = quick_log(size), 1 / size
    stirling = (size - 0.5) * (log_size - 1) + (_HALF_LOG_2PI - 0.5) + inverse * fitted("log_gamma_rest", inverse**2)
    middle = b * (b - 1) * fitted("log_gamma_middle", b - 0.75)  # log Gamma(size), or log Gamma(size + 1) below one
    rest = jnp.where(size < _EDGE, middle, stirling)
    right = jnp.where(below_one, rest - log_size, rest)
    sine = jnp.abs(r * fitted("sine", r**2))
    left = _LOG_PI - quick_log(sine * jnp.where(below_one, 1, size)) - rest
    return jnp.where((x <= 0) & (r == 0), jnp.inf, jnp.where(x < 0, left, right))


@jax.custom_jvp
def digamma(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return the derivative of log |Gamma(x)|, with an error below 1e-6 max(1, |value|); nan at the poles.

    Left of -2.5, next to its roots, the error is below 1e-6 log(-x).

    Examples:
        >>> print(f"{digamma(10.0):.4f}")
        2.2518
    """
    if jnp.result_type(x) != jnp.float32:
        return jax.lax.digamma(x)
    size, below_one, b, r = _pieces(x)
    inverse = 1 / size
    stirling = jnp.log(size) - inverse * (0.5 + inverse * fitted("digamma_rest", inverse**2))
    middle = ((b - _ROOT[0]) - _ROOT[1]) * fitted("digamma_middle", b - 0.75)
    rest = jnp.where(size < _EDGE, middle, stirling)
    right = jnp.where(below_one, rest - inverse, rest)
    left = jnp.where(below_one, rest, rest + inverse) - fitted("cotangent", r**2) / r
    return jnp.where((x <= 0) & (r == 0), jnp.nan, jnp.where(x < 0, left, right))


lgamma.defjvps(lambda dx, _, x: digamma(x) * dx)
digamma.defjvps(lambda dx, _, x: jax.lax.polygamma(jnp.ones_like(x), x) * dx)


def trigamma_excess(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return x trigamma(x) - 1 for x > 0, with a relative error below 2e-6 where x trigamma(x) itself is close to 1.

    Examples:
        >>> print(f"{trigamma_excess(1e6):.4g}")
        5e-07
    """
    large = x >= _EXCESS_EDGE
    v = 1 / jnp.where(large, x, x + _EXCESS_EDGE)
    series = v * (0.5 + v * polynomial(v**2, _EXCESS))  # Abramowitz and Stegun 6.4.12
    moved = v * (1 + series) + sum(1 / (x + k) ** 2 for k in range(1, _EXCESS_EDGE))  # 6.4.6
    return jnp.where(large, series, 1 / x - 1 + x * moved)


def stirling_rest(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return log Gamma(x) - (x - 1/2) log x + x - log(2 pi) / 2 for x > 0: what Stirling's formula leaves out, about 1 / (12 x).

    Examples:
        >>> print(f"{stirling_rest(1e4):.4g}")
        8.333e-06
    """
    edge, series = (_EDGE, _FITTED["log_gamma_rest"]) if jnp.result_type(x) == jnp.float32 else (_SERIES_EDGE, _SERIES)
    large = jnp.greater_equal(x, edge)
    few, inverse = jnp.where(large, edge, x), 1 / jnp.where(large, x, edge)
    direct = _positive_lgamma(few) - (few - 0.5) * jnp.log(few) + few - _HALF_LOG_2PI
    return jnp.where(large, inverse * polynomial(inverse**2, series), direct)


@jax.custom_jvp
def _positive_lgamma(x: Array) -> Array:
    """Return log Gamma(x) for x from 0 to the edge, by less than `lgamma` takes."""
    if jnp.result_type(x) != jnp.float32:
        return jax.lax.lgamma(x)
    _, below_one, b, _ = _pieces(x)
    return b * (b - 1) * fitted("log_gamma_middle", b - 0.75) - jnp.where(below_one, jnp.log(x), 0)


_positive_lgamma.defjvps(lambda dx, _, x: digamma(x) * dx)


def by_slopes(*slopes: Callable[..., Array]) -> Callable[[Callable[..., Array]], Callable[..., Array]]:
    """Give a function its derivatives in closed form, each computed only where it is asked for."""

    def decorate(function: Callable[..., Array]) -> Callable[..., Array]:
        own = jax.custom_jvp(function)

        def jvp(primals, tangents):
            value, pairs = own(*primals), zip(slopes, tangents, strict=True)
            asked = (slope(*primals) * change for slope, change in pairs if not isinstance(change, SymbolicZero))
            return value, sum(asked, jnp.zeros_like(value))

        own.defjvp(jvp, symbolic_zeros=True)
        return own

    return decorate


@by_slopes(lambda x: _exp_excess(x)[1])
def exp_excess(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return exp(x) - 1 - x, about x**2 / 2 around 0, where a difference would lose its digits.

    Examples:
        >>> print(f"{exp_excess(1e-4):.5g}")
        5.0002e-09
    """
    return _exp_excess(x)[0]


def _exp_excess(x: Array) -> tuple[Array, Array]:
    """Return exp(x) - 1 - x and its derivative exp(x) - 1."""
    small, beyond = jnp.abs(x) < _EXPONENTIAL_EDGE, jnp.exp(x) - 1
    series = _exp_series(jnp.where(small, x, 0))
    return jnp.where(small, series, beyond - x), jnp.where(small, x + series, beyond)


def _exp_series(x: Array) -> Array:
    return x * x * polynomial(x, _EXPONENTIAL[: 6 if jnp.result_type(x) == jnp.float32 else None])


@by_slopes(
    lambda mean, logit: sigmoid(mean) * sigmoid(-mean) * (mean - logit),
    lambda mean, logit: (
        jnp.sign(mean - logit)
        * (sigmoid(jnp.maximum(mean, logit)) * sigmoid(-jnp.minimum(mean, logit)))
        * jnp.expm1(-jnp.abs(mean - logit))
    ),
)
def divergence(mean: Float[Array, "..."], logit: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return the Kullback-Leibler divergence of a Bernoulli from one of another logit, with its digits where both are close.

    Examples:
        >>> print(f"{divergence(0.0, 1e-4):.5g}")
        1.25e-09
    """
    # of the two values the one of a probability m below 1/2: nothing cancels
    sign = jnp.where(mean < 0, 1.0, -1.0).astype(jnp.result_type(mean))
    change, low, m = sign * (logit - mean), -jnp.abs(mean), sigmoid(-jnp.abs(mean))
    narrow = jnp.abs(change) < _EXPONENTIAL_EDGE
    x = jnp.where(narrow, change, 0)
    excess = _exp_series(x)
    near = m * excess - _exp_series(jnp.log1p(m * (x + excess)))
    far = jnp.maximum(sign * logit, 0) + jnp.log1p(jnp.exp(-jnp.abs(logit))) - softplus(low) - m * change
    return jnp.where(narrow, near, far)


def polynomial(x: Array, coefficients: Sequence[Any]) -> Array:
    """Evaluate the sum of coefficients[k] x**k by Estrin's scheme, whose parts a processor can work on at the same time."""
    terms, power = list(coefficients), x
    while len(terms) > 1:
        pairs = [low + high * power for low, high in zip(terms[::2], terms[1::2], strict=False)]
        terms = [*pairs, terms[-1]] if len(terms) % 2 else pairs
        power = power * power
    return terms[0]


def fitted(name: str, x: Array) -> Array:
    """Evaluate one of the fitted polynomials.

    log_gamma_middle: lgamma(1 + b) / (b (b - 1)) for b in [0, 1.5], in b - 0.75, and digamma_middle in the same way;
    log_gamma_rest: x times what Stirling's formula leaves out, in 1 / x**2, and digamma_rest in the same way;
    sine and cotangent: sin(pi r) / r and pi r cot(pi r) in r**2, for |r| <= 1/2;
    logarithm: log(1 + f) / f for 1 + f between sqrt(1/2) and sqrt(2);
    inverse_normal: Phi^-1(u) / (2u - 1) in -1 - log(4u(1 - u)) / 7.65, for u from 2**-24 to 1 - 2**-24.
    """
    return polynomial(x, _FITTED[name])


def _pieces(x: Array) -> tuple[Array, Array, Array, Array]:
    """Return |x|, whether it is below 1, the distance b from 0 or 1 that the polynomials are in, and x less an integer."""
    size = jnp.abs(x)
    below_one = size < 1
    # b is exact: the roots 1 and 2 of log Gamma stay roots
    b = jnp.where(below_one, size, size - 1)
    return size, below_one, b, jnp.where(size < _ALL_INTEGERS, x - jnp.round(x), 0)


def quick_log(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return log x for positive, finite and normal x, in half the time of the one that minds zero, infinity and nan."""
    if jnp.result_type(x) != jnp.float32:
        return jnp.log(x)
    bits = jax.lax.bitcast_convert_type(x, jnp.int32)
    # the power of two that leaves a factor between sqrt(1/2) and sqrt(2)
    exponent = jax.lax.shift_right_arithmetic(bits - np.float32(np.sqrt(0.5)).view(np.int32), np.int32(23))
    f = jax.lax.bitcast_convert_type(bits - jax.lax.shift_left(exponent, np.int32(23)), jnp.float32) - 1
    return exponent.astype(jnp.float32) * np.float32(np.log(2)) + f * fitted("logarithm", f)
