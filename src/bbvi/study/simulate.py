"""Section 5.1: a simulated cohort of the paper's shape, drawn from its Gamma-Normal time series.

The clinic's records are not public. Theirs were 976 patients (803 for training, 173 for the test), 33,000 visits at
irregular times, and a subset of 17 positive labs at each. Ours have the same numbers. For each patient p:

    number of visits: log-normal around 25, between 5 and 120; 34 in the mean
    days between visits: log-normal around 30, at least 1, heavy-tailed
    o_p ~ Normal(level, sigma_o), the labs' offsets
    x_pv ~ GammaE(max(x_pv-1, floor), sigma_x) with x_p0 = alpha_0, mean and variance
    l_pv ~ Normal(W x_pv + o_p, sigma_l), a standard deviation
    each lab is measured with probability 0.39; at a visit without any, one is

with W ~ Normal(0, sigma_w) drawn once. The level of the offsets, 15 by default, makes nearly all labs positive. Where one
lab of a patient is not, measured or not, the whole patient (offsets, factors, labs) is drawn again at the same visits,
and `notes` says for how many that was so. The model the others are fitted with is the one they were drawn from, but for
this condition.
"""

import numpy as np

from bbvi.study.patients import Patients
from bbvi.study.settings import Settings

NUM_PATIENTS, NUM_TEST, NUM_LABS, SHARE_OBSERVED = 976, 173, 17, 0.39
_MOST_REDRAWS = 1000


def simulate(num_patients: int = NUM_PATIENTS, seed: int = 0, settings: Settings | None = None) -> Patients:
    """Draw patients from Gamma-Normal-TS; the same seed gives the same first patients however many there are.

    Examples:
        >>> few, more = simulate(3), simulate(5)
        >>> all(np.array_equal(a, b, equal_nan=True) for a, b in zip(few.labs, more.labs))
        True
        >>> len(few.names)
        17
    """
    s = Settings.simulated() if settings is None else settings
    weights = np.random.default_rng([seed, 0]).normal(0, s.sigma_w, (NUM_LABS, s.num_factors))
    out, num_redrawn = Patients([], [], [f"lab {i + 1}" for i in range(NUM_LABS)], [], truth=[]), 0
    assert out.truth is not None
    for patient in range(num_patients):
        rng = np.random.default_rng([seed, 1, patient])
        times, seen = _visits(rng)
        truth, labs, redraws = _positive_labs(rng, weights, len(times), s)
        num_redrawn += redraws > 0
        out.labs.append(np.where(seen, labs, np.nan))
        out.times.append(times)
        out.truth.append(truth)
        out.ids.append(f"patient {patient + 1}")
    return Patients(
        out.labs, out.times, out.names, out.ids, out.truth, name="simulated cohort",
        source=f"drawn from Gamma-Normal-TS with K = {s.num_factors}, seed {seed}",
        notes={"drawn again for a lab at or below 0": f"{num_redrawn} patients, {num_redrawn / num_patients:.1%}"},
    )  # fmt: skip


def _visits(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw the days of a patient's visits, and which labs are measured."""
    num_visits = int(np.clip(np.round(rng.lognormal(np.log(25), 0.85)), 5, 120))
    gaps = np.ceil(rng.lognormal(np.log(30), 1.2, num_visits - 1))
    seen = rng.random((num_visits, NUM_LABS)) < SHARE_OBSERVED
    seen[~seen.any(1), rng.integers(NUM_LABS)] = True
    return np.concatenate([[0.0], np.cumsum(gaps)]), seen


def _positive_labs(
    rng: np.random.Generator, weights: np.ndarray, num_visits: int, s: Settings
) -> tuple[np.ndarray, np.ndarray, int]:
    """Draw true means and labs of one patient until all labs are positive, and count the draws."""
    for redraws in range(_MOST_REDRAWS):
        offset = rng.normal(s.level, s.sigma_o, NUM_LABS)
        x, path = np.full(s.num_factors, s.alpha_0), np.empty((num_visits, s.num_factors))
        for v in range(num_visits):
            mean = np.maximum(x, s.floor)
            x = path[v] = rng.gamma(mean**2 / s.sigma_x, s.sigma_x / mean)
        truth = path @ weights.T + offset
        labs = rng.normal(truth, s.sigma_l)
        if (labs > 0).all():
            return truth, labs, redraws
    raise ValueError(
        f"{_MOST_REDRAWS} draws of a patient all had a lab at or below 0: raise level (it is {s.level:g}) "
        f"or lower sigma_x (it is {s.sigma_x:g})"
    )
