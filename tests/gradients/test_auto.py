"""Which estimator `Auto` takes, and that it takes no pathwise gradient where there is none."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import bbvi
from bbvi.fitting import choose
from tests.fitting.test_checkpoint import assert_same_run

STEPS = bbvi.Budget(steps=1)


def smooth(z):
    return dist.Normal(1.0, 0.5).log_prob(z)


JUMPS = {
    "where": lambda z: jnp.where(z > 0, -1.0, -2.0) * z**2,
    "floor": lambda z: -((jnp.floor(4 * z) / 4 - 1.0) ** 2),
    "round": lambda z: -((jnp.round(z) - 1.0) ** 2),
    "sign": lambda z: -jnp.abs(z) * (2 + jnp.sign(z)),
    "stop_gradient": lambda z: dist.Normal(jax.lax.stop_gradient(z), 1.0).log_prob(0.3),
    "integer": lambda z: -jnp.abs(z - 1.0) * (1 + z.astype(int)),
    "look-up": lambda z: jnp.array([0.0, -1.0, -3.0])[jnp.clip(z, 0, 2).astype(int)],
    "argmax": lambda z: -1.0 * jnp.argmax(jnp.stack([z, -z])),
    "custom rule of the user": lambda z: _staircase(z),
}


@jax.jit
def _staircase(z):
    return -jnp.ceil(jnp.abs(z))


@pytest.mark.parametrize("name", JUMPS)
def test_a_latent_in_which_the_log_joint_jumps_takes_the_score(name):
    """Its neighbour, in which nothing jumps, may follow its path."""
    model = bbvi.Model(
        lambda z, _: {"a": JUMPS[name](z["a"]) + smooth(z["a"]), "b": smooth(z["b"])}, a=bbvi.real(), b=bbvi.real()
    )
    assert bbvi.fit(model, stop=STEPS).estimators == {"a": "Score()", "b": "Pathwise()"}


def test_an_opaque_function_takes_the_score():
    model = bbvi.Model(bbvi.opaque(lambda z, _: float(-((z["a"] - 1) ** 2))), a=bbvi.real())
    assert bbvi.fit(model, stop=STEPS).estimators == {"a": "Score()"}


def test_counts_take_the_score_and_few_values_are_summed_out():
    def log_joint(z, _):
        return {
            "n": dist.Poisson(3.0).log_prob(z["n"]),
            "k": jnp.array([0.1, 0.5, 0.4])[z["k"]],
            "b": 0.3 * z["b"] * z["x"],
            "x": smooth(z["x"]),
        }

    model = bbvi.Model(log_joint, joint=(), n=bbvi.count(), k=bbvi.categorical(3), b=bbvi.binary(), x=bbvi.real())
    assert bbvi.fit(model, stop=STEPS).estimators == {
        "n": "Score()", "k": "LocalExpectation()", "b": "LocalExpectation()", "x": "Pathwise()"
    }  # fmt: skip


def test_too_many_values_to_sum_out_take_the_score():
    logits = jnp.sin(jnp.arange(500.0))
    model = bbvi.Model(lambda z, _: logits[z["k"]], k=bbvi.categorical(500))
    assert bbvi.fit(model, stop=STEPS).estimators == {"k": "Score()"}


def wiggly():
    """Its derivative is a thousand times its size: values tell more."""

    def log_joint(z, _):
        return dist.Normal(0.0, 1.0).log_prob(z["a"]) + 0.2 * jnp.sin(2000.0 * z["a"])

    return bbvi.Model(log_joint, a=bbvi.real())


def test_the_score_is_taken_where_the_path_is_noisy():
    posterior = bbvi.fit(wiggly(), stop=[bbvi.Converged(), bbvi.Budget(steps=1010)])
    assert posterior.estimators == {"a": "Score()"}
    assert posterior.history.attrs["estimators"] == posterior.estimators
    assert "Score()" in repr(bbvi.explain(wiggly(), None, posterior))


def test_the_choice_is_kept_by_a_checkpoint(tmp_path):
    """Going on before, at and after the step at which the choice is made."""
    path = tmp_path / "state.npz"
    for steps in (600, 1000, 1030, 1060):
        posterior = bbvi.fit(wiggly(), checkpoint=path, stop=[bbvi.Converged(1e-9), bbvi.Budget(steps=steps)])
    whole = bbvi.fit(wiggly(), stop=[bbvi.Converged(1e-9), bbvi.Budget(steps=1060)])
    assert posterior.estimators == whole.estimators == {"a": "Score()"}
    assert_same_run(posterior, whole)


def test_without_converged_the_noise_is_measured():
    assert bbvi.fit(wiggly(), stop=bbvi.Budget(steps=1010)).estimators == {"a": "Score()"}


def test_estimators_are_saved(tmp_path):
    posterior = bbvi.fit(wiggly(), stop=STEPS)
    posterior.save(tmp_path / "posterior.npz")
    assert bbvi.load(tmp_path / "posterior.npz", wiggly()).estimators == {"a": "Pathwise()"}


def grouped():
    """Bits and levels of groups, under a common level."""
    return bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0.0, 2.0).log_prob(beta["m"]),
        log_local=lambda beta, z, y: dist.Normal(beta["m"], 1.0).log_prob(z["t"]) + 0.4 * z["b"],
        log_likelihood=lambda beta, z, y: dist.Normal(z["t"] + z["b"], 0.7).log_prob(y),
        globals={"m": bbvi.real()},
        locals={"t": bbvi.real(), "b": bbvi.binary()},
    )


def test_mixed_gradients_are_those_of_the_score():
    """Of globals and rows, smooth and discrete, under minibatches: the same mean within standard errors."""
    y = np.array([0.3, -1.0, 2.0, 1.4, 0.1, -0.6])
    start = bbvi.fit(grouped(), y, stop=bbvi.Budget(steps=0))
    settings = {"draws": bbvi.MonteCarlo(20), "repeats": 4000, "batch_size": 2}
    mixed = bbvi.gradient_moments(grouped(), y, start, gradient=bbvi.Auto(), seed=1, **settings)
    score = bbvi.gradient_moments(grouped(), y, start, gradient=bbvi.Score(), seed=2, **settings)
    for latent, entries in score.mean.items():
        for p, mean in entries.items():
            error = np.sqrt(mixed.standard_error[latent][p] ** 2 + score.standard_error[latent][p] ** 2)
            assert np.all(np.abs(mixed.mean[latent][p] - mean) < 4.5 * error), (latent, p)


def test_held_globals_are_not_chosen_for():
    y = np.array([0.3, -1.0, 2.0, 1.4])
    first = bbvi.fit(grouped(), y, stop=STEPS)
    held = bbvi.fit(grouped(), y, hold=first, stop=STEPS)
    assert held.estimators == {"t": "Pathwise()", "b": "LocalExpectation()"}


def test_discrete_latents_by_the_score_take_adagrad():
    """Natural steps would follow the noise of a value that q has all but given up."""
    field = np.linspace(-2, 2, 12)

    def grid(z, _):
        return {"field": field * z["x"], "pairs": 0.8 * (z["x"][1:] == z["x"][:-1])}

    exact = bbvi.fit(bbvi.Model(grid, joint=(), x=bbvi.binary(12)))
    opaque = bbvi.fit(
        bbvi.Model(bbvi.opaque(lambda z, _: {k: np.asarray(v) for k, v in grid(z, None).items()}), x=bbvi.binary(12)),
        stop=bbvi.Budget(steps=300),
    )
    assert opaque.estimators == {"x": "Score()"}
    np.testing.assert_allclose(opaque.mean()["x"], exact.mean()["x"], atol=0.05)


def test_the_noise_of_batches_asks_for_no_other_estimator(monkeypatch):
    """What globals' steps owe to which groups they see, no estimator can lower: nothing is measured, or compiled, for it."""

    def refused(*_, **__):
        raise AssertionError("measured")

    monkeypatch.setattr(choose, "noise_of_latents", refused)
    y = np.random.default_rng(0).normal(1.0, 2.0, 400)
    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0.0, 2.0).log_prob(beta["m"]),
        log_likelihood=lambda beta, z, y: dist.Normal(beta["m"], 2.0).log_prob(y),
        globals={"m": bbvi.real()},
    )
    posterior = bbvi.fit(model, y, batch_size=4, stop=bbvi.Budget(steps=1010))
    assert posterior.estimators == {"m": "Pathwise()"}
