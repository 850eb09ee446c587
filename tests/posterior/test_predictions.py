"""Functions of draws: closed forms of a conjugate posterior, groups in blocks, and what is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import bbvi
from bbvi.posterior import predictions

Y = np.arange(6, dtype=np.float32).reshape(3, 2)


@functools.cache
def posterior():
    """Each z_i ~ N(0, 1) with two observations: N(sum y_i / 3, 1 / 3)."""
    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["w"]),
        log_local=lambda beta, z, row: dist.Normal(0, 1).log_prob(z["z"]),
        log_likelihood=lambda beta, z, row: dist.Normal(z["z"], 1).log_prob(row["y"]),
        globals={"w": bbvi.real()},
        locals={"z": bbvi.real()},
    )
    return bbvi.fit(model, {"y": Y})


def test_predictions_have_the_exact_law():
    found = bbvi.predict(posterior(), lambda z, row, key: dist.Normal(z["z"], 1).sample(key), 20_000, level=0.5)
    sd = np.sqrt(4 / 3)
    np.testing.assert_allclose(found.mean, Y.sum(1) / 3, atol=0.05)
    np.testing.assert_allclose(found.sd, np.full(3, sd), rtol=0.03)
    np.testing.assert_allclose(found.high - found.low, np.full(3, 2 * 0.6745 * sd), rtol=0.05)


def test_a_function_of_z_has_the_moments_of_the_draws():
    found = bbvi.predict(posterior(), lambda z: {"both": jnp.stack([z["w"], z["z"]])}, 500, seed=3)
    draws = posterior().sample(500, seed=3)
    np.testing.assert_allclose(found.mean["both"][:, 1], np.asarray(draws["z"]).mean(0), rtol=1e-5)
    np.testing.assert_allclose(found.low["both"][:, 0], np.full(3, np.quantile(draws["w"], 0.05)), rtol=1e-5)


def test_blocks_and_chosen_groups_change_nothing(monkeypatch):
    def fn(z, row, key):
        return z["z"] + jax.random.normal(key) + row["y"].sum()

    whole = bbvi.predict(posterior(), fn, 100)
    np.testing.assert_allclose(bbvi.predict(posterior(), fn, 100, groups=[2, 0]).mean, whole.mean[[2, 0]], rtol=1e-6)
    monkeypatch.setattr(predictions, "_FLOATS_PER_BLOCK", 1)
    np.testing.assert_allclose(bbvi.predict(posterior(), fn, 100).mean, whole.mean, rtol=1e-6)


def test_of_a_flat_model_the_function_is_called_once_a_draw():
    model = bbvi.Model(lambda z, y: dist.Normal(0, 1).log_prob(z["mu"]).sum(), mu=bbvi.real(2))
    found = bbvi.predict(bbvi.fit(model, None, stop=bbvi.Budget(steps=0)), lambda z: z["mu"] * 2, 50)
    assert found.mean.shape == (2,)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"level": 1.0}, "level"),
        ({"n": 1}, "n is the number"),
        ({"fn": 3}, "function of z"),
        ({"fn": lambda: 1}, "takes 0"),
    ],
)
def test_what_makes_no_sense_is_refused(change, words):
    with pytest.raises((TypeError, ValueError), match=words):
        bbvi.predict(posterior(), **{"fn": lambda z: z["w"], **change})
