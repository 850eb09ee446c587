"""The user's functions are traced once for each shape of their arguments, whatever is done with the trace."""

import random
from collections import Counter

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import bbvi

CALLS: Counter = Counter()
FEW = {"stop": bbvi.Budget(steps=3), "draws": bbvi.MonteCarlo(20)}
Y = np.array([0.3, -1.2, 0.7, 2.0], np.float32)


@pytest.fixture(autouse=True)
def no_calls():
    CALLS.clear()


def flat():
    def log_joint(z, y):
        CALLS["log_joint"] += 1
        return dist.Normal(0, 1).log_prob(z["mu"]) + dist.Normal(z["mu"], z["s"]).log_prob(y).sum() - z["s"]

    return bbvi.Model(log_joint, mu=bbvi.real(), s=bbvi.positive()), Y


def discrete():
    def log_joint(z, y):
        CALLS["log_joint"] += 1
        return (z["bits"] * y).sum() - jnp.where(z["bits"][1:] == z["bits"][:-1], 0.2, 0.5).sum()

    return bbvi.Model(log_joint, joint=(), bits=bbvi.binary(4)), Y


def mixed():
    def log_joint(z, y):
        CALLS["log_joint"] += 1
        centre = jnp.where(z["k"] == 1, z["m"], -z["m"])
        return dist.Normal(centre, 1).log_prob(y).sum() + dist.Normal(0, 1).log_prob(z["m"]) - z["n"] * 0.7

    return bbvi.Model(log_joint, m=bbvi.real(), k=bbvi.binary(4), n=bbvi.count()), Y


def hierarchical(data, *shape, mask=lambda row: 1.0):
    def log_prior(beta):
        CALLS["log_prior"] += 1
        return dist.Normal(0, 1).log_prob(beta["m"])

    def log_local(beta, z, row):
        CALLS["log_local"] += 1
        return (mask(row) * dist.Normal(beta["m"], 1).log_prob(z["a"])).sum()

    def log_likelihood(beta, z, row):
        CALLS["log_likelihood"] += 1
        return (mask(row) * dist.Normal(z["a"], 1).log_prob(row["y"])).sum()

    functions = {"log_prior": log_prior, "log_local": log_local, "log_likelihood": log_likelihood}
    return bbvi.HierarchicalModel(**functions, globals={"m": bbvi.real()}, locals={"a": bbvi.real(*shape)}), data


def groups():
    return hierarchical({"y": np.arange(24, dtype=np.float32).reshape(6, 4) / 10}, 4)


def visits():
    lengths = [1, 2, 2, 3, 9, 8, 40, 33, 2, 1, 70, 64]
    rows = [np.linspace(-1, 1, n).astype(np.float32) for n in lengths]
    return hierarchical(bbvi.ragged(visit={"y": rows}), "visit", mask=lambda row: row["mask"]["visit"])


SMOOTH = [None, bbvi.Score(), bbvi.Pathwise()]
FLAT = [(flat, g) for g in SMOOTH] + [(discrete, g) for g in (None, bbvi.Score(), bbvi.LocalExpectation())]
FLAT += [(mixed, g) for g in (None, bbvi.Score())]
GRADIENT = {"ids": lambda value: getattr(value, "__name__", repr(value))}


def fit(case, gradient, **how):
    model, data = case()
    return bbvi.fit(model, data, **FEW, **({} if gradient is None else {"gradient": gradient}), **how), data


@pytest.mark.parametrize(("case", "gradient"), FLAT, **GRADIENT)
def test_a_fit_of_a_flat_model_calls_its_function_once(case, gradient):
    fit(case, gradient)
    assert dict(CALLS) == {"log_joint": 1}


@pytest.mark.parametrize("batch_size", [None, 2])
@pytest.mark.parametrize("gradient", SMOOTH, **GRADIENT)
def test_a_fit_of_groups_calls_each_function_once(gradient, batch_size):
    fit(groups, gradient, batch_size=batch_size)
    assert dict(CALLS) == {"log_prior": 1, "log_local": 1, "log_likelihood": 1}


@pytest.mark.parametrize("batch_size", [None, 5])
@pytest.mark.parametrize("gradient", SMOOTH, **GRADIENT)
def test_a_ragged_fit_calls_the_prior_once_and_the_others_once_for_each_bucket_of_lengths(gradient, batch_size):
    _, data = fit(visits, gradient, batch_size=batch_size)
    num = len(data.buckets)
    assert num > 1
    assert dict(CALLS) == {"log_prior": 1, "log_local": num, "log_likelihood": num}


def test_a_choice_that_tries_estimators_after_the_first_steps_calls_nothing_again(monkeypatch):
    monkeypatch.setattr(bbvi.Auto, "pilot_steps", 5)
    model, data = flat()
    bbvi.fit(model, data, gradient=bbvi.Auto(), draws=bbvi.MonteCarlo(20), stop=bbvi.Budget(steps=12))
    assert dict(CALLS) == {"log_joint": 1}


@pytest.mark.parametrize("case", [flat, groups, visits])
def test_the_elbo_and_khat_call_no_function_again_and_an_explanation_each_once(case):
    posterior, data = fit(case, None)
    CALLS.clear()
    posterior.elbo(), posterior.khat()
    assert not CALLS
    bbvi.explain(posterior.model, data)
    assert set(CALLS.values()) == {1}


@pytest.mark.parametrize("draw", [np.random.normal, random.random])
def test_randomness_hidden_in_the_function_is_refused(draw):
    model = bbvi.Model(lambda z, _: -((z["x"] - draw()) ** 2), x=bbvi.real())
    with pytest.raises(RuntimeError, match="hides state or randomness"):
        bbvi.fit(model, **FEW)


def test_random_numbers_that_are_the_same_at_every_call_are_not_refused():
    number = np.random.RandomState(0).normal()

    def own(z, _):
        return -((z["x"] - np.random.RandomState(0).normal()) ** 2)

    def seeded(z, _):
        np.random.seed(0)
        return -((z["x"] - np.random.normal()) ** 2)

    plain = bbvi.fit(bbvi.Model(lambda z, _: -((z["x"] - number) ** 2), x=bbvi.real()), **FEW)
    for function in (own, seeded):
        found = bbvi.fit(bbvi.Model(function, x=bbvi.real()), **FEW)
        assert found.params["x"]["loc"] == plain.params["x"]["loc"]
