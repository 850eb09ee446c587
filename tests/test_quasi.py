"""Quasi-Monte Carlo: no bias, less variance, and bits that depend on the address alone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from exact import FLAT, HIERARCHICAL
from test_families import (
    CONTINUOUS, DISCRETE, assert_within_four_errors, exact_gradient_continuous, exact_gradient_discrete, parameters,
)  # fmt: skip
from test_gradient import exact, slope_of_eight
from test_variance import gamma_chain

import bbvi
from bbvi.control_variates import LeaveOneOut
from bbvi.gradient import Score
from bbvi.model import bind

ESTIMATORS = {
    "cross-fitted": bbvi.Score(control_variate=bbvi.CrossFit()),
    "no control variate": bbvi.Score(control_variate=None),
    "pathwise": bbvi.Pathwise(),
}
BY_INVERSION = [name for name in [*CONTINUOUS, *DISCRETE] if name not in ("StudentT", "Geometric")]


# ---- no bias -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "estimator"), [(n, e) for n in BY_INVERSION for e in ESTIMATORS if e != "pathwise" or n in CONTINUOUS]
)
def test_gradient_is_unbiased_for_every_family(name, estimator):
    latent, log_p = CONTINUOUS[name] if name in CONTINUOUS else DISCRETE[name][::2]
    truth = exact_gradient_continuous(name) if name in CONTINUOUS else exact_gradient_discrete(name)
    model = bbvi.Model(lambda z, _: log_p(z["z"]), z=latent)
    posterior = bbvi.fit(model, stop=bbvi.Budget(steps=0)).replace({"z": parameters(latent)})
    assert_within_four_errors(
        model, posterior, truth, repeats=20_000, gradient=ESTIMATORS[estimator], draws=bbvi.QuasiMonteCarlo(8), seed=1
    )


@pytest.mark.parametrize("estimator", ["cross-fitted", "no control variate"])
@pytest.mark.parametrize("name", [*FLAT, *HIERARCHICAL])
def test_gradient_is_unbiased_where_outcomes_can_be_enumerated(name, estimator):
    model = exact(name)
    truth = model.gradient()
    for batch_size in [None, 2] if name in HIERARCHICAL else [None]:
        found = bbvi.gradient_moments(
            model.model, {**FLAT, **HIERARCHICAL}[name]()[1], model.posterior, gradient=ESTIMATORS[estimator],
            draws=bbvi.QuasiMonteCarlo(4), repeats=20_000, batch_size=batch_size, seed=5,
        )  # fmt: skip
        gaps = jax.tree.map(
            lambda m, t, e: float(np.max(np.abs(m - t) / (e + 1e-6))), found.mean, dict(truth), found.standard_error
        )
        assert max(jax.tree.leaves(gaps)) < 4.5


def test_leave_one_out_on_a_net_would_be_biased_and_is_refused(monkeypatch):
    model, start = slope_of_eight()
    settings = {"gradient": Score(control_variate=LeaveOneOut()), "draws": bbvi.QuasiMonteCarlo(8), "repeats": 10_000}
    with pytest.raises(ValueError, match="LeaveOneOut .* biased. Use control_variate=bbvi.CrossFit()"):
        bbvi.gradient_moments(model, None, start, **settings)
    monkeypatch.setattr(LeaveOneOut, "independent_draws", False)
    found = bbvi.gradient_moments(model, None, start, **settings)
    assert abs(found.mean["z"]["loc"] - 8) > 20 * found.standard_error["z"]["loc"]
    settings["gradient"] = bbvi.Score()
    found = bbvi.gradient_moments(model, None, start, **settings)
    assert abs(found.mean["z"]["loc"] - 8) < 4 * found.standard_error["z"]["loc"]
