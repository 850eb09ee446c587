"""Section 5.3 and Figure 2: the variance of the gradient, and what it does to convergence."""

from typing import Any

import numpy as np

import bbvi
from bbvi.study.data_sets import DataSet
from bbvi.study.effort import BATCH_SIZE, Effort, algorithm
from bbvi.study.models import MODELS
from bbvi.study.sampling import MODEL, on_the_clock
from bbvi.study.stages import Report, uninterrupted

ESTIMATORS = {
    "Eq. 3": bbvi.Score(rao_blackwell=False, control_variate=None),
    "Eq. 6": bbvi.Score(rao_blackwell=True, control_variate=None),
    "Eq. 10": bbvi.Score(rao_blackwell=True, control_variate=bbvi.PlugIn()),
    "leave-one-out": bbvi.Score(rao_blackwell=True, control_variate=bbvi.LeaveOneOut()),
}
ALGORITHMS = {
    "Algorithm 1 (Eq. 3)": ESTIMATORS["Eq. 3"],
    "Rao-Blackwellized (Eq. 6)": ESTIMATORS["Eq. 6"],
    "Algorithm 2 (Eq. 10)": ESTIMATORS["Eq. 10"],
    "bbvi's default (cross-fitted)": bbvi.Score(),
}
#: those of the paper's Figure 2, and the two algorithms that it sets against each other
_PAPERS = ("Eq. 3", "Eq. 6", "Eq. 10", "Algorithm 1 (Eq. 3)", "Algorithm 2 (Eq. 10)")
_DRAWS = 100
_WINDOW = 20


def _shown(all_of_them: dict[str, bbvi.Score], effort: Effort) -> dict[str, bbvi.Score]:
    return {name: gradient for name, gradient in all_of_them.items() if effort.more_curves or name in _PAPERS}


def variances(data: DataSet, effort: Effort, *, seed: int, report: Report) -> dict[str, Any]:
    """Measure Figure 2's variances, for a random patient's first factor at the first visit, along a fit to 25 patients."""
    rng = np.random.default_rng([seed, 21])
    patients = data.train.take(np.sort(rng.permutation(len(data.train))[:BATCH_SIZE]))
    patient, groups = int(rng.integers(len(patients))), patients.ragged()
    model = MODELS[MODEL].build(len(patients.names), data.settings)
    estimators = _shown(ESTIMATORS, effort)
    found: dict[str, list[float]] = {name: [] for name in estimators}
    done = 0
    for steps in effort.iterations:
        posterior = bbvi.fit(
            model, groups, **algorithm(MODELS[MODEL].eta, _DRAWS), seed=seed, stop=bbvi.Budget(steps=steps), progress=False,
        )  # fmt: skip
        uninterrupted(posterior)
        for name, estimator in estimators.items():
            moments = bbvi.gradient_moments(
                model, groups, posterior, gradient=estimator, draws=bbvi.MonteCarlo(_DRAWS), repeats=effort.repeats, seed=seed
            )  # fmt: skip
            component = {p: np.asarray(v)[patient, 0, 0] for p, v in moments.variance["x"].items()}
            found[name].append(float(component["mean"]))
            done += 1
            report(done / len(effort.iterations) / len(estimators))
    series = {name: np.array(values) for name, values in found.items()}
    blanket, control = series["Eq. 3"] / series["Eq. 6"], series["Eq. 6"] / series["Eq. 10"]
    return {
        "data": data.train.name, "patient": patients.ids[patient], "component": "log mean of q of the first factor at the first visit",
        "iterations": np.array(effort.iterations), "estimators": series, "draws": _DRAWS, "repeats": effort.repeats,
        "ratios": {"Eq. 3 / Eq. 6": float(np.median(blanket)), "Eq. 6 / Eq. 10": float(np.median(control))},
        "holds": {
            "two orders of magnitude": bool(np.median(blanket) >= 100),
            "control variate lowers further": bool(np.median(control) > 1),
        },
    }  # fmt: skip


def convergence(data: DataSet, effort: Effort, *, seed: int, report: Report) -> dict[str, Any]:
    """Record the ELBO against time with and without each reduction, with the same steps and draws otherwise."""
    model = MODELS[MODEL].build(len(data.train.names), data.settings)
    algorithms, runs = _shown(ALGORITHMS, effort), []
    for number, (name, estimator) in enumerate(algorithms.items()):
        run = bbvi.iterate(
            model, data.train.ragged(), gradient=estimator, draws=bbvi.MonteCarlo(effort.num_draws), seed=seed,
            optimizer=bbvi.adagrad(MODELS[MODEL].eta), batch_size=min(BATCH_SIZE, len(data.train)),
            stop=bbvi.Budget(steps=10**9),
        )  # fmt: skip

        def part(share: float, number: int = number) -> None:
            report((number + share) / len(algorithms))

        ((_, posterior),) = on_the_clock(run, effort.progress_seconds, (1.0,), part)
        history = posterior.history
        smooth = history["elbo"].rolling(_WINDOW, min_periods=1).mean().to_numpy()
        seconds = history["seconds"].to_numpy() - history["seconds"].iloc[0]
        runs.append({"estimator": name, "seconds": seconds, "elbo": smooth, "steps": len(history)})
    return {"data": data.train.name, "runs": runs, "verdict": _verdict(runs)}


def _verdict(runs: list[dict[str, Any]]) -> str:
    ends = {run["estimator"]: float(run["elbo"][-1]) for run in runs}
    first, best = ends["Algorithm 1 (Eq. 3)"], max(ends.values())
    start = float(np.mean([run["elbo"][0] for run in runs]))
    if first <= start:
        return (
            f"In the best run the ELBO rose from {start:,.0f} to {best:,.0f}; Algorithm 1, without variance reductions, was at "
            f"{first:,.0f} after the same time, below its start"
        )
    share = (first - start) / (best - start)
    return (
        f"In the best run the ELBO rose from {start:,.0f} to {best:,.0f}; Algorithm 1, without variance reductions, went "
        f"{share:.0%} of that way in the same time"
    )
