"""log Gamma and digamma in single precision, against double precision at the same numbers."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st

from bbvi.numerics.special import digamma, exp_excess, lgamma, quick_log, stirling_rest, trigamma_excess
from tests.compiled import compiled

BOUND = 1e-6
TINY, HUGE = float(np.finfo(np.float32).tiny), float(np.float32(1e30))
FUNCTIONS = {"lgamma": (lgamma, scipy.special.gammaln), "digamma": (digamma, scipy.special.digamma)}
positive = st.floats(TINY, HUGE, width=32)
negative = st.floats(-1e6, -TINY, width=32).filter(lambda x: x != round(x))


def shortfall(name, x):
    """The error over what is allowed: 1e-6 of the value, of 1, or left of -2.5 of the terms that cancel there."""
    function, exact = FUNCTIONS[name]
    x64 = np.asarray(x, np.float32).astype(np.float64)
    truth, found = exact(x64), np.asarray(jax.jit(function)(np.asarray(x, np.float32)), np.float64)
    far = np.minimum(x64, -2.5)
    terms = np.where(x64 < -2.5, scipy.special.gammaln(-far) if name == "lgamma" else np.log(-far), 0)
    return np.abs(found - truth) / (BOUND * np.maximum(np.maximum(1, np.abs(truth)), terms))


def grids():
    rng = np.random.default_rng(0)
    near = np.concatenate([center + rng.normal(0, 1e-4, 20_000) for center in (1, 2, 2.5, 1.4616321449683623)])
    return {
        "every magnitude": np.exp(rng.uniform(np.log(TINY * 1.01), np.log(HUGE), 200_000)),
        "ordinary": rng.uniform(1e-3, 50, 200_000),
        "roots and seams": near,
        "left of zero": -rng.uniform(1e-3, 2.5, 200_000),
        "far left": -rng.uniform(2.5, 60, 200_000),
        "all of the left": -np.exp(rng.uniform(np.log(TINY * 1.01), np.log(1e6), 200_000)),
    }


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("grid", grids())
def test_error_is_within_a_millionth_on_grids(name, grid):
    x = grids()[grid].astype(np.float32)
    x = x[(x > 0) | (x != np.round(x))]
    assert shortfall(name, x).max() < 1


@pytest.mark.parametrize("name", FUNCTIONS)
@settings(max_examples=300, deadline=None)
@given(x=st.one_of(positive, negative))
def test_error_is_within_a_millionth_anywhere(name, x):
    assert shortfall(name, x) < 1


def test_error_next_to_the_roots_is_relative():
    """Both are roots of log Gamma, and the error goes to zero with the value."""
    steps = np.concatenate([2.0 ** -np.arange(3, 24), -(2.0 ** -np.arange(3, 24))])
    x = np.concatenate([1 + steps, 2 + steps]).astype(np.float32)
    x = x[(x != 1) & (x != 2)]
    np.testing.assert_allclose(lgamma(jnp.asarray(x)), scipy.special.gammaln(x.astype(np.float64)), rtol=1e-6)
    np.testing.assert_array_equal(lgamma(jnp.array([1.0, 2.0])), 0)


def test_error_next_to_the_poles_is_relative():
    k = np.arange(0, 30)
    x = np.concatenate([np.nextafter(np.float32(-k), np.float32(sign)) for sign in (-np.inf, np.inf)])
    x = x[np.abs(x) > TINY].astype(np.float32)
    np.testing.assert_allclose(digamma(jnp.asarray(x)), scipy.special.digamma(x.astype(np.float64)), rtol=1e-6)


def test_poles_infinities_and_nan_are_those_of_jax():
    x = jnp.array([0.0, -0.0, -1.0, -2.0, -77.0, -1e10, -1e37, jnp.inf, -jnp.inf, jnp.nan, 1e37, 3e38, 1e-42, -1e-42])
    np.testing.assert_array_equal(lgamma(x), jax.lax.lgamma(x))
    np.testing.assert_allclose(digamma(x), jax.lax.digamma(x), rtol=1e-6)


@pytest.mark.parametrize("x", [1e-30, 0.3, 1.0, 1.7, 4.0, 1e5, -0.4, -3.3])
def test_derivatives_are_digamma_and_trigamma(x):
    x = np.float32(x)
    first, second = compiled(lambda x: (jax.grad(lgamma)(x), jax.grad(jax.grad(lgamma))(x)))(x)
    np.testing.assert_allclose(first, scipy.special.digamma(np.float64(x)), rtol=2e-6)
    expected = jax.grad(jax.lax.digamma)(x)
    np.testing.assert_allclose(second, expected, rtol=1e-5)
    np.testing.assert_allclose(jax.vmap(jax.grad(lgamma))(jnp.full(3, x)), first)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_double_precision_is_left_to_jax(name):
    with jax.enable_x64(True):
        x = jnp.array([0.3, 1.0, 2.7, -1.4], jnp.float64)
        found = FUNCTIONS[name][0](x)
        assert found.dtype == jnp.float64
        np.testing.assert_allclose(found, FUNCTIONS[name][1](np.asarray(x)), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_there_is_nothing_but_arithmetic_and_selects(name):
    text = jax.jit(FUNCTIONS[name][0]).lower(jnp.ones(8)).as_text()
    for slow in ("gather", "while", "stablehlo.if", "case", "lgamma", "digamma"):
        assert slow not in text.replace(f"@{name}", "").replace(f"jit_{name}", ""), slow


def test_quick_log_is_as_exact_as_log():
    rng = np.random.default_rng(1)
    x = np.concatenate([np.exp(rng.uniform(-87, 88, 200_000)), rng.uniform(0.5, 2, 200_000), [1.0]]).astype(np.float32)
    np.testing.assert_allclose(quick_log(jnp.asarray(x)), np.log(x.astype(np.float64)), rtol=3e-7, atol=1e-12)


def test_trigamma_excess_keeps_its_digits_where_it_is_small():
    """Its own series in double precision is the truth from 30 on, where the difference has lost too many digits."""
    x = np.exp(np.random.default_rng(2).uniform(np.log(TINY * 1.01), np.log(HUGE), 200_000)).astype(np.float32)
    x64 = x.astype(np.float64)
    small, v = np.minimum(x64, 30), 1 / np.maximum(x64, 30)
    difference = small * scipy.special.polygamma(1, small) - 1
    series = v / 2 + v**2 / 6 - v**4 / 30 + v**6 / 42
    np.testing.assert_allclose(trigamma_excess(jnp.asarray(x)), np.where(x64 < 30, difference, series), rtol=2e-6)


@pytest.mark.parametrize(("x64", "rtol"), [(False, 2e-6), (True, 1e-13)])
def test_what_stirlings_formula_leaves_out_keeps_its_digits(x64, rtol):
    with jax.enable_x64(x64):
        x = jnp.asarray(np.geomspace(1e-6, 15, 2001))
        wide = np.float64(x)
        exact = scipy.special.gammaln(wide) - (wide - 0.5) * np.log(wide) + wide - 0.5 * np.log(2 * np.pi)
        np.testing.assert_allclose(stirling_rest(x), exact, rtol=rtol, atol=rtol)
        slope = wide * (scipy.special.digamma(wide) - np.log(wide)) + 0.5
        np.testing.assert_allclose(x * compiled(jax.vmap(jax.grad(stirling_rest)))(x), slope, rtol=rtol, atol=rtol)
        large = jnp.asarray(np.geomspace(1e3, 1e8, 101))
        series = 1 / (12 * np.float64(large)) - 1 / (360 * np.float64(large) ** 3)
        np.testing.assert_allclose(stirling_rest(large), series, rtol=5e-6 if not x64 else 1e-11)


@pytest.mark.parametrize(("x64", "rtol"), [(False, 2e-6), (True, 1e-13)])
def test_the_exponential_beyond_its_tangent_keeps_its_digits(x64, rtol):
    with jax.enable_x64(x64):
        x = jnp.asarray(np.concatenate([sign * np.geomspace(1e-8, 20, 2001) for sign in (1, -1)]))
        wide = np.float64(x)
        series = sum(wide**k / math.factorial(k) for k in range(2, 20))
        exact = np.where(np.abs(wide) < 0.5, series, np.expm1(wide) - wide)
        np.testing.assert_allclose(exp_excess(x), exact, rtol=rtol)
        np.testing.assert_allclose(compiled(jax.vmap(jax.grad(exp_excess)))(x), np.expm1(wide), rtol=rtol)
