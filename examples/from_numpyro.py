"""A NumPyro function, fitted whole and in batches of the elements of its plate, and its draws back in NumPyro.

    mu ~ Normal(0, 2), tau ~ HalfNormal(1), level_i ~ Normal(mu, tau), y_i ~ Normal(level_i, 1)

The function is as it would be for NumPyro's samplers. `bbvi.from_numpyro` makes a model of it: the names of its statements are those
of the latents and of the terms. With `groups="unit"` the elements of that plate are groups, fitted 50 at a time. The draws go to
`numpyro.infer.Predictive` as a sampler's would.
"""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import Predictive

import bbvi


def function(num, y=None):
    """Draw levels around a mean, and a reading of each."""
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    with numpyro.plate("unit", num):
        level = numpyro.sample("level", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(level, 1), obs=y)


def simulate(num, seed):
    """Simulate readings of levels around 1.5."""
    return np.random.default_rng(seed).normal(1.5, np.sqrt(1 + 0.8**2), num)


def main():
    """Fit in both ways, print what the readings will be like, and return the fits with the predicted readings."""
    y = simulate(300, seed=0)
    model, data = bbvi.from_numpyro(function, 300, y=y)
    whole = bbvi.fit(model, data)
    print(whole.summary(limit=3))

    model, data = bbvi.from_numpyro(function, 300, y=y, groups="unit", rows=["y"])
    batches = bbvi.fit(model, data, batch_size=50)
    print(
        f"\nin batches mu is {batches.mean()['mu']:.2f}, whole {whole.mean()['mu']:.2f}, the mean reading {y.mean():.2f}"
    )

    predictive = Predictive(function, posterior_samples=whole.to_numpyro(1000))
    predicted = predictive(jax.random.key(0), 300)["y"]
    print(f"sd of the readings: {y.std():.2f}, predicted {predicted.std():.2f}")
    return whole, batches, predicted


if __name__ == "__main__":
    main()
