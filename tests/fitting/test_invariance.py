"""A run is a function of model, data, settings and seed: not of chunks, padding, progress, storage or the clock."""

import importlib
import itertools
import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest

import bbvi
from bbvi.fitting.settings import checked_settings
from bbvi.model.groups import Cohort
from bbvi.model.joint import Block

FIT, CHUNKS = importlib.import_module("bbvi.fitting.fit"), importlib.import_module("bbvi.fitting.run")
Y = np.array([0.5, 1.5, 1.0, -0.5, 2.0, 0.0])
FEW = bbvi.MonteCarlo(12)


def flat():
    def log_joint(z, y):
        return (
            dist.Normal(0, 3).log_prob(z["mu"])
            + dist.Gamma(2, 2).log_prob(z["tau"])
            + dist.Normal(z["mu"], z["tau"]).log_prob(y).sum()
        )

    return bbvi.Model(log_joint, joint=(), mu=bbvi.real(), tau=bbvi.positive())


def grouped(joint=None):
    return bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["m"]),
        log_local=lambda beta, z, y: dist.Normal(beta["m"], 1).log_prob(z["t"]),
        log_likelihood=lambda beta, z, y: dist.Normal(z["t"], 1).log_prob(y),
        globals={"m": bbvi.real()},
        locals={"t": bbvi.real()},
        joint=joint,
    )


def run(model=None, data=Y, steps=25, **settings):
    settings = {"draws": FEW, "stop": bbvi.Budget(steps=steps), "seed": 1} | settings
    return bbvi.fit(model or flat(), data, **settings)


def same_bits(one, other):
    leaves = [jax.tree.leaves(p.params) for p in (one, other)]
    return all(np.array_equal(a, b) for a, b in zip(*leaves, strict=True))


@pytest.fixture(scope="module")
def reference():
    return run()


@pytest.fixture(scope="module")
def group_reference():
    return run(grouped(), batch_size=2)


# ---- seeds, progress, chunks of steps -----------------------------------------------------------------------------


def test_same_seed_same_bits_other_seed_other_bits(reference):
    assert same_bits(reference, run())
    assert not same_bits(reference, run(seed=2))


@pytest.mark.parametrize("seed", [jax.random.key(1), jax.random.PRNGKey(1), np.int64(1)])
def test_a_jax_key_is_the_seed_it_was_made_from(reference, seed):
    assert same_bits(reference, run(seed=seed))


def test_a_split_key_is_another_seed(reference):
    assert not same_bits(reference, run(seed=jax.random.split(jax.random.key(1))[0]))


@pytest.mark.parametrize("progress", [True, False])
def test_progress_does_not_change_the_run(reference, progress, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert same_bits(reference, run(progress=progress))


@pytest.mark.parametrize("model", [flat, grouped])
def test_chunks_of_steps_do_not_change_the_run(model, reference, group_reference, monkeypatch):
    batch = {} if model is flat else {"batch_size": 2}
    whole = reference if model is flat else group_reference
    monkeypatch.setattr(CHUNKS, "_SECONDS_PER_CHUNK", 1e-9)  # one step to a chunk
    chunks = list(bbvi.iterate(model(), Y, draws=FEW, stop=bbvi.Budget(steps=25), seed=1, **batch))
    assert len(chunks) > 10
    assert same_bits(whole, chunks[-1])
    monkeypatch.setattr(FIT, "_CAPACITY", 7)
    monkeypatch.setattr(CHUNKS, "_SECONDS_PER_CHUNK", 1e9)
    assert same_bits(whole, run(model(), **batch))


def test_where_early_steps_end_neither_chunks_nor_interruptions_change_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(CHUNKS, "EARLY", 2)
    whole = run()
    for steps in (1, 2, 17, 25):
        resumed = run(checkpoint=tmp_path / "state.npz", steps=steps)
    assert same_bits(whole, resumed)
    monkeypatch.setattr(CHUNKS, "_SECONDS_PER_CHUNK", 1e-9)
    assert same_bits(whole, run())


def test_iterate_yields_the_run_that_fit_returns(reference):
    seen = list(bbvi.iterate(flat(), Y, draws=FEW, stop=bbvi.Budget(steps=25), seed=1))
    assert len(seen) >= 2
    assert [p.stopped for p in seen[:-1]] == ["still running"] * (len(seen) - 1)
    steps = [len(p.history) for p in seen]
    assert steps == sorted(steps)
    assert steps[-1] == 25
    assert same_bits(reference, seen[-1])
    np.testing.assert_array_equal(reference.history["elbo"], seen[-1].history["elbo"])


def test_an_earlier_yield_is_not_changed_by_later_steps():
    steps = bbvi.iterate(flat(), Y, draws=FEW, stop=bbvi.Budget(steps=25), seed=1)
    first = next(steps)
    before = jax.tree.map(np.array, first.params), len(first.history)
    list(steps)
    jax.tree.map(np.testing.assert_array_equal, before[0], first.params)
    assert before[1] == len(first.history)


# ---- chunks of draws, padding, storage ----------------------------------------------------------------------------


@pytest.mark.parametrize("control_variate", [None, bbvi.PlugIn(), bbvi.LeaveOneOut(), bbvi.CrossFit()])
@pytest.mark.parametrize("chunk", [5, 1])
def test_chunks_of_draws_change_the_gradient_by_rounding_only(control_variate, chunk):
    start = run(grouped(()), steps=0)

    def moments(draws):
        gradient = bbvi.Score(control_variate=control_variate)
        return bbvi.gradient_moments(grouped(()), Y, start, gradient=gradient, draws=draws, repeats=2, seed=4).mean

    whole, parts = moments(bbvi.MonteCarlo(12)), moments(bbvi.MonteCarlo(12, chunk=chunk))
    size = max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(whole))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * size), whole, parts)
    assert size > 0.1


def visits(*numbers):
    """One number for each visit, or several that share a factor of q."""

    def masked(row, term):
        return jnp.where(row["mask"]["visit"], term.reshape(len(term), -1).sum(1), 0)

    def log_likelihood(beta, z, row):
        mean = z["t"].reshape(len(z["t"]), -1).sum(1)
        return masked(row, dist.Normal(beta["m"] * mean, 1).log_prob(row["y"]))

    return bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["m"]),
        log_local=lambda beta, z, row: masked(row, dist.Gamma(2, 2).log_prob(z["t"])),
        log_likelihood=log_likelihood,
        globals={"m": bbvi.real()},
        locals={"t": bbvi.positive("visit", *numbers)},
        joint=[Block(("t",), axes=1)] if numbers else (),
    )


@pytest.mark.parametrize("numbers", [(), (2,)])
def test_padding_further_and_with_other_values_changes_real_elements_by_rounding_only(numbers):
    lengths = [3, 1, 2]
    cohort = bbvi.ragged(visit={"y": [np.linspace(1, 2, n) for n in lengths]})
    fields = np.pad(np.asarray(cohort.fields["y"]), ((0, 0), (0, 4)), constant_values=np.nan)
    fields[np.arange(7) >= np.array(lengths)[:, None]] = 1e3
    buckets = (*cohort.buckets[:-1], {"visit": 7})
    longer = Cohort({"y": jnp.asarray(fields)}, cohort.own, cohort.bucket, buckets, cohort.axes)
    one, other = (run(visits(*numbers), data, steps=20, batch_size=2) for data in (cohort, longer))
    # sums over more zeros are taken in another order: 20 steps of float32 rounding, parameters of order 1
    np.testing.assert_allclose(one.params["m"]["loc"], other.params["m"]["loc"], atol=1e-4)
    assert len(one.structure) == len(numbers)
    for name in one.params["t"]:
        mine, its = np.asarray(one.params["t"][name]), np.asarray(other.params["t"][name])
        assert its.shape[:2] == (3, 7)
        for group, length in enumerate(lengths):
            np.testing.assert_allclose(mine[group, :length], its[group, :length], atol=1e-4)
    for mine, its in zip(one.sample(7)["t"], other.sample(7)["t"], strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-3)


class Source:
    """Groups on some disk, fetched by index."""

    def __init__(self, array):
        self.array, self.fetched = array, 0

    def __len__(self):
        return len(self.array)

    def __getitem__(self, indices):
        self.fetched += 1
        return self.array[indices]


def test_a_source_gives_the_same_bits_as_the_same_arrays_in_memory(group_reference):
    source = Source(Y)
    assert same_bits(group_reference, run(grouped(), source, batch_size=2))
    assert source.fetched >= 25


def test_rows_outside_the_batch_and_their_optimizer_state_do_not_move():
    model, seen = grouped(), []
    settings = checked_settings(
        gradient=bbvi.Score(), draws=FEW, optimizer=optax.adam(0.1), stop=bbvi.Budget(steps=9), batch_size=2, seed=1
    )
    ready = FIT._prepare(model, Y, settings)
    state = ready.loop.init(ready.params)
    for step in range(4):
        batch = set(np.asarray(ready.loop.batches.groups(ready.key, step)).tolist())
        before = jax.tree.map(np.array, (state.params["locals"], state.optimizer["locals"]))
        state, _, _ = ready.loop.run(state, ready.key, ready.data, ready.groups, 1)
        after = (state.params["locals"], state.optimizer["locals"])
        for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
            assert set(np.flatnonzero(old != np.asarray(new)).tolist()) == batch
        seen.append(batch)
    assert len(set.union(*seen)) > 2


def test_float64_is_used_throughout_when_it_is_enabled():
    script = """
        import bbvi, jax, numpy as np, numpyro.distributions as dist
        model = bbvi.HierarchicalModel(
            log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["m"]),
            log_local=lambda beta, z, y: dist.Gamma(2.0, 1.0).log_prob(z["t"]),
            log_likelihood=lambda beta, z, y: dist.Normal(beta["m"] + z["t"], 1).log_prob(y),
            globals={"m": bbvi.real()}, locals={"t": bbvi.positive()},
        )
        posterior = bbvi.fit(model, np.arange(4.0), batch_size=2, draws=bbvi.MonteCarlo(10), stop=bbvi.Budget(steps=5))
        assert {str(leaf.dtype) for leaf in jax.tree.leaves(posterior.params)} == {"float64"}, posterior.params
        assert {str(leaf.dtype) for leaf in posterior.sample(2).values()} == {"float64"}
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(posterior.params))
        assert len(posterior.history) == 5
        print("fine")
    """
    environment = os.environ | {"JAX_ENABLE_X64": "1"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "fine", done.stderr[-2000:]


# ---- stopping, starting, holding ----------------------------------------------------------------------------------


def test_parameter_change_stops_at_the_first_step_below_its_tolerance():
    rule = bbvi.ParameterChange(0.02)
    seen = list(bbvi.iterate(flat(), Y, draws=FEW, stop=[rule, bbvi.Budget(steps=2000)], seed=1))
    stopped = seen[-1]
    assert stopped.converged
    assert stopped.stopped == repr(rule)
    num = len(stopped.history)
    assert 2 < num < 2000
    lambdas = [np.array(jax.tree.leaves(run(steps=n).params)) for n in range(num - 3, num + 1)]
    changes = [np.abs(b - a).max() for a, b in itertools.pairwise(lambdas)]
    assert changes[-1] < 0.02
    assert min(changes[:-1]) >= 0.02
    np.testing.assert_array_equal(lambdas[-1], np.array(jax.tree.leaves(stopped.params)))


def test_a_budget_of_seconds_stops_and_does_not_claim_convergence():
    posterior = run(stop=bbvi.Budget(seconds=0.5))
    assert posterior.stopped == repr(bbvi.Budget(seconds=0.5))
    assert not posterior.converged
    assert len(posterior.history) >= 1


def test_the_first_rule_to_fire_wins(reference):
    loose = bbvi.ParameterChange(1e6)
    posterior = run(stop=[bbvi.Budget(steps=30), loose])
    assert (posterior.converged, posterior.stopped, len(posterior.history)) == (True, repr(loose), 1)
    posterior = run(stop=[bbvi.ParameterChange(1e-12), bbvi.Budget(steps=25), bbvi.Budget(steps=40)])
    assert (posterior.converged, posterior.stopped, len(posterior.history)) == (False, repr(bbvi.Budget(steps=25)), 25)
    assert same_bits(reference, posterior)


def test_start_continues_from_the_lambda_given(reference):
    assert same_bits(reference, run(start=reference, steps=0))
    assert not same_bits(reference, run(start=reference, steps=1))
    close, afar = run(start=reference, steps=1, optimizer=bbvi.adagrad(1e-6)), run(steps=1)
    distance = [
        max(
            float(np.abs(a - b).max()) for a, b in zip(*map(jax.tree.leaves, (p.params, reference.params)), strict=True)
        )
        for p in (close, afar)
    ]
    assert distance[0] < 1e-5 < 0.1 < distance[1]


def test_hold_keeps_the_globals_bit_by_bit_and_fits_the_locals_of_other_groups(group_reference):
    new = np.array([5.0, -5.0, 1.0])
    held = run(grouped(), new, hold=group_reference, steps=60)
    jax.tree.map(np.testing.assert_array_equal, held.params["m"], group_reference.params["m"])
    # given m, each t is Normal with mean (m + y) / 2
    expected = (float(group_reference.mean()["m"]) + new) / 2
    np.testing.assert_allclose(held.mean()["t"], expected, atol=0.35)
