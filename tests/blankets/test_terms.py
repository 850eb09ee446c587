"""Section 3.1: a scalar log joint falls apart into terms whose total it is."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import bbvi
from bbvi.blankets.blankets import find_blankets
from bbvi.blankets.terms import SplitTerms
from bbvi.blankets.trace import Trace
from bbvi.model.problem import bind

pytestmark = pytest.mark.compat

X = {"x": jax.ShapeDtypeStruct((6,), jnp.float32)}
DATA = {"y": jnp.arange(6.0), "s": jnp.float32(1.7), "i": jnp.array([0, 2, 2, 5, 1, 0])}


def many_loops(x):
    total = 0.0
    for _ in range(22):
        total, _ = jax.lax.scan(lambda c, v: (c - 0.5 * v**2, None), total, x)
    return total


# name: (function of x and data, the number of latents that each term element reads, largest over the elements)
SCALARS = {
    "sum of elementwise": (lambda x, d: jnp.exp(x).sum(), 1),
    "two sums": (lambda x, d: (x**2).sum() - jnp.sum(x * d["y"]), 1),
    "half a sum of squares": (lambda x, d: -0.5 * jnp.sum(x**2), 1),
    "scaled by data": (lambda x, d: d["s"] * jnp.sum(x**2) / (d["s"] + 1), 1),
    "mean": (lambda x, d: jnp.mean(jnp.sin(x)), 1),
    "chain": (lambda x, d: -jnp.sum((x[1:] - x[:-1]) ** 2), 2),
    "numpyro": (lambda x, d: dist.Normal(x, d["s"]).log_prob(d["y"]).sum() + dist.Cauchy(0, 1).log_prob(x).sum(), 1),
    "masked": (lambda x, d: jnp.where(d["y"] > 2, jnp.cos(x), 0).sum(), 1),
    "one sum used twice": (lambda x, d: (lambda s: s + 2 * s - s / 4)(jnp.sum(x**3)), 1),
    "sum over an axis of a table": (lambda x, d: (x[:, None] * jnp.ones((6, 3))).sum(1).sum(), 1),
    "broadcast before the sum": (lambda x, d: jnp.sum(jnp.ones((4, 6)) + x**2), 1),
    "look-up by the data": (lambda x, d: ((x[d["i"]] - d["y"]) ** 2).sum(), 1),
    "two look-ups by the data": (lambda x, d: (x[d["i"]] * x[d["i"] // 2 + 3]).sum(), 2),
    "inside jit": (lambda x, d: jax.jit(lambda v: jnp.sum(v**2) + 1)(x), 1),
    "inside vmap": (lambda x, d: jax.vmap(lambda v, y: (v - y) ** 2)(x, d["y"]).sum(), 1),
    "custom derivative": (lambda x, d: jax.nn.relu(x).sum() + jax.nn.logsumexp(x[:2]), 2),
    "a constant on its own": (lambda x, d: d["y"].sum() + 4.0 - jnp.sum(x), 1),
    "a reduction of one's own": (lambda x, d: jax.lax.reduce(x, -jnp.inf, jnp.logaddexp, (0,)), 6),
    "times zero is not read": (lambda x, d: jnp.sum(x**2) + 0.0 * jnp.prod(x), 1),
    "with a side effect": (lambda x, d: (jax.debug.callback(lambda v: None, x), jnp.sum(x**2))[1], 1),
    "an empty slice": (lambda x, d: jnp.sum(x**2) + jnp.sum(x[:0]), 1),
    "a number added in a loop": (
        lambda x, d: jax.lax.scan(lambda total, v: (total - 0.5 * v**2 - 0.919, None), 0.0, x)[0],
        1,
    ),
    "many loops": (lambda x, d: many_loops(x), 1),
    "a half-precision accumulator stays whole": (
        lambda x, d: jax.lax.scan(lambda c, v: (c + v.astype(jnp.float16), None), jnp.float16(0), x)[0].astype(float),
        6,
    ),
    "a long sum under a scale": (lambda x, d: d["s"] * x[0] * sum(jnp.sin(x[k % 6] * k) for k in range(600)), 6),
    "a square of a sum stays whole": (lambda x, d: jnp.sum(x) ** 2, 6),
}


@pytest.mark.parametrize("name", SCALARS)
def test_terms_add_up_to_the_function(name):
    function, _ = SCALARS[name]
    terms = SplitTerms(Trace(lambda z, d: {"f": function(z["x"], d)}, (X,), DATA))
    for seed in range(3):
        x = jnp.asarray(np.random.default_rng(seed).normal(size=6), jnp.float32)
        total = sum(float(v.sum()) for v in terms({"x": x}, DATA).values())
        np.testing.assert_allclose(total, float(function(x, DATA)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", SCALARS)
def test_each_term_reads_no_more_than_it_must(name):
    function, reads = SCALARS[name]
    model = bbvi.Model(lambda z, d: function(z["x"], d), x=bbvi.real(6))
    problem, data, _ = bind(model, DATA)
    blankets = find_blankets(problem, data, None)
    counts = [pattern.pairs().sum(1, dtype=int).max() for pattern in blankets.prior.patterns["x"].values()]
    assert max(counts) == reads


def test_a_scalar_and_its_unsummed_terms_give_the_same_gradient():
    y, sigma = jnp.array([28.0, 8, -3, 7, -1, 1, 18, 12]), jnp.array([15.0, 10, 16, 11, 9, 11, 10, 18])

    def terms(z, _):
        return [
            dist.Normal(0, 5).log_prob(z["mu"]), dist.HalfCauchy(5).log_prob(z["tau"]),
            dist.Normal(z["mu"], z["tau"]).log_prob(z["theta"]), dist.Normal(z["theta"], sigma).log_prob(y),
        ]  # fmt: skip

    found = []
    for log_joint in (terms, lambda z, _: sum(term.sum() for term in terms(z, _))):
        model = bbvi.Model(log_joint, mu=bbvi.real(), tau=bbvi.positive(), theta=bbvi.real(8))
        start = bbvi.fit(model, stop=bbvi.Budget(steps=0))
        found.append(bbvi.gradient_moments(model, None, start, draws=bbvi.MonteCarlo(20), repeats=10))
    for one, other in zip(jax.tree.leaves(found[0].mean), jax.tree.leaves(found[1].mean), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def test_fifty_counts_in_one_array_lose_nearly_all_their_variance():
    """No annotation: a scalar log joint of 50 independent counts."""

    def log_joint(z, _):
        return dist.Poisson(3.0).log_prob(z["n"]).sum()

    model = bbvi.Model(log_joint, n=bbvi.count(50))
    start = bbvi.fit(model, stop=bbvi.Budget(steps=0))
    variance = [
        np.asarray(
            bbvi.gradient_moments(
                model, None, start, gradient=bbvi.Score(rao_blackwell, None), draws=bbvi.MonteCarlo(10), repeats=2000
            ).variance["n"]["rate"]
        )
        for rao_blackwell in (False, True)
    ]
    assert np.median(variance[0] / variance[1]) > 100


def recurrence(z, d):
    """Scaled sums of scaled sums: multiplied out, two to the twentieth of them."""
    u, v = z["x"][0], z["x"][1]
    for _ in range(20):
        u, v = d["s"] * u + d["y"][1] * v, u
    return u - jnp.sum(z["x"] ** 2)


def branches(z, _):
    total = 0.0
    for k in range(12):
        total = jax.lax.cond(z["x"][k % 6] > 0, lambda t, k=k: t + jnp.sin(z["x"][k % 6]), lambda t: t, total)
    return total - jnp.sum(z["x"] ** 2)


@pytest.mark.parametrize("function", [recurrence, branches])
def test_sums_within_sums_do_not_multiply_without_end(function):
    terms = SplitTerms(Trace(lambda z, d: {"f": function(z, d)}, (X,), DATA))
    x = jnp.linspace(-1.0, 1.5, 6)
    found = terms({"x": x}, DATA)
    assert len(found) < 64
    np.testing.assert_allclose(sum(float(v.sum()) for v in found.values()), float(function({"x": x}, DATA)), rtol=1e-4)
