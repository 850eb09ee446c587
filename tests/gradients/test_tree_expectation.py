"""Markov trees over discrete latents: exact sums over single numbers and pairs, and what a step of size 1 does."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.special

import bbvi
from bbvi.gradients.mixed import Mixed
from bbvi.model.joint import Block
from tests.compiled import compiled
from tests.exact import Exact, largest_gap
from tests.gradients.test_local_expectation import estimate_of
from tests.gradients.test_score import ROUNDING, exact

BOTH = Mixed((("s", bbvi.TreeExpectation()), ("b", bbvi.LocalExpectation())))


@pytest.mark.parametrize(("name", "gradient"), [("tree", BOTH), ("two_chains", bbvi.TreeExpectation())])
def test_the_gradient_is_unbiased_by_enumeration(name, gradient):
    model = exact(name)
    assert largest_gap(model.expected(gradient), model.gradient()) < ROUNDING


def alone(parents):
    """Numbers with three values in a tree, and nothing else."""
    table = jnp.asarray(np.random.default_rng(1).normal(size=(len(parents), 3, 3)))
    inner = np.array([i for i, p in enumerate(parents) if p >= 0], int)
    above = np.array(parents)[inner]

    def log_joint(z, field):
        s = z["s"]
        return {"field": jnp.take_along_axis(field, s[:, None], 1), "pairs": table[inner, s[above], s[inner]]}

    field = jnp.asarray(np.random.default_rng(2).normal(size=(len(parents), 3)))
    return bbvi.Model(log_joint, s=bbvi.categorical(3, len(parents), q=bbvi.MarkovTree(parents))), field


FORESTS = {"chain": [-1, 0, 1, 2], "star": [3, 3, 3, -1], "forest": [-1, 0, 0, -1, 3], "apart": [-1, -1]}


@pytest.mark.parametrize("forest", FORESTS)
def test_a_tree_alone_has_its_exact_gradient_and_elbo_from_one_draw(forest):
    model = Exact(*alone(FORESTS[forest]))
    estimate, found = estimate_of(model, bbvi.TreeExpectation(), 1)
    assert largest_gap(found, model.gradient()) < ROUNDING
    q = model.probabilities()
    log_p = np.asarray(compiled(jax.vmap(model.log_joint))(jax.tree.map(jnp.asarray, model.outcomes())), np.float64)
    assert abs(float(estimate.elbo) - (q * (log_p - np.log(q))).sum()) < 1e-5
    family = model.problem.latents["s"].family
    scores = compiled(jax.vmap(jax.grad(family.log_prob), (None, 0)))(
        model.params["globals"]["s"], jnp.asarray(model.outcomes()["s"])
    )
    squares = np.einsum("n,n...->...", q, np.asarray(scores["logits"], np.float64) ** 2)
    np.testing.assert_allclose(estimate.fisher["globals"]["s"]["logits"], squares, atol=1e-6)


@pytest.mark.parametrize("forest", FORESTS)
def test_one_step_ends_on_the_posterior(forest):
    """Whatever lambda it begins from: the natural parameters become log p of pairs."""
    log_joint, field = alone(FORESTS[forest])
    optimizer = bbvi.natural(reach=1e6)
    posterior = bbvi.fit(log_joint, field, optimizer=optimizer, stop=bbvi.Budget(steps=1), seed=4)
    log_p, outcomes = enumerated(log_joint, field, len(FORESTS[forest]), 3)
    np.testing.assert_allclose(compiled(jax.vmap(posterior.log_prob))({"s": outcomes}), log_p, atol=2e-5)
    np.testing.assert_allclose(posterior.probs()["s"], marginals(log_p, outcomes, 3), atol=1e-6)
    assert abs(float(posterior.elbo(200)) - np.log(evidence(log_joint, field, outcomes))) < 1e-4


def enumerated(model, data, num, k):
    """All outcomes and the logarithms of their posterior probabilities."""
    outcomes = jnp.array(list(itertools.product(range(k), repeat=num)))
    return scipy.special.log_softmax(log_joints(model, data, outcomes)), outcomes


def evidence(model, data, outcomes):
    return float(np.exp(scipy.special.logsumexp(log_joints(model, data, outcomes))))


def log_joints(model, data, outcomes):
    def whole(s):
        return sum(leaf.sum() for leaf in jax.tree.leaves(model.log_joint({"s": s}, data)))

    return np.asarray(compiled(jax.vmap(whole))(outcomes), np.float64)


def marginals(log_p, outcomes, k):
    return np.einsum("n,nik->ik", np.exp(log_p), np.asarray(outcomes)[..., None] == np.arange(k))


# ---- hidden Markov models, in many spellings --------------------------------------------------------------------------


P = jnp.array([[0.8, 0.2], [0.3, 0.7]])
Y = jnp.array([0.1, 1.2, 0.8, -0.5, 1.4])
MEANS = jnp.array([0.0, 1.0])


def sliced(z, y):
    s = z["s"]
    return jnp.log(P)[s[:-1], s[1:]].sum() + dist.Normal(MEANS[s], 0.7).log_prob(y).sum()


def by_densities(z, y):
    s = z["s"]
    return dist.Categorical(P[s[:-1]]).log_prob(s[1:]).sum() + dist.Normal(MEANS[s], 0.7).log_prob(y).sum()


def by_a_loop(z, y):
    def step(carry, now):
        before, total = carry
        s, y = now
        return (s, total + jnp.log(P)[before, s] + dist.Normal(MEANS[s], 0.7).log_prob(y)), None

    s = z["s"]
    start = dist.Normal(MEANS[s[0]], 0.7).log_prob(y[0])
    return jax.lax.scan(step, (s[0], start), (s[1:], y[1:]))[0][1]


def by_outputs_of_a_loop(z, y):
    def step(before, now):
        s, y = now
        return s, jnp.log(P)[before, s] + dist.Normal(MEANS[s], 0.7).log_prob(y)

    s = z["s"]
    return jax.lax.scan(step, s[0], (s[1:], y[1:]))[1].sum() + dist.Normal(MEANS[s[0]], 0.7).log_prob(y[0])


def by_arithmetic(z, y):
    s = z["s"].astype(float)
    pairs = jnp.log(P)[0, 0] + s[:-1] * jnp.log(P[1, 0] / P[0, 0]) + s[1:] * jnp.log(P[0, 1] / P[0, 0])
    both = s[:-1] * s[1:] * jnp.log(P[1, 1] * P[0, 0] / (P[1, 0] * P[0, 1]))
    return (pairs + both).sum() + dist.Normal(s, 0.7).log_prob(y).sum()


def one_by_one(z, y):
    s = z["s"]
    total = dist.Normal(MEANS[s[0]], 0.7).log_prob(y[0])
    for t in range(1, 5):
        total += jnp.log(P)[s[t - 1], s[t]] + dist.Normal(MEANS[s[t]], 0.7).log_prob(y[t])
    return total


SPELLINGS = [sliced, by_densities, by_a_loop, by_outputs_of_a_loop, by_arithmetic, one_by_one]


@pytest.mark.parametrize("log_joint", SPELLINGS)
@pytest.mark.parametrize("latent", [bbvi.binary(5), bbvi.categorical(2, 5)])
def test_a_hidden_markov_chain_gets_its_posterior_by_default(log_joint, latent):
    model = bbvi.Model(log_joint, s=latent)
    posterior = bbvi.fit(model, Y)
    assert posterior.converged and posterior.structure == (Block(("s",), forest=(-1, 0, 1, 2, 3)),)
    log_p, outcomes = enumerated(model, Y, 5, 2)
    np.testing.assert_allclose(posterior.probs()["s"], marginals(log_p, outcomes, 2), atol=1e-4)
    assert abs(float(posterior.elbo(1000)) - np.log(evidence(model, Y, outcomes))) < 1e-3


# ---- what is impossible ---------------------------------------------------------------------------------------------


def left_to_right(z, y):
    """States that never go back, and begin in the first."""
    with np.errstate(divide="ignore"):
        log_p = jnp.asarray(np.log([[0.7, 0.3, 0.0], [0.0, 0.6, 0.4], [0.0, 0.0, 1.0]]))
        log_start = jnp.asarray(np.log([1.0, 0.0, 0.0]))
    means = jnp.array([0.0, 1.0, 2.0]) if "mu" not in z else z["mu"]
    prior = dist.Normal(0, 3).log_prob(z["mu"]).sum() if "mu" in z else 0.0
    s = z["s"]
    return prior + log_start[s[0]] + log_p[s[:-1], s[1:]].sum() + dist.Normal(means[s], 0.7).log_prob(y).sum()


def test_forbidden_moves_are_ruled_out_exactly_and_from_the_start():
    model = bbvi.Model(left_to_right, s=bbvi.categorical(3, 5))
    start = bbvi.fit(model, Y, stop=bbvi.Budget(steps=0))
    assert np.isfinite(float(start.elbo(1000)))
    posterior = bbvi.fit(model, Y)
    log_p, outcomes = enumerated(model, Y, 5, 3)
    assert posterior.converged and np.isneginf(log_p).any()
    np.testing.assert_array_equal(
        np.isneginf(compiled(jax.vmap(posterior.log_prob))({"s": outcomes})), np.isneginf(log_p)
    )
    np.testing.assert_allclose(posterior.probs()["s"], marginals(log_p, outcomes, 3), atol=1e-4)
    assert float(posterior.history["setbacks"].sum()) == 0


def test_forbidden_moves_beside_unknown_means():
    model = bbvi.Model(left_to_right, s=bbvi.categorical(3, 5), mu=bbvi.real(3))
    posterior = bbvi.fit(model, Y)
    assert posterior.converged and np.isfinite(posterior.params["s"]["logits"]).all()
    np.testing.assert_array_equal(posterior.probs()["s"][0], [1, 0, 0])
    states = posterior.sample(500)["s"]
    assert (np.diff(states, axis=1) >= 0).all() and (states[:, 0] == 0).all()
