"""Section 5.1: the data sets of a plan, each split into training and test, with the hyperparameters it is given."""

from collections.abc import Callable
from typing import NamedTuple

from bbvi.study import mayo, simulate
from bbvi.study.patients import Patients, scale_by_training_median
from bbvi.study.plan import Plan
from bbvi.study.read_csv import read_csv
from bbvi.study.settings import Settings

TEST_SHARE = simulate.NUM_TEST / simulate.NUM_PATIENTS  # 173 of 976
FEWEST_PATIENTS = 10


class DataSet(NamedTuple):
    """Patients split and, but for simulated ones, divided by training medians; `patients` are all, as they came."""

    patients: Patients
    train: Patients
    test: Patients
    settings: Settings


def data_sets(plan: Plan) -> list[DataSet]:
    """Return the file that a plan names, or else the simulated cohort and the Mayo data.

    Examples:
        >>> for data in data_sets(Plan(size="quick")):
        ...     print(data.patients.name, len(data.train), len(data.test), data.settings.num_factors)
        simulated cohort 49 11 5
        Mayo PBC 257 55 3
    """
    if plan.data is None:
        return [_simulated(plan), _scaled(mayo.load_mayo(), plan)]
    own = read_csv(
        plan.data, patient=plan.patient, time=plan.time, lab=plan.lab, value=plan.value,
        positive_for=plan.needing_positive, min_patients=FEWEST_PATIENTS,
    )  # fmt: skip
    return [_scaled(own, plan)]


def _simulated(plan: Plan) -> DataSet:
    """Simulate a cohort with the study's settings and K, whatever settings the models are then given."""
    patients = simulate.simulate(plan.patients, plan.seed)
    train, test = patients.split(_num_test(patients), plan.seed)
    return DataSet(patients, train, test, _settings(plan, Settings.simulated))


def _scaled(patients: Patients, plan: Plan) -> DataSet:
    train, test = patients.split(_num_test(patients), plan.seed)
    train, test = scale_by_training_median(train, test)
    return DataSet(patients, train, test, _settings(plan, Settings.scaled))


def _settings(plan: Plan, own: Callable[..., Settings]) -> Settings:
    num_factors = plan.num_factors or own().num_factors
    return Settings.paper(num_factors) if plan.paper_settings else own(num_factors)


def _num_test(patients: Patients) -> int:
    return max(1, round(len(patients) * TEST_SHARE))
