"""What automatic Rao-Blackwellization costs and gains: `python benchmarks/rao_blackwell.py`, about ten minutes.

Times are medians of chunks of steps that take turns; on a shared machine only ratios measured side by side mean
anything. With --quick everything is small, as a smoke.
"""

import argparse
import itertools
import platform
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import bbvi
from bbvi.blankets.blankets import find_blankets
from bbvi.model.problem import bind

PLAIN = bbvi.Score(rao_blackwell=False)
NUM_LABS, NUM_FACTORS = 17, 5


def patients(num: int, visits, seed: int = 0):
    """Patients with labs at their visits, of which 39 % are measured."""
    rng = np.random.default_rng(seed)
    lengths = [visits(rng) for _ in range(num)]
    labs = [rng.gamma(4, 0.25, (n, NUM_LABS)) for n in lengths]
    return bbvi.ragged(visit={"labs": labs, "observed": [rng.random(x.shape) < 0.39 for x in labs]})


def gamma_normal_ts():
    """The paper's Gamma-Normal time series, written as sums."""

    def log_local(beta, z, row):
        before = jnp.concatenate([jnp.ones((1, NUM_FACTORS)), z["x"][:-1]])
        drift = bbvi.GammaE(jnp.maximum(before, 0.2), 0.25).log_prob(z["x"])
        kept = jnp.where(row["mask"]["visit"][:, None], drift, 0)
        return dist.Normal(0, 1).log_prob(z["o"]).sum() + kept.sum()

    def log_likelihood(beta, z, row):
        term = dist.Normal(z["x"] @ beta["W"].T + z["o"], 0.3).log_prob(row["labs"])
        return jnp.where(row["observed"] & row["mask"]["visit"][:, None], term, 0).sum()

    return bbvi.HierarchicalModel(
        joint=(),
        log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["W"]).sum(),
        log_local=log_local,
        log_likelihood=log_likelihood,
        globals={"W": bbvi.real(NUM_LABS, NUM_FACTORS)},
        locals={"o": bbvi.real(NUM_LABS), "x": bbvi.positive("visit", NUM_FACTORS)},
    )


def ratings(num_users: int, num_items: int, per_user: int, rank: int = 5):
    """Users rate items that their data name."""
    rng = np.random.default_rng(1)
    model = bbvi.HierarchicalModel(
        joint=(),
        log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["V"]).sum(),
        log_local=lambda beta, z, row: dist.Normal(0, 1).log_prob(z["u"]).sum(),
        log_likelihood=lambda beta, z, row: dist.Normal(beta["V"][row["item"]] @ z["u"], 1).log_prob(row["y"]).sum(),
        globals={"V": bbvi.real(num_items, rank)},
        locals={"u": bbvi.real(rank)},
    )
    item = rng.integers(0, num_items, (num_users, per_user))
    return model, {"item": item, "y": rng.normal(size=item.shape).astype(np.float32)}


def chain_by_scan(length: int):
    """A state space model whose log joint is added up in a loop."""

    def log_joint(z, y):
        def step(carry, now):
            before, total = carry
            x, seen = now
            moved = dist.Normal(0.9 * before, 1.0).log_prob(x)
            return (x, total + moved + dist.Normal(x, z["sd"]).log_prob(seen)), None

        first = dist.HalfNormal(1.0).log_prob(z["sd"])
        return jax.lax.scan(step, (0.0, first), (z["x"], y))[0][1]

    return bbvi.Model(log_joint, joint=(), x=bbvi.real(length), sd=bbvi.positive()), jnp.zeros(length)


def interleaved(runs, chunks: int) -> list[float]:
    """Seconds per step of several runs that take turns."""
    seen = [0] * len(runs)
    for k, _ in itertools.product(range(len(runs)), range(3)):
        seen[k] = len(next(runs[k]).history)
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(chunks):
        for k, run in enumerate(runs):
            began = time.perf_counter()
            steps = len(next(run).history)
            times[k].append((time.perf_counter() - began) / (steps - seen[k]))
            seen[k] = steps
    return [statistics.median(values) for values in times]


def run(model, data, gradient, draws: int, batch: int):
    never = bbvi.Budget(steps=10_000_000)
    return bbvi.iterate(model, data, gradient=gradient, draws=bbvi.MonteCarlo(draws), batch_size=batch, stop=never)


def cost(quick: bool) -> None:
    """A step of Gamma-Normal-TS with and without blankets, on the same draws."""
    longest, draws, batch = (8, 20, 4) if quick else (40, 1000, 25)
    data = patients(2 * batch, lambda rng: int(np.clip(rng.lognormal(np.log(25), 0.6), 5, longest)))
    model = gamma_normal_ts()
    blanket, plain = interleaved([run(model, data, g, draws, batch) for g in (bbvi.Score(), PLAIN)], 1 if quick else 9)
    print(f"Gamma-Normal-TS, S = {draws}, B = {batch}, visits up to {longest}: {1e3 * blanket:.0f} ms a step, ", end="")
    print(f"without Rao-Blackwellization {1e3 * plain:.0f} ms, ratio {blanket / plain:.2f}")


def gain(quick: bool) -> None:
    """The variance of a factor x_v of a patient, against Eq. 3 at the same lambda and the same number of draws."""
    visits, repeats = (6, 50) if quick else (60, 400)
    data, model = patients(1, lambda rng: visits), gamma_normal_ts()
    start = bbvi.fit(model, data, stop=bbvi.Budget(steps=0))
    moments = [
        bbvi.gradient_moments(model, data, start, gradient=g, draws=bbvi.MonteCarlo(100), repeats=repeats).variance["x"]
        for g in (bbvi.Score(False, None), bbvi.Score(True, None))
    ]
    for name in moments[0]:
        ratio = np.asarray(moments[0][name] / moments[1][name])
        print(f"variance of x ({name}), {visits} visits: Eq. 3 over Eq. 6, median {np.median(ratio):,.0f}, ", end="")
        print(f"smallest {ratio.min():,.0f}")


def items(quick: bool) -> None:
    """A step of matrix factorisation against the number of items, with and without blankets."""
    users, per_user = (20, 5) if quick else (1000, 50)
    for num in [30, 60] if quick else [2_000, 10_000, 100_000]:
        model, data = ratings(users, num, per_user)
        runs = [run(model, data, g, 20, min(25, users)) for g in (bbvi.Score(), PLAIN)]
        blanket, plain = interleaved(runs, 1 if quick else 7)
        print(f"{users:,} users, {num:,} items of rank 5, S = 20: {1e3 * blanket:.1f} ms a step, ", end="")
        print(f"without Rao-Blackwellization {1e3 * plain:.1f} ms, ratio {blanket / plain:.2f}", flush=True)


def loops(quick: bool) -> None:
    """From the call of fit to the end of its first step, for loops of different lengths, taking turns."""
    lengths = [5, 10] if quick else [10, 1000]
    times: dict[int, list[float]] = {length: [] for length in lengths}
    for k in range(1 if quick else 5):
        for length in lengths:
            model, data = chain_by_scan(length + k)  # another length, so that nothing is compiled already
            began = time.perf_counter()
            bbvi.fit(model, data, draws=bbvi.MonteCarlo(10), stop=bbvi.Budget(steps=1), progress=False)
            times[length].append(time.perf_counter() - began)
    for length, values in times.items():
        print(f"loop of {length:,} steps: trace and compile {statistics.median(values):.2f} s")


def chains(quick: bool) -> None:
    """The blankets of long chains."""
    length = 100 if quick else 100_000

    def by_slices(z, y):
        x = z["x"]
        walk = dist.Normal(x[:-1], 1.0).log_prob(x[1:]).sum() + dist.Normal(0, 1).log_prob(x[0])
        return walk + dist.Normal(x, 1.0).log_prob(y).sum()

    for name, (model, data) in {
        "slices": (bbvi.Model(by_slices, x=bbvi.real(length)), jnp.zeros(length)),
        "scan": chain_by_scan(length),
    }.items():
        began = time.perf_counter()
        problem, flat, _ = bind(model, data)
        find_blankets(problem, flat, None)
        print(f"blankets of a chain of {length:,} by {name}: {time.perf_counter() - began:.2f} s")


def main() -> None:
    parts = {part.__name__: part for part in (cost, gain, items, loops, chains)}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(parts)}; default all", metavar="part")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    print(f"jax {jax.__version__}, bbvi {bbvi.__version__}, Python {platform.python_version()}, {platform.machine()}")
    for name in options.parts or parts:
        parts[name](options.quick)


if __name__ == "__main__":
    main()
