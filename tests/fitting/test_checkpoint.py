"""A run that was stopped, interrupted or killed goes on bit by bit where it stood."""

import contextlib
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bbvi
from bbvi.fitting.checkpoint import Checkpoint
from bbvi.posterior.storage import read
from tests.checkpoint_worker import STEPS, Y, model, run

WORKER = Path(__file__).parents[1] / "checkpoint_worker.py"


def assert_same_run(one, other):
    jax.tree.map(np.testing.assert_array_equal, one.params, other.params)
    columns = ["elbo", "elbo_error", "change", "floored", "draws"]
    np.testing.assert_array_equal(one.history[columns], other.history[columns])
    assert (np.diff(one.history["seconds"]) > 0).all()
    assert (one.converged, one.stopped) == (other.converged, other.stopped)


# ---- stopping and going on ----------------------------------------------------------------------------------------


def test_a_run_in_four_parts_is_the_run_in_one(tmp_path):
    for steps in (1, 8, 30, 45):
        resumed = run(tmp_path / "state.npz", steps=steps)
        assert len(resumed.history) == steps
    assert_same_run(resumed, run(steps=45))


def test_going_on_with_the_same_budget_makes_no_step(tmp_path):
    first, again = (run(tmp_path / "state.npz", steps=12) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, first.params, again.params)
    assert first.history.equals(again.history)


def test_a_run_stopped_on_its_way_converges_where_one_that_was_not_does(tmp_path):
    path, rule = tmp_path / "state.npz", bbvi.Converged(1.0)
    whole = run(stop=rule)
    assert whole.converged
    half = len(whole.history) // 2
    assert not run(path, stop=rule, steps=half).converged
    assert_same_run(run(path, stop=rule), whole)
    assert_same_run(run(path, stop=rule), whole)


def test_a_run_with_a_checkpoint_is_the_run_without(tmp_path):
    assert_same_run(run(tmp_path / "state.npz", steps=20), run(steps=20))


def test_a_default_that_is_spelt_out_is_the_same_run(tmp_path):
    run(tmp_path / "state.npz", steps=2)
    spelt = {"gradient": bbvi.Auto(), "optimizer": bbvi.natural(5.0)}
    assert len(run(tmp_path / "state.npz", steps=3, **spelt).history) == 3


# ---- another run on the same path ---------------------------------------------------------------------------------


def other_model():
    return bbvi.HierarchicalModel(
        log_prior=lambda beta: -(beta["m"] ** 2),
        log_local=lambda beta, z, y: -z["t"],
        log_likelihood=lambda beta, z, y: z["t"] * y,
        globals={"m": bbvi.real()},
        locals={"t": bbvi.positive()},
    )


def other_start():
    changed = model()
    return bbvi.HierarchicalModel(
        log_prior=changed.log_prior, log_local=changed.log_local, log_likelihood=changed.log_likelihood,
        globals={"m": bbvi.real(init=3.0)}, locals={"t": bbvi.real()},
    )  # fmt: skip


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("state") / "state.npz"
    run(path, steps=2)
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"seed": 2},
            "belongs to a run with another seed: .*repeat the same call to go on with it, or give another path",
        ),
        ({"data": Y + 1}, "a run with another data: checksum"),
        ({"data": Y.astype(np.float32).reshape(6, 1)}, "a run with another data: checksum"),
        ({"draws": bbvi.MonteCarlo(11)}, r"another draws: MonteCarlo\(num=10.*there, MonteCarlo\(num=11"),
        ({"batch_size": 3}, "another batch_size: 2 there, 3 here"),
        (
            {"gradient": bbvi.Pathwise()},
            r"another gradient: Auto\(\) there, Pathwise\(\) here",
        ),
        # its q is another one, too
        ({"gradient": bbvi.Score(control_variate=None)}, "belongs to another model: latent 'm' is .* framed=True"),
        ({"stop": bbvi.Converged(1e-8)}, r"another stop: .*tolerance=1e-09.* there, .*tolerance=1e-08.* here"),
        ({"stop": bbvi.ParameterChange(1e-9)}, "another stop: .* here"),
        ({"optimizer": bbvi.adagrad(0.5)}, "another optimizer: checksum"),
        ({"optimizer": optax.adam(0.1)}, "another optimizer: checksum"),
        ({"optimizer": bbvi.natural(6.0)}, "another optimizer: checksum"),
        ({"of": other_model}, r"belongs to another model: latent 'm' is block\(\).* there and real\(\).* here"),
        ({"of": other_start}, "another start: checksum"),
    ],
)
def test_another_run_on_the_same_path_is_refused_naming_the_difference(checkpoint, changes, message):
    before = checkpoint.read_bytes()
    with pytest.raises(ValueError, match=message):
        run(checkpoint, **({"steps": 2} | changes))
    assert checkpoint.read_bytes() == before


def test_a_corrupt_checkpoint_is_refused_and_left_alone(checkpoint, tmp_path):
    whole, path = checkpoint.read_bytes(), tmp_path / "state.npz"
    for content in (b"", b"nonsense", whole[: len(whole) // 2], whole[:200] + b"\x00" * 50 + whole[250:]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="is not a readable bbvi checkpoint: it is corrupt, truncated or"):
            run(path, steps=2)
        assert path.read_bytes() == content


# ---- interrupts and crashes ---------------------------------------------------------------------------------------


class Interrupting:
    """Groups on some disk, and Ctrl-C the given time that they are asked for."""

    def __init__(self, at=None):
        self.at, self.fetched = at, 0

    def __len__(self):
        return len(Y)

    def __getitem__(self, indices):
        self.fetched += 1
        if self.fetched == self.at:
            signal.raise_signal(signal.SIGINT)
        return Y[indices]


def test_ctrl_c_returns_the_posterior_so_far(tmp_path):
    path = tmp_path / "state.npz"
    posterior = run(path, steps=40, data=Interrupting(at=20))
    assert posterior.stopped == "interrupted"
    assert not posterior.converged
    num = len(posterior.history)
    assert 0 < num < 40
    jax.tree.map(np.testing.assert_array_equal, posterior.params, run(steps=num).params)
    assert_same_run(run(path, steps=40, data=Interrupting()), run(steps=40))


def test_ctrl_c_at_any_moment_leaves_a_state_and_its_history(tmp_path):
    path = tmp_path / "state.npz"

    def interrupt():
        while not path.exists():
            time.sleep(0.01)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    posterior = bbvi.fit(
        model(), Y, batch_size=2, draws=bbvi.MonteCarlo(10), seed=1, checkpoint=path, checkpoint_seconds=0,
        stop=[bbvi.Converged(1e-9), bbvi.Budget(seconds=100)],
    )  # fmt: skip
    thread.join()
    assert posterior.stopped == "interrupted"
    num = len(posterior.history)
    assert int(read(path, "checkpoint")[1]["history/elbo"].shape[0]) == num
    jax.tree.map(np.testing.assert_array_equal, posterior.params, run(steps=num).params)


class Dying:
    """Interrupts as it is thrown away: Python drops what is raised there, as it does while it collects garbage."""

    def __del__(self):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("where", ["while a checkpoint is written", "while the bar is drawn"])
def test_ctrl_c_is_not_lost_where_python_drops_exceptions(where, tmp_path, monkeypatch):
    calls = []

    def third_call_interrupts(*_):
        calls.append(None)
        if len(calls) == 3:
            Dying()

    if where == "while the bar is drawn":
        bar = contextlib.nullcontext(third_call_interrupts)
        monkeypatch.setattr(importlib.import_module("bbvi.fitting.fit"), "progress_bar", lambda *_: bar)
    else:
        monkeypatch.setattr(Checkpoint, "save", third_call_interrupts)
    posterior = run(tmp_path / "state.npz", steps=500_000, stop=bbvi.Budget(seconds=10))
    assert posterior.stopped == "interrupted"
    assert len(posterior.history) > 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_crash_between_writing_and_renaming_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "state.npz"
    run(path, steps=5)
    before = path.read_bytes()

    def crash(*_):
        raise RuntimeError("the power went")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", crash)
        with pytest.raises(RuntimeError, match="the power went"):
            run(path, steps=20)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["state.npz"]
    assert_same_run(run(path, steps=20), run(steps=20))


def kill_and_go_on(directory, kills, seed):
    """Kill a worker again and again: the steps that each left behind, and the posterior of the last one."""
    state, result, generator, steps = (
        directory / "state.npz",
        directory / "posterior.npz",
        np.random.default_rng(seed),
        [],
    )

    def start(seconds_per_chunk):
        command = [sys.executable, str(WORKER), str(state), str(result), str(seconds_per_chunk)]
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    for _ in range(kills):
        before = state.stat().st_mtime_ns if state.exists() else 0
        worker = start(1e-9)
        if generator.uniform() < 0.2:  # at its start
            time.sleep(generator.uniform(0, 4))
        else:  # once it writes
            while worker.poll() is None and (not state.exists() or state.stat().st_mtime_ns == before):
                time.sleep(0.005)
            time.sleep(generator.uniform(0, 0.15))
        worker.kill()
        _, errors = worker.communicate()
        assert worker.returncode == -signal.SIGKILL, errors[-2000:]
        steps.append(len(read(state, "checkpoint")[1]["history/elbo"]) if state.exists() else 0)
    worker = start(0.3)
    _, errors = worker.communicate()
    assert worker.returncode == 0, errors[-2000:]
    return steps, bbvi.load(result, model())


def check_kills(directory, kills, seed):
    steps, finished = kill_and_go_on(directory, kills, seed)
    assert steps == sorted(steps)
    assert 0 < steps[-1] < STEPS
    assert len(set(steps)) > kills // 3, "most lives made some steps"
    assert_same_run(finished, run())


def test_a_run_killed_20_times_ends_with_the_bits_of_one_never_killed(tmp_path):
    check_kills(tmp_path, 20, 0)


@pytest.mark.slow
def test_a_run_killed_100_times_ends_with_the_bits_of_one_never_killed(tmp_path):
    check_kills(tmp_path, 100, 1)


def test_budgets_may_grow_but_rules_may_not_change_places(tmp_path):
    """A rule that fired is known by its place in the list: another order must not turn it into a convergence."""
    model = bbvi.Model(lambda z, _: -0.5 * (z["x"] - 1.0) ** 2, x=bbvi.real())
    path, never = tmp_path / "run", bbvi.ParameterChange(1e-12)
    first = bbvi.fit(model, stop=[bbvi.Budget(steps=5), never], checkpoint=path, optimizer=bbvi.adagrad(1.0))
    assert not first.converged
    for other in ([never, bbvi.Budget(steps=9)], never, [bbvi.Budget(steps=5), bbvi.Budget(steps=9), never]):
        with pytest.raises(ValueError, match="another stop"):
            bbvi.fit(model, stop=other, checkpoint=path, optimizer=bbvi.adagrad(1.0))
    again = bbvi.fit(model, stop=[bbvi.Budget(steps=9), never], checkpoint=path, optimizer=bbvi.adagrad(1.0))
    assert not again.converged and len(again.history) == 9


# ---- another function on the same path ------------------------------------------------------------------------------

WIDTH = [1.0]


class Rows:
    """Groups that are fetched, of which one may be another."""

    def __init__(self, values):
        self.values = values

    def __len__(self):
        return len(self.values)

    def __getitem__(self, indices):
        return self.values[indices]


class Named(Rows):
    """A source that tells its contents by a name, and of which no row is looked at by chance."""

    def __init__(self, name):
        super().__init__(np.zeros(100_000, np.float32))
        self.name = name

    def identity(self):
        return self.name


def normal(width):
    return bbvi.Model(lambda z, y: -0.5 * (z["t"] / width) ** 2 - 0.5 * ((y - z["t"]) ** 2).sum(), t=bbvi.real())


def closing_over(width):
    WIDTH[0] = width
    return bbvi.Model(lambda z, y: -0.5 * (z["t"] / WIDTH[0]) ** 2 - 0.5 * ((y - z["t"]) ** 2).sum(), t=bbvi.real())


def with_derivative(width):
    @jax.custom_jvp
    def square(x):
        return x**2

    square.defjvp(lambda primals, tangents: (primals[0] ** 2, 2 * width * primals[0] * tangents[0]))
    return bbvi.Model(lambda z, y: -0.5 * square(z["t"]) - 0.5 * ((y - z["t"]) ** 2).sum(), t=bbvi.real())


def on_the_host(width):
    number = jax.ShapeDtypeStruct((), jnp.float32)
    return bbvi.Model(lambda z, y: z["t"] ** 2 * jax.pure_callback(lambda: np.float32(-width), number), t=bbvi.real())


def opaque(width):
    return bbvi.Model(bbvi.opaque(lambda z, y: float(-0.5 * (z["t"] / width) ** 2)), t=bbvi.real())


def with_object(width):
    return bbvi.Model(lambda z, data: -0.5 * (z["t"] / data["how"].real) ** 2 + 0 * data["y"].sum(), t=bbvi.real())


def by_rows(width):
    return bbvi.HierarchicalModel(
        log_prior=lambda beta: -0.5 * beta["t"] ** 2,
        log_likelihood=lambda beta, z, y: -0.5 * ((y - beta["t"]) / width) ** 2,
        globals={"t": bbvi.real()},
    )


FUNCTIONS = {
    "a prior": (normal, Y, Y),
    "a number closed over": (closing_over, Y, Y),
    "a derivative": (with_derivative, Y, Y),
    "an opaque function": (opaque, Y, Y),
    "a function on the host": (on_the_host, Y, Y),
    "an object in the data": (with_object, {"y": Y, "how": 1.0}, {"y": Y, "how": 2.0}),
    "a likelihood of groups": (by_rows, Y, Y),
    "a stream": (lambda _: by_rows(1.0), Rows(Y), Rows(np.where(np.arange(len(Y)) == len(Y) - 1, 9.0, Y))),
    "any row of a short stream": (lambda _: by_rows(1.0), Rows(Y), Rows(np.where(np.arange(len(Y)) == 1, 9.0, Y))),
    "a stream that says what it is": (lambda _: by_rows(1.0), Named("monday"), Named("tuesday")),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_another_function_on_the_same_path_is_refused(tmp_path, name):
    make, data, other = FUNCTIONS[name]
    settings = {"checkpoint": tmp_path / "state.npz", "draws": bbvi.MonteCarlo(4), "stop": bbvi.Budget(steps=3)}
    first = bbvi.fit(make(1.0), data, **settings)
    again = bbvi.fit(make(1.0), data, **settings)
    jax.tree.map(np.testing.assert_array_equal, first.params, again.params)
    with pytest.raises(
        ValueError, match="belongs to a run with another (log joint|data|source).* or give another path"
    ):
        bbvi.fit(make(2.0), other, **settings)


# ---- faults of the file system --------------------------------------------------------------------------------------


def test_a_folder_that_does_not_exist_is_noticed_at_the_call(tmp_path):
    with pytest.raises(OSError, match="nowhere does not exist or cannot be written to"):
        run(tmp_path / "nowhere" / "state.npz", steps=2)


def test_a_checkpoint_that_cannot_be_written_does_not_lose_the_fit(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.warns(RuntimeWarning, match="state.npz could not be written: .*No space left.*The fit goes on"):
            posterior = run(tmp_path / "state.npz", steps=20)
    assert_same_run(posterior, run(steps=20))
    assert os.listdir(tmp_path) == []


def test_a_folder_that_may_not_be_written_to_is_noticed_at_the_call(tmp_path, monkeypatch):
    tmp_path.chmod(0o500)
    if os.access(tmp_path, os.W_OK):  # as root may
        monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    try:
        with pytest.raises(OSError, match="does not exist or cannot be written to"):
            run(tmp_path / "state.npz", steps=2)
    finally:
        tmp_path.chmod(0o700)


def test_a_limit_on_the_size_of_files_does_not_lose_the_fit(tmp_path, monkeypatch):
    resource = pytest.importorskip("resource")
    path, save, limits = tmp_path / "state.npz", Checkpoint.save, resource.getrlimit(resource.RLIMIT_FSIZE)
    run(path, steps=5)
    before = path.read_bytes()

    def limited(*arguments):
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        try:
            save(*arguments)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "save", limited)
        with pytest.warns(RuntimeWarning, match="state.npz could not be written: .*The fit goes on"):
            posterior = run(path, steps=20)
    assert_same_run(posterior, run(steps=20))
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["state.npz"]


def test_a_second_process_on_the_same_path_is_refused(tmp_path):
    first = bbvi.iterate(model(), Y, stop=bbvi.Budget(steps=100), checkpoint=tmp_path / "state.npz")
    next(first)
    with pytest.raises(OSError, match="another fit is writing the checkpoint .*state.npz.* or give another path"):
        run(tmp_path / "state.npz", steps=2)
    first.close()
    assert len(bbvi.fit(model(), Y, stop=bbvi.Budget(steps=3), checkpoint=tmp_path / "state.npz").history) == 3
