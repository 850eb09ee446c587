"""Section 5, end to end and small: every experiment, the files they leave, and going on after an interruption."""

import io
import json

import numpy as np
import pytest
from rich.console import Console

import bbvi
from bbvi.study import run as study
from bbvi.study import variance
from bbvi.study.comparison import recovery, table
from bbvi.study.data_sets import DataSet
from bbvi.study.effort import Effort
from bbvi.study.patients import Patients
from bbvi.study.plan import Plan
from bbvi.study.sampling import BBVI, DEFAULTS, GIBBS, PLAIN, on_the_clock, summary
from bbvi.study.scores import averages, difference, hold_out, lab_means, ratio
from bbvi.study.settings import Settings
from bbvi.study.simulate import simulate
from bbvi.study.stages import uninterrupted

TINY = Effort(
    train_steps=12, test_steps=5, test_draws=8, seconds=0.6, checkpoints=(0.5, 1.0), seeds=1, test_sweeps=1,
    iterations=(1,), repeats=3, progress_seconds=0.2,
)  # fmt: skip


def own_file(path, num_patients=12, num_labs=3):
    patients = simulate(num_patients)
    lines = ["id,day," + ",".join(patients.names[:num_labs])]
    for name, labs, times in zip(patients.ids, patients.labs, patients.times, strict=True):
        for values, when in list(zip(labs, times, strict=True))[:6]:
            if not np.isnan(values[:num_labs]).all():
                shown = ["" if np.isnan(v) else f"{v:.3f}" for v in values[:num_labs]]
                lines.append(f"{name},{when:g}," + ",".join(shown))
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture
def plan(tmp_path, monkeypatch):
    monkeypatch.setitem(study.EFFORTS, "quick", TINY)
    for where, name in ((variance.ESTIMATORS, "leave-one-out"), (variance.ALGORITHMS, "Rao-Blackwellized (Eq. 6)")):
        monkeypatch.delitem(where, name)  # less to compile
    return Plan(
        size="quick", data=own_file(tmp_path / "own.csv"), patient="id", time="day", out=str(tmp_path / "out"),
        models=("Gamma-Normal-TS",), num_factors=2,
    )  # fmt: skip


def test_a_study_goes_on_after_an_interruption_and_leaves_a_page_and_numbers(plan, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    console = Console(file=io.StringIO(), width=120)
    with monkeypatch.context() as broken:
        broken.setattr(study, "convergence", interrupted)
        with pytest.raises(KeyboardInterrupt):
            study.run(plan, console)
    shown = io.StringIO()
    page = study.run(plan, Console(file=shown, width=120))
    assert shown.getvalue().count("kept from an earlier run") == 2  # the model and the variances
    text = page.read_text()
    for word in ("Gamma-Normal-TS", "Eq. 10", GIBBS):
        assert word in text
    numbers = json.loads((tmp_path / "out" / "results.json").read_text())
    assert {c["method"] for c in numbers["gibbs"]["curves"]} == {BBVI, DEFAULTS, GIBBS, PLAIN}
    assert [row["model"] for row in numbers["comparison"][numbers["data"][0]["name"]]["models"]] == list(plan.models)
    assert set(numbers["variance"]["estimators"]) == {"Eq. 3", "Eq. 6", "Eq. 10"}
    assert len(numbers["progress"]["runs"]) == 3
    assert (tmp_path / "out" / "comparison.csv").exists()


def test_a_fit_that_was_interrupted_does_not_count_as_finished():
    model = bbvi.Model(lambda z, y: -(z["mu"] ** 2), mu=bbvi.real())
    posterior = bbvi.fit(model, stop=bbvi.Budget(steps=2))
    assert uninterrupted(posterior) is posterior
    posterior.outcome = bbvi.Outcome.INTERRUPTED
    with pytest.raises(KeyboardInterrupt):
        uninterrupted(posterior)


def test_the_mean_of_labs_has_the_offsets_of_the_patient_or_of_all():
    rng = np.random.default_rng(0)
    draws = {"x": rng.gamma(1, 1, (7, 2, 4, 3)), "W": rng.normal(size=(7, 5, 3)), "o": rng.normal(size=(7, 2, 5))}
    expected = draws["W"][4] @ draws["x"][4, 1, 2] + draws["o"][4, 1]
    assert np.allclose(lab_means(draws, 1, 3)[4, 2], expected)
    shared = draws | {"o": draws["o"][:, 0]}
    assert np.allclose(lab_means(shared, 1, 3)[4, 2], expected - draws["o"][4, 1] + draws["o"][4, 0])


def test_a_ratio_has_the_standard_error_of_clusters():
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 20, 4000)
    level = rng.normal(0, 1, 4000)
    many = [ratio(*(v[i::40] for v in (level * counts, counts))) for i in range(40)]
    values, errors = np.array(many).T
    assert 0.75 < values.std(ddof=1) / errors.mean() < 1.3


def test_a_difference_is_paired_by_patient():
    one = {"by_patient": np.array([1.0, 100.0, -7.0]), "counts": np.array([2, 4, 3])}
    other = {"by_patient": one["by_patient"] - one["counts"], "counts": one["counts"]}
    value, error = difference(one, other)
    assert value == pytest.approx(1) and error == pytest.approx(0, abs=1e-12)


def small_set():
    patients = simulate(30, seed=3)
    return DataSet(patients, *patients.split(8, 0), Settings.simulated())


def test_averages_are_those_of_scipy_and_beat_a_constant():
    data = small_set()
    test = hold_out(data.test, 0)
    found = averages(data.train, test)
    centre = np.nanmean(np.concatenate(data.train.labs), 0)
    constant = np.concatenate([(y - centre)[h] for y, h in zip(test.patients.labs, test.held, strict=True)])
    assert found["mse"] < np.mean(constant**2)
    assert found["counts"].sum() == sum(h.sum() for h in test.held)
    assert found["per_observation"] == pytest.approx(found["by_patient"].sum() / found["counts"].sum())


def test_recovery_of_the_truth_is_exact_for_the_truth():
    data = small_set()
    weights = np.zeros((17, 2))
    mean = {"x": [np.zeros((len(t), 2)) for t in data.train.truth], "W": weights, "o": [t[0] for t in data.train.truth]}
    constant = Patients(**{**vars(data.train), "truth": [np.repeat(t[:1], len(t), 0) for t in data.train.truth]})
    found = recovery(data._replace(train=constant), mean)
    assert found["error_measured"] == found["error_unmeasured"] == 0 < found["averages_measured"]


def test_the_table_says_which_of_the_papers_orders_hold():
    data, rng = small_set(), np.random.default_rng(0)
    base = {"by_patient": rng.normal(size=8), "counts": np.full(8, 10)}
    rows = [
        {"model": "Gamma-Normal", **base},
        {"model": "Gamma-Normal-TS", **base, "by_patient": base["by_patient"] + rng.uniform(1, 2, 8)},
        {"model": "Gamma", **base, "by_patient": base["by_patient"] + 5},
    ]
    pairs = {(p["better"], p["worse"]): p["holds"] for p in table(rows, data, 0)["pairs"]}
    assert pairs == {("Gamma-Normal-TS", "Gamma-Normal"): True, ("Gamma-Normal", "Gamma"): False}


def test_the_clock_counts_neither_the_first_chunk_nor_what_happens_between():
    ticks = iter(range(1000))
    seen = list(on_the_clock(ticks, 1e-9, (0.5, 1.0), lambda share: None))
    assert len(seen) == 1 and seen[0][1] == 1  # the marks are both passed by the second chunk


def curve(method, values, seconds=(1.0, 10.0, 100.0)):
    return {
        "method": method, "seed": 0, "seconds": np.array(seconds), "per_observation": np.array(values),
        "error": np.full(3, 0.1), "mse": np.ones(3),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("ours", "share", "holds"),
    [((-3.0, -1.0, -0.5), 0.1, True), ((-3.0, -2.0, -0.5), 1.0, False), ((-3.0, -2.0, -1.5), None, False)],
)
def test_who_is_first_where_gibbs_ends(ours, share, holds):
    effort = TINY._replace(seconds=100.0)
    found = summary([curve(BBVI, ours), curve(GIBBS, (-9.0, -3.0, -1.0))], small_set(), effort)["reach"]
    assert found["share_of_budget"] == share and found["holds"] is holds


def test_the_study_command_is_installed():
    from importlib.metadata import entry_points

    assert any(e.name == "bbvi" and e.value == "bbvi.command:main" for e in entry_points(group="console_scripts"))
    assert bbvi.__version__
