"""Gamma and normal draws by inversion: the functions against SciPy, the draws against their distributions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from bbvi.numerics.address import Address, fold, seed_key
from bbvi.numerics.quantiles import log_gamma_quantile, poisson_quantile
from bbvi.numerics.samplers import inverse_normal, log_gamma_ratio
from tests.compiled import compiled

SHAPES = (1e-3, 1e-2, 0.1, 0.5, 1.0, 1.5, 3.0, 10.0, 100.0, 1e4)
DEVIATES = np.linspace(-5.3, 5.3, 601)
# shapes that the quantile function sees: a itself from 1 up, a + 1 below
ABOVE_ONE = np.unique(
    np.concatenate([1 + np.geomspace(1e-3, 1, 40), np.geomspace(1, 1e5, 80), [1.0, 2.0]]).astype(np.float32)
)


def exact_log_quantile(x, a):
    tail = scipy.special.ndtr(-np.abs(x))
    return np.log(np.where(x < 0, scipy.special.gammaincinv(a, tail), scipy.special.gammainccinv(a, tail)))


def on_grid(function):
    return jax.jit(jax.vmap(jax.vmap(function, (0, None)), (None, 0)))


def log_quantile(x, a):
    """log z, of which the library has log(z / a)."""
    return log_gamma_quantile(x, a) + jnp.log(a)


def log_gamma(address, a, part=0):
    return log_gamma_ratio(address, a, part) + jnp.log(a)


def exact_slope(x, a, *, h=1e-3):
    """d log z / d log a at a fixed probability, by differences of the exact quantiles to fourth order."""
    near, far = (exact_log_quantile(x, a * np.exp(k * h)) - exact_log_quantile(x, a * np.exp(-k * h)) for k in (1, 2))
    return (8 * near - far) / (12 * h)


def test_quantiles_are_within_a_few_roundings():
    x = DEVIATES.astype(np.float32)
    found = np.asarray(on_grid(log_quantile)(x, ABOVE_ONE), np.float64)
    exact = exact_log_quantile(x.astype(np.float64), ABOVE_ONE.astype(np.float64)[:, None])
    assert (np.abs(found - exact) / (2.5e-6 + 2e-7 * np.abs(exact))).max() < 1


def test_derivatives_of_quantiles_are_the_implicit_ones():
    x = DEVIATES.astype(np.float32)
    slope = np.asarray(on_grid(jax.grad(log_quantile, 1))(x, ABOVE_ONE), np.float64) * ABOVE_ONE[:, None]
    exact = exact_slope(x.astype(np.float64), ABOVE_ONE.astype(np.float64)[:, None])
    assert np.abs(slope - exact).max() < 1e-5
    z = np.exp(exact_log_quantile(x.astype(np.float64), 3.0))
    implicit = jax.lax.random_gamma_grad(jnp.full(z.shape, 3.0), jnp.asarray(z, jnp.float32)) / z
    ours = np.asarray(on_grid(jax.grad(log_quantile, 1))(x, jnp.array([3.0])))[0]
    np.testing.assert_allclose(ours, implicit, rtol=1e-4)


def test_quantiles_rise_with_the_deviate_and_slope_as_the_density_says():
    x, a = jnp.asarray(DEVIATES, jnp.float32), jnp.array([1.0, 1.3, 4.0, 1e3])
    slope = np.asarray(on_grid(jax.grad(log_quantile, 0))(x, a), np.float64)
    log_z = exact_log_quantile(np.asarray(x, np.float64), np.asarray(a, np.float64)[:, None])
    density = scipy.stats.norm.pdf(x) / scipy.stats.gamma(np.asarray(a, np.float64)[:, None]).pdf(np.exp(log_z))
    np.testing.assert_allclose(slope, density / np.exp(log_z), rtol=2e-4)
    assert (slope > 0).all()


def test_quantiles_tend_to_the_normal_for_large_shapes():
    x = np.linspace(-5, 5, 11).astype(np.float32)
    for a in (1e6, 1e8, 1e12, 1e30):
        s = np.float64(a) ** -0.5
        expected = s * x - s**2 * (x.astype(np.float64) ** 2 + 2) / 6
        np.testing.assert_allclose(on_grid(log_gamma_quantile)(x, jnp.array([a]))[0], expected, rtol=1e-5)


def test_double_precision_has_the_accuracy_of_the_fit():
    with jax.enable_x64(True):
        a = ABOVE_ONE.astype(np.float64)
        found = np.asarray(on_grid(log_quantile)(DEVIATES, a))
        assert found.dtype == np.float64
        assert np.abs(found - exact_log_quantile(DEVIATES, a[:, None])).max() < 1e-7
        slope = np.asarray(on_grid(jax.grad(log_quantile, 1))(DEVIATES, a)) * a[:, None]
        assert np.abs(slope - exact_slope(DEVIATES, a[:, None])).max() < 1e-6
        beyond = np.asarray(on_grid(log_quantile)(np.linspace(-8.3, 8.3, 400), a))
        assert (np.diff(beyond, axis=1) > 0).all()


def test_inverse_normal_is_within_a_millionth_of_every_tail():
    rng = np.random.default_rng(0)
    words = np.unique(np.concatenate([np.arange(4096), rng.integers(0, 2**23, 300_000), 2**23 - 1 - np.arange(4096)]))
    u = words * 2.0**-23 + 2.0**-24
    found = np.asarray(jax.jit(inverse_normal)(jnp.asarray(u, jnp.float32)), np.float64)
    assert np.abs(found - scipy.special.ndtri(u)).max() < 1e-6


@pytest.mark.parametrize("rate", [1e-6, 1e-3, 0.1, 1.0, 5.0, 19.9, 20.1, 300.0, 1e4, 1e6])
def test_poisson_counts_are_the_quantiles(rate):
    """Where a count is not SciPy's, u lies within rounding of the step between the two."""
    rng = np.random.default_rng(0)
    words = np.unique(np.concatenate([np.arange(2048), rng.integers(0, 2**23, 20_000), 2**23 - 1 - np.arange(2048)]))
    u, log_rate = words * 2.0**-23 + 2.0**-24, np.float32(np.log(rate))
    find = jax.jit(lambda u: poisson_quantile(u, inverse_normal(u), jnp.asarray(log_rate)))
    found = np.asarray(jax.vmap(find)(jnp.asarray(u, jnp.float32)))
    exact = scipy.stats.poisson(np.float64(jnp.exp(log_rate)))  # at the rate as single precision has it
    off = np.maximum(u - exact.cdf(found), exact.cdf(found - 1) - u)
    assert off.max() < 3e-7
    assert found.min() >= 0


# ---- draws ---------------------------------------------------------------------------------------------------


def draws(shape, *, elements=200, samples=1000, seed=5, part=0):
    """log z, one row per element."""
    key = seed_key(seed)

    def one(element, sample):
        return log_gamma(Address(key, jnp.uint32(0), element, sample), jnp.float32(shape), part)

    many = jax.jit(jax.vmap(jax.vmap(one, (None, 0)), (0, None)))
    rows = many(jnp.arange(elements, dtype=jnp.uint32), jnp.arange(samples, dtype=jnp.uint32))
    return np.asarray(rows, np.float64)


def lower_tail(log_z, a):
    """P(Z < z); where z underflows it is z**a / Gamma(a + 1)."""
    exact = scipy.special.gammainc(a, np.exp(log_z))
    return np.where(log_z < -30, np.exp(a * log_z - scipy.special.gammaln(a + 1)), exact)


@pytest.mark.parametrize("a", SHAPES)
def test_draws_are_distributed_as_gamma(a):
    log_z = draws(a).ravel()
    assert np.isfinite(log_z).all()
    p = lower_tail(log_z, a)
    assert scipy.stats.kstest(p, "uniform").pvalue > 1e-4
    # both tails on a scale that shows them: a twentieth of the draws each
    for tail in (p, scipy.special.gammaincc(a, np.exp(log_z))):
        inside = tail[(tail < 0.05) & (tail > 0)]
        assert scipy.stats.kstest(-np.log(inside / 0.05), "expon").pvalue > 1e-4
        assert abs(inside.size - 0.05 * tail.size) < 4 * np.sqrt(0.05 * 0.95 * tail.size)


@pytest.mark.parametrize("a", SHAPES)
def test_draws_have_the_moments_of_log_gamma(a):
    log_z = draws(a).ravel()
    mean, variance = scipy.special.digamma(a), scipy.special.polygamma(1, a)
    kurtosis = scipy.special.polygamma(3, a) / variance**2 + 3
    assert abs(log_z.mean() - mean) < 4 * np.sqrt(variance / log_z.size)
    assert abs(log_z.var() - variance) < 4 * variance * np.sqrt((kurtosis - 1) / log_z.size)
    skewness = scipy.special.polygamma(2, a) / variance**1.5
    assert abs(scipy.stats.skew(log_z) - skewness) < 4 * np.std(((log_z - mean) ** 3) / variance**1.5) / 400


def neighbours(a):
    """Pairs of draws that stand next to each other in one coordinate of the address."""
    rows = draws(a)
    other_group = draws_of_group(a, 1)
    return {
        "samples": (rows[:, 1:], rows[:, :-1]),
        "elements": (rows[1:], rows[:-1]),
        "both": (rows[1:, 1:], rows[:-1, :-1]),
        "seeds": (rows, draws(a, seed=6)),
        "parts": (rows, draws(a, part=1)),
        "groups": (draws_of_group(a, 0), other_group),
    }


def draws_of_group(a, group):
    key = fold(seed_key(5), group)

    def one(element, sample):
        return log_gamma(Address(key, jnp.uint32(group), element, sample), jnp.float32(a))

    many = jax.jit(jax.vmap(jax.vmap(one, (None, 0)), (0, None)))
    return np.asarray(many(jnp.arange(200, dtype=jnp.uint32), jnp.arange(1000, dtype=jnp.uint32)), np.float64)


@pytest.mark.parametrize("a", [0.1, 1.0, 30.0])
def test_neighbouring_draws_are_independent(a):
    for name, (one, other) in neighbours(a).items():
        ranks = [scipy.stats.rankdata(v) / v.size for v in (one.ravel(), other.ravel())]
        for transform in (lambda v: v, lambda v: (v - v.mean()) ** 2):
            correlation = np.corrcoef(*(transform(v.ravel()) for v in (one, other)))[0, 1]
            assert abs(correlation) < 4 / np.sqrt(one.size), name
        counts = np.histogram2d(*ranks, bins=16, range=[[0, 1], [0, 1]])[0]
        expected = counts.sum() / counts.size
        chi2 = ((counts - expected) ** 2 / expected).sum()
        assert scipy.stats.chi2.sf(chi2, 15**2) > 1e-4, name


@pytest.mark.parametrize("a", [1e-3, 0.1, 0.7, 0.999, 1.0, 2.5, 40.0, 1e4])
def test_draws_have_the_pathwise_derivative(a):
    """At fixed random bits: that of the quantile function, plus that of log(w) / a below 1."""
    address = jax.vmap(lambda i: Address(seed_key(2), jnp.uint32(0), jnp.uint32(3), i))(
        jnp.arange(2000, dtype=jnp.uint32)
    )
    slope = compiled(jax.vmap(jax.grad(log_gamma, 1), (0, None)))(address, jnp.float32(a))
    u, w = (np.asarray(v, np.float64) for v in jax.vmap(lambda at: at.uniforms())(address))
    a = np.float64(np.float32(a))
    x, shape = scipy.special.ndtri(u), a + 1 if a < 1 else a
    exact = exact_slope(x, shape) / shape - (np.log(w) / a**2 if a < 1 else 0)
    assert np.abs(a * (slope - exact)).max() < 1e-5 * np.abs(a * exact).max()


def test_mean_pathwise_derivative_is_that_of_the_mean():
    """E[z] = a, so that the derivative of a draw of z has mean one, at every shape."""
    address = jax.vmap(lambda i: Address(seed_key(3), jnp.uint32(0), jnp.uint32(0), i))(
        jnp.arange(50_000, dtype=jnp.uint32)
    )
    of_shape = compiled(jax.vmap(jax.grad(lambda at, b: jnp.exp(log_gamma(at, b)), 1), (0, None)))
    for a in (0.05, 0.8, 1.0, 3.0, 50.0):
        z_slope = np.asarray(of_shape(address, a), np.float64)
        assert abs(z_slope.mean() - 1) < 4 * z_slope.std() / np.sqrt(z_slope.size)


def test_large_shapes_stay_gamma():
    for a in (1e6, 1e10):
        scaled = (draws(a).ravel() - np.log(a)) * np.sqrt(a)
        assert np.isfinite(scaled).all()
        if a < 1e7:  # above, single precision rounds log z by more than a thousandth of its deviation
            assert scipy.stats.kstest(scaled, scipy.stats.norm(-1 / (2 * np.sqrt(a))).cdf).pvalue > 1e-4
