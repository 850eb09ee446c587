"""A stopping rule outside the package is a few lines: one inside the compiled loop, one on the host."""

import inspect
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bbvi
from bbvi.fitting.stop import AbstractStop

MODEL = bbvi.Model(lambda z, _: -0.5 * (z["x"] - 1.0) ** 2, x=bbvi.real())
FEW = bbvi.MonteCarlo(10)


class SmallSteps(AbstractStop):
    """Stop when parameters have moved by less than `tolerance` in `patience` steps in a row."""

    tolerance: float = 0.01
    patience: int = 3

    def init(self, params):
        return jnp.int32(0)

    def update(self, state, before, after, info):
        moved = jax.tree.leaves(jax.tree.map(lambda a, b: jnp.max(jnp.abs(a - b)), before, after))
        state = jnp.where(jnp.max(jnp.stack(moved)) < self.tolerance, state + 1, 0)
        return state, state >= self.patience


class FileAppears(AbstractStop):
    """Stop when somebody puts a file at `path`."""

    path: object
    outcome = bbvi.Outcome.STOPPED

    def on_host(self, elapsed):
        return self.path.exists()


@pytest.mark.parametrize("rule", [SmallSteps, FileAppears])
def test_a_rule_is_at_most_15_lines(rule):
    assert len(inspect.getsource(rule).splitlines()) <= 15


def test_a_compiled_rule_stops_at_its_step():
    posterior = bbvi.fit(MODEL, draws=FEW, stop=SmallSteps(0.2), seed=1)
    assert posterior.outcome is bbvi.Outcome.CONVERGED and posterior.converged
    assert posterior.stopped == "SmallSteps(tolerance=0.2)"
    num = len(posterior.history)
    x = [bbvi.fit(MODEL, draws=FEW, stop=bbvi.Budget(steps=n), seed=1).params["x"] for n in range(num - 3, num + 1)]
    moved = [max(abs(float(b[p] - a[p])) for p in a) for a, b in itertools.pairwise(x)]
    assert max(moved) < 0.2, "the last three steps were small"
    jax.tree.map(np.testing.assert_array_equal, posterior.params["x"], x[-1])


def test_a_rule_on_the_host_stops_the_run_and_claims_no_convergence(tmp_path):
    rule = FileAppears(tmp_path / "enough")
    run = bbvi.iterate(MODEL, draws=FEW, stop=[rule, bbvi.Budget(steps=10_000_000)], seed=1)
    assert next(run).outcome is bbvi.Outcome.RUNNING
    rule.path.touch()
    *_, posterior = run
    assert posterior.outcome is bbvi.Outcome.STOPPED and not posterior.converged
    assert posterior.stopped == repr(rule)
    again = bbvi.fit(MODEL, draws=FEW, stop=rule, seed=1)
    assert len(again.history) == 0, "it is asked before the first step"


class Until(AbstractStop):
    """Stop at a step that may be another one when a run goes on."""

    step: int
    outcome = bbvi.Outcome.BUDGET

    def on_host(self, elapsed):
        return elapsed.step >= self.step

    def last_step(self):
        return self.step

    def identity(self):
        return Until


def test_a_rule_says_what_of_it_may_change_when_a_run_goes_on(tmp_path):
    path = tmp_path / "state.npz"
    parts = [bbvi.fit(MODEL, draws=FEW, stop=Until(n), seed=1, checkpoint=path) for n in (4, 9)]
    assert [len(posterior.history) for posterior in parts] == [4, 9]
    whole = bbvi.fit(MODEL, draws=FEW, stop=Until(9), seed=1)
    jax.tree.map(np.testing.assert_array_equal, parts[-1].params, whole.params)
    with pytest.raises(ValueError, match="another stop: .Until. there"):
        bbvi.fit(MODEL, draws=FEW, stop=SmallSteps(), seed=1, checkpoint=path)
