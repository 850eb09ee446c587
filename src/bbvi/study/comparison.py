"""Section 5.4 and Table 1: the models, each fitted to the training patients and asked to predict the test patients."""

from typing import Any

import numpy as np

import bbvi
from bbvi.study.data_sets import DataSet
from bbvi.study.effort import BATCH_SIZE, Effort, algorithm
from bbvi.study.models import MODELS
from bbvi.study.scores import averages, difference, draws_given, hold_out, lab_means, own_average, score
from bbvi.study.stages import Report, uninterrupted

# what the paper found, as pairs of a better and a worse model
EXPECTED = (
    ("Gamma-Normal-TS", "Gamma-Normal", "time-series models beat their static twins"),
    ("Gamma-TS", "Gamma", "time-series models beat their static twins"),
    ("Gamma-Normal-TS", "Gamma-TS", "Normal-weight models beat Gamma-weight ones"),
    ("Gamma-Normal", "Gamma", "Normal-weight models beat Gamma-weight ones"),
)
_POINTS_OF_HISTORY = 400
_LATE = 50  # steps at the end whose ELBOs are averaged
_INTERVAL = (0.05, 0.95)


def fit_and_score(name: str, data: DataSet, effort: Effort, *, seed: int, report: Report) -> dict[str, Any]:
    """Make a row of Table 1: fit a model, score its predictions, keep its weights and one test patient."""
    entry = MODELS[name]
    model = entry.build(len(data.train.names), data.settings)
    for posterior in bbvi.iterate(
        model, data.train.ragged(), **algorithm(entry.eta, effort.num_draws), seed=seed,
        batch_size=min(BATCH_SIZE, len(data.train)), stop=[bbvi.Converged(0.1), bbvi.Budget(steps=effort.train_steps)],
    ):  # fmt: skip
        report(0.8 * len(posterior.history) / effort.train_steps)
    uninterrupted(posterior)
    test = hold_out(data.test, seed)
    draws = draws_given(posterior, test, effort, seed=seed, **algorithm(entry.eta, effort.test_draws))
    history = posterior.history
    late = history["elbo"].to_numpy()[-_LATE:]
    every = max(1, len(history) // _POINTS_OF_HISTORY)
    shown = history.rolling(every, min_periods=1).mean().iloc[::every]
    out = {
        "model": name, "paper": entry.paper, **score(model, draws, test, of_logs=entry.of_logs), "elbo": float(late.mean()),
        "elbo_error": float(late.std() / np.sqrt(len(late))), "steps": len(history), "seconds": float(history["seconds"].iloc[-1]),
        "converged": posterior.converged, "stopped": posterior.stopped,
        "history": {"step": shown.index.to_numpy(), "seconds": shown["seconds"].to_numpy(), "elbo": shown["elbo"].to_numpy()},
    }  # fmt: skip
    if {"W", "o", "x"} <= set(draws) and not entry.of_logs:
        mean, sd = posterior.mean(), posterior.sd()
        out["factors"] = {
            "model": name, "labs": data.train.names, "W_mean": np.asarray(mean["W"]), "W_sd": np.asarray(sd["W"]),
            "patient": _one_patient(draws, test, noise(name, data), np.random.default_rng([seed, 31])),
        }  # fmt: skip
        if data.train.truth is not None:
            out["truth"] = recovery(data, mean)
    return out


def noise(name: str, data: DataSet) -> float:
    """Return the sd of a measurement around its mean."""
    s = data.settings
    return float(np.sqrt(s.observation_variance)) if MODELS[name].needs_positive else s.sigma_l


def _one_patient(draws: dict[str, np.ndarray], test: Any, sd: float, rng: np.random.Generator) -> dict[str, Any]:
    """Predict the test patient with most measurements held out; intervals are those of a measurement, not of its mean."""
    which = int(np.argmax([held.sum() for held in test.held]))
    patients, num = test.patients, len(test.patients.labs[which])
    means, factors = lab_means(draws, which, num), draws["x"][:, which, :num]
    low, high = np.quantile(rng.normal(means, sd), _INTERVAL, axis=0)
    factor_low, factor_high = np.quantile(factors, _INTERVAL, axis=0)
    return {
        "id": patients.ids[which], "times": patients.times[which], "labs": patients.labs[which],
        "kept": test.kept[which], "held": test.held[which], "mean": means.mean(0), "low": low, "high": high,
        "truth": None if patients.truth is None else patients.truth[which],
        "factor_mean": factors.mean(0), "factor_low": factor_low, "factor_high": factor_high,
    }  # fmt: skip


def recovery(data: DataSet, mean: dict[str, Any]) -> dict[str, Any]:
    """Return root mean square errors against the truth: of the fitted mean of W x + o, and of each patient's averages.

    W and x are known up to a permutation and scales of the factors, their product is not touched by either.
    """
    train = data.train
    centre = np.nanmean(np.concatenate(train.labs), axis=0)
    errors: dict[str, list[np.ndarray]] = {"fitted": [], "averages": []}
    for i, labs in enumerate(train.labs):
        fitted = np.asarray(mean["x"][i]) @ np.asarray(mean["W"]).T + np.asarray(mean["o"][i])
        average = own_average(labs, ~np.isnan(labs), centre)
        assert train.truth is not None
        errors["fitted"].append(fitted - train.truth[i])
        errors["averages"].append(average - train.truth[i])
    seen = np.concatenate(train.observed)
    fitted, plain = (np.concatenate(errors[which]) for which in ("fitted", "averages"))

    def size(error: np.ndarray) -> float:
        return float(np.sqrt(np.mean(error**2)))

    return {
        "data": train.name, "error_measured": size(fitted[seen]), "error_unmeasured": size(fitted[~seen]),
        "averages_measured": size(plain[seen]), "averages_unmeasured": size(plain[~seen]),
        "sigma_l": data.settings.sigma_l,
    }  # fmt: skip


def table(rows: list[dict[str, Any]], data: DataSet, seed: int) -> dict[str, Any]:
    """Make Table 1: the models, the patients' averages, and whether the paper's order holds, patient for patient."""
    found = {row["model"]: row for row in rows}
    pairs = []
    for better, worse, expected in EXPECTED:
        if better in found and worse in found:
            value, error = difference(found[better], found[worse])
            pairs.append(
                {"better": better, "worse": worse, "expected": expected, "difference": value, "error": error, "holds": value > 2 * error}
            )  # fmt: skip
    plain = [{k: v for k, v in row.items() if k not in ("factors", "truth")} for row in rows]
    return {"models": plain, "averages": averages(data.train, hold_out(data.test, seed)), "pairs": pairs}
