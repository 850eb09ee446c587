"""Section 5.1: patients with labs at irregular visits, split into training and test, kept and held-out measurements."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

import bbvi


@dataclass(frozen=True, eq=False)
class Patients:
    """Patients and their labs, one array of each list for each patient.

    Attributes:
        labs: visits by labs, NaN where not measured.
        times: when the visits were, in increasing order.
        names: the labs' names.
        ids: the patients' names.
        truth: true means W x + o of the labs, where they are known.
        scale: what each lab was divided by, None for nothing.
        name: of the data set.
        source: where it comes from, in a sentence.
        notes: further facts for the report, each with its label.

    Examples:
        >>> nan = float("nan")
        >>> patients = Patients([np.array([[1.0, nan], [2.0, 3.0]])], [np.array([0.0, 9.0])], ["Na", "K"], ["ann"])
        >>> len(patients), patients.num_measurements, patients.share_observed
        (1, 3, 0.75)
    """

    labs: list[np.ndarray]
    times: list[np.ndarray]
    names: list[str]
    ids: list[str]
    truth: list[np.ndarray] | None = None
    scale: np.ndarray | None = None
    name: str = "labs"
    source: str = ""
    notes: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labs)

    @property
    def observed(self) -> list[np.ndarray]:
        """What was measured, visits by labs."""
        return [~np.isnan(labs) for labs in self.labs]

    @property
    def num_measurements(self) -> int:
        """How many labs were measured, over all visits."""
        return int(sum(seen.sum() for seen in self.observed))

    @property
    def share_observed(self) -> float:
        """The share of labs that were measured, over all visits."""
        return self.num_measurements / sum(labs.size for labs in self.labs)

    def take(self, indices: Sequence[int] | np.ndarray) -> "Patients":
        """Return these patients, in this order."""
        truth = None if self.truth is None else [self.truth[i] for i in indices]
        return replace(
            self,
            labs=[self.labs[i] for i in indices],
            times=[self.times[i] for i in indices],
            ids=[self.ids[i] for i in indices],
            truth=truth,
        )

    def split(self, num_test: int, seed: int = 0) -> tuple["Patients", "Patients"]:
        """Split into training and test patients: `num_test` chosen at random are the test, each part in its old order."""
        if not 0 < num_test < len(self):
            raise ValueError(f"split: of {len(self)} patients, 1 to {len(self) - 1} can be the test, got {num_test}")
        chosen = np.random.default_rng([seed, 11]).permutation(len(self))[:num_test]
        is_test = np.isin(np.arange(len(self)), chosen)
        return self.take(np.flatnonzero(~is_test)), self.take(np.flatnonzero(is_test))

    def medians(self) -> np.ndarray:
        """Return the median of the measurements of each lab."""
        stacked = np.concatenate(self.labs)
        never = [name for name, lab in zip(self.names, stacked.T, strict=True) if np.isnan(lab).all()]
        if never:
            raise ValueError(f"no median for {never}: never measured in these {len(self)} patients")
        return np.nanmedian(stacked, axis=0)

    def divided_by(self, scale: np.ndarray) -> "Patients":
        """Return the same patients with each lab, and its true mean, divided by a number."""
        truth = None if self.truth is None else [t / scale for t in self.truth]
        whole = scale if self.scale is None else scale * self.scale
        return replace(self, labs=[y / scale for y in self.labs], truth=truth, scale=whole)

    def ragged(self, observed: list[np.ndarray] | None = None) -> Any:
        """Return the patients as `bbvi.fit` takes them; `observed` may mark fewer measurements than there are."""
        observed = self.observed if observed is None else observed
        return bbvi.ragged(visit={"labs": [bbvi.missing(y)[0] for y in self.labs], "observed": observed})

    def hold_out(self, share: float = 0.25, seed: int = 0) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Draw masks of the measurements that are kept and of those held out (section 5.1).

        A patient of n measurements loses `share * n` of them, rounded up or down at random so that the mean is right,
        and keeps at least one.
        """
        if not 0 < share < 1:
            raise ValueError(f"hold_out: share must be between 0 and 1, got {share}")
        kept, held = [], []
        for i, seen in enumerate(self.observed):
            rng = np.random.default_rng([seed, 12, i])
            cells = rng.permutation(np.flatnonzero(seen))
            away = np.zeros(seen.size, bool)
            away[cells[: min(int(share * len(cells) + rng.random()), max(len(cells) - 1, 0))]] = True
            held.append(away.reshape(seen.shape))
            kept.append(seen & ~held[-1])
        return kept, held

    def facts(self) -> dict[str, str]:
        """Describe the data set in a few lines, for the report."""
        visits = np.array([len(labs) for labs in self.labs])
        gaps = np.concatenate([np.diff(times) for times in self.times])
        return {
            "data": self.name,
            "patients": f"{len(self):,}",
            "visits": f"{visits.sum():,}",
            "visits a patient": f"{visits.min()} to {visits.max()}, median {np.median(visits):g}, mean {visits.mean():.1f}",
            "time between visits": _span(gaps),
            "labs": f"{len(self.names)}",
            "measurements": f"{self.num_measurements:,}, {self.share_observed:.0%} of all labs at all visits",
            **self.notes,
            "source": self.source,
        }

    def lab_table(self) -> pd.DataFrame:
        """Make a row for each lab: how often it was measured, its quantiles, and what it was divided by."""
        stacked = pd.DataFrame(np.concatenate(self.labs), columns=self.names)
        table = stacked.quantile([0.05, 0.5, 0.95]).T
        table.columns = ["5%", "median", "95%"]
        table.insert(0, "measured", stacked.notna().mean())
        table["divided by"] = 1.0 if self.scale is None else self.scale
        return table


def scale_by_training_median(train: Patients, test: Patients) -> tuple[Patients, Patients]:
    """Divide each lab of both by its median in training, so that the test patients do not influence it.

    No logarithm: gammas need positive labs, and densities of logarithms would not compare without a Jacobian.

    Examples:
        >>> make = lambda labs: Patients([np.array(labs)], [np.arange(len(labs))], ["Na"], ["ann"])
        >>> train, test = scale_by_training_median(make([[120.0], [140.0], [150.0]]), make([[70.0]]))
        >>> test.labs, test.scale
        ([array([[0.5]])], array([140.]))
    """
    medians = train.medians()
    bad = [f"{name} ({m:g})" for name, m in zip(train.names, medians, strict=True) if m <= 0]
    if bad:
        raise ValueError(f"labs are divided by their training medians, which must be above 0: {', '.join(bad)}")
    return train.divided_by(medians), test.divided_by(medians)


def _span(gaps: np.ndarray) -> str:
    if not len(gaps):
        return "one visit each"
    return f"{gaps.min():g} to {gaps.max():g}, median {np.median(gaps):g}, mean {gaps.mean():.1f}"
