"""Models whose posterior is known: default settings must find it and say that they converged."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import bbvi


def normal_normal():
    y = np.random.default_rng(0).normal(3.0, 2.0, 50)

    def log_joint(z, y):
        return dist.Normal(0, 10).log_prob(z["x"]) + dist.Normal(z["x"], 2).log_prob(y).sum()

    precision = 1 / 100 + 50 / 4
    return log_joint, bbvi.real(), y, dist.Normal(y.sum() / 4 / precision, precision**-0.5)


def gamma_poisson():
    y = np.random.default_rng(0).poisson(4.5, 30)

    def log_joint(z, y):
        return dist.Gamma(2, 1).log_prob(z["x"]) + dist.Poisson(z["x"]).log_prob(y).sum()

    return log_joint, bbvi.positive(), y, dist.Gamma(2.0 + y.sum(), 1.0 + 30)


def beta_bernoulli():
    y = np.random.default_rng(0).binomial(1, 0.3, 40)

    def log_joint(z, y):
        return dist.Beta(1, 1).log_prob(z["x"]) + dist.Bernoulli(z["x"]).log_prob(y).sum()

    return log_joint, bbvi.unit_interval(), y, dist.Beta(1.0 + y.sum(), 1.0 + 40 - y.sum())


def dirichlet_categorical():
    y = np.random.default_rng(0).choice(4, 60, p=[0.1, 0.2, 0.3, 0.4])

    def log_joint(z, y):
        return dist.Dirichlet(jnp.ones(4)).log_prob(z["x"]) + dist.Categorical(z["x"]).log_prob(y).sum()

    return log_joint, bbvi.simplex(4), y, dist.Dirichlet(1.0 + np.bincount(y, minlength=4))


@pytest.mark.parametrize("case", [normal_normal, gamma_poisson, beta_bernoulli, dirichlet_categorical])
def test_defaults_find_the_exact_posterior(case):
    log_joint, latent, y, exact = case()
    posterior = bbvi.fit(bbvi.Model(log_joint, x=latent), y)
    sd = np.sqrt(np.asarray(exact.variance))
    assert posterior.converged
    assert np.max(np.abs(posterior.mean()["x"] - exact.mean) / sd) < 0.02
    assert np.max(np.abs(posterior.sd()["x"] / sd - 1)) < 0.02


def regression(joint=None):
    rng = np.random.default_rng(7)
    covariance = 0.9 * np.ones((10, 10)) + 0.1 * np.eye(10)
    x = rng.normal(size=(100, 10)) @ np.linalg.cholesky(covariance).T
    y = x @ rng.normal(size=10) + rng.normal(size=100)

    def log_joint(z, data):
        x, y = data
        return dist.Normal(0, 1).log_prob(z["w"]).sum() + dist.Normal(x @ z["w"], 1).log_prob(y).sum()

    return bbvi.Model(log_joint, joint=joint, w=bbvi.real(10)), x, y


@pytest.mark.parametrize("seed", [0, 1])
def test_defaults_reach_the_posterior_of_a_correlated_regression(seed):
    model, x, y = regression()
    posterior = bbvi.fit(model, (x, y), seed=seed)
    covariance = np.linalg.inv(x.T @ x + np.eye(10))
    sd = np.sqrt(np.diag(covariance))
    assert posterior.converged
    assert np.all(np.abs(posterior.mean()["w"] - covariance @ x.T @ y) < 0.1 * sd)
    np.testing.assert_allclose(posterior.sd()["w"], sd, rtol=0.05)


@pytest.mark.parametrize("seed", [0, 1])
def test_factors_apart_reach_the_mean_field_optimum_of_a_correlated_regression(seed):
    model, x, y = regression(joint=())
    posterior = bbvi.fit(model, (x, y), seed=seed)
    precision = x.T @ x + np.eye(10)
    mean = np.linalg.solve(precision, x.T @ y)

    def elbo(loc, scale):
        """Up to a constant, in closed form."""
        gap = loc - mean
        return -0.5 * (gap @ precision @ gap + (np.diag(precision) * scale**2).sum()) + np.log(scale).sum()

    best = elbo(mean, np.diag(precision) ** -0.5)
    assert posterior.converged
    assert best - elbo(posterior.mean()["w"], posterior.sd()["w"]) < 0.01
