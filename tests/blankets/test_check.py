"""The check of the first step: terms add up to what the function returned, within the rounding of its sums."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import bbvi
from bbvi.blankets.blankets import find_blankets
from bbvi.blankets.check import check_blankets
from bbvi.model.problem import bind

GENERATOR = np.random.default_rng(0)
MANY = GENERATOR.normal(1000, 1, 1_000_000).astype(np.float32)
COUNTS = GENERATOR.poisson(1_000_000, 20_000).astype(np.int32)


def one_by_one(terms):
    return jax.lax.fori_loop(0, len(terms), lambda i, total: total + terms[i], 0.0)


# functions whose own sums round: of a million rows by 1e-2 if they are added one by one
ROUNDED = {
    "a million rows around 1000": (lambda z, y: -(z["m"] ** 2) + dist.Normal(z["m"], 1).log_prob(y).sum(), MANY),
    "by hand": (lambda z, y: -(z["m"] ** 2) - 0.5 * jnp.sum((y - z["m"]) ** 2), MANY),
    "one by one": (lambda z, y: -(z["m"] ** 2) + one_by_one(-((y - z["m"]) ** 2)), MANY),
    "a product": (lambda z, y: -(z["m"] ** 2) - 0.5 * (y - z["m"]) @ (y - z["m"]), MANY),
    "Poisson counts of a million": (
        lambda z, y: -(z["m"] ** 2) + dist.Poisson(jnp.exp(z["m"] + 14)).log_prob(y).sum(), COUNTS,
    ),
    "Poisson counts by hand": (
        lambda z, y: -(z["m"] ** 2) + (y * (z["m"] + 14)).sum() - len(y) * jnp.exp(z["m"] + 14) - jax.scipy.special.gammaln(y + 1.0).sum(),
        COUNTS,
    ),
    "constants that cancel": (lambda z, y: -((z["m"] + 7) ** 2) + y[0] * 1e6 - y[1] * 1e6, np.float32([1000, 1000])),
}  # fmt: skip


@pytest.mark.parametrize("name", ROUNDED)
def test_sums_that_round_are_no_bug(name):
    function, data = ROUNDED[name]
    problem, flat, groups = bind(bbvi.Model(function, m=bbvi.real()), data)
    check_blankets(problem, find_blankets(problem, flat, None), flat, groups)


@pytest.mark.parametrize("share", [0.99, 1.01])
def test_terms_that_miss_a_hundredth_are_found(share):
    problem, flat, groups = bind(bbvi.Model(lambda z, y: -jnp.sum((y - z["m"]) ** 2), m=bbvi.real()), MANY[:1000])
    blankets = find_blankets(problem, flat, None)
    wrong = dataclasses.replace(blankets.prior.function, derivatives=False)
    object.__setattr__(
        wrong, "_run", lambda inputs, num: {k: share * v for k, v in type(wrong)._run(wrong, inputs, num).items()}
    )
    with pytest.raises(RuntimeError, match="add up to"):
        check_blankets(problem, blankets._replace(prior=blankets.prior._replace(function=wrong)), flat, groups)
