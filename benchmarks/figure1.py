"""Figure 1: the density of held-out measurements after fixed training times, by bbvi's defaults, by fixed settings and by Gibbs.

    python benchmarks/figure1.py --scale small                 about a minute for each method
    python benchmarks/figure1.py --seeds 3                     the paper's 803 training and 173 test patients
    python benchmarks/figure1.py --only defaults gibbs --sigma 0.1

"mean field" is the defaults with the paper's q, which the fixed settings have too.

Times are the processor's, of steps and sweeps on the training patients: other jobs on the machine do not change them much. Compiling and
predicting are not counted. The test patients' locals are fitted with 10 draws along their paths whatever fitted the globals. Methods take
turns, and each runs in a process of its own.
"""

import argparse
import dataclasses
import json
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import bbvi
from bbvi.study import sampling, scores, simulate
from bbvi.study.data_sets import DataSet
from bbvi.study.effort import BATCH_SIZE, Effort, algorithm
from bbvi.study.models import MODELS
from bbvi.study.settings import Settings

#: training and test patients, processor seconds, and steps of the fits to what is kept of test patients
SCALES = {"small": (40, 10, (1.0, 4.0, 8.0), 100), "paper": (803, 173, (6.0, 24.0, 60.0, 120.0), 200)}


def methods() -> dict[str, dict[str, Any] | None]:
    natural = {"optimizer": bbvi.natural()}
    return {
        "defaults": {},
        "mean field": {},
        "Algorithm 2, 1,000 draws": algorithm(1.0, 1000),
        "Score, 100 draws, natural": {"gradient": bbvi.Score(), "draws": bbvi.MonteCarlo(100), **natural},
        "Pathwise, 10 draws, natural": {"gradient": bbvi.Pathwise(), "draws": bbvi.MonteCarlo(10), **natural},
        "Auto, 100 draws, natural": {"gradient": bbvi.Auto(), "draws": bbvi.MonteCarlo(100), **natural},
        "gibbs": None,
    }


def run(method: str, scale: str, sigma: float, seed: int) -> dict[str, Any]:
    num_train, num_test, marks, test_steps = SCALES[scale]
    settings = dataclasses.replace(Settings.simulated(), sigma_l=sigma)
    patients = simulate.simulate(num_train + num_test, 0, settings)
    data = DataSet(patients, *patients.split(num_test), settings)
    shares = tuple(mark / marks[-1] for mark in marks)
    effort = Effort(seconds=marks[-1], checkpoints=shares, test_steps=test_steps, test_draws=200)
    options, began = methods()[method], time.process_time()
    if options is None:
        found = sampling.sampled(
            data, effort, bbvi.Coordinatewise(), method=method, seed=seed, report=lambda share: None, clock=time.process_time
        )  # fmt: skip
        curve = list(
            zip(found["seconds"], [found["num_sweeps"]] * len(found["seconds"]), found["per_observation"], strict=True)
        )
        return {"method": method, "seed": seed, "curve": curve, "error": float(found["error"][-1])}
    model, test = MODELS[sampling.MODEL].build(len(patients.names), settings), scores.hold_out(data.test, 0)
    if method == "defaults":
        model = bbvi.HierarchicalModel(
            log_prior=model.log_prior, log_local=model.log_local, log_likelihood=model.log_likelihood,
            globals=model.globals, locals=model.locals,
        )  # fmt: skip
    steps = bbvi.iterate(
        model, data.train.ragged(), seed=seed, batch_size=BATCH_SIZE, stop=bbvi.Budget(steps=10**9), **options
    )
    curve = []
    for seconds, posterior in sampling.on_the_clock(steps, marks[-1], shares, lambda share: None, time.process_time):
        draws = scores.draws_given(
            posterior, test, effort, seed=seed, gradient=bbvi.Pathwise(), draws=bbvi.MonteCarlo(10), optimizer=bbvi.natural()
        )  # fmt: skip
        score = scores.score(model, draws, test)
        curve.append((seconds, len(posterior.history), score["per_observation"]))
    return {
        "method": method, "seed": seed, "curve": curve, "error": score["per_observation_error"],
        "draws": posterior.history["draws"].iloc[[0, -1]].tolist(), "estimators": posterior.estimators,
        "total": time.process_time() - began,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", choices=SCALES, default="paper")
    parser.add_argument("--only", nargs="+", default=list(methods()))
    parser.add_argument("--sigma", type=float, default=0.3, help="the sd of a measurement")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options, records = parser.parse_args(), []
    for seed in range(options.seeds):
        for method in options.only:
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
                found = pool.submit(run, method, options.scale, options.sigma, seed).result()
            records.append(found)
            curve = "  ".join(f"{t:.1f} s ({n}) {value:.3f}" for t, n, value in found["curve"])
            print(
                f"{method:28} seed {seed}: {curve}  ± {found['error']:.3f} {found.get('draws', '')} {found.get('estimators', '')}",
                flush=True,
            )
            if options.out is not None:
                options.out.write_text(json.dumps(records, indent=1))


if __name__ == "__main__":
    main()
