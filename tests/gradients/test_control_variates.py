"""Section 3: on a chain, each variance reduction lowers the variance."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bbvi

LENGTH = 50
FORMS = {
    "Eq. 3": bbvi.Score(rao_blackwell=False, control_variate=None),
    "Eq. 6": bbvi.Score(rao_blackwell=True, control_variate=None),
    "Eq. 10": bbvi.Score(rao_blackwell=True, control_variate=bbvi.PlugIn()),
}


def gamma_chain():
    """x_t ~ GammaE(x_{t-1}, 0.25) with noisy observations, one term for each transition and observation."""
    rng = np.random.default_rng(1)
    x, y = 1.0, []
    for _ in range(LENGTH):
        x = max(rng.gamma(x**2 / 0.25, 0.25 / x), 0.3)
        y.append(x + 0.3 * rng.normal())

    def log_joint(z, y):
        before = jnp.maximum(jnp.concatenate([jnp.ones(1), z["x"][:-1]]), 0.3)
        return {
            "transition": bbvi.GammaE(before, 0.25).log_prob(z["x"]),
            "observation": -0.5 * ((y - z["x"]) / 0.3) ** 2,
        }

    return bbvi.Model(log_joint, joint=(), x=bbvi.positive(LENGTH)), jnp.asarray(np.array(y))


@pytest.fixture(scope="module")
def lambdas():
    model, y = gamma_chain()
    return {
        "random": bbvi.fit(model, y, stop=bbvi.Budget(steps=0), seed=2),
        "fitted": bbvi.fit(model, y, stop=bbvi.Budget(steps=2000)),
    }


@pytest.mark.parametrize("where", ["random", "fitted"])
def test_variance_falls_from_eq_3_to_eq_6_to_eq_10(lambdas, where):
    model, y = gamma_chain()
    variance = {}
    for name, gradient in FORMS.items():
        moments = bbvi.gradient_moments(
            model, y, lambdas[where], gradient=gradient, draws=bbvi.MonteCarlo(100), repeats=1000
        )
        variance[name] = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(moments.variance)])
    assert (variance["Eq. 3"] > variance["Eq. 6"]).mean() >= 0.95
    assert (variance["Eq. 6"] > variance["Eq. 10"]).mean() >= 0.95


def test_leave_one_out_is_as_good_as_plug_in(lambdas):
    model, y = gamma_chain()
    variance = {}
    for variate in (bbvi.PlugIn(), bbvi.LeaveOneOut()):
        moments = bbvi.gradient_moments(
            model, y, lambdas["fitted"], gradient=bbvi.Score(control_variate=variate), draws=bbvi.MonteCarlo(100),
            repeats=1000,
        )  # fmt: skip
        variance[type(variate)] = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(moments.variance)])
    assert np.median(variance[bbvi.LeaveOneOut] / variance[bbvi.PlugIn]) < 1.15
