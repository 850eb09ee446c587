"""A claim of convergence is verified: ridges, discrete factors that gave up values, and biased gradients do not pass."""

import contextlib
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import bbvi
from bbvi.blankets.analysis import analyse
from bbvi.families.normal import Normal
from bbvi.fitting import probe, verify
from bbvi.fitting.loop import Loop, Method
from bbvi.model.problem import bind


def ridge(rho, d):
    covariance = (1 - rho) * np.eye(d) + rho
    precision = np.linalg.inv(covariance).astype(np.float32)
    mean = 2 * np.linalg.cholesky(covariance)[:, 0]

    def log_joint(z, data):
        apart = z["x"] - data["mean"]
        return -0.5 * apart @ data["precision"] @ apart

    data = {"mean": mean.astype(np.float32), "precision": precision}
    return bbvi.Model(log_joint, x=bbvi.real(d), joint=()), data


def gap_of_ridge(posterior, data):
    """Return what the best factorized Normal has more, exactly: its entropy and its expected log p."""
    precision, apart = data["precision"].astype(float), posterior.mean()["x"] - data["mean"]
    variance, best = posterior.sd()["x"] ** 2, 1 / np.diag(precision)
    return 0.5 * (apart @ precision @ apart + (variance / best - 1 - np.log(variance / best)).sum())


@pytest.mark.parametrize("rho, d", [(0.999, 5), (0.9999, 10)])
def test_a_fit_that_creeps_along_a_ridge_is_carried_to_its_top_before_it_claims_to_have_converged(rho, d):
    model, data = ridge(rho, d)
    posterior = bbvi.fit(model, data)
    assert posterior.converged
    assert gap_of_ridge(posterior, data) < 0.05


def test_a_plateau_whose_slope_the_rule_lets_pass_is_left_for_what_lies_beyond_it():
    # where a q is much wider than Student's t of 0.1 degrees of freedom, the ELBO falls by 0.1 as its scale grows by e
    model = bbvi.Model(lambda z, _: dist.StudentT(0.1, 0.0, 1.0).log_prob(z["x"]), x=bbvi.real(init={"scale": 1e6}))
    stop = [bbvi.Converged(tolerance=0.2), bbvi.Budget(steps=2000)]
    posterior = bbvi.fit(model, gradient=bbvi.Score(), stop=stop)
    assert posterior.converged
    assert abs(np.log(float(posterior.sd()["x"])) - 1.41) < 1


def test_a_count_that_draws_nothing_but_zeros_is_looked_at_again():
    model = bbvi.Model(lambda z, _: dist.Poisson(5.0).log_prob(z["n"]), n=bbvi.count(init={"rate": 5e-5}))
    posterior = bbvi.fit(model)
    assert posterior.converged
    assert abs(float(posterior.mean()["n"]) - 5) < 0.1


@jax.custom_jvp
def square(x):
    return x**2


@square.defjvp
def _(primals, tangents):
    (x,), (dx,) = primals, tangents
    return x**2, 2 * (x - 0.5) * dx  # a lie: the derivative of another function


def test_a_derivative_that_lies_is_caught_and_the_fit_goes_on_with_the_score():
    model = bbvi.Model(lambda z, _: -0.5 * square(z["x"] - 1.0) - 0.5 * (z["y"] - 2) ** 2, x=bbvi.real(), y=bbvi.real())
    with pytest.warns(
        RuntimeWarning, match=r"gradient of \['x'\] disagrees with differences of the ELBO.*goes on with Score"
    ):
        posterior = bbvi.fit(model)
    assert posterior.converged
    assert posterior.estimators == {"x": "Score()", "y": "Pathwise()"}
    assert abs(float(posterior.mean()["x"]) - 1.0) < 0.05


class Crooked(bbvi.AbstractFamily):
    """A Normal whose draws have a wrong derivative in their scale: its path is wrong, its density is right."""

    chart = Normal().chart

    def parameters(self):
        return Normal().parameters()

    def sample(self, params, address):
        hidden = jax.lax.stop_gradient(params["scale"])
        standard = Normal().sample({"loc": 0.0, "scale": 0.0}, address)
        z = Normal().sample({**params, "scale": hidden}, address)
        return z + jnp.sign(standard) * jnp.exp(hidden) * (params["scale"] - hidden)

    def log_prob(self, params, coordinates):
        return Normal().log_prob(params, coordinates)


def test_a_family_whose_path_is_wrong_is_caught():
    model = bbvi.Model(lambda z, _: dist.StudentT(2, 3.0, 1).log_prob(z["x"]), x=bbvi.real(q=Crooked()))
    with pytest.warns(RuntimeWarning, match="disagrees with differences of the ELBO"):
        posterior = bbvi.fit(model, gradient=bbvi.Pathwise())
    assert posterior.estimators == {"x": "Score()"}


class Shrunk(bbvi.AbstractGradient):
    """A user's estimator that forgets a part of the gradient."""

    def estimate(self, analysis, params, data, batch, *, draws, key, buffers=None):
        found = bbvi.Pathwise().estimate(analysis, params, data, batch, draws=draws, key=key)
        return found._replace(globals=jax.tree.map(lambda leaf: leaf - 0.3, found.globals))


def test_an_estimator_of_a_users_own_is_checked_too():
    model = bbvi.Model(lambda z, _: dist.Normal(3, 1).log_prob(z["x"]), x=bbvi.real())
    with pytest.warns(RuntimeWarning, match="disagrees"):
        posterior = bbvi.fit(model, gradient=Shrunk())
    assert posterior.converged and posterior.estimators == {"x": "Score()"}
    assert abs(float(posterior.mean()["x"]) - 3) < 0.05


def test_a_rule_that_does_not_go_on_ends_without_a_claim_where_it_is_refuted():
    """The paper's rule fires on a ridge after a few short steps; its lambda stays as it is."""
    model, data = ridge(0.999, 5)
    settings = {"optimizer": bbvi.adagrad(0.01), "seed": 1}
    posterior = bbvi.fit(model, data, stop=bbvi.ParameterChange(0.02), **settings)
    assert not posterior.converged and posterior.outcome is bbvi.Outcome.STOPPED
    assert "ParameterChange(tolerance=0.02) fired, but another lambda was found" in posterior.stopped
    same = bbvi.fit(model, data, stop=bbvi.Budget(steps=len(posterior.history)), **settings)
    np.testing.assert_array_equal(posterior.params["x"]["loc"], same.params["x"]["loc"])


def test_good_gradients_are_not_suspected():
    """Discrete, positive and real latents, by sums, paths and the score, at three seeds."""

    def log_joint(z, _):
        rate = z["rate"] * jnp.where(z["on"] == 1, 2.0, 1.0)
        steps = jnp.where(z["jump"] > 0.3, 1.0, 0.0)
        return (
            dist.Gamma(3, 1).log_prob(z["rate"])
            + dist.Bernoulli(0.3).log_prob(z["on"])
            + dist.Poisson(rate).log_prob(4)
            + dist.Normal(steps, 1).log_prob(z["jump"])
        )

    model = bbvi.Model(log_joint, joint=(), rate=bbvi.positive(), on=bbvi.binary(), jump=bbvi.real())
    kinds = set()
    for seed in range(3):
        posterior = bbvi.fit(model, seed=seed)
        assert posterior.converged
        kinds.add(tuple(posterior.estimators.values()))
    assert kinds == {("Pathwise()", "LocalExpectation()", "Score()")}


class Noisy:
    """Stands in for a probe: a gradient of 0, and an ELBO whose slope is `bias` and standard normal noise."""

    def __init__(self, seed, left, bias=0.0):
        self.left, self.bias, self.seed = left, bias, seed

    def looking_closer(self):
        return contextlib.nullcontext()

    def seen(self, direction):
        return probe.Gain(0.0, 0.0)

    def gradient(self, at, steps, *words):
        self.left -= steps
        return np.zeros_like(at)

    def elbos(self, at, steps, *words):
        self.left -= steps
        return np.full(steps, at[0] * (self.bias + np.random.default_rng([self.seed, *words[1:]]).normal()))


def suspected(**kwargs):
    noisy = [Noisy(seed, **kwargs) for seed in range(1500)]
    found = [verify._disagrees(one, np.ones(1, bool), 0) for one in noisy]
    return sum(found), min(one.left for one in noisy)


def test_noise_is_not_taken_for_bias_among_many_looks():
    assert suspected(left=2000)[0] == 0


@pytest.mark.parametrize("left", [130, 600, 2000])
def test_the_look_for_bias_makes_no_more_steps_than_are_left(left):
    assert suspected(left=left, bias=2.0)[1] >= 0


def test_a_planted_bias_of_ten_errors_is_found():
    found = suspected(left=2000, bias=10 / np.sqrt(8))[0]
    assert found > 0.8 * 1500


def steps_of_verification(monkeypatch, model, data=None, **kwargs):
    """Fit, and count the steps that looked at the claims."""
    made, run = [], probe.Probe._run
    monkeypatch.setattr(
        probe.Probe,
        "_run",
        lambda self, params, steps, *words, **kw: (made.append(steps), run(self, params, steps, *words, **kw))[1],
    )
    return bbvi.fit(model, data, **kwargs), sum(made)


@pytest.mark.parametrize("rho, d", [(0.0, 2), (0.9, 5), (0.999, 5)])
def test_where_steps_are_dear_a_verification_takes_no_more_of_them_than_the_fit(monkeypatch, rho, d):
    monkeypatch.setattr(verify, "_NUMBERS", 0)
    model, data = ridge(rho, d)
    posterior, made = steps_of_verification(monkeypatch, model, data)
    assert posterior.converged
    assert gap_of_ridge(posterior, data) < 0.05
    assert 0.3 * len(posterior.history) < made <= len(posterior.history)


def test_where_steps_cost_little_a_suspicion_takes_more_of_them_than_a_claim_that_nothing_speaks_against(monkeypatch):
    posterior, made = steps_of_verification(monkeypatch, *ridge(0.0, 2))
    assert made <= len(posterior.history) < 200
    posterior, made = steps_of_verification(monkeypatch, *ridge(0.999, 5))
    assert len(posterior.history) < 500 < made <= 3 * 1500


def loop_of(log_joint, **latents):
    model = bbvi.Model(log_joint, **latents)
    method = Method(bbvi.Pathwise(), bbvi.MonteCarlo(100), bbvi.natural())
    return Loop(analyse(*bind(model, None)), method)


def test_what_a_step_costs_is_counted():
    """By draws, elements, steps of a loop and products under a sum, not by a clock."""
    x = jnp.ones((1000, 10))
    small = loop_of(lambda z, _: dist.Normal(0, 1).log_prob(z["w"]).sum(), w=bbvi.real(10))
    rows = loop_of(lambda z, _: dist.Normal(x @ z["w"], 1).log_prob(0.5).sum(), w=bbvi.real(10))
    series = loop_of(
        lambda z, _: -(jax.lax.fori_loop(0, 10_000, lambda i, c: 0.9 * c + z["w"], z["w"]) ** 2).sum(), w=bbvi.real(10)
    )
    assert small.work() < 100 * 200
    assert 100 * 10_000 < rows.work() < 100 * 30_000
    assert series.work() > 100 * 10 * 10_000
    made = SimpleNamespace(step=506, looked=400)
    assert [verify.allowance(loop, made) for loop in (small, series)] == [(106, 1394), (106, 0)]
