"""Failures of ten pumps at a power plant (Gaver and O'Muircheartaigh 1987): counts with a gamma for the rates.

    alpha ~ Exponential(1), beta ~ Gamma(0.1, 1)
    rate_i ~ Gamma(alpha, beta), failures_i ~ Poisson(rate_i time_i)

The terms of log p have names here, which error messages use; their sum would do as well. bbvi finds that only its own prior
and its own count read a rate, and leaves the nine other pumps out of its gradient (section 3.1 of the paper).
"""

import numpy as np
import numpyro.distributions as dist
import pandas as pd
from scipy import stats

import bbvi

TIME = np.array([94.3, 15.7, 62.9, 126.0, 5.24, 31.4, 1.05, 1.05, 2.1, 10.5])  # thousands of hours
FAILURES = np.array([5, 1, 5, 14, 3, 19, 1, 1, 4, 22])


def log_joint(z, data):
    return {
        "alpha": dist.Exponential(1.0).log_prob(z["alpha"]),
        "beta": dist.Gamma(0.1, 1.0).log_prob(z["beta"]),
        "rate": dist.Gamma(z["alpha"], z["beta"]).log_prob(z["rate"]),
        "failures": dist.Poisson(z["rate"] * data["time"]).log_prob(data["failures"]),
    }


def exact(time, failures):
    """Compute posterior means and sds of alpha, beta and the rates: a grid of (alpha, beta), the rates in closed form."""
    alpha, beta = (grid.ravel() for grid in np.meshgrid(np.linspace(0.01, 5, 500), np.linspace(0.01, 12, 500)))
    marginal = stats.nbinom.logpmf(failures, alpha[:, None], beta[:, None] / (beta[:, None] + time)).sum(1)
    log_p = marginal + stats.expon.logpdf(alpha) + stats.gamma.logpdf(beta, 0.1)
    weight = np.exp(log_p - np.logaddexp.reduce(log_p))
    shape, rate = alpha[:, None] + failures, beta[:, None] + time
    means = np.column_stack([alpha, beta, shape / rate])
    variances = np.column_stack([0 * alpha, 0 * beta, shape / rate**2])
    mean = weight @ means
    return mean, np.sqrt(weight @ (variances + (means - mean) ** 2))


def main():
    """Fit, print the fit beside the exact posterior, and return it."""
    # given alpha and beta the rates are gammas, as their factors are when each number has one of its own; the default, a joint
    # Normal of their logarithms, follows alpha and beta better, and has a skew for each rate in place of the gamma's
    model = bbvi.Model(log_joint, joint=(), alpha=bbvi.positive(), beta=bbvi.positive(), rate=bbvi.positive(10))
    posterior = bbvi.fit(model, data={"time": TIME, "failures": FAILURES})

    summary = posterior.summary()
    mean, sd = exact(TIME, FAILURES)
    print(pd.DataFrame(summary).assign(**{"exact mean": mean, "exact sd": sd}).round(3))

    off = (np.abs(summary["mean"] - mean) / sd)[2:]
    ratio = (summary["sd"] / sd)[2:]
    print(f"\n{'converged' if posterior.converged else 'NOT converged'} after {len(posterior.history)} steps")
    print(
        f"Verdict: every rate's mean is within {off.max():.2f} exact sd of the exact mean, "
        f"and its sd between {ratio.min():.2f} and {ratio.max():.2f} times the exact one."
    )
    return posterior


if __name__ == "__main__":
    main()
