"""Posteriors far from the start, or much narrower or wider than it."""

import warnings

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import bbvi
from bbvi.fitting.finite import narrower_than_rounding


@pytest.mark.parametrize(("mean", "sd"), [(1e4, 1.0), (1e6, 1e3), (-1e6, 1e6), (1.0, 1e-3), (0.0, 1e-6)])
def test_a_far_or_narrow_posterior_is_reached_in_hundreds_of_steps(mean, sd):
    model = bbvi.Model(lambda z, _: dist.Normal(mean, sd).log_prob(z["x"]), x=bbvi.real())
    posterior = bbvi.fit(model, progress=False, stop=[bbvi.Converged(), bbvi.Budget(steps=800)])
    assert posterior.converged
    assert abs(float(posterior.mean()["x"]) - mean) < 0.05 * sd
    assert abs(float(posterior.sd()["x"]) / sd - 1) < 0.05


def test_an_income_in_dollars_is_reached_with_its_spread():
    y = 66_852 + 20_000 * np.random.default_rng(3).standard_normal(50)

    def log_joint(z, y):
        return -jnp.log(z["sd"]) + dist.Normal(z["mean"], z["sd"]).log_prob(y).sum()

    model = bbvi.Model(log_joint, mean=bbvi.real(), sd=bbvi.positive())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # its prior is flat on purpose
        posterior = bbvi.fit(model, jnp.asarray(y), progress=False, stop=[bbvi.Converged(), bbvi.Budget(steps=2000)])
    exact_sd = y.std(ddof=1) * (49 / 47 / 50) ** 0.5
    assert posterior.converged
    assert abs(float(posterior.mean()["mean"]) - y.mean()) < 0.1 * exact_sd
    assert abs(float(posterior.sd()["mean"]) / exact_sd - 1) < 0.1


@pytest.mark.parametrize(("unit_x", "unit_y"), [(1.0, 5e4), (5e4, 1.0), (1.0, 1e-6)])
def test_a_regression_in_any_units_keeps_its_shape_on_the_way(unit_x, unit_y):
    generator = np.random.default_rng(4)
    x = np.stack([np.ones(200), *(unit_x * (1 + 0.3 * generator.standard_normal((2, 200))))], 1)
    y = unit_y * (1 + x[:, 1:].sum(1) / unit_x + 0.5 * generator.standard_normal(200))

    def log_joint(z, data):
        x, y = data
        return -jnp.log(z["sd"]) + dist.Normal(x @ z["b"], z["sd"]).log_prob(y).sum()

    model = bbvi.Model(log_joint, b=bbvi.real(3), sd=bbvi.positive())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # its prior is flat on purpose
        stop = [bbvi.Converged(), bbvi.Budget(steps=800)]
        posterior = bbvi.fit(model, (jnp.asarray(x), jnp.asarray(y)), progress=False, stop=stop)
    b, *_ = np.linalg.lstsq(x, y, rcond=None)
    s = (((y - x @ b) ** 2).sum() / 197) ** 0.5
    sd = s * np.diag(np.linalg.inv(x.T @ x)) ** 0.5 * (197 / 195) ** 0.5
    assert posterior.converged and posterior.history["setbacks"].sum() == 0
    assert np.max(np.abs(posterior.mean()["b"] - b) / sd) < 0.2
    assert np.max(np.abs(posterior.sd()["b"] / sd - 1)) < 0.1


def test_a_q_narrower_than_rounding_is_named():
    resolved = {"loc": np.float32(1e4), "scale": np.float32(0.0)}
    assert narrower_than_rounding({"x": resolved}, 0.1) is None
    assert narrower_than_rounding({"y": resolved, "x": resolved | {"scale": np.float32(-6.0)}}, 0.1) == "x"


@pytest.mark.parametrize(("mean", "sd"), [(1.0, 1e-6), (1e3, 1e-6), (1e6, 1e-6), (1e6, 1e-3), (1e6, 1.0)])
def test_an_answer_that_floats_cannot_hold_is_an_error_that_keeps_what_was_reached(mean, sd):
    model = bbvi.Model(lambda z, _: dist.Normal(mean, sd).log_prob(z["x"]), x=bbvi.real())
    with pytest.raises(ValueError, match="'x' is nearly as narrow as the rounding of float32.*x64") as error:
        bbvi.fit(model, progress=False, stop=[bbvi.Converged(), bbvi.Budget(steps=1000)])
    assert not error.value.posterior.converged
    assert abs(float(error.value.posterior.mean()["x"]) / mean - 1) < 1e-6
