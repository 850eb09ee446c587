"""Which log joints may follow a path: those that are shown to be continuous, and no other."""

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
import pytest

import bbvi
from bbvi.blankets.analysis import analyse
from bbvi.blankets.jaxpr.intervals import Interval
from bbvi.blankets.jaxpr.jumps import find_jump
from bbvi.gradients.slopes import smooth_latents
from bbvi.model.problem import bind
from tests.gradients import continuity_calls
from tests.gradients.continuity_cases import (
    CONTINUOUS,
    CONTINUOUS_REAL_WITH_DATA,
    CONTINUOUS_WITH_DATA,
    JUMPING,
    JUMPING_WITH_DATA,
    POSITIVE,
)

pytestmark = pytest.mark.compat
#: continuous functions that are not shown to be: these take the score, which is right but noisier
NOT_SHOWN = {"logarithm of a real, which is nan below 0"}


def jump_of(function, inside=Interval(), data=0):  # noqa: B008
    closed = jax.make_jaxpr(function)(*[jnp.ones(3, jnp.float32)] * (1 + data))
    return find_jump(closed, ["z"] + [None] * data, {"z": [inside]})


@pytest.mark.parametrize("name", JUMPING)
def test_no_function_that_jumps_is_taken_to_be_continuous(name):
    assert jump_of(JUMPING[name]) is not None


@pytest.mark.parametrize("name", [name for name in CONTINUOUS if name not in NOT_SHOWN])
def test_continuity_is_shown(name):
    assert jump_of(CONTINUOUS[name]) is None


@pytest.mark.parametrize("name", continuity_calls.JUMPING)
def test_no_function_that_jumps_where_it_calls_others_is_taken_to_be_continuous(name):
    assert jump_of(continuity_calls.JUMPING[name]) is not None


@pytest.mark.parametrize("name", continuity_calls.CONTINUOUS)
def test_continuity_is_shown_of_functions_that_call_others(name):
    assert jump_of(continuity_calls.CONTINUOUS[name]) is None


@pytest.mark.parametrize("name", POSITIVE)
def test_continuity_is_shown_where_the_latent_is_positive(name):
    assert jump_of(POSITIVE[name], Interval(0.0, low_open=True)) is None


@pytest.mark.parametrize("name", CONTINUOUS_WITH_DATA)
def test_what_is_infinite_for_some_data_does_not_jump_as_a_positive_latent_moves(name):
    assert jump_of(CONTINUOUS_WITH_DATA[name], Interval(0.0, low_open=True), data=1) is None


@pytest.mark.parametrize("name", CONTINUOUS_REAL_WITH_DATA)
def test_continuity_is_shown_whatever_the_data(name):
    assert jump_of(CONTINUOUS_REAL_WITH_DATA[name], data=1) is None


@pytest.mark.parametrize("name", JUMPING_WITH_DATA)
def test_what_jumps_for_some_data_is_not_taken_to_be_continuous(name):
    assert jump_of(JUMPING_WITH_DATA[name], data=1) is not None


def test_the_suite_is_as_large_as_it_says():
    assert len(JUMPING) >= 60 and len(CONTINUOUS) >= 30 and len(NOT_SHOWN) <= len(CONTINUOUS) // 10


def test_a_block_knows_the_range_of_each_of_its_latents():
    def log_joint(z, _):
        return dist.Normal(0, z["scale"]).log_prob(z["x"]) + dist.Beta(2.0, z["scale"]).log_prob(z["p"]).sum()

    model = bbvi.Model(
        log_joint, x=bbvi.real(), scale=bbvi.positive(), p=bbvi.unit_interval(2), joint=[("x", "scale", "p")]
    )
    problem, data, groups = bind(model, None)
    assert smooth_latents(analyse(problem, data, groups)) == {"x+scale+p"}


@pytest.mark.parametrize("name", ["Bernoulli", "Poisson"])
def test_likelihoods_of_rows_whose_data_are_not_known_are_continuous(name):
    likelihoods = {
        "Bernoulli": lambda beta, z, row: dist.Bernoulli(logits=row["x"] @ beta["w"]).log_prob(row["y"]),
        "Poisson": lambda beta, z, row: dist.Poisson(jnp.exp(row["x"] @ beta["w"])).log_prob(row["y"]),
    }
    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["w"]), log_likelihood=likelihoods[name],
        globals={"w": bbvi.real(3)},
    )  # fmt: skip
    problem, data, groups = bind(model, {"x": jnp.ones((4, 3)), "y": jnp.arange(4.0)})
    assert smooth_latents(analyse(problem, data, groups)) == {"w"}


def test_what_is_put_into_an_array_of_integers_counts():
    step = lambda z: jnp.where(z > jnp.zeros(3, int).at[0].set(2), 1.0, 0.0)  # noqa: E731
    assert jump_of(step, Interval(0.0, low_open=True)) is not None


def quotient(z, scale):
    return dist.Normal(0, 1).log_prob(z["w"]).sum() + jnp.tanh(z["w"] / scale).sum()


def product(z, y):
    return dist.Normal(0, 1).log_prob(z["w"]).sum() + jnp.tanh(z["w"] * y).sum()


def standardised(z, x):
    x = (x - x.mean(0)) / x.std(0)
    return dist.Normal(0, 1).log_prob(z["w"]).sum() + dist.Bernoulli(logits=x @ z["w"]).log_prob(1).sum()


@pytest.mark.parametrize(
    "log_joint, data, path",
    [
        (quotient, [1.0, 3.0, 2.0], True),
        (quotient, [1.0, 0.0, 2.0], False),
        (product, [1.0, 3.0, 2.0], True),
        (product, [1.0, jnp.inf, 2.0], False),
        (standardised, [[1.0, 0.0, 2.0], [-1.0, 0.0, 1.0]], False),
        (standardised, [[1.0, 0.5, 2.0], [-1.0, 0.0, 1.0]], True),
    ],
)
def test_the_data_decide_whether_a_quotient_or_a_product_jumps(log_joint, data, path):
    problem, flat, groups = bind(bbvi.Model(log_joint, w=bbvi.real(3)), jnp.array(data))
    assert (smooth_latents(analyse(problem, flat, groups)) == {"w"}) == path


@pytest.mark.parametrize("scales, path", [([[1.0, 2.0], [3.0]], True), ([[1.0, 0.0], [3.0]], False)])
def test_padding_is_no_scale_of_zero(scales, path):
    def mixture(beta, z, row):
        two = jnp.logaddexp(dist.Normal(beta["m"], row["scale"]).log_prob(row["y"]), -3.0)
        return jnp.where(row["mask"]["visit"], two, 0)

    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["m"]), log_likelihood=mixture, globals={"m": bbvi.real()}
    )
    cohort = bbvi.ragged(visit={"y": [[0.3, 1.0], [2.0]], "scale": scales})
    assert (smooth_latents(analyse(*bind(model, cohort))) == {"m"}) == path


def test_a_fit_of_other_data_is_judged_anew():
    model, steps = bbvi.Model(quotient, w=bbvi.real(3)), bbvi.Budget(steps=1)
    bbvi.fit(model, jnp.array([1.0, 3.0, 2.0]), gradient=bbvi.Pathwise(), stop=steps)
    with pytest.raises(ValueError, match="not shown to be continuous"):
        bbvi.fit(model, jnp.array([1.0, 0.0, 2.0]), gradient=bbvi.Pathwise(), stop=steps)
