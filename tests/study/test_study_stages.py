"""A study that is interrupted loses nothing that was finished, and takes nothing that was not."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from bbvi.study.stages import Stages, fingerprint

RESULT = {"score": -1.5, "names": ["a", "b"], "none": None, "yes": True, "deep": [{"x": np.eye(2)}, np.arange(3.0)]}


class Counted:
    """A stage's function that counts its calls."""

    def __init__(self, result):
        self.result, self.calls = result, 0

    def __call__(self):
        self.calls += 1
        return self.result


def same(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other and type(one) is type(other)


@pytest.fixture
def stages(tmp_path):
    return Stages(tmp_path / "stages", fingerprint({"seed": 0}))


def test_a_finished_stage_is_not_run_again_and_gives_the_same_result(stages):
    function = Counted(RESULT)
    first = stages.run("fit", function)
    again = Stages(stages.folder, stages.fingerprint).run("fit", function)
    assert function.calls == 1 and same(first, RESULT) and same(again, RESULT)


def test_another_plan_runs_it_again(stages):
    stages.run("fit", Counted(1))
    other, function = Stages(stages.folder, fingerprint({"seed": 1})), Counted(2)
    assert not other.finished("fit")
    assert other.run("fit", function) == 2 and function.calls == 1


@pytest.mark.parametrize("ending", ["json", "npz"])
@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b[:-9] + b"x" * 9])
def test_a_damaged_file_means_that_the_stage_is_run_again(stages, ending, damage):
    stages.run("fit", Counted(RESULT))
    path = stages.folder / f"fit.{ending}"
    path.write_bytes(damage(path.read_bytes()))
    function = Counted(RESULT)
    assert not stages.finished("fit")
    assert same(stages.run("fit", function), RESULT) and function.calls == 1


def test_arrays_of_an_unfinished_rewrite_are_not_taken_for_the_old_ones(stages):
    stages.run("fit", Counted({"x": np.zeros(2)}))
    other = Stages(stages.folder, fingerprint({"seed": 1}))
    other.run("fit", Counted({"x": np.ones(2)}))
    other_json = (stages.folder / "fit.json").read_bytes()
    stages.run("fit", Counted({"x": np.zeros(2)}))
    (stages.folder / "fit.json").write_bytes(other_json)  # as if killed between the two files
    assert not other.finished("fit") and not stages.finished("fit")


def test_a_stage_that_fails_leaves_nothing_and_keeps_the_others(stages):
    stages.run("first", Counted(1))
    with pytest.raises(ZeroDivisionError):
        stages.run("second", lambda: 1 / 0)
    assert stages.finished("first") and not stages.finished("second")


WORKER = """
import sys, time
from bbvi.study.stages import Stages
stages = Stages(sys.argv[1], "plan")
stages.run("first", lambda: "done by the worker")
stages.run("second", lambda: print("in the second", flush=True) or time.sleep(60))
"""


def test_a_process_killed_in_a_stage_keeps_the_one_before(tmp_path):
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert worker.stdout.readline() == "in the second\n"
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
    stages, second = Stages(tmp_path, "plan"), Counted("now")
    assert stages.run("first", lambda: pytest.fail("run again")) == "done by the worker"
    assert stages.run("second", second) == "now" and second.calls == 1


def test_a_file_half_written_is_never_seen(stages, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            stages.run("fit", Counted(RESULT))
    assert not stages.finished("fit")
    assert same(stages.run("fit", Counted(RESULT)), RESULT)


def test_what_cannot_be_stored_is_named(stages):
    with pytest.raises(TypeError, match=r"stage 'fit': object at result.model cannot be stored"):
        stages.run("fit", lambda: {"model": object()})
    with pytest.raises(TypeError, match="keys of a result are strings"):
        stages.run("fit", lambda: {1: 2})
    with pytest.raises(ValueError, match="the name of a stage"):
        stages.run("../fit", lambda: 1)


def test_numbers_of_other_kinds_come_back_as_numbers(stages):
    result = stages.run(
        "fit", lambda: {"f": np.float32(0.5), "i": np.int64(3), "b": np.bool_(True), "nan": float("nan")}
    )
    assert result["f"] == 0.5 and result["i"] == 3 and result["b"] is True and np.isnan(result["nan"])
