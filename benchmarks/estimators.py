"""All estimators of the gradient side by side, on seven models: `python benchmarks/estimators.py`, about ten minutes.

Each is repeated at two lambdas, the start and the end of a fit with `bbvi.Auto()`. Variances are those of a latent's
gradient in units of the Fisher information F, the mean of var(g) / F over its parameters. Times are of the processor,
medians of calls that take turns. Where an estimator cannot take all latents, the others get `Score()`, and no number. With --quick
there are too few repeats to mean anything.
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import bbvi
from bbvi.blankets.analysis import Analysis, analyse
from bbvi.gradients.abstract import AbstractGradient
from bbvi.gradients.mixed import Mixed
from bbvi.gradients.slopes import smooth_latents
from bbvi.model.problem import bind
from bbvi.numerics.address import fold, seed_key
from bbvi.numerics.xla import for_many_runs

SCORE = bbvi.Score()


def conjugate(num: int = 50):
    """Normal observations with unknown mean and precision."""
    y = np.random.default_rng(1).normal(2.0, 1.5, num)

    def log_joint(z, y):
        return {
            "mu": dist.Normal(0, 10).log_prob(z["mu"]),
            "precision": dist.Gamma(1, 1).log_prob(z["precision"]),
            "y": dist.Normal(z["mu"], 1 / jnp.sqrt(z["precision"])).log_prob(y),
        }

    return bbvi.Model(log_joint, joint=(), mu=bbvi.real(), precision=bbvi.positive()), jnp.asarray(y, jnp.float32)


def gamma_chain(length: int = 50):
    """A gamma random walk with noisy observations: each latent has two neighbours."""
    rng = np.random.default_rng(1)
    x, y = 1.0, []
    for _ in range(length):
        x = max(rng.gamma(x**2 / 0.25, 0.25 / x), 0.3)
        y.append(x + 0.3 * rng.normal())

    def log_joint(z, y):
        before = jnp.maximum(jnp.concatenate([jnp.ones(1), z["x"][:-1]]), 0.3)
        return {
            "transition": bbvi.GammaE(before, 0.25).log_prob(z["x"]),
            "observation": -0.5 * ((y - z["x"]) / 0.3) ** 2,
        }

    return bbvi.Model(log_joint, joint=(), x=bbvi.positive(length)), jnp.asarray(y)


def counts(sites: int = 30, visits: int = 3):
    """Animals at sites, of which each visit sees some: a count for each site, and a common chance to be seen."""
    rng = np.random.default_rng(2)
    y = rng.binomial(rng.poisson(8.0, sites)[:, None], 0.6, (sites, visits))

    def log_joint(z, y):
        n, p = z["n"][:, None], z["p"]
        missed = jnp.maximum(n - y, 0)
        ways = jnp.log(jnp.arange(1.0, 200.0))
        factorial = jnp.concatenate([jnp.zeros(1), jnp.cumsum(ways)])
        seen = factorial[jnp.minimum(n, 199)] - factorial[jnp.minimum(missed, 199)] + y * jnp.log(p)
        impossible = 3.0 * jnp.maximum(y - n, 0)  # a soft wall, as q has mass below y
        return {
            "n": dist.Poisson(8.0).log_prob(z["n"]),
            "p": dist.Beta(2.0, 2.0).log_prob(p),
            "seen": seen + missed * jnp.log1p(-p) - impossible,
        }

    return bbvi.Model(log_joint, joint=(), n=bbvi.count(sites, init=8), p=bbvi.unit_interval(init=0.5)), jnp.asarray(y)


def mixture(num: int = 200, components: int = 4):
    """Points on a line with the component of each, and the components' means."""
    rng = np.random.default_rng(1)
    y = rng.normal(3.0 * rng.integers(0, components, num), 1.0)

    def log_joint(z, y):
        mine = z["component"][:, None] == jnp.arange(components)
        return {
            "centre": dist.Normal(0, 10).log_prob(z["centre"]),
            "y": jnp.where(mine, dist.Normal(z["centre"], 1).log_prob(y[:, None]), 0),
        }

    start = 3.0 * np.arange(components) + 0.5
    latents = {"centre": bbvi.real(components, init=start), "component": bbvi.categorical(components, num)}
    return bbvi.Model(log_joint, joint=(), **latents), jnp.asarray(y, jnp.float32)


def logistic(num: int = 200, predictors: int = 8):
    """Logistic regression: every row reads all coefficients."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(num, predictors))
    y = rng.random(num) < 1 / (1 + np.exp(-x @ rng.normal(size=predictors)))

    def log_joint(z, data):
        x, y = data
        return {"w": dist.Normal(0, 2).log_prob(z["w"]), "y": dist.Bernoulli(logits=x @ z["w"]).log_prob(y)}

    return bbvi.Model(log_joint, joint=(), w=bbvi.real(predictors)), (x.astype(np.float32), y.astype(np.int32))


def ising(known_noise: bool = True, size: int = 12, coupling: float = 0.35):
    """Spins on a grid that see a noisy picture of a disc."""
    at = np.arange(size) - size / 2 + 0.5
    disc = np.where(np.hypot(*np.meshgrid(at, at)) < 0.35 * size, 1.0, -1.0)
    y = disc + np.random.default_rng(0).normal(size=disc.shape)

    def log_joint(z, y):
        spin, sd = 2.0 * z["spin"] - 1, 1.0 if known_noise else z["sd"]
        return {
            "down": coupling * spin[1:] * spin[:-1],
            "right": coupling * spin[:, 1:] * spin[:, :-1],
            "y": dist.Normal(spin, sd).log_prob(y),
            "sd": dist.HalfNormal(1).log_prob(sd),
        }

    latents = {"spin": bbvi.binary(size, size)} | ({} if known_noise else {"sd": bbvi.positive()})
    return bbvi.Model(log_joint, joint=(), **latents), jnp.asarray(y, jnp.float32)


def ising_with_noise():
    """The same with the level of the noise a latent."""
    return ising(known_noise=False)


MODELS: dict[str, Callable[[], tuple[bbvi.Model, Any]]] = {
    function.__name__: function
    for function in (conjugate, gamma_chain, counts, mixture, logistic, ising, ising_with_noise)
}

#: name, estimator, kind of draws; for the last four a fixed number of draws, 256
ESTIMATORS = (
    ("Eq. 3", bbvi.Score(False, None), bbvi.MonteCarlo),
    ("Eq. 6", bbvi.Score(True, None), bbvi.MonteCarlo),
    ("Eq. 10, PlugIn", bbvi.Score(True, bbvi.PlugIn()), bbvi.MonteCarlo),
    ("Score()", SCORE, bbvi.MonteCarlo),
    ("Score, LeaveOneOut", bbvi.Score(control_variate=bbvi.LeaveOneOut()), bbvi.MonteCarlo),
    ("Pathwise()", bbvi.Pathwise(), bbvi.MonteCarlo),
    ("LocalExpectation(joint=False)", bbvi.LocalExpectation(joint=False), bbvi.MonteCarlo),
    ("LocalExpectation()", bbvi.LocalExpectation(), bbvi.MonteCarlo),
    ("Auto()", bbvi.Auto(), bbvi.MonteCarlo),
)
ON_NETS = tuple(
    (f"{name}, {kind.__name__}", gradient, kind)
    for name, gradient in (("Score()", SCORE), ("Pathwise()", bbvi.Pathwise()))
    for kind in (bbvi.MonteCarlo, bbvi.QuasiMonteCarlo)
)


class Repeated:
    """Many estimates at one lambda in one compiled call."""

    def __init__(self, analysis: Analysis, data: Any, gradient: AbstractGradient, *, draws, params, repeats: int):
        arranged = draws.arranged(analysis.problem, analysis.blankets, gradient.num_folds(draws))
        self.draws, self.times = draws.num, list[float]()
        self._data, self._repeats = data, repeats

        def run(params, data, key):
            def one(buffers, repeat):
                found = gradient.estimate(
                    analysis, params, data, None, draws=arranged, key=fold(key, "draws", repeat), buffers=buffers
                )
                return found.buffers, (found.globals, found.fisher["globals"])

            return jax.lax.scan(one, gradient.buffers(analysis, params, None, arranged), jnp.arange(repeats))[1]

        self._run = jax.jit(run, **for_many_runs()).lower(params, data, seed_key(3)).compile()

    def __call__(self, params) -> tuple[Any, Any]:
        """The variance of the gradient, and the mean squared score."""
        began = time.process_time()
        gradients, squares = jax.block_until_ready(self._run(params, self._data, seed_key(3)))
        self.times.append((time.process_time() - began) / self._repeats)
        return (
            jax.tree.map(lambda g: np.asarray(g, np.float64).var(0, ddof=1), gradients),
            jax.tree.map(lambda h: np.asarray(h, np.float64).mean(0), squares),
        )


def chosen(analysis: Analysis, data: Any, gradient: Any, estimators: Mapping[str, str]) -> tuple[Any, list[str]]:
    """The estimator with `Score()` for latents that it cannot take, and those that it can."""
    latents = analysis.problem.latents
    if isinstance(gradient, bbvi.Auto):
        known = {repr(own): own for own in gradient.candidates()}
        mixed = Mixed(tuple((name, known[words]) for name, words in estimators.items()))
        kinds = {own for _, own in mixed.choice}
        return kinds.pop() if len(kinds) == 1 else mixed, list(latents)
    own = {
        bbvi.Pathwise: [name for name in latents if name in smooth_latents(analysis)],
        bbvi.LocalExpectation: [name for name in latents if latents[name].family.chart.values() is not None],
    }.get(type(gradient), list(latents))
    if len(own) == len(latents):
        return gradient, own
    return Mixed(tuple((name, gradient if name in own else SCORE) for name in latents)), own


def compare(name: str, quick: bool) -> None:
    """Print a model's table."""
    draws, on_net, repeats, rounds, steps = (10, 16, 20, 2, 120) if quick else (100, 256, 400, 5, 1000)
    model, data = MODELS[name]()
    stops = {"start": 0, "fitted": steps}
    places = {
        place: bbvi.fit(
            model, data,
            gradient=bbvi.Auto(), optimizer=bbvi.natural(), stop=bbvi.Budget(steps=budget), progress=False,
        )
        for place, budget in stops.items()
    }  # fmt: skip
    problem, flat, _ = bind(model, data)
    analysis, params = analyse(problem, flat, None), {place: q.params for place, q in places.items()}
    runs: dict[str, Repeated] = {}
    known: dict[Any, Repeated] = {}
    owned: dict[str, list[str]] = {}
    for title, gradient, kind in ESTIMATORS + ON_NETS:
        valid, own = chosen(analysis, flat, gradient, places["fitted"].estimators)
        num = kind(on_net if (title, gradient, kind) in ON_NETS else draws)
        if own and (valid, num) not in known:
            known[valid, num] = Repeated(analysis, flat, valid, draws=num, params=params["start"], repeats=repeats)
        if own:
            runs[title], owned[title] = known[valid, num], own
    found = {title: {place: run(at) for place, at in params.items()} for title, run in runs.items()}
    for _ in range(rounds):
        for run in known.values():
            run(params["fitted"])
    show(name, places["fitted"].estimators, runs, owned, found)


def show(
    name: str,
    estimators: Mapping[str, str],
    runs: Mapping[str, Repeated],
    owned: Mapping[str, list[str]],
    found: Mapping[str, Any],
) -> None:
    """A row for each estimator, for each latent the noise at the start and fitted."""
    fisher = {place: dict(squares) for place, (_, squares) in found["Score()"].items()}
    if "LocalExpectation()" in runs:  # knows the squared scores of its latents exactly
        for place, (_, squares) in found["LocalExpectation()"].items():
            fisher[place] |= {latent: squares[latent] for latent in owned["LocalExpectation()"]}
    columns = [(latent, place) for latent in estimators for place in fisher]
    seconds = {title: statistics.median(run.times) for title, run in runs.items()}
    print(f"\n{name}; Auto: " + ", ".join(f"{latent} {words}" for latent, words in estimators.items()) + "\n")
    header = ["estimator", "draws", "µs", *(f"{latent}, {place}" for latent, place in columns)]
    print("| " + " | ".join(header) + " |\n|" + "---|" * len(header))
    default = {at: noise(found["Score()"][at[1]][0][at[0]], fisher[at[1]][at[0]]) for at in columns}
    for title, run in runs.items():
        cells = [title, str(run.draws), f"{1e6 * seconds[title]:.0f}"]
        for latent, place in columns:
            if latent not in owned[title]:
                cells.append("-")
                continue
            own = noise(found[title][place][0][latent], fisher[place][latent])
            gain = default[latent, place] * seconds["Score()"] / (own * seconds[title]) if own > 1e-10 else np.inf
            cells.append(f"{own:.2g} ({'exact' if np.isinf(gain) else f'{gain:.2g}'})")
        print("| " + " | ".join(cells) + " |", flush=True)


def noise(variance: Mapping[str, np.ndarray], fisher: Mapping[str, np.ndarray]) -> float:
    """The mean of var(g) / F over the parameters of a latent; a score that is never seen has no noise."""
    flat = [np.concatenate([np.ravel(leaf) for leaf in part.values()]) for part in (variance, fisher)]
    return float(np.mean(np.divide(*flat, out=np.zeros_like(flat[0]), where=flat[1] > 0)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(MODELS), help=f"some of {', '.join(MODELS)}", metavar="model")
    parser.add_argument("--quick", action="store_true", help="too few repeats to mean anything")
    options = parser.parse_args()
    print(f"jax {jax.__version__}, bbvi {bbvi.__version__}, Python {platform.python_version()}, {platform.machine()}")
    print("Variance over F (and how many times better than Score() at equal time).")
    for name in options.models:
        compare(name, options.quick)


if __name__ == "__main__":
    main()
