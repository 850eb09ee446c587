"""Simulation-based calibration of `bbvi.fit` (Talts et al. 2018), on models whose posterior lies in the default family of q.

    python benchmarks/calibration.py --picture docs/images/calibration.png
    python benchmarks/calibration.py --smoke

Draw theta from the prior and data from the model, fit with the defaults, and take the rank of theta among 99 draws from q. If q is the
posterior, ranks are uniform. If q is too narrow, ranks crowd at both ends; if it is too wide, in the middle; if it is off to a side, at one
end. Observations are rows of a hierarchical model, whose values are no part of the compiled program: one compilation serves
every replication. Of a vector theta, the first entry is ranked. The p-value is that of Kolmogorov and Smirnov, with ranks spread
evenly at random over their steps, which makes them continuous. Beside it stands the p-value of the exact posterior on the same
simulations: where both are small, chance was unkind to the simulations and not the fits to their posteriors.
"""

import argparse
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import scipy.stats

import bbvi

DRAWS = 99
BINS = 20
LEAST_P = 0.001


class Simulated(NamedTuple):
    """A prior and a sampler in NumPy, theta's exact posterior, and the model as bbvi sees it, its latent called theta."""

    prior: Callable[[np.random.Generator], Any]
    rows: Callable[[np.random.Generator, Any], Any]
    posterior: Callable[[np.ndarray], Any]
    model: bbvi.HierarchicalModel


class Calibration(NamedTuple):
    """The ranks of one model, those of the exact posterior from 0 to 1, how many fits converged, and their seconds."""

    ranks: np.ndarray
    exact: np.ndarray
    claimed: int
    first: float
    seconds: float


def of_rows(prior: Any, likelihood: Callable[[Any], Any], latent: Any) -> bbvi.HierarchicalModel:
    """Write a model of independent rows, each one observation."""
    return bbvi.HierarchicalModel(
        log_prior=lambda beta: prior.log_prob(beta["theta"]),
        log_likelihood=lambda beta, z, row: likelihood(beta["theta"]).log_prob(row["y"]),
        globals={"theta": latent},
        joint=(),
    )


MODELS = {
    "Normal mean": Simulated(
        lambda rng: rng.normal(0, 2),
        lambda rng, theta: rng.normal(theta, 1, 10),
        lambda y: scipy.stats.norm(y.sum() / 10.25, 10.25**-0.5),
        of_rows(dist.Normal(0, 2), lambda theta: dist.Normal(theta, 1), bbvi.real()),
    ),
    "Gamma-Poisson rate": Simulated(
        lambda rng: rng.gamma(2, 1 / 0.5),
        lambda rng, theta: rng.poisson(theta, 10).astype(float),
        lambda y: scipy.stats.gamma(2 + y.sum(), scale=1 / 10.5),
        of_rows(dist.Gamma(2, 0.5), dist.Poisson, bbvi.positive()),
    ),
    "Beta-Bernoulli probability": Simulated(
        lambda rng: rng.beta(1, 2),
        lambda rng, theta: rng.binomial(1, theta, 10),
        lambda y: scipy.stats.beta(1 + y.sum(), 12 - y.sum()),
        of_rows(dist.Beta(1, 2), dist.Bernoulli, bbvi.unit_interval()),
    ),
    "Dirichlet-categorical share": Simulated(
        lambda rng: rng.dirichlet(np.ones(3)),
        lambda rng, theta: rng.choice(3, 20, p=theta),
        lambda y: scipy.stats.beta(1 + (y == 0).sum(), 2 + (y != 0).sum()),
        of_rows(dist.Dirichlet(jnp.ones(3)), dist.Categorical, bbvi.simplex(3)),
    ),
}


def calibrate(name: str, replications: int) -> Calibration:
    """Simulate and fit, and rank what was simulated among draws from the fit."""
    rng = np.random.default_rng(list(MODELS).index(name))
    simulated, ranks, exact, claimed, times = MODELS[name], [], [], 0, []
    for seed in range(replications):
        theta = simulated.prior(rng)
        rows = {"y": simulated.rows(rng, theta)}
        began = time.perf_counter()
        posterior = bbvi.fit(simulated.model, rows, seed=seed, progress=False)
        times.append(time.perf_counter() - began)
        claimed += posterior.converged
        draws = np.asarray(posterior.sample(DRAWS, seed=seed)["theta"]).reshape(DRAWS, -1)
        ranks.append(int((draws[:, 0] < np.ravel(theta)[0]).sum()))
        exact.append(simulated.posterior(rows["y"]).cdf(np.ravel(theta)[0]))
    return Calibration(np.array(ranks), np.array(exact), claimed, times[0], sum(times))


def calibrate_afresh(name: str, replications: int) -> Calibration:
    """Do so in a process of its own, since each fit leaves some megabytes behind."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(calibrate, name, replications).result()


def p_value(ranks: np.ndarray) -> float:
    """Test by Kolmogorov and Smirnov whether ranks from 0 to DRAWS are uniform."""
    within = np.random.default_rng(0).random(len(ranks))
    return float(scipy.stats.kstest((ranks + within) / (DRAWS + 1), "uniform").pvalue)


def p_value_of_exact(exact: np.ndarray) -> float:
    return float(scipy.stats.kstest(exact, "uniform").pvalue)


def draw(found: dict[str, Calibration]) -> Any:
    """Draw a histogram of ranks for each model, with the band that holds 99 % of the counts of uniform ranks."""
    import matplotlib.pyplot as plt

    ink, soft = "#1b1f24", "#57606a"
    figure, panels = plt.subplots(1, len(found), figsize=(3.0 * len(found), 2.7), sharey=True, layout="constrained")
    edges = np.linspace(0, DRAWS + 1, BINS + 1)
    for panel, (name, of_model) in zip(np.atleast_1d(panels), found.items(), strict=True):
        replications = len(of_model.ranks)
        low, high = scipy.stats.binom(replications, 1 / BINS).interval(0.99)
        counts, _ = np.histogram(of_model.ranks, edges)
        panel.bar(edges[:-1], counts, width=edges[1], align="edge", color="#8cc2e3", edgecolor="white", lw=0.8)
        panel.axhspan(low, high, color=soft, alpha=0.13, lw=0, label="99 % of uniform counts")
        panel.hlines([low, replications / BINS, high], 0, DRAWS + 1, color=soft, lw=0.8, ls=["--", "-", "--"])
        p, of_exact = p_value(of_model.ranks), p_value_of_exact(of_model.exact)
        panel.set_title(name, loc="left", fontsize=10, color=ink, pad=18)
        panel.text(
            0, 1.03, f"p = {p:.3f}; exact posterior {of_exact:.3f}", transform=panel.transAxes, fontsize=8.5, color=soft
        )
        panel.set_xlabel(f"rank among {DRAWS} draws", fontsize=9, color=soft)
        panel.set(xlim=(0, DRAWS + 1), xticks=[0.5, 25.5, 50.5, 75.5, 99.5], xticklabels=[0, 25, 50, 75, 99])
        panel.spines[["top", "right"]].set_visible(False)
        panel.spines[["left", "bottom"]].set_color(soft)
        panel.tick_params(labelsize=8.5, colors=soft)
    first = np.atleast_1d(panels)[0]
    first.set_ylabel(f"fits of {len(next(iter(found.values())).ranks)}", fontsize=9, color=soft)
    first.set_ylim(0, 1.25 * first.get_ylim()[1])
    first.legend(frameon=False, fontsize=8.5, loc="upper left", labelcolor=soft)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replications", type=int, default=200)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--picture", type=Path, help="draw the histograms there")
    parser.add_argument("--smoke", action="store_true", help="six replications of the first model")
    options = parser.parse_args()
    names, replications = (options.models[:1], 6) if options.smoke else (options.models, options.replications)
    print(
        "| model | replications | converged | p | uniform | p, exact posterior | s, first fit | s, other fits, mean |"
    )
    print("|---|---|---|---|---|---|---|---|")
    found = {}
    for name in names:
        found[name] = of_model = (calibrate if options.smoke else calibrate_afresh)(name, replications)
        p, others = p_value(of_model.ranks), (of_model.seconds - of_model.first) / max(1, replications - 1)
        of_exact = p_value_of_exact(of_model.exact)
        verdict = f"{p:.3f} | {'yes' if p > LEAST_P else 'no'} | {of_exact:.3f}"
        row = f"{name} | {replications} | {of_model.claimed} | {verdict} | {of_model.first:.2f} | {others:.2f}"
        print(f"| {row} |", flush=True)
    if options.picture:
        draw(found).savefig(options.picture, dpi=150)


if __name__ == "__main__":
    main()
