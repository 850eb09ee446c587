"""Section 5.1: how much work a run of the study does: the paper's 1,000 draws, fewer with `--quick`."""

from typing import Any, NamedTuple

import bbvi

BATCH_SIZE = 25


def algorithm(eta: float, num_draws: int) -> dict[str, Any]:
    """Return options of `bbvi.fit` for Algorithm 2, with a control variate that adds no bias."""
    return {"gradient": bbvi.Score(), "draws": bbvi.MonteCarlo(num_draws), "optimizer": bbvi.adagrad(eta)}


class Effort(NamedTuple):
    """Steps, seconds, seeds and repeats.

    Attributes:
        num_draws: of a step, S.
        train_steps: of a fit to the training patients.
        test_steps: of the fit of the test patients' locals.
        test_draws: draws a step there, and draws that predict.
        seconds: for each method in the comparison with sampling, on the clock.
        checkpoints: when on that clock predictions are made, as shares of the whole.
        seeds: of that comparison.
        test_sweeps: sweeps of the test patients' locals for each draw of the globals.
        iterations: at which the variance of the gradient is looked at.
        repeats: of the gradient there.
        num_data_sets: of those embedded; one is the simulated cohort alone.
        more_curves: whether plain Metropolis-Hastings, bbvi with its defaults, and other estimators than the paper's are
            shown too.
        progress_seconds: for each estimator in the comparison of convergence, on the clock.
    """

    num_draws: int = 1000
    train_steps: int = 300
    test_steps: int = 200
    test_draws: int = 200
    seconds: float = 25.0
    checkpoints: tuple[float, ...] = (0.03, 0.1, 0.25, 0.5, 1.0)
    seeds: int = 2
    test_sweeps: int = 5
    iterations: tuple[int, ...] = (1, 3, 10, 30, 100, 300)
    repeats: int = 60
    progress_seconds: float = 10.0
    num_data_sets: int = 2
    more_curves: bool = True


EFFORTS = {
    "quick": Effort(
        num_draws=200, train_steps=150, test_steps=100, test_draws=100, seconds=8.0, checkpoints=(0.1, 0.3, 1.0), seeds=1,
        iterations=(1, 100), repeats=50, progress_seconds=4.0,
        num_data_sets=1, more_curves=False,
    ),
    "default": Effort(),
    "full": Effort(
        train_steps=3000, test_steps=1000, test_draws=500, seconds=1200.0, seeds=3,
        checkpoints=(0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0), iterations=(1, 3, 10, 30, 100, 300, 1000),
        repeats=300, progress_seconds=240.0,
    ),
}  # fmt: skip
