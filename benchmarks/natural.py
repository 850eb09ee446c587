"""How many steps natural gradients save: `python benchmarks/natural.py`, about three minutes.

The models are conjugate, so the gap of the ELBO is the KL divergence from q to the exact posterior, in closed form. A run has
arrived when the gap of its iterates stays below 0.05 nat for 20 steps in a row. With --quick everything is small, as a
smoke.
"""

import argparse
import statistics
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
from jax.scipy.special import digamma, gammaln

import bbvi
from bbvi.fitting.stop import AbstractStop

GAP, IN_A_ROW = 0.05, 20
NUM_ROWS, BATCH = 1000, 50


class Arrived(AbstractStop):
    """Fires when the gap has been small for some steps in a row."""

    gap: Callable[[Any], Any]

    def init(self, params):
        return jnp.int32(0)

    def update(self, state, before, after, info):
        state = jnp.where(self.gap(after["globals"]["x"]) < GAP, state + 1, 0)
        return state, state >= IN_A_ROW


def normal_gap(loc: float, scale: float):
    def gap(q):
        ratio = jnp.exp(q["scale"]) / scale
        return 0.5 * (ratio**2 + ((q["loc"] - loc) / scale) ** 2 - 1) - jnp.log(ratio)

    return gap


def gamma_gap(a: float, b: float):
    def gap(q):
        c = jnp.exp(q["concentration"])
        rate = c / jnp.exp(q["mean"])
        return (c - a) * digamma(c) - gammaln(c) + gammaln(a) + a * jnp.log(rate / b) + c * (b / rate - 1)

    return gap


def dirichlet_gap(a: np.ndarray):
    def gap(q):
        mean = bbvi.simplex(len(a)).family.parameters()["mean"].constrain(q["mean"])
        c = jnp.exp(q["concentration"]) * mean
        total = c.sum()
        log_ratio = gammaln(total) - gammaln(a.sum()) - (gammaln(c) - gammaln(a)).sum()
        return log_ratio + ((c - a) * (digamma(c) - digamma(total))).sum()

    return gap


def conjugate(num: int) -> dict[str, tuple[Any, Any, Callable[[Any], Any]]]:
    """A model of `num` rows, its data and the gap."""
    rng = np.random.default_rng(0)

    def model(prior, likelihood, latent):
        return bbvi.HierarchicalModel(
            joint=(),
            log_prior=lambda beta: prior.log_prob(beta["x"]),
            log_likelihood=lambda beta, z, row: likelihood(beta["x"]).log_prob(row),
            globals={"x": latent},
        )

    y, counts, labels = rng.normal(3, 2, num), rng.poisson(4.5, num), rng.choice(4, num, p=[0.1, 0.2, 0.3, 0.4])
    precision = 1 / 100 + num / 4
    return {
        "Normal-Normal": (
            model(dist.Normal(0, 10), lambda x: dist.Normal(x, 2), bbvi.real()),
            y,
            normal_gap(y.sum() / 4 / precision, precision**-0.5),
        ),
        "Gamma-Poisson": (
            model(dist.Gamma(2, 1), dist.Poisson, bbvi.positive()), counts, gamma_gap(2.0 + counts.sum(), 1.0 + num),
        ),
        "Dirichlet-categorical": (
            model(dist.Dirichlet(jnp.ones(4)), dist.Categorical, bbvi.simplex(4)), labels,
            dirichlet_gap(1.0 + np.bincount(labels, minlength=4)),
        ),
    }  # fmt: skip


def steps(model, data, gap, *, limit: int, **settings) -> int:
    """Steps until the gap is small, or the limit."""
    posterior = bbvi.fit(model, data, stop=[Arrived(gap), bbvi.Budget(steps=limit)], **settings)
    return len(posterior.history) - IN_A_ROW if posterior.stopped.startswith("Arrived") else limit


def in_units_of_q(step: float) -> optax.GradientTransformation:
    """For one Normal: Adam on parameters measured in units that have Fisher information 1."""
    adam = optax.adam(step)

    def unit(params):
        return {"x": {"loc": jnp.exp(params["x"]["scale"]), "scale": jnp.full_like(params["x"]["scale"], 0.5**0.5)}}

    def update(updates, state, params=None, **extra_args):
        units = unit(params)
        updates, state = adam.update(jax.tree.map(jnp.multiply, updates, units), state, params)
        return jax.tree.map(jnp.multiply, updates, units), state

    return optax.GradientTransformation(adam.init, update)


def batches(quick: bool) -> None:
    """Conjugate models in minibatches; a quick run stops waiting for AdaGrad at twelve times the steps."""
    seeds = range(1 if quick else 5)
    print(f"steps to a gap of {GAP} nat from a random start, {NUM_ROWS} rows in batches of {BATCH}, S = 100")
    for name, case in conjugate(NUM_ROWS).items():

        def found(optimizer, limit, case=case):
            settings = {"gradient": bbvi.Score(), "draws": bbvi.MonteCarlo(100), "batch_size": BATCH, "limit": limit}
            return [steps(*case, optimizer=optimizer, seed=seed, **settings) for seed in seeds]

        fast = found(bbvi.natural(1.0), 10_000)
        slow = found(bbvi.adagrad(1.0), 12 * max(fast) if quick else 200_000)
        ratio = statistics.median(slow) / statistics.median(fast)
        print(f"{name}: adagrad {slow}, natural {fast}, ratio of medians {ratio:.1f}", flush=True)


def scales(quick: bool) -> None:
    """One Normal target of any scale, three scales away from 0."""
    seeds, limit = (1, 300) if quick else (3, 50_000)
    estimators = {"Score, S = 100": (bbvi.Score(), 100), "Pathwise, S = 10": (bbvi.Pathwise(), 10)}
    optimizers = {
        "adagrad(1.0)": bbvi.adagrad(1.0), "natural(2.0)": bbvi.natural(2.0),
        "Adam(0.05) in units of q": in_units_of_q(0.05), "Adam(0.1) in units of q": in_units_of_q(0.1),
    }  # fmt: skip
    targets = [1.0] if quick else [1e-3, 1e-1, 1.0, 1e1, 1e3]
    print(f"median steps to a gap of {GAP} nat from a random start, for a Normal target N(3 s, s)")
    for name, (gradient, draws) in estimators.items():
        for label, optimizer in optimizers.items():
            found = []
            for scale in targets:
                model = bbvi.Model(lambda z, d: dist.Normal(d[0], d[1]).log_prob(z["x"]), x=bbvi.real())
                data, gap = jnp.array([3 * scale, scale]), normal_gap(3 * scale, scale)
                settings = {"optimizer": optimizer, "gradient": gradient, "draws": bbvi.MonteCarlo(draws)}
                one = [steps(model, data, gap, limit=limit, seed=seed, **settings) for seed in range(seeds)]
                found.append(f"s = {scale:g}: {statistics.median(one):.0f}")
            print(f"{name}, {label}: {', '.join(found)}", flush=True)


def joint(quick: bool) -> None:
    """One full-rank Normal for a correlated Normal target, by the defaults of `fit` and by AdaGrad."""
    for size in (5,) if quick else (50, 200):
        root = np.random.default_rng(0).normal(size=(size, size)) / size**0.5
        precision = root @ root.T + 0.1 * np.eye(size)
        evidence = 0.5 * size * np.log(2 * np.pi) - 0.5 * np.linalg.slogdet(precision)[1]
        model = bbvi.Model(lambda z, p: -0.5 * z["x"] @ p @ z["x"], x=bbvi.real(size, q=bbvi.FullRank()))
        for label, optimizer in {"natural()": None, "adagrad(1.0)": bbvi.adagrad(1.0)}.items():
            with warnings.catch_warnings(action="ignore"):  # a fit that breaks says so
                posterior = bbvi.fit(model, precision, optimizer=optimizer, progress=False)
            gap, verdict = evidence - posterior.elbo(10_000), "converged" if posterior.converged else posterior.stopped
            print(
                f"{size} dimensions, {label}: {len(posterior.history)} steps, gap {gap:.4f} nat, {verdict}", flush=True
            )


def main() -> None:
    parts = {part.__name__: part for part in (batches, scales, joint)}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(parts)}; default all", metavar="part")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    for name in options.parts or parts:
        parts[name](options.quick)


if __name__ == "__main__":
    main()
