"""Section 5.1: how well held-out labs of test patients are predicted, by draws of any method and by plain averages."""

from typing import Any, NamedTuple

import numpy as np
from scipy import stats

import bbvi
from bbvi.study.effort import Effort
from bbvi.study.patients import Patients
from bbvi.study.stages import uninterrupted

Draws = dict[str, np.ndarray]


class HeldOut(NamedTuple):
    """Test patients, with the measurements their locals are fitted to and those that are predicted."""

    patients: Patients
    kept: list[np.ndarray]
    held: list[np.ndarray]

    @property
    def fit_data(self) -> Any:
        return self.patients.ragged(self.kept)

    @property
    def held_data(self) -> Any:
        return self.patients.ragged(self.held)


def hold_out(test: Patients, seed: int) -> HeldOut:
    """Keep 75 % of each test patient's measurements to fit to, and 25 % to predict."""
    return HeldOut(test, *test.hold_out(0.25, seed))


def draws_given(posterior: bbvi.Posterior, test: HeldOut, effort: Effort, *, seed: int, **settings: Any) -> Draws:
    """Draw from q: the globals as they were fitted, the test patients' locals fitted to what is kept of them."""
    fitted = bbvi.fit(
        posterior.model, test.fit_data, hold=posterior, seed=seed, progress=False,
        stop=bbvi.Budget(steps=effort.test_steps), **settings,
    )  # fmt: skip
    return plain(uninterrupted(fitted).sample(effort.test_draws, seed))


def plain(draws: Any) -> Draws:
    """Return draws as arrays, the ragged ones padded."""
    return {name: np.asarray(getattr(values, "padded", values)) for name, values in draws.items()}


def score(model: bbvi.HierarchicalModel, draws: Draws, test: HeldOut, *, of_logs: bool = False) -> dict[str, Any]:
    """Return the log predictive likelihood per measurement and per patient, and the squared error of predicted means.

    These are medians if W x + o is that of the labs' logarithms.
    """
    found = bbvi.predictive_log_likelihood(draws, None, test.held_data, observed="observed", model=model)
    counts = np.array([held.sum() for held in test.held])
    errors = []
    for i, (labs, held) in enumerate(zip(test.patients.labs, test.held, strict=True)):
        mean = lab_means(draws, i, len(labs)).mean(0)
        mean = np.exp(mean) if of_logs else mean
        errors.append(float(((labs - mean)[held] ** 2).sum()))
    mse, mse_error = ratio(np.array(errors), counts)
    return {
        "per_observation": float(found.per_observation), "per_observation_error": found.per_observation.standard_error,
        "per_patient": float(found.per_group), "per_patient_error": found.per_group.standard_error,
        "mse": mse, "mse_error": mse_error,
        "by_patient": np.bincount(found.group, weights=found.pointwise, minlength=len(counts)), "counts": counts,
    }  # fmt: skip


def lab_means(draws: Draws, patient: int, num_visits: int) -> np.ndarray:
    """Return W x + o of one patient, draws by visits by labs; offsets may be the patient's own or all patients'."""
    x, weights, offsets = draws["x"][:, patient, :num_visits], draws["W"], draws["o"]
    own = offsets[:, patient] if offsets.ndim == 3 else offsets
    return np.einsum("svk,slk->svl", x, weights) + own[:, None]


def ratio(totals: np.ndarray, counts: np.ndarray) -> tuple[float, float]:
    """Divide a total by a count, with a standard error that takes patients as the independent units."""
    value = totals.sum() / counts.sum()
    return float(value), float(np.sqrt(((totals - value * counts) ** 2).sum()) / counts.sum())


def difference(one: dict[str, Any], other: dict[str, Any]) -> tuple[float, float]:
    """Return how much more log likelihood per measurement, patient for patient, with its standard error."""
    return ratio(np.asarray(one["by_patient"]) - np.asarray(other["by_patient"]), np.asarray(one["counts"]))


def averages(train: Patients, test: HeldOut) -> dict[str, Any]:
    """Score a Normal around each patient's own average of a lab, drawn towards the training mean, in the same way.

    A patient's average of n measurements is n / (n + 1) of the way from the training mean of the lab; the sd of each lab
    is that of training measurements around such averages, each measurement left out of its own.
    """
    centre = np.nanmean(np.concatenate(train.labs), axis=0)
    spread = np.sqrt(np.nanmean(np.concatenate([_left_out(labs, centre) for labs in train.labs]) ** 2, axis=0))
    log_likelihood, squares, counts = [], [], []
    for labs, kept, held in zip(test.patients.labs, test.kept, test.held, strict=True):
        guess = own_average(labs, kept, centre)
        density = stats.norm.logpdf(labs, guess, spread)
        log_likelihood.append(density[held].sum())
        squares.append(((labs - guess)[held] ** 2).sum())
        counts.append(held.sum())
    by_patient, num = np.array(log_likelihood), np.array(counts)
    value, error = ratio(by_patient, num)
    mse, mse_error = ratio(np.array(squares), num)
    return {
        "per_observation": value, "per_observation_error": error, "per_patient": float(by_patient.mean()),
        "per_patient_error": float(by_patient.std(ddof=1) / np.sqrt(len(num))), "mse": mse, "mse_error": mse_error,
        "by_patient": by_patient, "counts": num,
    }  # fmt: skip


def own_average(labs: np.ndarray, seen: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """Average what is seen of each lab of a patient, drawn towards the centre as if by one more measurement."""
    return (np.where(seen, labs, 0).sum(0) + centre) / (seen.sum(0) + 1)


def _left_out(labs: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """Return each measurement less the average of the patient's others, drawn towards the centre."""
    seen = ~np.isnan(labs)
    total = np.where(seen, labs, 0).sum(0)
    return labs - (total - labs + centre) / seen.sum(0)
