"""How fast bbvi is by itself: `make bench`, a few minutes. Parts: groups scaling first small memory.

Runs that are compared take turns, one chunk of steps of each, and medians over chunks are reported: on a shared
machine only ratios measured side by side mean anything. Memory is that of a process of its own.
"""

import argparse
import functools
import itertools
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import cohort
import jax
import numpy as np
import numpyro.distributions as dist

import bbvi

NEVER = bbvi.Budget(steps=10_000_000)


def two_level():
    """Group means around a global mean with a global scale: two locals and two globals."""
    return bbvi.HierarchicalModel(
        joint=(),
        log_prior=lambda beta: {
            "mu": dist.Normal(0, 5).log_prob(beta["mu"]),
            "tau": dist.HalfNormal(2).log_prob(beta["tau"]),
        },
        log_local=lambda beta, z, row: dist.Normal(beta["mu"], beta["tau"]).log_prob(z["theta"]),
        log_likelihood=lambda beta, z, row: dist.Normal(z["theta"], 1.0).log_prob(row["y"]),
        globals={"mu": bbvi.real(), "tau": bbvi.positive()},
        locals={"theta": bbvi.real(2)},
    )


def eight_schools():
    """Eight schools, and its data."""

    def log_joint(z, data):
        y, sigma = data
        return (
            dist.Normal(0, 5).log_prob(z["mu"])
            + dist.HalfCauchy(5).log_prob(z["tau"])
            + dist.Normal(z["mu"], z["tau"]).log_prob(z["theta"]).sum()
            + dist.Normal(z["theta"], sigma).log_prob(y).sum()
        )

    y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    sigma = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
    return bbvi.Model(log_joint, joint=(), mu=bbvi.real(), tau=bbvi.positive(), theta=bbvi.real(8)), (y, sigma)


def in_turns(runs: dict[str, object], chunks: int) -> dict[str, float]:
    """Median seconds per step of several runs that take turns."""
    seen = dict.fromkeys(runs, 0)
    for name, _ in itertools.product(runs, range(3)):
        seen[name] = len(next(runs[name]).history)  # compile, and let the chunks reach their length
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(chunks):
        for name, run in runs.items():
            began = time.perf_counter()
            steps = len(next(run).history)
            times[name].append((time.perf_counter() - began) / (steps - seen[name]))
            seen[name] = steps
    return {name: statistics.median(values) for name, values in times.items()}


def paper(draws: int):
    """Algorithm 2, with a control variate free of bias."""
    return {"gradient": bbvi.Score(), "draws": bbvi.MonteCarlo(draws), "optimizer": bbvi.adagrad(1.0)}


def groups(quick: bool) -> None:
    """A step against the number of groups."""
    sizes = [200, 400] if quick else [1_000, 100_000, 1_000_000]
    batch, draws = (5, 4) if quick else (25, 100)
    rng = np.random.default_rng(0)
    data = {n: {"y": rng.normal(size=(n, 2)).astype(np.float32)} for n in sizes}
    runs = {str(n): bbvi.iterate(two_level(), data[n], batch_size=batch, stop=NEVER, **paper(draws)) for n in sizes}
    found = in_turns(runs, 2 if quick else 15)
    print(f"\nTwo locals and two globals, batches of {batch} groups, S = {draws}")
    for n in sizes:
        print(
            f"{n:>12,} groups {1e6 * found[str(n)]:>8.0f} us a step, ratio {found[str(n)] / found[str(sizes[0])]:.2f}"
        )


@functools.cache
def patients(visits: int | None, num: int = 803):
    """The cohort, or one in which all have the same number of visits."""
    simulated = cohort.simulate(num)
    if visits is not None:
        rng = np.random.default_rng(1)
        labs = [rng.normal(size=(visits, cohort.NUM_LABS)).astype(np.float32) for _ in range(num)]
        simulated = cohort.Patients(labs, [rng.random(x.shape) < cohort.OBSERVED for x in labs], [])
    return cohort.ours(simulated)


def time_series(draws: int, batch: int, visits: int | None = None, num: int = 803):
    model, data = patients(visits, num)
    return bbvi.iterate(model, data, batch_size=batch, stop=NEVER, **paper(draws))


def scaling(quick: bool) -> None:
    """A step of Gamma-Normal-TS against draws, batch size and visits, with the slope on log scales."""
    num = 12 if quick else 803
    tables = {
        "draws": [(4, 2, None), (8, 2, None)]
        if quick
        else [(250, 25, None), (500, 25, None), (1000, 25, None), (2000, 25, None), (4000, 25, None)],
        "batch x visits": [(4, 2, 5), (4, 2, 10)]
        if quick
        else [(1000, 25, 10), (1000, 25, 20), (1000, 25, 40), (1000, 50, 40), (1000, 50, 80)],
    }
    for title, settings in tables.items():
        runs = {str(s): time_series(*s, num=num) for s in settings}
        medians = in_turns(runs, 1 if quick else 7)
        found = [medians[str(s)] for s in settings]
        sizes = [s[0] if title == "draws" else s[1] * s[2] for s in settings]
        slope = np.polyfit(np.log(sizes), np.log(found), 1)[0]
        print(f"\nGamma-Normal-TS against {title}: slope {slope:.2f} on log scales")
        for (draws, batch, visits), size, seconds in zip(settings, sizes, found, strict=True):
            what = f"S = {draws}, B = {batch}, {visits or '5 to 120'} visits"
            print(f"{what:>36} {1e3 * seconds:>9.2f} ms a step, {1e9 * seconds / size:>9.0f} ns for each of {size:,}")


def first(quick: bool) -> None:
    """From the call of `fit` to the first step or to the end, compilation and all, and the same again."""
    model, data = eight_schools()
    stop = bbvi.Budget(steps=20) if quick else None
    print()
    for name in ("eight schools, defaults, to the posterior", "the same again"):
        began = time.perf_counter()
        posterior = bbvi.fit(model, data, stop=stop)
        seconds = time.perf_counter() - began
        print(f"{name:>45} {seconds:>7.2f} s, {len(posterior.history)} steps, {posterior.stopped}")
    draws, batch, num = (4, 2, 12) if quick else (1000, 25, 803)
    for name in ("Gamma-Normal-TS, to the end of the first step", "the same again"):
        began = time.perf_counter()
        next(time_series(draws, batch, num=num))
        print(f"{name:>45} {time.perf_counter() - began:>7.2f} s")


def small(quick: bool) -> None:
    """The overhead of a step: eight schools with 10 draws."""
    model, data = eight_schools()
    run = bbvi.iterate(model, data, stop=NEVER, **paper(10))
    found = in_turns({"small": run}, 2 if quick else 9)["small"]
    print(f"\nEight schools, S = 10: {1e6 * found:.1f} us a step")


def memory(quick: bool) -> None:
    """Peak memory, each in a process of its own."""
    print()
    for draws in (4,) if quick else (1000, 100_000):
        command = [sys.executable, __file__, "--memory", str(draws), *(["--quick"] if quick else [])]
        peak = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(f"Gamma-Normal-TS, S = {draws:,}, B = 25: peak {peak:.0f} MB")


def peak_memory(draws: int, quick: bool) -> None:
    run = time_series(draws, 2 if quick else 25, num=12 if quick else 803)
    for _ in range(2):
        next(run)
    status = Path("/proc/self/status").read_text().splitlines()
    print(int(next(line for line in status if line.startswith("VmHWM")).split()[1]) / 1024)


PARTS = {"groups": groups, "scaling": scaling, "first": first, "small": small, "memory": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="everything small, as a smoke")
    parser.add_argument("--memory", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        peak_memory(options.memory, options.quick)
        return
    print(f"jax {jax.__version__}, bbvi {bbvi.__version__}, Python {platform.python_version()}, {platform.machine()}")
    # what is compiled first must not be there already
    for part in sorted(options.parts, key=lambda name: name != "first"):
        PARTS[part](options.quick)


if __name__ == "__main__":
    main()
