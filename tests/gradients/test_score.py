"""Eq. 3, 6 and 10: the estimators' expectations, by summing over all outcomes of all draws."""

import importlib
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import bbvi
from bbvi.gradients.mixed import Mixed
from bbvi.numerics.xla import sum_over_samples
from tests.exact import FLAT, HIERARCHICAL, Exact, largest_gap

UNBIASED = {
    "Eq. 3": bbvi.Score(rao_blackwell=False, control_variate=None),
    "Eq. 3, leave-one-out": bbvi.Score(rao_blackwell=False, control_variate=bbvi.LeaveOneOut()),
    "Eq. 6": bbvi.Score(rao_blackwell=True, control_variate=None),
    "Eq. 10, leave-one-out": bbvi.Score(rao_blackwell=True, control_variate=bbvi.LeaveOneOut()),
    "Eq. 10, cross-fitted": bbvi.Score(rao_blackwell=True, control_variate=bbvi.CrossFit(2)),
    "local expectation": bbvi.LocalExpectation(joint=False),
    "joint expectation": bbvi.LocalExpectation(),
}
FEWEST = {name: 2 if name.startswith("Eq. 10") or "leave" in name else 1 for name in UNBIASED}  # draws
ROUNDING = 1e-5

_made: dict[str, Exact] = {}


def exact(name: str) -> Exact:
    if name not in _made:
        _made[name] = Exact(*{**FLAT, **HIERARCHICAL}[name]())
    return _made[name]


def for_all_latents(model, estimator):
    """With the score function for latents whose values cannot be listed, where the estimator needs them."""
    if not isinstance(estimator, bbvi.LocalExpectation):
        return estimator
    others = [n for n, latent in model.problem.latents.items() if latent.family.chart.values() is None]
    score = UNBIASED["Eq. 6"]
    return (
        Mixed(tuple((n, score if n in others else estimator) for n in model.problem.latents)) if others else estimator
    )


@pytest.mark.parametrize("estimator", UNBIASED)
@pytest.mark.parametrize("name", [*FLAT, *HIERARCHICAL])
def test_gradient_is_unbiased_by_enumeration(name, estimator):
    model = exact(name)
    assert abs(model.probabilities().sum() - 1) < 1e-5
    assert largest_gap(model.expected(for_all_latents(model, UNBIASED[estimator]), 2), model.gradient()) < ROUNDING


@pytest.mark.parametrize("estimator", UNBIASED)
def test_chunks_of_one_sample_give_the_same_expectation(estimator):
    model = exact("chain")
    assert largest_gap(model.expected(UNBIASED[estimator], 2, chunk=1), model.gradient()) < ROUNDING


@pytest.mark.compat
@pytest.mark.parametrize("chunk", [None, 1])
def test_folds_of_different_sizes_are_unbiased(chunk):
    model = exact("chain")
    estimator = bbvi.Score(control_variate=bbvi.CrossFit(2))
    assert largest_gap(model.expected(estimator, 3, chunk=chunk), model.gradient()) < ROUNDING


@pytest.mark.parametrize("name", ["ragged_groups", "groups", "ratings"])
@pytest.mark.parametrize(
    "estimator",
    ["Eq. 10, cross-fitted", "joint expectation", pytest.param("local expectation", marks=pytest.mark.slow)],
)
def test_blocks_and_tiles_do_not_change_the_gradient(name, estimator, monkeypatch):
    """One row and one group at a time, or all at once; a packed group's padding lies in the next group."""
    model, estimator = exact(name), UNBIASED[estimator]
    for numbers in ([0, 1, 2], [2, 0]):
        truth = model.expected(estimator, 2, numbers=numbers)
        for floats in (1, 1 << 30):
            monkeypatch.setattr(importlib.import_module("bbvi.gradients.group_blocks"), "_FLOATS_PER_BLOCK", floats)
            monkeypatch.setattr(importlib.import_module("bbvi.draws.rows"), "_FLOATS_PER_TILE", floats)
            assert largest_gap(model.expected(estimator, 2, numbers=numbers), truth) < ROUNDING
            monkeypatch.undo()


def test_plug_in_is_biased():
    model = exact("chain")
    assert largest_gap(model.expected(bbvi.Score(control_variate=bbvi.PlugIn()), 3), model.gradient()) > 0.05


def slope_of_eight():
    """log p - log q = 8 z + const at q = Normal(0, 1): the gradient in the location is 8."""
    start = {"loc": 0.0, "scale": 1.0}
    model = bbvi.Model(lambda z, _: 8 * z["z"] + dist.Normal(0, 1).log_prob(z["z"]), z=bbvi.real(init=start))
    return model, bbvi.fit(model, stop=bbvi.Budget(steps=0))


def location_gradient(variate, num, repeats):
    model, start = slope_of_eight()
    moments = bbvi.gradient_moments(
        model, None, start, gradient=bbvi.Score(control_variate=variate), draws=bbvi.MonteCarlo(num), repeats=repeats
    )
    return float(moments.mean["z"]["loc"]), float(moments.standard_error["z"]["loc"])


def test_plug_in_bias_shrinks_as_one_over_S():
    biases, errors = zip(*[location_gradient(bbvi.PlugIn(), num, 200_000) for num in (20, 80, 320)], strict=True)
    biases, errors = np.array(biases) - 8, np.array(errors)
    assert biases[0] < -20 * errors[0]
    for k, ratio in ((1, 4.0), (2, 16.0)):
        # a second-order term of relative size 1/S is allowed for
        assert abs(biases[k] * ratio / biases[0] - 1) < 0.25 + 4 * errors[k] * ratio / abs(biases[0])


def test_leave_one_out_has_no_bias_where_plug_in_has():
    mean, error = location_gradient(bbvi.PlugIn(), 5, 100_000)
    assert mean < 8 - 20 * error
    mean, error = location_gradient(bbvi.LeaveOneOut(), 5, 100_000)
    assert abs(mean - 8) < 4 * error


@pytest.mark.parametrize("p", [1e-2, 1e-4, 1e-6])
def test_leave_one_out_keeps_its_accuracy_when_one_draw_dominates(p):
    """A factor near certainty: the rare draw has a squared score of 1, the others of p**2."""
    rng = np.random.default_rng(0)
    weight, h = rng.normal(size=(200, 100)), np.full((200, 100), -p)
    h[np.arange(200), rng.integers(0, 100, 200)] = 1 - p
    squares, outer = h**2, np.zeros_like(h)
    for s in range(100):
        others = np.arange(100) != s
        outer[:, s] = (weight * squares)[:, others].sum(1) / squares[:, others].sum(1)
    exact = ((weight - outer) * h).mean(1)
    variate = bbvi.LeaveOneOut()
    w32, score = jnp.asarray(weight, jnp.float32), {"logits": jnp.asarray(h, jnp.float32)}
    sums = sum_over_samples(variate.summands, w32, score)
    nothing = jax.tree.map(jnp.zeros_like, sums)
    revisited = jax.tree.map(lambda leaf: leaf[..., None], variate.revisit(nothing, w32, score))
    found = variate.gradient(sums, {}, revisited, 100)["logits"]
    np.testing.assert_allclose(found, exact, atol=1e-5)


@pytest.mark.parametrize("name", HIERARCHICAL)
@pytest.mark.parametrize("estimator", ["Eq. 3", "Eq. 6", "local expectation", "joint expectation"])
def test_padding_value_does_not_matter(name, estimator):
    """A padded latent's draw takes no part: other values there give the same gradient."""
    model = exact(name)
    moved = Exact.__new__(Exact)
    moved.__dict__ |= model.__dict__
    outcomes = model.outcomes()
    for latent_name, latent in model.problem.locals.items():
        for group, i in itertools.product(range(model.problem.num_groups), range(2)):
            own = model.lengths[latent.shape[0]][group] if latent.ragged_axes else 2
            if i >= own:
                outcomes[latent_name][:, group, i] = 1
    moved.outcomes = lambda: outcomes
    moved.probabilities = model.probabilities
    one, other = model.expected(UNBIASED[estimator], 1), moved.expected(UNBIASED[estimator], 1)
    jax.tree.map(np.testing.assert_array_equal, one, other)
