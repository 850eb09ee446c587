"""Several starts: which of them goes on, what waits for what, and what is said where they disagree."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import bbvi
from bbvi.fitting.cache import _kept
from bbvi.fitting.fit import _prepare
from bbvi.fitting.restarts import MANY, clearly_above
from bbvi.fitting.settings import checked_settings
from bbvi.posterior.ratios import Estimate
from bbvi.posterior.verdict import disagreement

_NUM = 12
_MATTERS = (np.arange(_NUM) % 3 == 0) * 1


def _choice(init=None):
    """Make a choice of correlated predictors by bits, of which every third matters."""
    rng = np.random.default_rng(_NUM)
    x = (rng.normal(size=(150, 1)) + rng.normal(size=(150, _NUM))) * 0.5**0.5
    slopes = rng.choice([-1.0, 1.0], _NUM) * rng.uniform(0.7, 2.0, _NUM)
    y = x @ (_MATTERS * slopes) + rng.normal(size=150)

    def log_joint(z, data):
        x, y = data
        of_prior = dist.Bernoulli(0.3).log_prob(z["g"]).sum() + dist.Normal(0, 2).log_prob(z["b"]).sum()
        return of_prior + dist.Normal(x @ (z["g"] * z["b"]), 1.0).log_prob(y).sum()

    return bbvi.Model(log_joint, joint=(), g=bbvi.binary(_NUM, init=init), b=bbvi.real(_NUM, q=bbvi.FullRank())), (x, y)


_STOP = (bbvi.Converged(), bbvi.Budget(steps=1000))


@pytest.fixture(scope="module")
def fits():
    return [bbvi.fit(*_choice(), seed=seed, stop=_STOP) for seed in range(3)]


def test_a_choice_of_predictors_finds_the_best_from_every_seed(fits):
    model, data = _choice(init=_MATTERS)
    best = float(bbvi.fit(model, data, stop=_STOP).elbo(2000))
    assert all(float(posterior.elbo(2000)) > best - 0.5 for posterior in fits)
    assert all(posterior.converged for posterior in fits)


def test_one_start_of_these_falls_into_a_worse_optimum():
    """The claim above would be empty if one start did as well."""
    run = _prepare(*_choice(), checked_settings(seed=0))
    found = []
    for seed in range(3):
        state, *_ = run.loop.run(
            run.loop.init(_prepare(*_choice(), checked_settings(seed=seed)).params), run.key, run.data, None, 100
        )
        found.append(float(run.loop.run(state, run.key, run.data, None, 1)[1].elbo[0]))
    assert max(found) - min(found) > 2


def test_restarts_are_told_best_first_with_errors(fits):
    for posterior in fits:
        assert len(posterior.restarts) == MANY
        assert posterior.restarts[0] > max(posterior.restarts) - 0.1
        assert all(one.standard_error >= 0 for one in posterior.restarts)


def test_same_seed_gives_the_same_bits(fits):
    again = bbvi.fit(*_choice(), seed=1, stop=_STOP)
    assert again.restarts == fits[1].restarts
    assert jax.tree.all(jax.tree.map(np.array_equal, again.params, fits[1].params))
    assert np.array_equal(again.history["elbo"], fits[1].history["elbo"])


def test_no_restart_compiles_another_loop(fits):
    """Starts share the program of the fit that goes on."""
    before = list(_kept)
    bbvi.fit(*_choice(), restarts=3, stop=_STOP)
    assert list(_kept) == before


def test_a_run_goes_on_from_a_checkpoint_with_the_start_that_was_chosen(tmp_path):
    path, whole = tmp_path / "run.npz", bbvi.fit(*_choice(), seed=2, stop=_STOP, restarts=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        part = bbvi.fit(*_choice(), seed=2, stop=[_STOP[0], bbvi.Budget(steps=120)], restarts=3, checkpoint=path)
    assert not part.converged
    resumed = bbvi.fit(*_choice(), seed=2, stop=_STOP, restarts=3, checkpoint=path)
    assert jax.tree.all(jax.tree.map(np.array_equal, resumed.params, whole.params))
    assert resumed.restarts == whole.restarts


def test_a_file_keeps_restarts(fits, tmp_path):
    fits[0].save(tmp_path / "posterior.npz")
    loaded = bbvi.load(tmp_path / "posterior.npz", fits[0].model)
    assert loaded.restarts == fits[0].restarts
    assert loaded.restarts[0].standard_error == fits[0].restarts[0].standard_error


def test_discrete_latents_that_wait_stay_where_they_are_while_others_move():
    run = _prepare(*_choice(), checked_settings())
    state = run.loop.init(run.params)._replace(waits=jnp.bool_(True))
    after, *_ = run.loop.run(state, run.key, run.data, None, 20)
    assert np.array_equal(after.params["globals"]["g"]["logits"], run.params["globals"]["g"]["logits"])
    assert not np.any(np.asarray(after.params["globals"]["b"]["loc"]) == np.asarray(run.params["globals"]["b"]["loc"]))
    assert not np.array_equal(
        run.loop.run(after._replace(waits=jnp.bool_(False)), run.key, run.data, None, 1)[0].params["globals"]["g"][
            "logits"
        ],
        run.params["globals"]["g"]["logits"],
    )


@pytest.mark.parametrize(
    "options",
    [
        {"gradient": bbvi.Score(True, bbvi.PlugIn()), "optimizer": bbvi.adagrad(), "stop": bbvi.ParameterChange()},
        {"optimizer": bbvi.natural()},
        {"gradient": bbvi.LocalExpectation()},
        {"stop": bbvi.Budget(steps=3)},
    ],
)  # fmt: skip
def test_settings_by_hand_have_one_start(options):
    field = jnp.array([0.5, -1.0])
    model = bbvi.Model(lambda z, field: (field * z["x"]).sum(), x=bbvi.binary(2))
    stop = options.get("stop", [bbvi.Converged(), bbvi.Budget(steps=150)])
    posterior = bbvi.fit(
        model, field, **(options | {"stop": [stop, bbvi.Budget(steps=150)] if "stop" in options else stop})
    )
    assert posterior.restarts == ()


@pytest.mark.filterwarnings("ignore:not converged")
def test_no_steps_leave_the_starting_q():
    posterior = bbvi.fit(*_choice(), stop=[_STOP[0], bbvi.Budget(steps=0)], restarts=4)
    assert posterior.restarts == ()
    assert len(posterior.history) == 0


@pytest.mark.filterwarnings("ignore:not converged")
def test_the_budget_of_steps_holds_for_every_start():
    posterior = bbvi.fit(*_choice(), stop=[_STOP[0], bbvi.Budget(steps=30)], restarts=2)
    assert len(posterior.history) == 30


def test_two_optima_that_differ_are_told_and_relabelled_ones_are_not():
    assert "disagree" in disagreement([Estimate(-10.0, 0.1), Estimate(-12.0, 0.1), Estimate(-50.0, 0.1)])
    assert not disagreement([Estimate(-10.0, 0.1), Estimate(-10.2, 0.1), Estimate(-50.0, 0.1)])
    assert not disagreement([Estimate(-10.0, 3.0), Estimate(-12.0, 3.0)])
    assert not disagreement([Estimate(-10.0, 0.1), Estimate(-np.inf, 0.0)])
    assert not disagreement([])


def test_what_is_finite_is_above_what_is_not():
    finite, broken = np.linspace(-3, -2, 10), np.full(10, -np.inf)
    assert clearly_above(finite, broken, 0.02)
    assert not clearly_above(broken, finite, 0.02)
    assert not clearly_above(broken, broken, 0.02)
    assert not clearly_above(finite + 0.01, finite, 0.02)


def test_relabelled_optima_do_not_disagree():
    """Both wells of this posterior have the same ELBO."""
    y = jnp.concatenate([jnp.linspace(-4, -3, 10), jnp.linspace(3, 4, 10)])

    def log_joint(z, y):
        return dist.Normal(0, 5).log_prob(z["m"]).sum() + dist.Normal(z["m"][z["k"]], 1.0).log_prob(y).sum()

    posterior = bbvi.fit(bbvi.Model(log_joint, m=bbvi.real(2), k=bbvi.binary(20)), y, stop=_STOP)
    assert "disagree" not in posterior.verdict
    assert sorted(np.round(posterior.mean()["m"])) == [-3, 3] or sorted(np.round(posterior.mean()["m"])) == [-4, 4]


def test_a_better_well_of_a_continuous_posterior_is_found_if_asked_for():
    def log_joint(z, _):
        wells = jnp.array([dist.Normal(-6, 0.5).log_prob(z["x"]) - 4, dist.Normal(6, 0.5).log_prob(z["x"])])
        return jax.nn.logsumexp(wells)

    model = bbvi.Model(log_joint, x=bbvi.real())
    found = [bbvi.fit(model, seed=seed, restarts=8, stop=_STOP) for seed in range(3)]
    assert all(posterior.mean()["x"] > 5 for posterior in found)


def test_groups_may_restart_too():
    y = jnp.asarray(np.random.default_rng(0).normal(size=(12, 3)))
    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["m"]),
        log_local=lambda beta, z, row: dist.Normal(beta["m"], 1).log_prob(z["a"]),
        log_likelihood=lambda beta, z, row: dist.Normal(z["a"], 1).log_prob(row).sum(),
        globals={"m": bbvi.real()}, locals={"a": bbvi.real()},
    )  # fmt: skip
    posterior = bbvi.fit(model, y, restarts=3, batch_size=4, stop=bbvi.Budget(steps=300))
    assert len(posterior.restarts) == 3
    assert np.isfinite(posterior.restarts).all()


@pytest.mark.parametrize("restarts", [0, -1, 2.0, True, "4"])
def test_a_number_of_starts_is_a_positive_integer(restarts):
    with pytest.raises(ValueError, match="restarts= takes the number of starts"):
        bbvi.fit(*_choice(), restarts=restarts)


def test_what_gives_the_start_leaves_nothing_to_restart(fits):
    with pytest.raises(ValueError, match="leave one out"):
        bbvi.fit(*_choice(), restarts=2, start=fits[0])


def test_opaque_functions_are_not_restarted():
    model = bbvi.Model(bbvi.opaque(lambda z, data: -(float(z["x"]) ** 2)), x=bbvi.real())
    with pytest.raises(ValueError, match="opaque"):
        bbvi.fit(model, restarts=2, stop=bbvi.Budget(steps=5))


def test_starts_whose_first_draws_are_not_finite_are_narrowed_and_compared():
    def log_joint(z, _):
        two = jnp.logaddexp(dist.Normal(-4, 0.5).log_prob(z["x"]), dist.Normal(4, 0.5).log_prob(z["x"]) + 2)
        return jnp.where(jnp.abs(z["x"]) < 30, two, -jnp.inf)

    model = bbvi.Model(log_joint, x=bbvi.real(init={"scale": 20.0}))
    with pytest.warns(RuntimeWarning, match="start"):
        posterior = bbvi.fit(model, restarts=2)
    assert posterior.converged and len(posterior.restarts) == 2
