"""The variance of the gradient of discrete latents at equal cost: `python benchmarks/local_expectation.py`, some minutes.

Cost is counted, in evaluations of the log joint, and measured: seconds of one estimate, medians of calls that take
turns. With --quick everything is small, as a smoke.
"""

import argparse
import platform
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import bbvi
from bbvi.counter import fold, seed_key
from bbvi.model import bind
from bbvi.target import find_target

ESTIMATORS = {
    "Score()": bbvi.Score(),
    "Score, LeaveOneOut": bbvi.Score(control_variate=bbvi.LeaveOneOut()),
    "LocalExpectation(joint=False)": bbvi.LocalExpectation(joint=False),
    "LocalExpectation()": bbvi.LocalExpectation(),
}


def grid(size: int, coupling: float, *, known_noise: bool):
    """Spins on a grid that see a noisy picture of a disc; the level of the noise may be a latent."""
    at = np.arange(size) - size / 2 + 0.5
    disc = np.where(np.hypot(*np.meshgrid(at, at)) < 0.35 * size, 1.0, -1.0)
    y = disc + np.random.default_rng(0).normal(size=disc.shape)

    def log_joint(z, y):
        s, sd = 2.0 * z["x"] - 1, 1.0 if known_noise else z["sd"]
        return {
            "down": coupling * s[1:] * s[:-1],
            "right": coupling * s[:, 1:] * s[:, :-1],
            "y": dist.Normal(s, sd).log_prob(y),
            "sd": dist.HalfNormal(1).log_prob(sd),
        }

    latents = {"x": bbvi.binary(size, size)} | ({} if known_noise else {"sd": bbvi.positive()})
    return bbvi.Model(log_joint, **latents), jnp.asarray(y, jnp.float32), "x"


def mixture(num: int, components: int):
    """Points on a line with the component of each, and the components' means."""
    rng = np.random.default_rng(1)
    y = rng.normal(3.0 * rng.integers(0, components, num), 1.0)

    def log_joint(z, y):
        return {
            "means": dist.Normal(0, 10).log_prob(z["means"]),
            "y": dist.Normal(z["means"][z["which"]], 1).log_prob(y) - jnp.log(1.0 * components),
        }

    start = 3.0 * np.arange(components) + 0.5
    latents = {"means": bbvi.real(components, init=start), "which": bbvi.categorical(components, num)}
    return bbvi.Model(log_joint, **latents), jnp.asarray(y, jnp.float32), "which"


class Repeated:
    """Many estimates of the gradient of one latent at one lambda, in one compiled call."""

    def __init__(self, model, data, name, estimator, draws: int, repeats: int):
        problem, flat, _ = bind(model, data)
        target = find_target(problem, flat, None)._replace(wanted=frozenset([name]))
        self.evaluations = estimator.evaluations(target)

        def run(params, key):
            def one(carry, repeat):
                estimate = estimator.estimate(
                    target, params, flat, None, draws=bbvi.MonteCarlo(draws), key=fold(key, repeat)
                )
                return carry, estimate.globals[name]

            return jax.lax.scan(one, 0, jnp.arange(repeats))[1]

        self.run = jax.jit(run)

    def variance(self, params) -> float:
        """The sum over all parameters."""
        found = self.run(params, seed_key(3))
        return float(sum(np.asarray(leaf, np.float64).var(0, ddof=1).sum() for leaf in jax.tree.leaves(found)))


def compare(title: str, model, data, name: str, options: argparse.Namespace) -> None:
    draws, repeats, rounds = (10, 20, 2) if options.quick else (options.draws, 100, 9)
    first = bbvi.fit(model, data, stop=bbvi.Budget(steps=0), seed=1)
    last = bbvi.fit(model, data, stop=bbvi.Budget(steps=20 if options.quick else 1000), seed=1, progress=False)
    runs = {label: Repeated(model, data, name, e, draws, repeats) for label, e in ESTIMATORS.items()}
    for place, posterior in {"at the start": first, "fitted": last}.items():
        params = posterior.params
        variances = {label: run.variance(params) for label, run in runs.items()}
        times: dict[str, list[float]] = {label: [] for label in runs}
        for _ in range(rounds):
            for label, run in runs.items():
                began = time.perf_counter()
                jax.block_until_ready(run.run(params, seed_key(3)))
                times[label].append((time.perf_counter() - began) / repeats)
        print(f"{title}, {place}, S = {draws}:")
        costs = {}
        for label, run in runs.items():
            seconds = statistics.median(times[label])
            costs[label] = (variances[label] * run.evaluations, variances[label] * seconds)
            ratios = [a / b if b > 0 else float("inf") for a, b in zip(costs["Score()"], costs[label], strict=True)]
            print(
                f"  {label:30} {run.evaluations:3} {variances[label]:10.3g} {1e3 * seconds:8.3f} "
                f"{ratios[0]:8.3g} {ratios[1]:8.3g}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", help="grid, mixture; default both", metavar="model")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--draws", type=int, default=100)
    options = parser.parse_args()
    print(f"jax {jax.__version__}, bbvi {bbvi.__version__}, Python {platform.python_version()}, {platform.machine()}")
    print(
        "evaluations a draw; total variance; ms an estimate; variance times evaluations, and times seconds, of Score()"
    )
    print("over that of this estimator: more than 1 is better than Score()")
    size, num = (4, 10) if options.quick else (20, 500)
    chosen = options.models or ["grid", "mixture"]
    for coupling, known in ((0.2, True), (0.6, True), (0.6, False)) if "grid" in chosen else ():
        title = f"grid of {size} x {size} bits, coupling {coupling}, noise {'known' if known else 'a latent'}"
        compare(title, *grid(size, coupling, known_noise=known), options)
    if "mixture" in chosen:
        compare(f"mixture, {num} assignments to 4 components", *mixture(num, 4), options)


if __name__ == "__main__":
    main()
