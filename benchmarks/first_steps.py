"""How far `Score` and `Pathwise` climb in their first steps: `python benchmarks/first_steps.py`, about two minutes.

The study's Gamma-Normal time series with natural steps of 100 draws. Seconds are those of the steps, compiling left out, medians
of fits that take turns; the ELBO is the mean over the last steps.
"""

import argparse
import platform
import statistics

import jax

import bbvi
from bbvi.study.data_sets import data_sets
from bbvi.study.models import MODELS
from bbvi.study.plan import Plan

ESTIMATORS = {"Score()": bbvi.Score(), "Pathwise()": bbvi.Pathwise()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--patients", type=int, default=60)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--fits", type=int, default=3)
    options = parser.parse_args()
    print(f"jax {jax.__version__}, bbvi {bbvi.__version__}, Python {platform.python_version()}, {platform.machine()}")
    data = data_sets(Plan(num_patients=options.patients))[0]
    model, cohort = MODELS["Gamma-Normal-TS"].build(len(data.train.names), data.settings), data.train.ragged()
    seconds: dict[str, list[float]] = {name: [] for name in ESTIMATORS}
    elbos: dict[str, list[float]] = {name: [] for name in ESTIMATORS}
    for seed in range(options.fits):
        for name, gradient in ESTIMATORS.items():
            posterior = bbvi.fit(
                model, cohort, gradient=gradient, optimizer=bbvi.natural(), draws=bbvi.MonteCarlo(100), seed=seed,
                stop=bbvi.Budget(steps=options.steps + 1), progress=False,
            )  # fmt: skip
            clock, elbo = posterior.history["seconds"].to_numpy(), posterior.history["elbo"].to_numpy()
            seconds[name].append(clock[-1] - clock[0])
            elbos[name].append(elbo[-max(1, options.steps // 20) :].mean())
    print(f"{len(data.train)} patients, {options.steps} steps, {options.fits} seeds")
    for name in ESTIMATORS:
        found = ", ".join(f"{elbo:,.0f}" for elbo in elbos[name])
        print(f"{name:11} {statistics.median(seconds[name]):6.2f} s, ELBO {found}")


if __name__ == "__main__":
    main()
