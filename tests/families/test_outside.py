"""A family from outside the package: fifteen lines, and it gets the shared checks and a fit."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats

import bbvi
from bbvi.families import AbstractFamily, Positive, location_and_scale, score
from bbvi.model.latents import random_starts
from bbvi.numerics.address import seed_key
from tests.compiled import compiled


class LogLogistic(AbstractFamily):
    """A positive number whose logarithm is logistic, by its location and scale."""

    chart = Positive()

    def parameters(self):
        return location_and_scale()

    def sample(self, params, address):
        u = address.uniform()
        return params["loc"] + jnp.exp(params["scale"]) * (jnp.log(u) - jnp.log1p(-u))

    def log_prob(self, params, coordinates):
        x = (coordinates - params["loc"]) * jnp.exp(-params["scale"])
        return -x - 2 * jax.nn.softplus(-x) - params["scale"] - coordinates


@pytest.fixture
def params():
    return random_starts({"z": bbvi.positive(q=LogLogistic())}, {}, seed_key(4))["z"]


def test_a_family_is_at_most_fifteen_lines():
    lines = [line for line in inspect.getsource(LogLogistic).splitlines() if line.strip()]
    assert len(lines) <= 15


def test_density_integrates_to_one_and_score_to_zero(params):
    u = jnp.linspace(-40.0, 40.0, 100_001)
    log_q, h = compiled(jax.vmap(lambda v: score(LogLogistic(), params, v)))(u)
    weight = np.exp(np.asarray(log_q + u, np.float64)) * 8e-4  # the step of u, with dz = z du
    assert abs(weight.sum() - 1) < 1e-3
    for leaf in h.values():
        h64 = np.asarray(leaf, np.float64)
        assert abs((weight * h64).sum()) < 2e-3 * np.sqrt((weight * h64**2).sum())


def test_draws_follow_the_density():
    posterior = bbvi.fit(bbvi.Model(lambda z, _: -z["z"], z=bbvi.positive(q=LogLogistic())), stop=bbvi.Budget(steps=0))
    loc, scale = float(posterior.params["z"]["loc"]), float(np.exp(posterior.params["z"]["scale"]))
    drawn = np.log(np.asarray(posterior.sample(20_000)["z"], np.float64))
    assert scipy.stats.kstest(drawn, scipy.stats.logistic(loc, scale).cdf).pvalue > 1e-3


@pytest.mark.parametrize("gradient", [bbvi.Score(), bbvi.Pathwise()])
def test_a_fit_finds_a_target_of_the_family(gradient):
    def log_joint(z, _):
        return dist.Logistic(0.7, 0.4).log_prob(jnp.log(z["z"])) - jnp.log(z["z"])

    model = bbvi.Model(log_joint, z=bbvi.positive(q=LogLogistic()))
    posterior = bbvi.fit(model, gradient=gradient, stop=bbvi.Budget(steps=500), seed=1)
    elbo = posterior.elbo(4000)
    assert abs(elbo) < 4 * elbo.standard_error + 5e-3
    np.testing.assert_allclose(posterior.quantile(0.5)["z"], np.exp(0.7), rtol=0.05)


def test_latents_that_say_the_same_are_equal():
    def latent(init=(1.0, 2.0)):
        return bbvi.positive("visit", 2, q=LogLogistic(), init={"loc": np.array(init)})

    assert latent() == latent() and hash(latent()) == hash(latent())
    assert latent() != latent((1.0, 3.0))
    assert bbvi.interval(0, 2) == bbvi.interval(0, 2) and bbvi.interval(0, 2) != bbvi.interval(0, 3)
    assert bbvi.ordered(3) == bbvi.ordered(3) and hash(bbvi.ordered(3)) == hash(bbvi.ordered(3))
    assert bbvi.real(3) != bbvi.positive(3)


def test_what_is_compiled_for_a_latent_serves_an_equal_one():
    traced = []
    by_latent = jax.jit(lambda x, latent: (traced.append(1), x)[1], static_argnames="latent")
    for _ in range(3):
        by_latent(1.0, latent=bbvi.positive(3, q=LogLogistic()))
    assert len(traced) == 1


def test_a_latent_cannot_be_changed():
    with pytest.raises(AttributeError):
        bbvi.real().shape = (3,)
