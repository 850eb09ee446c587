"""Compare two models of the same counts by leave-one-out cross-validation.

Goals in 12 matches: are they Poisson with one rate, or with a rate of each match? ArviZ compares the fits by their predictions.
"""

import arviz as az
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import bbvi

GOALS = np.array([0, 1, 1, 9, 0, 2, 12, 1, 0, 8, 1, 0])


def poisson() -> bbvi.Model:
    """One rate for all matches."""
    return bbvi.Model(
        lambda z, goals: dist.Gamma(1, 0.2).log_prob(z["rate"]) + dist.Poisson(z["rate"]).log_prob(goals).sum(),
        rate=bbvi.positive(),
    )


def negative_binomial() -> bbvi.Model:
    """A rate of each match, summed out."""

    def log_joint(z, goals):
        prior = dist.Gamma(1, 0.2).log_prob(z["rate"]) + dist.Exponential(1).log_prob(z["shape"])
        return prior + dist.NegativeBinomial2(z["rate"], z["shape"]).log_prob(goals).sum()

    return bbvi.Model(log_joint, rate=bbvi.positive(), shape=bbvi.positive())


def main():
    """Fit both, print ArviZ's table and what the better one predicts, and return the table."""
    fits = {"poisson": bbvi.fit(poisson(), GOALS), "negative binomial": bbvi.fit(negative_binomial(), GOALS)}
    table = az.compare({name: posterior.to_arviz(2000) for name, posterior in fits.items()})
    print(table)
    tomorrow = bbvi.predict(
        fits["negative binomial"], lambda z, _, key: dist.NegativeBinomial2(z["rate"], z["shape"]).sample(key), 4000
    )
    print(
        f"next match: {float(jnp.round(tomorrow.mean, 1))} goals, 90 % between {tomorrow.low:.0f} and {tomorrow.high:.0f}"
    )
    return table


if __name__ == "__main__":
    main()
