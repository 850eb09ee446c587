"""A smoke of the benchmark: it runs on small sizes and prints its table."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("parts", [["groups", "small", "memory"], pytest.param(["scaling"], marks=pytest.mark.slow)])
def test_bench_prints_a_line_for_each_setting(parts):
    command = [sys.executable, str(ROOT / "benchmarks" / "bench.py"), "--quick", *parts]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [line for line in done.stdout.splitlines()[1:] if line]
    assert sum("us a step" in line for line in lines) == (3 if "groups" in parts else 0)
    assert sum("ms a step" in line for line in lines) == (4 if "scaling" in parts else 0)
    assert "memory" not in parts or "peak" in lines[-1]


def test_the_benchmark_of_rao_blackwellization_runs():
    command = [sys.executable, str(ROOT / "benchmarks" / "rao_blackwell.py"), "--quick", "gain", "items", "chains"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()[1:]
    assert len(lines) == 6
    assert all(any(character.isdigit() for character in line) for line in lines)


def test_natural_gradients_need_a_tenth_of_the_steps_of_adagrad():
    command = [sys.executable, str(ROOT / "benchmarks" / "natural.py"), "--quick", "batches"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    ratios = [float(line.split()[-1]) for line in done.stdout.splitlines()[1:]]
    assert len(ratios) == 3 and min(ratios) >= 10


def test_the_table_of_estimators_has_a_row_for_each_that_can_take_a_grid_of_bits():
    command = [sys.executable, str(ROOT / "benchmarks" / "estimators.py"), "--quick", "ising"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    shown = {row[0]: [float(cell.split()[0]) for cell in row[3:]] for row in rows[1:]}
    assert len(shown) == 10 and "Pathwise()" not in shown  # bits have no path
    for place in (0, 1):
        noise = {name: row[place] for name, row in shown.items()}
        assert noise["Eq. 3"] > 10 * noise["Eq. 6"] > 10 * noise["Score()"]
        assert noise["LocalExpectation()"] < 1e-8 < noise["LocalExpectation(joint=False)"] < noise["Score()"]
        assert noise["Auto()"] < 1e-8


def test_the_yardstick_runs():
    command = [sys.executable, str(ROOT / "benchmarks" / "yardstick.py"), "--quick", "--steps", "2", "--calls", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 6
    assert sum("ms CPU" in line for line in lines) == 2


def test_the_first_steps_are_shown_for_both_estimators():
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "first_steps.py"),
        "--patients",
        "10",
        "--steps",
        "2",
        "--fits",
        "1",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    shown = [line.split() for line in done.stdout.splitlines()[2:]]
    assert [row[0] for row in shown] == ["Score()", "Pathwise()"]
    assert all(float(row[1]) > 0 and float(row[-1].replace(",", "")) < 0 for row in shown)


def test_the_time_to_the_first_answer_is_shown_beside_that_of_numpyro():
    command = [sys.executable, str(ROOT / "benchmarks" / "first_answer.py"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| eight schools")]
    assert [row[1] for row in rows] == ["wall time", "processor"]
    assert all(float(cell) > 0 for row in rows for cell in row[2:])


@pytest.mark.slow
def test_the_variance_beside_the_yardsticks_is_shown_for_all_parameters():
    command = [sys.executable, str(ROOT / "benchmarks" / "yardstick_variance.py"), "--quick"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    medians = [float(line.split("|")[3]) for line in shown.splitlines() if line.startswith(("| at", "| after"))]
    assert len(medians) == 12 and all(0.4 < median < 2.5 for median in medians)


@pytest.mark.slow
def test_the_gradient_of_the_yardstick_agrees_with_pathwise_gradients():
    command = [sys.executable, str(ROOT / "benchmarks" / "yardstick.py"), "--quick", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    p_values = [float(line.split()[2].rstrip(",")) for line in lines if line.startswith("Gamma")]
    deviations = [float(line.split()[4].rstrip(",")) for line in lines if "rms" in line]
    assert len(p_values) == 5 and min(p_values) > 1e-4
    assert len(deviations) == 3 and max(deviations) < 1.5


def test_the_benchmark_of_peers_judges_and_times_bbvi_without_them():
    command = [sys.executable, str(ROOT / "benchmarks" / "peers.py"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "failed" not in done.stdout
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    elbo, times = rows[2], {row[0]: row[1:] for row in rows[5:]}
    assert abs(float(elbo[-1])) < 4  # standard errors between bbvi's ELBO and the judge's
    assert set(times) == {"bbvi Score", "yardstick by hand"}
    assert all(float(value) > 0 for row in times.values() for value in row)


def test_the_benchmark_of_the_defaults_prints_its_table():
    command = [sys.executable, str(ROOT / "benchmarks" / "defaults.py"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    header, _, row = (line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("|"))
    shown = dict(zip(header, row, strict=True))
    assert shown["model"] == "funnel" and shown["steps"] == "300"
    assert float(shown["gap, nat"]) > 0  # no fit can be better than the best q


@pytest.mark.slow
def test_the_exact_elbos_of_the_benchmark_agree_with_draws():
    names = ["schools_centred", "mixture", "crossed_effects"]
    command = [sys.executable, str(ROOT / "benchmarks" / "defaults.py"), "--check", "--models", *names]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    off = {line.split(":")[0]: float(line.split()[1]) for line in done.stdout.splitlines()}
    assert list(off) == names and all(abs(value) < 4 for value in off.values())


def test_verdicts_are_set_beside_exact_gaps():
    targets = "Normal-Normal n=3,20 bits,mean N=1000 B=100"
    command = [sys.executable, str(ROOT / "benchmarks" / "verdicts.py"), "--only", targets, "--steps", "300"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    fits = [line for line in done.stdout.splitlines() if " gap " in line and "seed" in line]
    assert len(fits) == 3 and "error" not in done.stdout
    assert all(
        float(line.split(" gap ")[1].split()[0]) > -1e-6 for line in fits
    )  # no fit can be better than the best q
    rows = {
        line.split("|")[1].strip(): line.split("|")[2:-1] for line in done.stdout.splitlines() if line.startswith("|")
    }
    assert int(rows["all"][0]) == 3 and int(rows["well-conditioned"][0]) == 1


def test_no_fit_of_the_default_structure_is_better_than_the_best_q():
    targets = "ridge scalars rho=0.999 d=2,funnel n=9 of width 1"
    script = str(ROOT / "benchmarks" / "verdicts.py")
    command = [sys.executable, script, "--structure", "default", "--only", targets, "--steps", "300"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    fits = [line for line in done.stdout.splitlines() if " gap " in line and "seed" in line]
    gaps = [float(line.split(" gap ")[1].split()[0]) for line in fits]
    assert len(gaps) == 2 and all(-1e-6 < gap < 0.05 for gap in gaps)


@pytest.mark.slow
def test_the_exact_elbos_of_verdicts_agree_with_draws_and_their_best_q_is_the_best():
    one_of_each = (
        "ridge chain rho=0.99 d=10,ridge Gamma rho=0.99 d=5,normals of six scales,Beta-Bernoulli n=10,logistic n=50,"
        "schools_centred,funnel n=9 at -6,hierarchy n=30 spread=1.0,t df=0.1 at 10,product of 4,30 categories,10 bits tied,"
        "mean N=1000 B=100,mean and precision N=100 B,poisson d=2 N=1000 B,spread N=100 B"
    )
    command = [sys.executable, str(ROOT / "benchmarks" / "verdicts.py"), "--check", "--only", one_of_each]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = [line.rsplit(": ", 1)[1].replace(",", "").split() for line in done.stdout.splitlines()]
    assert len(found) == one_of_each.count(",") + 1
    for errors, newton, least in ((float(words[0]), float(words[8]), float(words[-1])) for words in found):
        assert abs(errors) < 4 and newton < 1e-4 and least > 0


def test_calibration_ranks_what_was_simulated():
    command = [sys.executable, str(ROOT / "benchmarks" / "calibration.py"), "--smoke"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (row,) = (line.strip("| ").split(" | ") for line in done.stdout.splitlines()[2:])
    name, replications, converged, p, uniform, _, first, others = row
    assert (name, replications, converged, uniform) == ("Normal mean", "6", "6", "yes")
    assert 0 < float(p) <= 1 and float(others) < float(first)  # one compilation serves all


def test_the_benchmark_of_accuracy_sets_moments_beside_those_of_long_chains():
    command = [sys.executable, str(ROOT / "benchmarks" / "accuracy.py"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    header, _, row, *_ = (line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("|"))
    shown = dict(zip(header, row, strict=True))
    assert (shown["posterior"], shown["structure"]) == ("logistic", "level / slope")
    assert float(shown["seconds, defaults"]) > 0  # and the fit converged, or words stood here
    counts = [line.split(":")[0] for line in done.stdout.splitlines() if "accurate, " in line]
    guides = ["AutoNormal", "AutoMultivariateNormal", "AutoMultivariateNormal, decayed"]
    assert counts == ["defaults", "mean field", *guides]
    assert "defaults: 1 of 1 accurate" in done.stdout and "mean field: 0 of 1 accurate" in done.stdout
