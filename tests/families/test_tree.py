"""Markov trees as factors of q, against sums over all outcomes."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bbvi
from bbvi.families import Tree
from bbvi.families.tree import NEVER, CodeVectors
from bbvi.numerics.address import Address, seed_key
from tests.compiled import compiled

K = 3
FORESTS = {"chain": (-1, 0, 1, 2), "star": (3, 3, 3, -1), "two trees": (1, -1, 1, -1)}


class Case:
    """A forest at some lambda, and all its outcomes with their probabilities, summed here."""

    def __init__(self, parents):
        self.family = Tree(CodeVectors(K, len(parents)), parents)
        self.params = {"logits": jnp.asarray(np.random.default_rng(3).normal(size=(len(parents), K, K)), float)}
        self.outcomes = jnp.array(list(itertools.product(range(K), repeat=len(parents))))
        self.log_q = np.asarray(self.at(self.params), np.float64)
        self.q = np.exp(self.log_q)

    def at(self, params):
        return compiled(lambda params: jax.vmap(functools.partial(self.family.log_prob, params))(self.outcomes))(params)

    def scores(self):
        found = compiled(jax.vmap(jax.grad(self.family.log_prob), (None, 0)))(self.params, self.outcomes)["logits"]
        return np.asarray(found, np.float64).reshape(len(self.outcomes), -1)


@functools.cache
def case(name):
    return Case(FORESTS[name])


@pytest.mark.parametrize("name", FORESTS)
def test_probabilities_sum_to_one_and_scores_to_zero(name):
    it = case(name)
    assert abs(it.q.sum() - 1) < 1e-5
    np.testing.assert_allclose(it.q @ it.scores(), 0, atol=1e-6)
    own = np.einsum("n,nik->ik", it.q, np.asarray(it.outcomes)[..., None] == np.arange(K))
    np.testing.assert_allclose(it.family.probabilities(it.params), own, atol=1e-6)


@pytest.mark.parametrize("name", FORESTS)
def test_natural_gradient_solves_with_the_fisher_information(name):
    it = case(name)
    fisher = np.einsum("n,ni,nj->ij", it.q, it.scores(), it.scores())
    gradient = fisher @ np.random.default_rng(5).normal(size=len(fisher))
    shaped = {"logits": jnp.asarray(gradient.reshape(it.params["logits"].shape), float)}
    found = np.asarray(compiled(it.family.natural_gradient)(it.params, shaped)["logits"], np.float64)
    np.testing.assert_allclose(fisher @ found.ravel(), gradient, atol=1e-5)


@pytest.mark.parametrize("name", FORESTS)
def test_a_step_is_straight_in_the_potentials_of_pairs(name):
    it = case(name)
    direction = {"logits": jnp.asarray(np.random.default_rng(6).normal(size=it.params["logits"].shape), float)}
    end = it.at(compiled(it.family.along)(it.params, direction))
    parents, s = np.array(it.family.parents), np.asarray(it.outcomes)
    of_parents = np.where(parents >= 0, s[:, np.maximum(parents, 0)], 0)
    along = np.asarray(direction["logits"])[np.arange(len(parents)), of_parents, s].sum(1)
    gap = np.asarray(end) - it.log_q - along
    np.testing.assert_allclose(gap, gap[0], atol=1e-5)


@pytest.mark.parametrize("name", FORESTS)
def test_draws_have_these_probabilities(name):
    it, num = case(name), 20_000

    def draw(sample):
        return it.family.sample(it.params, Address(seed_key(2), jnp.uint32(0), jnp.uint32(0), sample))

    drawn = np.asarray(compiled(jax.vmap(draw))(jnp.arange(num, dtype=jnp.uint32)))
    codes = drawn @ K ** np.arange(drawn.shape[1])[::-1]
    shares = np.bincount(codes, minlength=len(it.q)) / num
    assert np.all(np.abs(shares - it.q) < 5 * np.sqrt(it.q / num))


def test_impossible_values_are_never_drawn_and_lead_nowhere():
    """The second number cannot be 2 after 1; after 2 nothing is possible, so that the first cannot be 2."""
    family = case("chain").family
    never = np.zeros((4, K, K), bool)
    never[1, 1, 2] = never[1, 2] = True
    logits = family.without(case("chain").params["logits"], jnp.asarray(never))
    assert np.isfinite(logits).all() and logits[0, 0, 2] == NEVER and logits[1, 1, 2] == NEVER
    probabilities = family.probabilities({"logits": logits})
    assert probabilities[0, 2] == 0 and abs(probabilities.sum(1) - 1).max() < 1e-6
    again = family.along({"logits": logits}, {"logits": 5.0 * jnp.ones_like(logits)})["logits"]
    assert again[0, 0, 2] == NEVER and again[1, 1, 2] == NEVER


def test_large_potentials_leave_every_value_a_way_back():
    family = Tree(CodeVectors(2, 2000), tuple(range(-1, 1999)))
    potentials = jnp.asarray(np.random.default_rng(1).normal(size=(2000, 2, 2)) * 1e4, float)
    logits = family.normalised(potentials)
    assert np.isfinite(logits).all() and logits.min() >= -40
    np.testing.assert_allclose(jnp.exp(logits).sum(-1), 1, atol=0.01)  # rounding of 1e4 in single precision
    assert np.isfinite(family.normalised(logits - potentials)).all()


@pytest.mark.parametrize(
    ("declare", "words"),
    [
        (lambda: bbvi.real(4, q=bbvi.MarkovTree()), "binary or categorical latents"),
        (lambda: bbvi.binary(q=bbvi.MarkovTree()), "over the last axis"),
        (lambda: bbvi.binary("visit", q=bbvi.MarkovTree()), "of a fixed length"),
        (lambda: bbvi.one_hot(3, 4, q=bbvi.MarkovTree()), "binary or categorical latents"),
        (lambda: bbvi.binary(3, q=bbvi.MarkovTree([-1, 0])), "2 parents were given for 3 numbers"),
        (lambda: bbvi.binary(3, q=bbvi.MarkovTree([-1, 0, 3])), "got 3"),
        (lambda: bbvi.binary(3, q=bbvi.MarkovTree([1, 0, -1])), "no cycle"),
    ],
)
def test_what_is_no_tree_is_refused(declare, words):
    with pytest.raises(ValueError, match=words):
        declare()
