"""Variable selection: which of eight predictors have an effect, with the spike and slab prior.

    g_i ~ Bernoulli(0.3), b_i ~ Normal(0, 1), y ~ Normal(X (g * b), 1)

Effect i is b_i if the predictor is in, and 0 if not. Given g_i = 1 the posterior of b_i is narrow, and given g_i = 0 it is the prior: no
Normal for b_i is both. As the product g * b takes element i of each, q is q(g_i) q(b_i | g_i), a Normal for each value of g_i, and its gradient
comes from sums over the values of g_i and paths of b_i given each. The eight bits have 256 values, so that the exact probabilities are known.

Between predictors this q is independent. Where two that are strongly correlated could stand for each other, it decides for one of them, and the
probabilities are wrong: then k-hat is above 0.7, and `bbvi.metropolis_within_gibbs` is the way.
"""

import itertools

import numpy as np
import numpyro.distributions as dist
import pandas as pd

import bbvi

INCLUDED, NUM = 0.3, 8
EFFECTS = np.array([1.0, 0.0, -0.35, 0.0, 0.2, 0.0, 0.0, 0.0])


def simulate(num_rows, seed):
    """Simulate predictors and an outcome that three of them move."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(num_rows, NUM))
    return x, x @ EFFECTS + generator.normal(size=num_rows)


def log_joint(z, data):
    x, y = data
    return {
        "included": dist.Bernoulli(INCLUDED).log_prob(z["included"]),
        "effect": dist.Normal(0, 1).log_prob(z["effect"]),
        "y": dist.Normal(x @ (z["included"] * z["effect"]), 1.0).log_prob(y),
    }


def exact(x, y):
    """Return the probability that each predictor is in, by the evidence of all 256 models."""
    models = np.array(list(itertools.product([0, 1], repeat=NUM)))
    log_p = np.zeros(len(models))
    for k, model in enumerate(models):
        on = x[:, model == 1]
        precision = on.T @ on + np.eye(on.shape[1])
        explained = y @ on @ np.linalg.solve(precision, on.T @ y)
        log_p[k] = (explained - np.linalg.slogdet(precision)[1]) / 2
    log_p += models.sum(1) * np.log(INCLUDED) + (1 - models).sum(1) * np.log(1 - INCLUDED)
    weight = np.exp(log_p - log_p.max())
    return weight / weight.sum() @ models


def main():
    """Fit 150 rows, compare with all models, and return the fit."""
    x, y = simulate(150, seed=1)
    model = bbvi.Model(log_joint, included=bbvi.binary(NUM), effect=bbvi.real(NUM))
    posterior = bbvi.fit(model, (x, y))
    print(posterior.verdict)
    print(posterior.structure)
    draws = posterior.sample(4000)
    table = {
        "true effect": EFFECTS,
        "mean of the effect": np.asarray(draws["included"] * draws["effect"]).mean(0),
        "P(in)": posterior.probs()["included"][:, 1],
        "exact P(in)": exact(x, y),
    }
    print(pd.DataFrame(table).round(2).to_string())
    return posterior


if __name__ == "__main__":
    main()
