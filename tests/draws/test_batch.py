"""Section 4.2: batches of groups, by summing over all batches and all outcomes of the draws."""

import itertools

import jax
import numpy as np
import pytest

import bbvi
from bbvi.draws.batch import draw_groups
from bbvi.numerics.address import seed_key
from tests.compiled import compiled
from tests.exact import HIERARCHICAL, largest_gap
from tests.gradients.test_score import FEWEST, ROUNDING, UNBIASED, exact


@pytest.mark.parametrize("batch_size", [1, 2])  # and all 3, without batches, in test_gradient.py
@pytest.mark.parametrize(
    "estimator",
    [
        "Eq. 6",
        "Eq. 10, cross-fitted",
        "joint expectation",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("Eq. 3", "Eq. 10, leave-one-out", "local expectation")
        ),
    ],
)
@pytest.mark.parametrize("name", HIERARCHICAL)
def test_mean_over_all_batches_is_the_full_gradient(name, estimator, batch_size):
    model = exact(name)
    batches = list(itertools.combinations(range(3), batch_size))
    found = model.expected_of_each(UNBIASED[estimator], FEWEST[estimator], [list(batch) for batch in batches])
    mean = jax.tree.map(lambda *leaves: np.mean(leaves, axis=0), *found)
    assert largest_gap(mean, model.gradient()) < ROUNDING


@pytest.mark.parametrize("name", HIERARCHICAL)
def test_a_row_in_the_batch_has_its_full_gradient(name):
    """Averaged over the batches that contain its group; the N/B of `full_gradient` is taken off again."""
    model = exact(name)
    truth = model.gradient()
    for group in range(3):
        batches = [b for b in itertools.combinations(range(3), 2) if group in b]
        found = model.expected_of_each(UNBIASED["Eq. 6"], 1, [list(b) for b in batches])
        for local in model.problem.locals:
            row = np.mean([f[local]["logits"][group] for f in found], axis=0) / (3 / 2)
            np.testing.assert_allclose(row, truth[local]["logits"][group], atol=1e-5)


def test_every_batch_is_equally_likely():
    batches = [
        tuple(sorted(b))
        for b in np.asarray(compiled(jax.vmap(lambda step: draw_groups(seed_key(0), step, 5, 2)))(np.arange(20_000)))
    ]
    counts = np.array([batches.count(pair) for pair in itertools.combinations(range(5), 2)])
    assert counts.sum() == 20_000
    # chi-square with 9 degrees of freedom: 4 standard deviations above its mean
    assert ((counts - 2000) ** 2 / 2000).sum() < 9 + 4 * np.sqrt(18)


def test_a_batch_never_repeats_a_group():
    batches = np.asarray(compiled(jax.vmap(lambda step: draw_groups(seed_key(1), step, 40, 30)))(np.arange(200)))
    assert all(len(set(batch)) == 30 for batch in batches)
    assert batches.min() >= 0 and batches.max() < 40


def test_batches_by_repeats_agree_with_enumeration():
    """The compiled path with drawn batches and drawn samples, against the enumerated gradient."""
    model, data = HIERARCHICAL["ragged_groups"]()
    truth = exact("ragged_groups")
    moments = bbvi.gradient_moments(
        model, data, truth.posterior, draws=bbvi.MonteCarlo(3), batch_size=2, repeats=100_000, seed=5
    )
    scores = jax.tree.map(
        lambda m, e, t: np.abs(np.asarray(m - t)) / np.maximum(np.asarray(e), 1e-9),
        moments.mean, moments.standard_error, truth.gradient(),
    )  # fmt: skip
    assert max(float(leaf.max()) for leaf in jax.tree.leaves(scores)) < 4
