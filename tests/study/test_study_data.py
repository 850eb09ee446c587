"""Section 5.1: the simulated cohort, the Mayo data, the splits, and the plan that asks for them."""

import hashlib
from importlib.resources import files

import numpy as np
import pytest
from click.testing import CliRunner

from bbvi.command import main
from bbvi.study import mayo
from bbvi.study.command import make_plan
from bbvi.study.data_sets import data_sets
from bbvi.study.mayo import load_mayo
from bbvi.study.patients import Patients, scale_by_training_median
from bbvi.study.plan import Plan
from bbvi.study.settings import Settings
from bbvi.study.simulate import NUM_LABS, NUM_PATIENTS, NUM_TEST, simulate


@pytest.fixture(scope="module")
def cohort():
    return simulate(seed=0)


@pytest.fixture(scope="module")
def labs():
    return load_mayo()


def test_the_simulated_cohort_has_the_papers_shape(cohort):
    visits = np.array([len(labs) for labs in cohort.labs])
    assert len(cohort) == NUM_PATIENTS == 976 and NUM_TEST == 173
    assert 32_000 < visits.sum() < 34_500
    assert visits.min() == 5 and visits.max() == 120 and 23 <= np.median(visits) <= 27
    assert all(y.shape[1] == NUM_LABS == 17 for y in cohort.labs)
    assert abs(cohort.share_observed - 0.39) < 0.005
    assert all(seen.any(1).all() for seen in cohort.observed)


def test_simulated_visits_are_irregular_and_in_order(cohort):
    gaps = np.concatenate([np.diff(times) for times in cohort.times])
    assert gaps.min() >= 1 and np.mean(gaps) > 1.5 * np.median(gaps) and gaps.max() > 20 * np.median(gaps)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_simulated_labs_are_positive_and_few_patients_are_drawn_again(cohort, seed):
    patients = cohort if seed == 0 else simulate(200, seed)
    assert min(np.nanmin(y) for y in patients.labs) > 0
    redrawn = int(patients.notes["drawn again for a lab at or below 0"].split()[0])
    assert redrawn <= 0.05 * len(patients)


def test_the_same_seed_gives_the_same_first_patients(cohort):
    few = simulate(7, seed=0)
    for i in range(7):
        np.testing.assert_array_equal(few.labs[i], cohort.labs[i])
        np.testing.assert_array_equal(few.times[i], cohort.times[i])
        np.testing.assert_array_equal(few.truth[i], cohort.truth[i])
    assert not np.array_equal(simulate(1, seed=1).truth[0], cohort.truth[0])


def test_simulated_noise_is_a_standard_deviation(cohort):
    noise = np.concatenate([(y - t)[~np.isnan(y)] for y, t in zip(cohort.labs, cohort.truth, strict=True)])
    assert abs(noise.std() - Settings.simulated().sigma_l) < 5 * 0.3 / np.sqrt(2 * len(noise))
    assert abs(noise.mean()) < 5 * 0.3 / np.sqrt(len(noise))


def test_a_level_at_which_no_patient_is_positive_is_an_error():
    with pytest.raises(ValueError, match=r"raise level \(it is -99\)"):
        simulate(1, settings=Settings(level=-99.0, sigma_x=0.04))


def test_the_mayo_file_is_the_one_described():
    content = (files("bbvi.study") / "data" / "pbcseq_labs.csv").read_bytes()
    assert hashlib.sha256(content).hexdigest() == mayo.SHA256
    assert mayo.SHA256 in (files("bbvi.study") / "data" / "README.md").read_text()


def test_mayo_labs_are_as_described(labs):
    assert len(labs) == 312 and sum(map(len, labs.labs)) == 1945
    assert labs.names == ["bili", "chol", "albumin", "alk_phos", "ast", "platelet", "protime"]
    assert min(np.nanmin(y) for y in labs.labs if not np.isnan(y).all()) > 0
    assert round(labs.share_observed, 2) == 0.93
    np.testing.assert_array_equal(labs.labs[0][0], [14.5, 261, 2.6, 1718, 138, 190, 12.2])


def test_scaling_looks_at_training_patients_only(labs):
    train, test = labs.split(62, seed=0)
    scaled, scaled_test = scale_by_training_median(train, test)
    np.testing.assert_allclose(np.nanmedian(np.concatenate(scaled.labs), 0), 1)
    np.testing.assert_array_equal(scaled_test.scale, np.nanmedian(np.concatenate(train.labs), 0))
    np.testing.assert_allclose(scaled_test.labs[0] * scaled_test.scale, test.labs[0])
    assert not np.array_equal(scaled.scale, labs.medians())
    again, _ = scale_by_training_median(train, test.divided_by(np.full(7, 9.0)))
    np.testing.assert_array_equal(again.scale, scaled.scale)


def test_a_split_loses_no_patient_and_follows_its_seed(labs):
    train, test = labs.split(62, seed=3)
    assert len(test) == 62 and sorted(train.ids + test.ids) == sorted(labs.ids)
    assert labs.split(62, seed=3)[1].ids == test.ids != labs.split(62, seed=4)[1].ids
    with pytest.raises(ValueError, match="1 to 311 can be the test, got 312"):
        labs.split(312)


def test_held_out_measurements_are_a_quarter_and_every_patient_keeps_one(labs, cohort):
    for patients in (labs, cohort):
        kept, held = patients.hold_out(0.25, seed=1)
        for seen, keep, away in zip(patients.observed, kept, held, strict=True):
            assert not (keep & away).any() and ((keep | away) == seen).all() and keep.any()
            assert abs(away.sum() - 0.25 * seen.sum()) < 1
        share = sum(a.sum() for a in held) / patients.num_measurements
        assert abs(share - 0.25) < 0.005


def test_a_single_measurement_is_never_held_out():
    one = Patients([np.array([[2.0, np.nan]])] * 50, [np.zeros(1)] * 50, ["a", "b"], [str(i) for i in range(50)])
    kept, held = one.hold_out(0.9, seed=0)
    assert all(keep.sum() == 1 for keep in kept) and not any(away.any() for away in held)


def test_ragged_marks_what_was_measured_or_what_it_is_told(labs):
    kept, _ = labs.hold_out()
    for marks, cohort in ((labs.observed, labs.ragged()), (kept, labs.ragged(kept))):
        row = cohort.take(3)
        np.testing.assert_array_equal(row["observed"][: len(marks[3])], marks[3])
        assert np.isfinite(row["labs"]).all()


def test_a_plan_has_the_data_it_asks_for(tmp_path):
    simulated, real = data_sets(Plan(num_patients=20, seed=2, num_factors=4))
    assert len(simulated.train) + len(simulated.test) == 20 and simulated.train.scale is None
    assert simulated.settings.num_factors == real.settings.num_factors == 4
    assert real.train.scale is not None and real.patients.scale is None
    path = tmp_path / "own.csv"
    path.write_text("id,day,Na\n" + "".join(f"{i},0,{i + 1}\n" for i in range(20)))
    (own,) = data_sets(Plan(data=str(path), patient="id", time="day", paper_settings=True))
    assert len(own.patients) == 20 and own.settings == Settings.paper(3)


def test_a_fingerprint_tells_plans_apart_that_give_other_results(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text("a")
    plan = Plan(data=str(path))
    before = plan.fingerprint()
    assert before == Plan(data=str(path), out="elsewhere").fingerprint() != Plan(data=str(path), seed=1).fingerprint()
    path.write_text("b")
    assert plan.fingerprint() != before


def test_the_command_makes_a_plan_and_names_bad_lines(tmp_path, monkeypatch):
    plans = []
    with monkeypatch.context() as not_run:
        not_run.setattr("bbvi.study.run.run", plans.append)
        made = CliRunner().invoke(main, ["study", "--patients", "12", "--seed", "4", "--out", str(tmp_path / "out")])
    assert made.exit_code == 0, made.output
    assert plans == [Plan(num_patients=12, seed=4, out=str(tmp_path / "out"))]
    path = tmp_path / "own.csv"
    path.write_text("id,day,Na\n" + "".join(f"{i},0,{i}\n" for i in range(12)))
    bad = CliRunner().invoke(main, ["study", "--data", str(path), "--patient", "id", "--time", "day"])
    assert bad.exit_code == 1 and "own.csv, line 2: lab 'Na' is 0, but Gamma-TS, Gamma, Log-T-TS need" in bad.output
    wrong = CliRunner().invoke(main, ["study", "--quick", "--full"])
    assert wrong.exit_code == 2 and "exclude each other" in wrong.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"models": "gama"}, "did you mean 'Gamma'?"),
        ({"num_patients": 3}, "needs 10 patients or more, got 3"),
        ({"num_factors": 0}, "needs 1 factor or more, got 0"),
        ({"lab": "test"}, "--lab tells how to read a file"),
        ({"data": "x.csv", "num_patients": 50}, "a file of your own is used whole"),
        ({"seed": -1}, "seed must be 0 or more"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make_plan(**options)
