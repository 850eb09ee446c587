"""From any scale: fits with the defaults whose posterior is far from the start, or much narrower or wider than it.

    python benchmarks/scales.py                     every target with one seed
    python benchmarks/scales.py --seeds 3 --json scales.json
    python benchmarks/scales.py --only income --steps 5000

A fit is right if it claims to have converged within 2,000 steps and every mean is within 0.05 of an exact posterior standard
deviation of the exact mean, and every standard deviation within 5 %. Where single precision cannot hold the answer a fit must say
so by an error. Exact answers are closed forms, or quadrature in double precision.
"""

import argparse
import dataclasses
import json
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from scipy import special

import bbvi

STEPS, NEAR = 2000, 0.05
Moments = dict[str, tuple[Any, Any]]


@dataclasses.dataclass(frozen=True)
class Target:
    """A model with data, the exact mean and standard deviation of its latents, and whether float32 can hold these."""

    name: str
    build: Callable[[], tuple[bbvi.Model, Any, Moments]]

    def representable(self) -> bool:
        """Tell whether a posterior standard deviation is well above the rounding of its mean."""
        eps = float(jnp.finfo(jnp.result_type(float)).eps)
        _, _, exact = self.build()
        return all(np.all(eps * np.abs(mean) < NEAR * np.asarray(sd)) for mean, sd in exact.values())


def normal(a: float, s: float) -> Target:
    """Make a Normal density with this mean and standard deviation."""

    def build():
        model = bbvi.Model(lambda z, _: dist.Normal(a, s).log_prob(z["x"]), x=bbvi.real())
        return model, None, {"x": (a, s)}

    return Target(f"normal {a:g} {s:g}", build)


def rate(mean: float) -> Target:
    """Make counts with an unknown rate: the posterior is a Gamma."""

    def build():
        counts = np.random.default_rng(1).poisson(mean, 20)

        def log_joint(z, y):
            return dist.Gamma(1.0, 1e-6).log_prob(z["rate"]) + dist.Poisson(z["rate"]).log_prob(y).sum()

        shape, rate = 1 + counts.sum(), 1e-6 + len(counts)
        return (
            bbvi.Model(log_joint, rate=bbvi.positive()),
            jnp.asarray(counts),
            {"rate": (shape / rate, shape**0.5 / rate)},
        )

    return Target(f"rate {mean:g}", build)


def log_rate(mean: float) -> Target:
    """Make counts with an unknown logarithm of their rate: the posterior is that of the logarithm of a Gamma."""

    def build():
        counts = np.random.default_rng(2).poisson(mean, 20)

        def log_joint(z, y):
            return dist.Poisson(jnp.exp(z["x"])).log_prob(y).sum()

        total = counts.sum()
        exact = special.digamma(total) - np.log(20), special.polygamma(1, total) ** 0.5
        return bbvi.Model(log_joint, x=bbvi.real()), jnp.asarray(counts), {"x": exact}

    return Target(f"log rate {mean:g}", build)


def sample_of(name: str, centre: float, spread: float, num: int) -> Target:
    """Make observations in natural units with unknown mean and standard deviation under the prior 1 / sd."""

    def build():
        y = centre + spread * np.random.default_rng(3).standard_normal(num)

        def log_joint(z, y):
            return -jnp.log(z["sd"]) + dist.Normal(z["mean"], z["sd"]).log_prob(y).sum()

        # the mean is Student's t around the average; the sd is an inverse chi
        n, s = num, y.std(ddof=1)
        of_mean = y.mean(), s / n**0.5 * ((n - 1) / (n - 3)) ** 0.5
        first = np.exp(special.gammaln((n - 2) / 2) - special.gammaln((n - 1) / 2)) * s * ((n - 1) / 2) ** 0.5
        of_sd = first, (s**2 * (n - 1) / (n - 3) - first**2) ** 0.5
        model = bbvi.Model(log_joint, mean=bbvi.real(), sd=bbvi.positive())
        return model, jnp.asarray(y, jnp.result_type(float)), {"mean": of_mean, "sd": of_sd}

    return Target(name, build)


def regression(name: str, unit_x: float, unit_y: float, num: int = 200, predictors: int = 3) -> Target:
    """Make a regression whose predictors and outcome come in such units, with unknown noise and a flat prior."""

    def build():
        generator = np.random.default_rng(4)
        x = unit_x * (1 + 0.3 * generator.standard_normal((num, predictors)))
        x[:, 0] = 1.0
        y = unit_y * (1 + x[:, 1:].sum(1) / unit_x + 0.5 * generator.standard_normal(num))

        def log_joint(z, data):
            x, y = data
            return -jnp.log(z["sd"]) + dist.Normal(x @ z["b"], z["sd"]).log_prob(y).sum()

        n = num - predictors
        b, *_ = np.linalg.lstsq(x, y, rcond=None)
        s = (((y - x @ b) ** 2).sum() / n) ** 0.5
        of_b = b, s * np.diag(np.linalg.inv(x.T @ x)) ** 0.5 * (n / (n - 2)) ** 0.5
        first = np.exp(special.gammaln((n - 1) / 2) - special.gammaln(n / 2)) * s * (n / 2) ** 0.5
        model = bbvi.Model(log_joint, b=bbvi.real(predictors), sd=bbvi.positive())
        exact = {"b": of_b, "sd": (first, (s**2 * n / (n - 2) - first**2) ** 0.5)}
        return model, jax.tree.map(lambda a: jnp.asarray(a, jnp.result_type(float)), (x, y)), exact

    return Target(name, build)


TARGETS = {
    target.name: target
    for target in (
        *(normal(a, s) for a in (0.0, 1.0, 1e3, 1e6) for s in (1e-6, 1e-3, 1.0, 1e3)),
        normal(1e4, 1.0), normal(-1e6, 1e6),
        *(rate(mean) for mean in (0.5, 1e2, 1e4, 1e6)),
        *(log_rate(mean) for mean in (1e2, 1e4, 1e6)),
        sample_of("income", 66_852.0, 20_000.0, 50), sample_of("length in metres", 2e-6, 3e-7, 50),
        sample_of("year", 1990.0, 5.0, 50), sample_of("small", 0.0, 1e-4, 50), sample_of("large", 0.0, 1e6, 50),
        regression("regression", 1.0, 1.0), regression("regression in dollars", 1.0, 5e4),
        regression("regression in millions", 1.0, 1e6), regression("regression on dollars", 5e4, 1.0),
        regression("regression in microns", 1.0, 1e-6), regression("regression of 20 on dollars in dollars", 1e4, 1e4, 400, 20),
    )
}  # fmt: skip


def fit_once(target: Target, seed: int, steps: int, **how: Any) -> dict[str, Any]:
    """Fit a target with the defaults and compare its moments; what a fit raises is an outcome too."""
    began = time.perf_counter()
    record: dict[str, Any] = {"target": target.name, "seed": seed, "steps": 0, "converged": False, "setbacks": 0}
    record["representable"] = target.representable()
    model, data, exact = target.build()
    model = dataclasses.replace(model, **how) if how else model
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of fits that end on their budget, and of flat priors
            stop = [bbvi.Converged(), bbvi.Budget(steps=steps)]
            posterior = bbvi.fit(model, data, seed=seed, progress=False, stop=stop)
        record |= {"steps": len(posterior.history), "converged": posterior.converged}
        record["setbacks"] = int(np.sum(posterior.history["setbacks"]))
        mean, sd = posterior.mean(), posterior.sd()
        away = [np.max(np.abs(np.asarray(mean[n]) - m) / s) for n, (m, s) in exact.items()]
        ratio = [np.max(np.abs(np.asarray(sd[n]) / s - 1)) for n, (_, s) in exact.items()]
        record |= {"mean": float(max(away)), "sd": float(max(ratio))}
        right = record["mean"] < NEAR and record["sd"] < NEAR
        record["verdict"] = (
            "right" if posterior.converged and right else "wrong" if posterior.converged else "not converged"
        )
    except ValueError as error:
        record |= {"mean": np.nan, "sd": np.nan, "verdict": "refused", "error": str(error).splitlines()[0]}
    return record | {"seconds": time.perf_counter() - began}


def run(names: list[str], seeds: int, steps: int, **how: Any) -> Iterator[dict[str, Any]]:
    """Fit targets with every seed."""
    for name in names:
        for seed in range(seeds):
            yield fit_once(TARGETS[name], seed, steps, **how)
        jax.clear_caches()


def main() -> None:
    """Print a line for each fit, and how many were right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a part of the names of targets")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--factors", action="store_true", help="a factor of q for each latent, the paper's choice")
    parser.add_argument("--x64", action="store_true", help="double precision")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", arguments.x64)
    how = {"joint": ()} if arguments.factors else {}
    records = []
    for record in run([n for n in TARGETS if arguments.only in n], arguments.seeds, arguments.steps, **how):
        records.append(record)
        print(
            f"{record['target']:40} seed {record['seed']}  {record['verdict']:14} {record['steps']:6} steps "
            f"{record['setbacks']:5} setbacks  mean {record['mean']:9.3g} sd {record['sd']:8.3g}"
            f"{'' if record['representable'] else '  (not in this precision)'}",
            flush=True,
        )
    able = [record for record in records if record["representable"]]
    print(f"{sum(record['verdict'] == 'right' for record in able)} of {len(able)} right")
    others = [record for record in records if not record["representable"]]
    print(
        f"{sum(record['verdict'] == 'wrong' for record in others)} of {len(others)} wrong where float32 cannot hold the answer"
    )
    if arguments.json:
        arguments.json.write_text(json.dumps(records, indent=1))


if __name__ == "__main__":
    main()
