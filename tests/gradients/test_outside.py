"""A control variate and a draws scheme written outside of the package, in few lines, work like its own."""

import inspect
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import bbvi
from bbvi.gradients.control_variates import times_score
from bbvi.numerics.address import Address, part_key, threefry
from tests.exact import FLAT, Exact, largest_gap

MOST_LINES = 15


class OtherHalf(bbvi.AbstractControlVariate):
    """The mean weight of the other half of the samples, in place of a*."""

    num_folds: ClassVar[int] = 2
    min_draws: ClassVar[int] = 2
    shift_invariant: ClassVar[bool] = True

    def summands(self, weight, score):
        return {"f": times_score(weight, score), "h": score, "weight": weight, "num": jnp.ones_like(weight)}

    def gradient(self, sums, squares, revisited, num):
        other = (sums["weight"] / sums["num"])[..., ::-1]
        return {name: (f - other * sums["h"][name]).sum(-1) / num for name, f in sums["f"].items()}


class Mirror(bbvi.AbstractNet):
    def bits(self, key, element, sample, part):
        words = threefry(part_key(key, part), sample // 2, element)
        return tuple(jnp.where(sample % 2 == 1, ~word, word) for word in words)


class Antithetic(bbvi.AbstractDraws):
    num: int
    chunk: int | None = None
    independent: ClassVar[bool] = False

    def sample(self, name, family, params, address):
        return family.sample(params, Address(address.key, address.group, address.element, address.sample, Mirror()))


def num_lines(*classes):
    return sum(len([line for line in inspect.getsource(c).splitlines() if line.strip()]) for c in classes)


def test_each_takes_few_lines():
    assert num_lines(OtherHalf) <= MOST_LINES and num_lines(Mirror, Antithetic) <= MOST_LINES


@pytest.mark.parametrize("chunk", [None, 1])
def test_the_control_variate_is_unbiased_by_enumeration(chunk):
    model = Exact(*FLAT["chain"]())
    estimator = bbvi.Score(control_variate=OtherHalf())
    assert largest_gap(model.expected(estimator, 2, chunk=chunk), model.gradient()) < 1e-5


def test_the_draws_are_mirrored_unbiased_and_exact_where_the_gradient_is_odd():
    """Along the path, the gradient in the location of a Normal target is linear in the noise: pairs cancel it."""
    model = bbvi.Model(
        lambda z, y: dist.Normal(y, 2.0).log_prob(z["mu"]), mu=bbvi.real(init={"loc": 1.0, "scale": 0.5})
    )
    posterior = bbvi.fit(model, data=3.0, stop=bbvi.Budget(steps=0))
    draws, gradient = Antithetic(16), bbvi.Pathwise()
    found = bbvi.gradient_moments(model, 3.0, posterior, gradient=gradient, draws=draws, repeats=50)
    np.testing.assert_allclose(found.mean["mu"]["loc"], (3.0 - 1.0) / 4, rtol=1e-5)
    assert float(found.variance["mu"]["loc"]) < 1e-10
    scale = 1 - 0.5**2 / 4  # d ELBO / d log sd = 1 - sd**2 / 4
    assert abs(float(found.mean["mu"]["scale"]) - scale) < 5 * float(found.standard_error["mu"]["scale"])


def test_a_fit_takes_both():
    model = bbvi.Model(lambda z, y: dist.Normal(y, 2.0).log_prob(z["mu"]), mu=bbvi.real())
    plain = bbvi.Score(control_variate=None)
    posterior = bbvi.fit(model, 3.0, draws=Antithetic(20), gradient=plain, stop=bbvi.Budget(steps=300))
    assert abs(float(posterior.mean()["mu"]) - 3.0) < 0.5
    posterior = bbvi.fit(model, 3.0, gradient=bbvi.Score(control_variate=OtherHalf()))
    assert posterior.converged and abs(float(posterior.sd()["mu"]) - 2.0) < 0.1
    assert jax.tree.all(jax.tree.map(lambda leaf: bool(jnp.isfinite(leaf).all()), posterior.params))
