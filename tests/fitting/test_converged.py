"""`Converged`: it fires on problems that have settled and on no others."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest

import bbvi
from bbvi.fitting.converged import _distances, _follow, _start


def location(scale=1.0):
    y = jnp.asarray(np.random.default_rng(0).normal(2.0, 1.0, 20)) * scale

    def log_joint(z, y):
        return dist.Normal(0, 10 * scale).log_prob(z["mu"]) + dist.Normal(z["mu"], scale).log_prob(y).sum()

    return bbvi.Model(log_joint, mu=bbvi.real()), y


def funnel():
    """Coupled scales: the gradient stays noisy at the optimum."""

    def log_joint(z, _):
        return dist.Normal(0, 1).log_prob(z["s"]) + dist.Normal(0, jnp.exp(z["s"] / 2)).log_prob(z["x"]).sum()

    return bbvi.Model(log_joint, joint=(), s=bbvi.real(), x=bbvi.real(2))


def test_a_step_size_too_small_to_move_does_not_count_as_converged():
    model, y = location()
    posterior = bbvi.fit(model, y, optimizer=optax.sgd(1e-7), stop=[bbvi.Converged(), bbvi.Budget(steps=3000)])
    assert not posterior.converged
    assert "Budget" in posterior.stopped


def test_too_small_a_budget_says_not_converged():
    model, y = location()
    posterior = bbvi.fit(model, y, stop=[bbvi.Converged(), bbvi.Budget(steps=50)])
    assert not posterior.converged and len(posterior.history) == 50


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_it_does_not_depend_on_the_scale_of_the_problem(scale):
    model, y = location(scale)
    posterior = bbvi.fit(model, y)
    sd = scale / np.sqrt(20 + 0.01)
    assert posterior.converged
    assert abs(float(posterior.mean()["mu"]) - float(y.sum()) / 20.01) / sd < 0.02


def test_the_average_replaces_the_last_iterate_when_its_elbo_is_higher():
    """A constant step keeps the last iterate noisy; the average is close to the optimum."""
    model = funnel()
    settings = {"optimizer": optax.sgd(0.2), "draws": bbvi.MonteCarlo(20), "seed": 1}
    averaged = bbvi.fit(model, stop=[bbvi.Converged(0.05), bbvi.Budget(steps=50_000)], **settings)
    assert averaged.converged
    steps = len(averaged.history)
    last = bbvi.fit(model, stop=bbvi.Budget(steps=steps), **settings)
    better, worse = averaged.elbo(20_000, seed=9), last.elbo(20_000, seed=9)
    assert better > worse
    assert any(
        not np.array_equal(averaged.params[name][p], last.params[name][p])
        for name in averaged.params
        for p in averaged.params[name]
    )


def test_no_other_rule_changes_lambda():
    model, y = location()
    change = bbvi.fit(model, y, stop=bbvi.ParameterChange(0.01))
    assert change.converged
    budget = bbvi.fit(model, y, stop=bbvi.Budget(steps=len(change.history)))
    np.testing.assert_array_equal(change.params["mu"]["loc"], budget.params["mu"]["loc"])


def test_hierarchical_minibatches_converge_and_find_the_posterior():
    """Normal means with known variances: group effects given the global mean are exact."""
    rng = np.random.default_rng(3)
    num, noise = 60, 0.5
    y = rng.normal(1.0 + rng.normal(size=num), noise)
    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 5).log_prob(beta["mu"]),
        log_local=lambda beta, z, row: dist.Normal(beta["mu"], 1).log_prob(z["theta"]),
        log_likelihood=lambda beta, z, row: dist.Normal(z["theta"], noise).log_prob(row["y"]),
        globals={"mu": bbvi.real()},
        locals={"theta": bbvi.real()},
    )
    posterior = bbvi.fit(model, {"y": y}, batch_size=15)
    assert posterior.converged
    # mean field: q(theta_i) has precision 1 + 1/noise^2, q(mu) has precision N + 1/25
    precision = 1 + 1 / noise**2
    mean = (1 / 25 + num - num / precision) ** -1 * (y / noise**2).sum() / precision
    assert abs(float(posterior.mean()["mu"]) - mean) * np.sqrt(num) < 0.2
    theta = (mean + y / noise**2) / precision
    assert np.sqrt(np.mean((posterior.mean()["theta"] - theta) ** 2) * precision) < 0.1
    np.testing.assert_allclose(posterior.sd()["theta"], precision**-0.5, rtol=0.15)


def test_a_gradient_whose_square_no_float_holds_is_forgotten():
    one = {"mu": {"loc": jnp.zeros(1)}}
    averages = _start(one, ())
    for gradient in (1e30, 1e25, *[1e-4, -1e-4] * 100):
        averages = _follow(averages, one, {"mu": {"loc": jnp.full(1, gradient)}}, {"mu": {"loc": jnp.ones(1)}})
    distance, *_ = _distances(averages)
    assert 0 <= float(distance[0]) < 1e-7
