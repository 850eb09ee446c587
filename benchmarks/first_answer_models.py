"""Five models for `first_answer.py`, each for bbvi and for NumPyro, of the same distributions.

`MODELS[name]` has `data(seed)`, the function and the latents of a `bbvi.Model`, and NumPyro's model.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

NUM_COUNTIES, NUM_HOUSES = 85, 900
COUNTY = np.random.default_rng(0).integers(NUM_COUNTIES, size=NUM_HOUSES)
WEIGHTS = tuple(f"w{i}" for i in range(12))


class Both(NamedTuple):
    """A model for both; `latents(bbvi)` declares those of bbvi."""

    data: Any
    log_joint: Any
    latents: Any
    numpyro: Any


def schools_data(seed):
    y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    sigma = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
    return np.random.default_rng(seed).normal(y, 3.0 * seed), sigma + seed


def schools(z, data):
    y, sigma = data
    return (
        dist.Normal(0, 5).log_prob(z["mu"])
        + dist.HalfCauchy(5).log_prob(z["tau"])
        + dist.Normal(z["mu"], z["tau"]).log_prob(z["theta"]).sum()
        + dist.Normal(z["theta"], sigma).log_prob(y).sum()
    )


def schools_numpyro(data):
    y, sigma = data
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    theta = numpyro.sample("theta", dist.Normal(mu, tau).expand([8]).to_event(1))
    numpyro.sample("y", dist.Normal(theta, sigma).to_event(1), obs=y)


def logistic_data(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(500, 8))
    return x, rng.random(500) < 1 / (1 + np.exp(-x @ np.linspace(-1, 1, 8)))


def logistic(z, data):
    x, y = data
    priors = dist.Normal(0, 1).log_prob(z["w"]).sum() + dist.Normal(0, 5).log_prob(z["b"])
    return priors + dist.Bernoulli(logits=x @ z["w"] + z["b"]).log_prob(y).sum()


def logistic_numpyro(data):
    x, y = data
    w = numpyro.sample("w", dist.Normal(0, 1).expand([8]).to_event(1))
    b = numpyro.sample("b", dist.Normal(0, 5))
    numpyro.sample("y", dist.Bernoulli(logits=x @ w + b).to_event(1), obs=y)


def radon_data(seed):
    rng = np.random.default_rng(seed)
    floor = rng.random(NUM_HOUSES) < 0.2
    levels = rng.normal(1.5, 0.3, NUM_COUNTIES)
    return floor.astype(np.float32), rng.normal(levels[COUNTY] - 0.7 * floor, 0.8)


def radon(z, data):
    floor, y = data
    return (
        dist.Normal(0, 5).log_prob(z["mu"])
        + dist.HalfNormal(2).log_prob(z["tau"])
        + dist.Normal(0, 5).log_prob(z["slope"])
        + dist.HalfNormal(2).log_prob(z["sigma"])
        + dist.Normal(z["mu"], z["tau"]).log_prob(z["level"]).sum()
        + dist.Normal(z["level"][COUNTY] + z["slope"] * floor, z["sigma"]).log_prob(y).sum()
    )


def radon_numpyro(data):
    floor, y = data
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfNormal(2))
    slope = numpyro.sample("slope", dist.Normal(0, 5))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    level = numpyro.sample("level", dist.Normal(mu, tau).expand([NUM_COUNTIES]).to_event(1))
    numpyro.sample("y", dist.Normal(level[COUNTY] + slope * floor, sigma).to_event(1), obs=y)


def mixture_data(seed):
    rng = np.random.default_rng(seed)
    component = rng.choice(3, 300, p=[0.3, 0.5, 0.2])
    return rng.normal(np.array([-4.0, 0.0, 5.0])[component], np.array([1.0, 0.7, 1.5])[component])


def points_of_mixture(weight, centre, spread, y):
    by_component = jnp.log(weight) + dist.Normal(centre, spread).log_prob(y[:, None])
    return jax.nn.logsumexp(by_component, axis=1)


def mixture(z, y):
    return (
        dist.Dirichlet(jnp.full(3, 2.0)).log_prob(z["weight"])
        + dist.Normal(np.array([-5.0, 0.0, 5.0]), 2).log_prob(z["centre"]).sum()
        + dist.LogNormal(0, 1).log_prob(z["spread"]).sum()
        + points_of_mixture(z["weight"], z["centre"], z["spread"], y).sum()
    )


def mixture_numpyro(y):
    weight = numpyro.sample("weight", dist.Dirichlet(jnp.full(3, 2.0)))
    centre = numpyro.sample("centre", dist.Normal(np.array([-5.0, 0.0, 5.0]), 2).to_event(1))
    spread = numpyro.sample("spread", dist.LogNormal(0, 1).expand([3]).to_event(1))
    numpyro.factor("y", points_of_mixture(weight, centre, spread, y).sum())


def scalars_data(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(200, len(WEIGHTS)))
    return x, rng.normal(x @ np.linspace(-1, 1, len(WEIGHTS)), 0.5)


def scalars(z, data):
    x, y = data
    mean = sum(z[name] * x[:, i] for i, name in enumerate(WEIGHTS))
    priors = sum(dist.Normal(0, 1).log_prob(z[name]) for name in WEIGHTS)
    return priors + dist.Normal(mean, 0.5).log_prob(y).sum()


def scalars_numpyro(data):
    x, y = data
    weights = [numpyro.sample(name, dist.Normal(0, 1)) for name in WEIGHTS]
    mean = sum(w * x[:, i] for i, w in enumerate(weights))
    numpyro.sample("y", dist.Normal(mean, 0.5).to_event(1), obs=y)


MODELS = {
    "eight schools": Both(
        schools_data, schools,
        lambda bbvi: {"mu": bbvi.real(), "tau": bbvi.positive(), "theta": bbvi.real(8)},
        schools_numpyro,
    ),
    "logistic regression": Both(
        logistic_data, logistic, lambda bbvi: {"w": bbvi.real(8), "b": bbvi.real()}, logistic_numpyro
    ),
    "radon-like hierarchy": Both(
        radon_data, radon,
        lambda bbvi: {"mu": bbvi.real(), "tau": bbvi.positive(), "slope": bbvi.real(), "sigma": bbvi.positive(),
                      "level": bbvi.real(NUM_COUNTIES)},
        radon_numpyro,
    ),
    "marginal mixture": Both(
        mixture_data, mixture,
        lambda bbvi: {"weight": bbvi.simplex(3), "centre": bbvi.real(3), "spread": bbvi.positive(3)},
        mixture_numpyro,
    ),
    "12 scalar latents": Both(scalars_data, scalars, lambda bbvi: {n: bbvi.real() for n in WEIGHTS}, scalars_numpyro),
}  # fmt: skip
