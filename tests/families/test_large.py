"""Eq. 4 at large parameters: log q, its score, its draws and their paths keep their digits in single precision."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.special
import scipy.stats
from jax.nn import log_sigmoid, softplus
from jax.scipy.special import gammaln

import bbvi
from bbvi.draws.draws import MonteCarlo, draw_latent
from bbvi.families import score
from bbvi.families.beta import Dirichlet
from bbvi.numerics.address import Address, seed_key
from tests.compiled import compiled

NUM = 4000


# ---- the textbook's densities, for double precision ---------------------------------------------------------------


def gamma(p, u):
    a, d = jnp.exp(p["concentration"]), u - p["mean"]
    return a * (p["concentration"] + d - jnp.exp(d)) - u - gammaln(a)


def inverse_gamma(p, u):
    return gamma({"concentration": p["concentration"], "mean": -p["harmonic_mean"]}, -u) - 2 * u


def gamma_by_variance(p, u):
    return gamma({"concentration": 2 * p["mean"] - p["variance"], "mean": p["mean"]}, u)


def dirichlet_of(a, log_z):
    return ((a - 1) * log_z - gammaln(a)).sum() + gammaln(a.sum())


def beta(p, u):
    signs = jnp.array([1.0, -1.0])
    return dirichlet_of(jnp.exp(p["concentration"] + log_sigmoid(signs * p["mean"])), log_sigmoid(signs * u))


def dirichlet(p, log_z):
    # rounded, the shares add up to 1 within 1e-7, and no textbook's density is for that
    return dirichlet_of(jnp.exp(Dirichlet(3)._log_concentrations(p)), jax.nn.log_softmax(log_z))


def poisson(p, k):
    return k * p["rate"] - jnp.exp(p["rate"]) - gammaln(k + 1.0)


def negative_binomial(p, k):
    c, odds = jnp.exp(p["concentration"]), p["mean"] - p["concentration"]
    return gammaln(k + c) - gammaln(c) - gammaln(k + 1.0) - k * softplus(-odds) - c * softplus(odds)


def student_t(p, x):
    df, x = jnp.exp(p["df"]), (x - p["loc"]) * jnp.exp(-p["scale"])
    half = gammaln((df + 1) / 2) - gammaln(df / 2) - 0.5 * jnp.log(df * jnp.pi)
    return half - (df + 1) / 2 * jnp.log1p(x**2 / df) - p["scale"]


LARGE = (1e3, 1e4, 1e5, 1e6, 1e7, 1e8)
TABLE = {
    "Gamma": (bbvi.positive(), gamma, [{"concentration": a, "mean": m} for a in LARGE for m in (1.0, 700.0)]),
    "GammaE": (bbvi.positive(q=bbvi.GammaE), gamma_by_variance, [{"mean": 3.0, "variance": 9 / a} for a in LARGE]),
    "InverseGamma": (
        bbvi.positive(q=dist.InverseGamma), inverse_gamma, [{"concentration": a, "harmonic_mean": 0.02} for a in LARGE],
    ),
    "Beta": (bbvi.unit_interval(), beta, [{"concentration": a, "mean": m} for a in LARGE for m in (0.03, 0.5, 0.8)]),
    "Dirichlet": (
        bbvi.simplex(3), dirichlet, [{"concentration": a, "mean": jnp.array([0.1, 0.3, 0.6])} for a in LARGE],
    ),
    "Dirichlet, one tiny": (
        bbvi.simplex(3), dirichlet, [{"concentration": a, "mean": jnp.array([0.1 / a, 0.4, 0.6 - 0.1 / a])} for a in LARGE],
    ),
    "Poisson": (bbvi.count(), poisson, [{"rate": rate} for rate in LARGE]),
    "NegativeBinomial": (
        bbvi.count(q=dist.NegativeBinomial2), negative_binomial,
        [{"mean": m, "concentration": c} for m in LARGE for c in (0.7, 4.0, 300.0, 1e6)] + [{"mean": 8.0, "concentration": c} for c in LARGE[:3]],
    ),
    "StudentT": (bbvi.real(q=dist.StudentT), student_t, [{"df": df, "loc": 0.5, "scale": 2.0} for df in LARGE[:4]]),
}  # fmt: skip


@functools.cache
def drawing(name):
    """A function of the values of parameters: the parameters, and draws of q, in single precision."""
    latent = TABLE[name][0]

    @compiled
    def drawn(values, samples):
        entries = latent.family.parameters()
        params = {name: entries[name].unconstrain(value) for name, value in values.items()}
        u = draw_latent(MonteCarlo(NUM), "z", latent, params, key=seed_key(3), group=0, samples=samples, lengths={})
        return params, jnp.moveaxis(u, -1, 0)

    return lambda values: drawn(jax.tree.map(jnp.asarray, values), jnp.arange(NUM, dtype=jnp.uint32))


def doubled(tree):
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)


@pytest.mark.parametrize("name", TABLE)
def test_log_q_and_its_score_are_those_of_double_precision(name):
    latent, exact, settings = TABLE[name]
    at = compiled(lambda params, u: jax.vmap(lambda v: score(latent.family, params, v))(u))
    exact_at = compiled(jax.vmap(jax.value_and_grad(exact), (None, 0)))
    for values in settings:
        params, u = drawing(name)(values)
        log_q, h = doubled(at(params, u))
        with jax.enable_x64(True):
            true, slopes = doubled(exact_at(doubled(params), doubled(u)))
        np.testing.assert_allclose(log_q, true, rtol=3e-4, atol=1e-3, err_msg=str(values))
        for parameter, slope in slopes.items():
            size = np.sqrt((slope**2).mean(0))
            error = np.abs(h[parameter] - slope) / (np.abs(slope) + size)
            # what is rounded is the draw, or the rate: about 1e-7 of a mean that is 1e4 deviations away from zero
            assert error.max() < 3e-3, (values, parameter)
            assert np.all(np.abs((h[parameter] - slope).mean(0)) < 2e-3 * size), (values, parameter)


def standard(name, p, u):
    """Draws as standard Normals, as far as the largest parts of these laws go: right to a few hundredths from 1e4 on."""
    if name == "Poisson":
        return (u - np.exp(p["rate"])) / np.exp(p["rate"] / 2)
    a = np.exp(p["concentration"])
    if name == "Beta":
        p_mean = scipy.special.expit(p["mean"])
        return (u - p["mean"]) * np.sqrt(a * p_mean * (1 - p_mean))
    return (u - p["mean"]) * np.sqrt(a) if name == "Gamma" else (p["harmonic_mean"] - u) * np.sqrt(a)


@pytest.mark.parametrize("name", ["Gamma", "InverseGamma", "Beta", "Poisson"])
def test_draws_are_not_centred_elsewhere_and_not_coarse(name):
    for values in TABLE[name][2]:
        params, u = drawing(name)(values)
        x = standard(name, doubled(params), doubled(u))
        if max(values.values()) >= 1e4:
            assert scipy.stats.kstest(x, "norm").pvalue > 1e-4, values
            assert abs(x.mean()) < 4 / np.sqrt(NUM) + 0.02, values


@pytest.mark.parametrize("name", ["Gamma", "InverseGamma", "Beta"])
def test_paths_have_the_slope_of_a_narrow_law(name):
    """A draw is its mean plus x over the root of the concentration: d log z / d log a = -x / 2 / sqrt(a)."""
    latent, _, settings = TABLE[name]
    family = latent.family

    @compiled
    @functools.partial(jax.vmap, in_axes=(None, 0))
    def slope(params, sample):
        address = Address(seed_key(3), jnp.uint32(0), jnp.uint32(0), sample)
        return family.sample(params, address), jax.jacrev(family.sample)(params, address)

    for values in settings:
        params, _ = drawing(name)(values)
        u, found = doubled(slope(params, jnp.arange(100, dtype=jnp.uint32)))
        (mean,) = set(found) - {"concentration"}
        deviation = u - float(params[mean])
        size = np.sqrt((deviation**2).mean())
        np.testing.assert_allclose(found[mean], 1, atol=1e-6 + 2 * size)
        error = np.abs(found["concentration"] + deviation / 2)
        assert error.max() < 0.01 * size + 4 * size**2, values


@pytest.mark.parametrize(
    ("latent", "coordinate", "relative", "sd"),
    [
        (bbvi.positive(init=3.0), lambda z: jnp.log(z / 3.0), 1e-4, 3e-4),
        (bbvi.unit_interval(init=0.3), lambda z: jnp.log(z) - jnp.log1p(-z) - np.log(0.3 / 0.7), 1e-3, 2.1e-4),
    ],
)
def test_a_narrow_posterior_gets_its_standard_deviation(latent, coordinate, relative, sd):
    model = bbvi.Model(lambda z, _: -0.5 * (coordinate(z["z"]) / relative) ** 2, z=latent)
    posterior = bbvi.fit(model, gradient=bbvi.Score(), progress=False)
    assert posterior.converged
    np.testing.assert_allclose(posterior.sd()["z"], sd, rtol=0.01)
