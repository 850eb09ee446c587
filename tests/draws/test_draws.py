"""Draws: many of them in the memory of a few, and numbers that depend on their address alone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bbvi
from bbvi.blankets.analysis import analyse
from bbvi.model.problem import bind
from bbvi.numerics.address import seed_key
from tests.gradients.test_control_variates import gamma_chain


@functools.cache
def at_start():
    """The analysis of a chain, where a fit to it begins, and its data."""
    model, y = gamma_chain()
    problem, data, _ = bind(model, y)
    return analyse(problem, data, None), bbvi.fit(model, y, stop=bbvi.Budget(steps=0)).params, data


def estimate(num, chunk=None, variate=None):
    analysis, params, data = at_start()
    gradient = bbvi.Score(control_variate=variate or bbvi.LeaveOneOut())
    draws = bbvi.MonteCarlo(num, chunk=chunk)
    return jax.jit(lambda p, d: gradient.estimate(analysis, p, d, None, draws=draws, key=seed_key(1))), params, data


def temporary_bytes(num):
    function, params, data = estimate(num)
    return function.lower(params, data).compile().memory_analysis().temp_size_in_bytes


def test_memory_does_not_grow_with_the_number_of_draws():
    few, many = temporary_bytes(20_000), temporary_bytes(100_000)
    assert many < 1.2 * few
    assert many < 200e6


@functools.cache
def gradient_in_chunks(chunk, variate):
    function, params, data = estimate(200, chunk, variate)
    return function(params, data)


@pytest.mark.parametrize("variate", [bbvi.PlugIn(), bbvi.LeaveOneOut(), bbvi.CrossFit()])
@pytest.mark.parametrize("chunk", [1, 64, 97])
def test_chunks_change_rounding_only(chunk, variate):
    one, other = gradient_in_chunks(None, variate), gradient_in_chunks(chunk, variate)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4 * float(jnp.max(jnp.abs(a))))


def test_centring_keeps_large_log_joints_exact():
    """sigma_l = 0.01 makes log likelihoods of 10^4 and more: a constant of 10^6 must not drown the gradient."""
    found = []
    for constant in (0.0, 1e6):
        model = bbvi.Model(lambda z, c: -0.5 * (z["x"] - 1.0) ** 2 + c, x=bbvi.real(3, init=0.0))
        start = bbvi.fit(model, jnp.float32(constant), stop=bbvi.Budget(steps=0))
        moments = bbvi.gradient_moments(model, jnp.float32(constant), start, draws=bbvi.MonteCarlo(200), repeats=20)
        found.append(np.asarray(moments.mean["x"]["loc"]))
    # adding 10^6 in float32 rounds log p to 1/16; the gradient keeps that accuracy, not that of 10^6
    np.testing.assert_allclose(found[0], found[1], atol=0.02)
