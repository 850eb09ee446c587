"""k-hat against tails whose shape is known."""

import numpy as np
import numpyro.distributions as dist
import pytest

import bbvi
from bbvi.posterior.pareto import pareto_khat, smoothed, tail_shape

pytestmark = pytest.mark.compat
NUM = 200_000
TAIL = 3 * np.sqrt(NUM)


@pytest.mark.parametrize("rate", [1.05, 1.25, 2.0, 4.0])
def test_ratios_of_two_exponentials_have_the_tail_of_their_rates(rate):
    """p is Exponential(1), q Exponential(b) with b > 1: P(p/q > t) falls as t**(-b / (b - 1)), so k = 1 - 1 / b."""
    log_ratios = (rate - 1) * np.random.default_rng(0).exponential(1 / rate, NUM)
    k = 1 - 1 / rate
    # the variance of the estimate is (1 + k)**2 / n; the prior is worth ten draws
    assert abs(pareto_khat(log_ratios) - k) < 3 * (1 + k) / np.sqrt(TAIL) + 10 * abs(0.5 - k) / TAIL


def test_bounded_ratios_have_a_negative_shape():
    """p is Exponential(1), q Exponential(1/2): p/q is bounded, and uniform next to its largest value, so k = -1."""
    log_ratios = -0.5 * np.random.default_rng(0).exponential(2.0, NUM)
    assert abs(pareto_khat(log_ratios) + 1) < 0.1


@pytest.mark.parametrize("k", [-0.3, 0.1, 0.5, 1.0])
def test_shape_is_that_of_generalized_pareto_draws(k):
    u = np.random.default_rng(1).uniform(size=5000)
    excesses = np.sort((u**-k - 1) / k)
    assert abs(tail_shape(excesses) - k) < 4 * (1 + k) / np.sqrt(5000)


def test_shape_does_not_depend_on_the_unit():
    excesses = np.sort(np.random.default_rng(2).exponential(size=500))
    assert abs(tail_shape(1e6 * excesses) - tail_shape(excesses)) < 1e-9


@pytest.mark.parametrize("rate", [1.25, 4.0])
def test_khat_of_a_posterior_is_that_of_its_tail(rate):
    model = bbvi.Model(lambda z, _: -z["x"], x=bbvi.positive(q=dist.Exponential))
    start = bbvi.fit(model, None, stop=bbvi.Budget(steps=0))
    posterior = start.replace({"x": {"rate": np.log(np.float32(rate))}})
    k = 1 - 1 / rate
    assert abs(posterior.khat(50_000) - k) < 3 * (1 + k) / np.sqrt(3 * np.sqrt(50_000)) + 0.02


def test_reweighted_draws_have_the_moments_of_the_target():
    """q is a Normal of sd 1.2 about 0.2, p a Normal of sd 1 about 0: the weights are known, and so is what they repair."""
    init = {"loc": 0.2, "scale": 1.2}
    model = bbvi.Model(lambda z, _: dist.Normal(0, 1).log_prob(z["z"]), z=bbvi.real(init=init))
    found = bbvi.fit(model, stop=bbvi.Budget(steps=0)).reweighted(50_000)
    error = 1 / np.sqrt(found.effective_draws)
    assert 0.5 < found.effective_draws / 50_000 < 1
    assert abs(found.mean()["z"]) < 4 * error
    assert abs(found.sd()["z"] - 1) < 4 * error
    assert abs(found.quantile(0.9)["z"] - 1.2816) < 8 * error
    drawn = found.sample(20_000, 1)["z"]
    assert abs(drawn.mean()) < 5 * error
    assert abs(drawn.std() - 1) < 5 * error
    assert dict(found.to_arviz(100).posterior.sizes) == {"chain": 1, "draw": 100}


def test_weights_that_cannot_repair_q_are_refused():
    model = bbvi.Model(
        lambda z, _: dist.StudentT(1.5, 0, 3).log_prob(z["z"]), z=bbvi.real(init={"loc": 0.0, "scale": 0.3})
    )
    posterior = bbvi.fit(model, stop=bbvi.Budget(steps=0))
    with pytest.raises(ValueError, match="above 0.7 weights cannot repair q"):
        posterior.reweighted(5000)
    with pytest.raises(ValueError, match="needs n of 100 or more"):
        posterior.reweighted(0)


def test_smoothed_weights_are_in_order_and_no_larger_than_the_largest():
    log_ratios = np.random.default_rng(0).exponential(size=4000) / 2
    log_weights, khat = smoothed(log_ratios)
    order = np.argsort(log_ratios)
    assert np.all(np.diff(log_weights[order]) >= 0)
    assert log_weights.max() <= log_ratios.max()
    assert khat == pareto_khat(log_ratios)
    # the largest of a heavy tail is brought near its expected place: the sum of weights has less noise
    sums = [
        [np.exp(x).mean() for x in (own, smoothed(own)[0])]
        for own in np.random.default_rng(1).exponential(size=(300, 1000)) * 0.6
    ]
    raw, smooth = np.std(sums, axis=0)
    assert smooth < raw
