"""Partial pooling of 300 schools of different sizes, 25 schools a step.

    mean ~ Normal(0, 1), between ~ HalfNormal(1), within ~ HalfNormal(1)
    effect_i ~ Normal(mean, between), score_ij ~ Normal(effect_i, within)

A hierarchical model is written for ONE group: log p(beta), log p(z_i | beta) and log p(x_i | z_i, beta). Here a
group is a school with 2 to 40 pupils, so the axis "pupil" is ragged and its padding has to be masked. Each step
looks at a batch of the schools and scales it up (section 4.2 of the paper).
"""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd

import bbvi

MEAN, BETWEEN, WITHIN = 0.2, 0.4, 0.9


def simulate(num_schools, seed):
    """Simulate standardised scores, one array for each school."""
    generator = np.random.default_rng(seed)
    effect = generator.normal(MEAN, BETWEEN, num_schools)
    sizes = generator.integers(2, 41, num_schools)
    return [generator.normal(e, WITHIN, n) for e, n in zip(effect, sizes, strict=True)]


def log_prior(beta):
    return {
        "mean": dist.Normal(0, 1).log_prob(beta["mean"]),
        "between": dist.HalfNormal(1).log_prob(beta["between"]),
        "within": dist.HalfNormal(1).log_prob(beta["within"]),
    }


def log_local(beta, z, school):
    return dist.Normal(beta["mean"], beta["between"]).log_prob(z["effect"])


def log_likelihood(beta, z, school):
    term = dist.Normal(z["effect"], beta["within"]).log_prob(school["score"])
    return jnp.where(school["mask"]["pupil"], term, 0)


def exact(scores):
    """Compute means and sds of the globals and of each effect: a grid of (between, within), the rest Normal."""
    size = np.array([len(s) for s in scores])
    average = np.array([s.mean() for s in scores])
    squares = sum(((s - s.mean()) ** 2).sum() for s in scores)
    between, within = (g.ravel() for g in np.meshgrid(np.linspace(0.2, 0.6, 120), np.linspace(0.8, 1, 120)))
    noise = within[:, None] ** 2 / size
    spread = between[:, None] ** 2 + noise
    variance = 1 / (1 + (1 / spread).sum(1))
    mean = variance * (average / spread).sum(1)
    log_p = (  # the schools' averages, with the mean integrated out; then the scores within the schools
        -0.5 * (np.log(spread) + (average - mean[:, None]) ** 2 / spread).sum(1)
        - 0.5 * mean**2
        + 0.5 * np.log(variance)
        - (size - 1).sum() * np.log(within)
        - 0.5 * squares / within**2
        - 0.5 * (between**2 + within**2)
    )
    weight = np.exp(log_p - log_p.max())
    weight /= weight.sum()
    pull = between[:, None] ** 2 / spread
    means = np.column_stack([mean, between, within, pull * average + (1 - pull) * mean[:, None]])
    variances = np.column_stack([variance, 0 * mean, 0 * mean, pull * noise + (1 - pull) ** 2 * variance[:, None]])
    centre = weight @ means
    return centre, np.sqrt(weight @ (variances + (means - centre) ** 2))


def main():
    """Fit 300 schools by batches of 25, print the fit beside the exact posterior, and return it."""
    scores = simulate(300, seed=1)
    model = bbvi.HierarchicalModel(
        log_prior=log_prior,
        log_local=log_local,
        log_likelihood=log_likelihood,
        globals={"mean": bbvi.real(), "between": bbvi.positive(), "within": bbvi.positive()},
        locals={"effect": bbvi.real()},
    )
    cohort = bbvi.ragged(pupil={"score": scores})
    posterior = bbvi.fit(model, data=cohort, batch_size=25, stop=[bbvi.Converged(0.03), bbvi.Budget(steps=20_000)])

    mean, sd = exact(scores)
    table = pd.DataFrame(posterior.summary(groups=range(5)))
    print(table.assign(**{"exact mean": mean[:8], "exact sd": sd[:8]}).round(3))
    print("...")

    off = np.abs(posterior.mean()["effect"] - mean[3:]) / sd[3:]
    print(f"\n{'converged' if posterior.converged else 'NOT converged'} after {len(posterior.history)} steps")
    print(
        f"Verdict: each effect's mean is within {off.max():.2f} exact sd of the exact one, {off.mean():.2f} on average."
    )
    return posterior


if __name__ == "__main__":
    main()
