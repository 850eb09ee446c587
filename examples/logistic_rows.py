"""Logistic regression on 2,000 rows, 100 rows a step.

    weight ~ Normal(0, 2), y_i ~ Bernoulli(sigmoid(x_i . weight))

This is how to subsample plain observations: write a hierarchical model without locals, in which a group is one row of the
table, and write the likelihood for one row. The fit is compared with the posterior mode found by Newton's method and the Gaussian
of its curvature (Laplace), which is close to exact for so many rows.
"""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd

import bbvi

NAMES = ["intercept", "age", "dose", "smoker", "weight"]
TRUTH = np.array([-0.8, 0.5, 1.2, 0.7, 0.0])


def simulate(num_rows, seed):
    """Simulate a design with an intercept, standardised columns and one binary one; and outcomes."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(num_rows, 5))
    x[:, 0] = 1
    x[:, 3] = generator.random(num_rows) < 0.3
    return x, (generator.random(num_rows) < 1 / (1 + np.exp(-x @ TRUTH))).astype(float)


def log_prior(beta):
    return dist.Normal(0, 2).log_prob(beta["weight"])


def log_likelihood(beta, z, row):
    return dist.Bernoulli(logits=jnp.dot(row["x"], beta["weight"])).log_prob(row["y"])


def laplace(x, y):
    """Find the posterior mode by Newton's method, and the sds of the Gaussian of its curvature."""
    weight = np.zeros(5)
    for _ in range(20):
        p = 1 / (1 + np.exp(-x @ weight))
        precision = (x.T * (p * (1 - p))) @ x + np.eye(5) / 4
        weight = weight + np.linalg.solve(precision, x.T @ (y - p) - weight / 4)
    return weight, np.sqrt(np.diag(np.linalg.inv(precision)))


def main():
    """Fit by batches of 100 rows, print the fit beside Laplace's approximation, and return it."""
    x, y = simulate(2000, seed=2)
    model = bbvi.HierarchicalModel(log_prior=log_prior, log_likelihood=log_likelihood, globals={"weight": bbvi.real(5)})
    posterior = bbvi.fit(model, data={"x": x, "y": y}, batch_size=100)

    mode, sd = laplace(x, y)
    table = pd.DataFrame(posterior.summary())[["mean", "sd"]].set_index(pd.Index(NAMES))
    print(table.assign(**{"Laplace": mode, "its sd": sd, "truth": TRUTH}).round(3))

    off = (np.abs(table["mean"] - mode) / sd).max()
    ratio = table["sd"] / sd
    print(f"\n{'converged' if posterior.converged else 'NOT converged'} after {len(posterior.history)} steps")
    print(
        f"Verdict: means within {off:.2f} posterior sd of Laplace's, sds {ratio.min():.2f} to {ratio.max():.2f} times his."
    )
    return posterior


if __name__ == "__main__":
    main()
