"""What quasi-Monte Carlo saves: variance of the gradient and time of a step, against independent draws.

    python benchmarks/quasi.py [--quick]

Variances are those of the full-data gradient at one lambda, for each parameter; the table has medians over the elements
of a latent. Times are medians of chunks of steps that take turns.
"""

import argparse

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from bench import NEVER, in_turns

import bbvi

ESTIMATORS = {
    "Score": bbvi.Score(),
    "Score without a*": bbvi.Score(control_variate=None),
    "Pathwise": bbvi.Pathwise(),
}


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

    return bbvi.Model(log_joint, x=bbvi.positive(length)), jnp.asarray(y)


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

    return bbvi.Model(log_joint, n=bbvi.count(sites, init=8), p=bbvi.unit_interval(init=0.5)), jnp.asarray(y)


def two_level(groups: int = 20):
    """Normal group means around a common one."""
    rng = np.random.default_rng(3)
    y = rng.normal(rng.normal(1.0, 0.7, groups)[:, None], 1.0, (groups, 5)).astype(np.float32)
    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: {
            "mu": dist.Normal(0, 5).log_prob(beta["mu"]),
            "tau": dist.HalfNormal(2).log_prob(beta["tau"]),
        },
        log_local=lambda beta, z, row: dist.Normal(beta["mu"], beta["tau"]).log_prob(z["theta"]),
        log_likelihood=lambda beta, z, row: dist.Normal(z["theta"], 1.0).log_prob(row["y"]),
        globals={"mu": bbvi.real(), "tau": bbvi.positive()},
        locals={"theta": bbvi.real()},
    )
    return model, {"y": y}


MODELS = {"gamma chain": gamma_chain, "counts": counts, "two-level normal": two_level}


def variances(model, data, posterior, gradient, draws, repeats: int) -> dict[str, np.ndarray]:
    """The variance of each element's gradient, by latent and parameter."""
    found = bbvi.gradient_moments(model, data, posterior, gradient=gradient, draws=draws, repeats=repeats).variance
    return {f"{z} {p}": np.asarray(leaf, np.float64) for z, entry in found.items() for p, leaf in entry.items()}


def compared(model, data, posterior, n: int, repeats: int, names: list[str]) -> None:
    """Print how many times smaller the variance is with a net of n points than with n independent draws."""
    for name in names:
        one, other = (
            variances(model, data, posterior, ESTIMATORS[name], draws, repeats)
            for draws in (bbvi.MonteCarlo(n), bbvi.QuasiMonteCarlo(n))
        )
        ratios = {key: float(np.median(one[key] / other[key])) for key in one}
        print(f"{name:>18}: " + ", ".join(f"{key} {ratio:.1f}" for key, ratio in ratios.items()))


def main(quick: bool) -> None:
    n, repeats, steps, chunks = (16, 20, 10, 2) if quick else (256, 1000, 1000, 11)
    for title, make in MODELS.items():
        model, data = make()
        names = [name for name in ESTIMATORS if title != "counts" or name != "Pathwise"]
        for where, budget in (("start", 0), (f"after {steps} steps", steps)):
            print(f"\n{title}, {where}: variance with MonteCarlo({n}) over that with QuasiMonteCarlo({n})")
            posterior = bbvi.fit(model, data, stop=bbvi.Budget(steps=budget), progress=False)
            compared(model, data, posterior, n, repeats, names)
        for name in names:
            runs = {
                type(draws).__name__: bbvi.iterate(model, data, gradient=ESTIMATORS[name], draws=draws, stop=NEVER)
                for draws in (bbvi.MonteCarlo(n), bbvi.QuasiMonteCarlo(n))
            }
            times = {kind: 1e6 * seconds for kind, seconds in in_turns(runs, chunks).items()}
            print(f"{name:>18}: " + ", ".join(f"{kind} {time:.0f} us a step" for kind, time in times.items()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="too few repeats to mean anything")
    main(parser.parse_args().quick)
