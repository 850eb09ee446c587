"""A mixture of three Gaussians, with the component of each point as a discrete latent.

    weight ~ Dirichlet(2, 2, 2), centre_k ~ Normal(0, 10), spread_k ~ LogNormal(0, 1)
    component_i ~ Categorical(weight), y_i ~ Normal(centre[component_i], spread[component_i])

A score gradient needs no derivative of the log joint, so the component stays a category: nothing is summed out by
hand and nothing is relaxed. Two things make it work:

- The likelihood is returned as an array of points by components, 0 outside a point's own component. So bbvi finds
  that only the terms of column k read centre k. Written as `Normal(centre[k], spread[k])`, each term would read every centre.
- The fit starts well. From random components the fits we tried stayed in poor optima, with components merged. Here each
  point starts in the component whose quantile is nearest. Even so some seeds end in a poor optimum: of three seeds we keep
  the one with the highest ELBO.

The stopping rule is loose (0.1), and whether it fires within the budget depends on the seed.
"""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
from scipy import stats

import bbvi

WEIGHT = np.array([0.3, 0.5, 0.2])
CENTRE = np.array([-4.0, 0.0, 5.0])
SPREAD = np.array([1.0, 0.7, 1.5])


def simulate(num_points, seed):
    """Simulate points, and the component that each came from."""
    generator = np.random.default_rng(seed)
    component = generator.choice(3, num_points, p=WEIGHT)
    return generator.normal(CENTRE[component], SPREAD[component]), component


def log_joint(z, y):
    mine = z["component"][:, None] == jnp.arange(3)
    return {
        "weight": dist.Dirichlet(jnp.full(3, 2.0)).log_prob(z["weight"]),
        "centre": dist.Normal(0, 10).log_prob(z["centre"]),
        "spread": dist.LogNormal(0, 1).log_prob(z["spread"]),
        "component": jnp.log(z["weight"])[z["component"]],
        "y": jnp.where(mine, dist.Normal(z["centre"], z["spread"]).log_prob(y[:, None]), 0),  # points by components
    }


def main():
    """Fit 200 points, compare with the truth behind them, and return the fit."""
    y, component = simulate(200, seed=4)
    start = np.quantile(y, [1 / 6, 1 / 2, 5 / 6])
    model = bbvi.Model(
        log_joint,
        weight=bbvi.simplex(3),
        centre=bbvi.real(3, init=start),
        spread=bbvi.positive(3),
        component=bbvi.categorical(3, len(y), init=np.abs(y[:, None] - start).argmin(1)),
    )
    stop = [bbvi.Converged(0.1), bbvi.Budget(steps=4_000)]
    fits = [bbvi.fit(model, data=y, stop=stop, seed=seed) for seed in range(3)]
    print("ELBO of three seeds:", ", ".join(f"{fit.elbo(1000):.1f}" for fit in fits), end="\n\n")
    posterior = max(fits, key=lambda fit: fit.elbo(1000))

    summary = posterior.summary()
    truth = np.concatenate([WEIGHT, CENTRE, SPREAD])
    print(pd.DataFrame(summary).iloc[:9, :4].assign(truth=truth).round(3))
    print("\nthe first five points:")
    print(pd.DataFrame(summary).iloc[9:14, 4:].assign(truth=component[:5]).round(3))

    guess = posterior.probs()["component"].argmax(1)
    best = (np.log(WEIGHT) + stats.norm.logpdf(y[:, None], CENTRE, SPREAD)).argmax(1)
    off = np.abs(summary["mean"].iloc[:9] - truth) / summary["sd"].iloc[:9]
    print(f"\n{'converged' if posterior.converged else 'NOT converged'} after {len(posterior.history)} steps")
    print(
        f"Verdict: parameters within {off.max():.1f} posterior sd of the truth; {np.mean(guess == component):.1%} of "
        f"the points assigned rightly, and {np.mean(best == component):.1%} by someone who knows the parameters."
    )
    return posterior


if __name__ == "__main__":
    main()
