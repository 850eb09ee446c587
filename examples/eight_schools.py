"""Eight schools (Rubin 1981): the effect of a coaching programme in eight schools, and in schools like them.

Given tau everything else is Normal, so the exact posterior is one sum over a grid of tau. The example compares the fit
with it, and with that of a fully factorized q, which cannot follow the funnel between tau and theta.
"""

import numpy as np
import numpyro.distributions as dist
import pandas as pd
from scipy import stats

import bbvi

EFFECT = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
STANDARD_ERROR = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def log_joint(z, data):
    y, sigma = data
    return (
        dist.Normal(0, 5).log_prob(z["mu"])
        + dist.HalfCauchy(5).log_prob(z["tau"])
        + dist.Normal(z["mu"], z["tau"]).log_prob(z["theta"]).sum()
        + dist.Normal(z["theta"], sigma).log_prob(y).sum()
    )


def exact(y, sigma):
    """Compute the exact posterior means and sds of mu, tau and theta in this order, and log p(y)."""
    tau, step = np.linspace(1e-3, 200, 40_000, retstep=True)
    spread = tau[:, None] ** 2 + sigma**2
    mu_variance = 1 / (1 / 25 + (1 / spread).sum(1))
    mu = mu_variance * (y / spread).sum(1)
    log_p = (  # log p(y, tau) = log p(y, mu, tau) - log p(mu | y, tau) at any mu
        stats.norm.logpdf(y, mu[:, None], np.sqrt(spread)).sum(1)
        + stats.norm.logpdf(mu, 0, 5)
        - stats.norm.logpdf(0, 0, np.sqrt(mu_variance))
        + stats.halfcauchy.logpdf(tau, scale=5)
    )
    weight = np.exp(log_p - np.logaddexp.reduce(log_p))
    pull = tau[:, None] ** 2 / spread
    means = np.column_stack([mu, tau, pull * y + (1 - pull) * mu[:, None]])
    variances = np.column_stack([mu_variance, 0 * tau, pull * sigma**2 + (1 - pull) ** 2 * mu_variance[:, None]])
    mean = weight @ means
    return mean, np.sqrt(weight @ (variances + (means - mean) ** 2)), np.logaddexp.reduce(log_p) + np.log(step)


def main():
    """Fit, print the fit beside the exact posterior, and return it."""
    model = bbvi.Model(log_joint, mu=bbvi.real(), tau=bbvi.positive(), theta=bbvi.real(8))
    posterior = bbvi.fit(model, data=(EFFECT, STANDARD_ERROR))

    summary = posterior.summary()
    mean, sd, log_evidence = exact(EFFECT, STANDARD_ERROR)
    print(pd.DataFrame(summary).assign(**{"exact mean": mean, "exact sd": sd}).round(2))

    elbo = posterior.elbo(10_000)
    print(f"\nELBO {elbo!r}; exact log p(y) {log_evidence:.2f}; so KL(q || p) = {log_evidence - elbo:.2f} nats")
    print(posterior.verdict)
    worst = (np.abs(summary["mean"] - mean) / sd).max()
    print(
        f"Means are right to {worst:.2f} posterior sd; the sd of tau, whose tail is heavy, is {summary['sd']['tau']:.1f}."
    )
    apart = bbvi.Model(log_joint, joint=(), mu=bbvi.real(), tau=bbvi.positive(), theta=bbvi.real(8))
    factorized = bbvi.fit(apart, data=(EFFECT, STANDARD_ERROR))
    loss = float(elbo - factorized.elbo(10_000))
    print(f"With every number by itself the sd of tau is {factorized.sd()['tau']:.1f}, and {loss:.1f} nats are lost.")
    return posterior


if __name__ == "__main__":
    main()
