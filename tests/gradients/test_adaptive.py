"""Adaptive numbers of draws: as many as the norm test asks for, decided from earlier steps alone."""

import functools
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import bbvi
from bbvi.blankets.analysis import analyse
from bbvi.fitting.settings import Settings
from bbvi.fitting.state import own_copy
from bbvi.gradients.abstract import Estimate
from bbvi.gradients.adaptive import Measured, measured, next_level
from bbvi.gradients.mixed import Mixed
from bbvi.model.problem import bind
from bbvi.numerics.address import fold, seed_key
from tests.checkpoint_worker import run
from tests.fitting.test_checkpoint import assert_same_run

FIT, CHUNKS = importlib.import_module("bbvi.fitting.fit"), importlib.import_module("bbvi.fitting.run")
DRAWS, FEW = bbvi.AdaptiveDraws(4, 15), bbvi.AdaptiveDraws(4, 16)
BOTH = Mixed((("x", bbvi.Pathwise()), ("b", bbvi.LocalExpectation(joint=False))))


def coupled():
    """Two latents that hang together, one of them a bit."""

    def log_joint(z, y):
        return {
            "x": dist.StudentT(3.0).log_prob(z["x"]),
            "b": dist.Bernoulli(0.4).log_prob(z["b"]),
            "y": dist.Normal(z["x"] * (1 + z["b"]), 1.0).log_prob(y),
        }

    return bbvi.Model(log_joint, joint=(), x=bbvi.real(2), b=bbvi.binary(2)), jnp.array([1.0, -2.0])


@functools.cache
def estimates(gradient):
    """Functions of level and step, and of a number of draws and a key."""
    model, data = coupled()
    problem, flat, _ = bind(model, data)
    analysis = analyse(problem, flat, None)
    params = bbvi.fit(model, data, stop=bbvi.Budget(steps=0)).params

    def by(params):
        return lambda draws, key, buffers: gradient.estimate(
            analysis, params, flat, None, draws=draws, key=key, buffers=buffers
        )

    def buffers(params):
        return lambda draws: gradient.buffers(analysis, params, None, draws)

    @jax.jit
    def adaptive(params, key, level, step):
        state, rooms = DRAWS.init()._replace(level=level), DRAWS.buffers(buffers(params))
        state, found, made = DRAWS.estimate(by(params), state, step, key=key, buffers=rooms)
        return state, found._replace(buffers=None), made

    @functools.partial(jax.jit, static_argnums=2)
    def fixed(params, key, draws):
        return by(params)(draws, key, buffers(params)(draws))._replace(buffers=None)

    def with_adaptive(level, step):
        return adaptive(params, seed_key(1), jnp.int32(level), jnp.int32(step))

    def with_fixed(num, key):
        return fixed(params, key, bbvi.MonteCarlo(num))

    return with_adaptive, with_fixed


# ---- the estimates ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gradient", "rtol"),
    [pytest.param(bbvi.Score(), 0.0, id="score"), pytest.param(BOTH, 1e-5, id="mixed", marks=pytest.mark.slow)],
)
def test_each_level_is_monte_carlo_with_as_many_draws(gradient, rtol):
    """Bit for bit with the score function; along paths the compiler rounds differently."""
    adaptive, fixed = estimates(gradient)
    for level, num in enumerate((4, 15)):
        _, found, made = adaptive(level, 0)
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=rtol), found, fixed(num, seed_key(1)))
        assert int(made) == num


def test_a_step_that_measures_is_the_mean_of_two_independent_estimates():
    adaptive, fixed = estimates(bbvi.Score())
    state, found, made = adaptive(1, 9)
    one, other = (fixed(15, key) for key in (seed_key(1), fold(seed_key(1), "again")))
    mean = jax.tree.map(lambda a, b: (a + b) / 2, one, other)
    jax.tree.map(np.testing.assert_array_equal, (found.globals, found.elbo), (mean.globals, mean.elbo))
    np.testing.assert_allclose(found.elbo_error, np.hypot(one.elbo_error, other.elbo_error) / 2, rtol=1e-5)
    assert int(found.floored) == int(one.floored + other.floored)
    assert int(made) == 30
    np.testing.assert_allclose(state[1:], measured(one, other, 15), rtol=1e-5)
    for step in (0, 8, 10):
        untouched, _, _ = adaptive(1, step)
        assert [float(leaf) for leaf in untouched] == [1, 0, 0]


# ---- the test -----------------------------------------------------------------------------------------------------


def test_signal_and_noise_are_measured_without_bias():
    rng, num, repeats = np.random.default_rng(0), 16, 20_000
    g, fisher, variance = rng.normal(size=5), rng.gamma(2.0, size=5), rng.gamma(2.0, size=5)

    def noisy(key):
        found = g + jnp.sqrt(variance / num) * jax.random.normal(key, (5,))
        return Estimate({}, {"x": {"loc": found}}, {"globals": {}, "rows": {"x": {"loc": fisher}}}, 0.0, 0.0, 0)

    keys = jax.random.split(jax.random.key(0), (repeats, 2))
    found = np.array(jax.vmap(lambda pair: jnp.stack(measured(noisy(pair[0]), noisy(pair[1]), num)))(keys))
    truth = np.array([(g**2 / fisher).sum(), (variance / fisher).sum()])
    assert (np.abs(found.mean(0) - truth) < 4 * found.std(0) / np.sqrt(repeats)).all()


def test_parameters_that_draws_do_not_reach_are_not_measured():
    def estimate(g):
        return Estimate({"x": {"loc": g}}, {}, {"globals": {"x": {"loc": jnp.array([2.0, 0.0])}}, "rows": {}}, 0, 0, 0)

    signal, noise = measured(estimate(jnp.array([1.0, 5.0])), estimate(jnp.array([3.0, 7.0])), 10)
    assert (float(signal), float(noise)) == (1.5, 10.0)


NUMS = np.array([16, 64, 256, 1024])


def settled(level, signal, noise):
    """The number of draws after many measurements that are all the same."""
    state, seen = Measured(jnp.int32(level), jnp.float32(0), jnp.float32(0)), [level]
    for _ in range(10):
        state = next_level(state, jnp.array(NUMS), jnp.float32(signal), jnp.float32(noise))
        seen.append(int(state.level))
    assert np.abs(np.diff(seen)).max() <= 1
    return NUMS[seen[-1]]


@pytest.mark.parametrize(
    ("noise", "from_below", "from_above"),
    [(0.1, 16, 16), (7.0, 16, 16), (15.0, 16, 64), (17.0, 64, 64), (200.0, 256, 1024), (1e4, 1024, 1024)],
)
def test_the_fewest_draws_that_pass_the_norm_test_are_found_from_below(noise, from_below, from_above):
    assert settled(0, 1.0, noise) == settled(0, 100.0, 100 * noise) == from_below
    assert settled(3, 1.0, noise) == from_above


@pytest.mark.parametrize("signal", [0.0, -1.0])
def test_without_a_signal_there_are_as_many_draws_as_there_can_be(signal):
    assert settled(0, signal, 1.0) == 1024


def test_an_exact_gradient_needs_no_more_draws():
    assert settled(3, 1.0, 0.0) == 16
    assert settled(1, 0.0, 0.0) == 16


# ---- fits ---------------------------------------------------------------------------------------------------------


def correlated(start):
    """A Normal with correlation 0.8: the best q has its means and 1 / sqrt of its precisions."""
    covariance = jnp.array([[1.0, 0.8], [0.8, 1.0]])

    def log_joint(z, mean):
        return dist.MultivariateNormal(mean, covariance).log_prob(z["x"])

    return bbvi.Model(log_joint, x=bbvi.real(2, init={"loc": start, "scale": 0.6})), jnp.array([1.0, -1.0])


def test_draws_are_few_far_from_the_optimum_and_many_near_it():
    far, near = (
        bbvi.fit(*correlated(at), draws=bbvi.AdaptiveDraws(32, 128), stop=bbvi.Budget(steps=100), optimizer=bbvi.adagrad(0.01))
        for at in (jnp.array([101.0, 99.0]), jnp.array([1.0, -1.0]))
    )  # fmt: skip
    usual = np.arange(1, 101) % 10 > 0
    assert (far.history["draws"][usual] == 32).all()
    assert (far.history["draws"][~usual] == 64).all()
    assert near.history["draws"].iloc[0] == 32
    assert near.history["draws"].iloc[-10:].tolist() == [128] * 9 + [256]


@pytest.mark.parametrize("gradient", [bbvi.Score(), bbvi.Auto()])
def test_a_fit_finds_the_optimum(gradient):
    settings = {"gradient": gradient, "draws": bbvi.AdaptiveDraws(32, 128), "seed": 3}
    posterior = bbvi.fit(*correlated(jnp.array([9.0, 9.0])), **settings)
    assert posterior.converged
    assert posterior.history["draws"].iloc[0] == 32
    # to five times the tolerance of Converged, in standard deviations of q
    np.testing.assert_allclose(posterior.mean()["x"], [1.0, -1.0], atol=5 * 0.05 * 0.6)
    np.testing.assert_allclose(posterior.sd()["x"], 0.6, rtol=5 * 0.05 / np.sqrt(2))


@pytest.mark.slow
def test_a_run_in_parts_is_the_run_in_one_across_changes_of_the_number(tmp_path):
    settings = {"draws": FEW}
    whole = run(steps=75, **settings)
    assert len(set(whole.history["draws"])) >= 3
    for steps in (9, 10, 24, 61, 75):
        parts = run(tmp_path / "state.npz", steps=steps, **settings)
    assert_same_run(parts, whole)


def test_another_range_of_draws_is_another_run(tmp_path):
    run(tmp_path / "state.npz", steps=2, draws=FEW)
    with pytest.raises(ValueError, match=r"another draws: AdaptiveDraws\(num=4.* there, AdaptiveDraws\(num=2.* here"):
        run(tmp_path / "state.npz", steps=2, draws=bbvi.AdaptiveDraws(2, 16))


def test_chunks_of_steps_do_not_change_the_run(monkeypatch):
    whole = run(steps=45, draws=FEW)
    monkeypatch.setattr(CHUNKS, "_SECONDS_PER_CHUNK", 1e-9)  # one step to a chunk
    assert_same_run(run(steps=45, draws=FEW), whole)


def test_averages_are_judged_by_the_same_number_of_draws_in_every_step():
    """From other states of the measurements come the same ELBOs, if the level is the same."""
    model, data = correlated(jnp.array([1.0, -1.0]))
    settings = Settings(bbvi.Score(), FEW, (bbvi.Converged(),), bbvi.adagrad())
    made = FIT._prepare(model, data, settings)
    state, key = made.loop.init(made.params), seed_key(7)

    def elbos(level, signal):
        at = state._replace(draws=Measured(jnp.int32(level), jnp.float32(signal), jnp.float32(1.0)))
        return made.loop.run(own_copy(at), key, made.data, None, 25, moving=False)[1].elbo[:25]

    one, other, more = (elbos(level, signal) for level, signal in ((0, -1e6), (0, 1e6), (1, 1e6)))
    np.testing.assert_array_equal(one, other)
    assert (one != more).all()


# ---- errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"least": 0}, "AdaptiveDraws: the number of draws must be an integer of 1 or more, got 0"),
        ({"most": 2.5}, "AdaptiveDraws: the number of draws must be an integer of 1 or more, got 2.5"),
        ({"most": 16}, r"most must be above least, got least = 16 and most = 16; use draws=bbvi.MonteCarlo\(16\)"),
        ({"least": 2000}, "most must be above least, got least = 2000 and most = 1024"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        bbvi.AdaptiveDraws(**settings)


def test_too_few_draws_for_the_control_variate_are_refused():
    with pytest.raises(ValueError, match=r"CrossFit needs 2 draws or more.*got 1; use draws=bbvi.AdaptiveDraws\(2\)"):
        bbvi.fit(*coupled(), draws=bbvi.AdaptiveDraws(1))
