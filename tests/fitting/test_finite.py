"""What is not finite at the start is named for what it is, in the user's own words."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import bbvi

HOLES = np.array([1.0, np.nan, 2.0])
NAN = float("nan")

# name: (model, data)
WITH_NAN = {
    "an array of NumPy": lambda z, _: dist.Normal(z["a"], 1).log_prob(HOLES).sum(),
    "an array of JAX": lambda z, _: dist.Normal(z["a"], 1).log_prob(jnp.asarray(HOLES)).sum(),
    "on another support": lambda z, _: dist.Gamma(jnp.exp(z["a"]), 1.0).log_prob(HOLES).sum(),
    "by hand": lambda z, _: -jnp.sum((z["a"] - HOLES) ** 2),
    "a number": lambda z, _: NAN * z["a"] - z["a"] ** 2,
    "a term": lambda z, _: {"good": -(z["a"] ** 2), "bad": -((z["a"] - HOLES) ** 2)},
}


def message(function, data=None, **latents):
    model = bbvi.Model(function, **(latents or {"a": bbvi.real()}))
    with pytest.raises(ValueError, match=r"is (nan|-inf) at a draw from the starting q") as error:
        bbvi.fit(model, data, stop=bbvi.Budget(steps=1))
    return str(error.value)


@pytest.mark.filterwarnings("ignore:Out-of-support values")
@pytest.mark.parametrize("name", WITH_NAN)
def test_nan_among_the_constants_of_the_function_is_named(name):
    text = message(WITH_NAN[name])
    assert "test_finite.py:" in text
    assert "uses a constant that is NaN" in text
    assert "q puts mass" not in text


@pytest.mark.filterwarnings("ignore:Out-of-support values")
def test_nan_in_a_constant_of_a_group_is_named():
    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: -(beta["m"] ** 2),
        log_likelihood=lambda beta, z, row: dist.Normal(beta["m"], 1).log_prob(row + HOLES).sum(),
        globals={"m": bbvi.real()},
        locals={},
    )
    with pytest.raises(ValueError, match=r"in group 0 .* uses a constant that is NaN at \[1\] of \(3,\)"):
        bbvi.fit(model, np.ones(3, np.float32), stop=bbvi.Budget(steps=1))


def test_masked_nan_is_not_blamed():
    def log_joint(z, _):
        seen = jnp.where(np.isnan(HOLES), 0, -((z["a"] - HOLES) ** 2)).sum()
        return seen + jnp.log(z["a"]) - z["a"] ** 2  # nan where a is negative

    text = message(log_joint)
    assert "constant" not in text
    assert "logs of negative numbers" in text


def test_constants_without_nan_leave_q_to_blame():
    assert "q puts mass where p has none" in message(lambda z, _: jnp.where(z["a"] > 9e9, 0.0, -jnp.inf))


@pytest.mark.parametrize("value", [-np.inf, np.nan])
def test_a_draw_is_shown_by_the_names_of_the_model_alone(value):
    """Neither where an opaque function is called, nor the block that two latents share."""
    text = message(bbvi.opaque(lambda z, _: value))
    assert text.split("(")[1].split(")")[0].startswith("a = ")
    assert "/" not in text.split("(")[1].split(")")[0]
    assert "[" not in text.split("(")[1].split(")")[0]
    blocks = {"a": bbvi.real(), "b": bbvi.real(), "joint": [("a", "b")]}
    text = message(lambda z, _: z["a"] + z["b"] + value, **blocks)
    assert "(a = " in text
    assert ", b = " in text
