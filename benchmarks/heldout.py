"""Part of peers.py: the density of measurements left out, while each library fits the others."""

import argparse
from pathlib import Path
from typing import Any

import cohort
import judge
import numpy as np
from driven import Worker
from methods import METHODS, attempt, chosen, written

# heldout: draws, and the optimisers and rates that are tried
FITS = {
    "bbvi Score": (100, [("adagrad", 1.0), ("adagrad", 0.3)]),
    "Pyro TraceGraph_ELBO, at its best": (100, [("adagrad", 0.3), ("adagrad", 0.1), ("adagrad", 0.03)]),
    "NumPyro TraceGraph_ELBO, at its best": (100, [("adagrad", 0.3), ("adagrad", 0.1), ("adagrad", 0.03)]),
    "bbvi Pathwise": (10, [("adagrad", 1.0), ("adagrad", 0.3)]),
    "NumPyro pathwise Gamma, at its best": (10, [("adagrad", 1.0), ("adam", 0.03)]),
    "NumPyro AutoNormal, at its best": (1, [("adagrad", 1.0), ("adam", 0.03)]),
    "PyMC ADVI": (1, [("adam", 0.1), ("adam", 0.03)]),
}


def heldout(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Density of a quarter of the measurements, left out, against seconds of fitting to the others."""
    whole = cohort.simulate(options.patients, longest=options.longest).padded()
    data, out = judge.hold_out(whole)
    path, failures, rows = written(folder, "heldout", data), {}, []
    for name in chosen(options, {name: METHODS[name] for name in FITS}):
        found = attempt(name, failures, best_fit, name, path, data, out, folder / "q.npz", options)
        if found is not None:
            rows.append(found)
            print(f"{name}: {found['log density']:.3f}", flush=True)
    if not options.quick and rows:
        plot(rows, options)
    caption = f"Held-out log density a measurement after {options.seconds:.0f} s, {options.patients} patients, batches of {options.batch}"
    return {"rows": rows, "failures": failures, "caption": caption}


def best_fit(
    name: str, path: Path, data: judge.Arrays, out: np.ndarray, into: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """Try each rate for a while and let the best go on."""
    draws, tried = FITS[name]
    trials = []
    try:
        for optimizer, rate in tried:
            method = METHODS[name].having(draws=draws, batch=options.batch, optimizer=optimizer, rate=rate)
            worker = Worker(method, path, patience=options.patience)
            compiling = worker.greeting["seconds"] + worker.ask("steps", num=1)["wall"]
            trial = {
                "method": name,
                "S": draws,
                "optimiser": f"{optimizer} {rate}",
                "s to compile": compiling,
                "worker": worker,
            }
            trials.append(trial | go_on(worker, 0.0, options.trial * 2.0 ** np.arange(-3, 1), data, out, into))
        best = max(trials, key=lambda trial: np.nan_to_num(trial["curve"][-1][1], nan=-np.inf))
        then = np.geomspace(options.trial, options.seconds, 6)[1:]
        more = go_on(best["worker"], best["curve"][-1][0], then, data, out, into)
    finally:
        for trial in trials:
            trial.pop("worker").close()
    curve, total = best["curve"] + more["curve"], best["steps"] + more["steps"]
    others = {trial["optimiser"]: trial["curve"][-1][1] for trial in trials}
    return {**best, "steps": total, "log density": curve[-1][1], "error": curve[-1][2], "curve": curve, "tried": others}


def go_on(
    worker: Worker, clock: float, marks: np.ndarray, data: judge.Arrays, out: np.ndarray, into: Path
) -> dict[str, Any]:
    """Fit through the marks, from where the clock stands, and judge q at each."""
    answer = worker.ask("fit", clock=clock, marks=[float(mark) for mark in marks], into=str(into))
    with np.load(into) as kept:
        found = dict(kept)
    judged = [judge.held_out_density({n: v[i] for n, v in found.items()}, data, out) for i in range(len(marks))]
    curve = [[at, *density] for at, density in zip(answer["seconds"], judged, strict=True)]
    return {"curve": curve, "steps": answer["steps"]}


def plot(rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    for row in rows:
        seconds, density, _ = zip(*row["curve"], strict=True)
        label = f"{row['method']} (S = {row['S']}, {row['optimiser']})"
        axes.plot(seconds, density, "o-", ms=3, label=label, lw=2 if row["method"].startswith("bbvi") else 1)
    final = [row["log density"] for row in rows if np.isfinite(row["log density"])]
    axes.set(xscale="log", xlabel="seconds of fitting, without compiling", ylabel="held-out log density a measurement")
    if final:
        axes.set_ylim(max(min(final) - 2, max(final) - 12), max(final) + 0.5)
    figure.legend(fontsize=7, loc="outside lower center", ncols=2)
    axes.grid(alpha=0.3)
    figure.savefig(options.picture, dpi=150)
