"""Which discrete latents switch which continuous ones, read off the trace."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import bbvi
from bbvi.blankets.analysis import analyse
from bbvi.gradients.pairs import find_pairs
from bbvi.model.problem import bind
from tests.model.test_paired import Y, three

X = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
BOTH = {"g": bbvi.binary(4), "b": bbvi.real(4)}
TABLE = jnp.array([0.1, 2.0])


def regression(effects, **more):
    """A regression whose mean is made of the latents by `effects`."""

    def log_joint(z, y):
        rest = sum(-(z[name] ** 2).sum() for name in more)
        prior = dist.Bernoulli(0.3).log_prob(z["g"]).sum() + dist.Normal(0, 1).log_prob(z["b"]).sum()
        return prior + rest + dist.Normal(effects(z), 1.0).log_prob(y).sum()

    return log_joint, BOTH | more


def scaled(scale):
    """The scale of an effect, made of the latents."""

    def log_joint(z, y):
        prior = dist.Bernoulli(0.3).log_prob(z["g"]).sum() + dist.Normal(0, scale(z)).log_prob(z["b"]).sum()
        return prior - z["t"] + dist.Normal(X @ z["b"], 1.0).log_prob(y).sum()

    return log_joint, BOTH | {"t": bbvi.positive()}


CASES = {
    "a product": (regression(lambda z: X @ (z["g"] * z["b"])), "gb"),
    "a product of floats": (regression(lambda z: (z["g"].astype(float) * z["b"]) @ X.T), "gb"),
    "a choice": (regression(lambda z: X @ jnp.where(z["g"], z["b"], 0)), "gb"),
    "a comparison": (regression(lambda z: X @ jnp.where(z["g"] == 1, z["b"], 0.0)), "gb"),
    "columns": (regression(lambda z: (X * z["g"]) @ z["b"]), "gb"),
    "columns, summed": (regression(lambda z: (X * z["g"] * z["b"]).sum(1)), "gb"),
    "rows by vmap": (regression(lambda z: jax.vmap(lambda x: (x * z["g"] * z["b"]).sum())(X)), "gb"),
    "einsum": (regression(lambda z: jnp.einsum("np,p,p->n", X, z["g"], z["b"])), "gb"),
    "a common scale": (regression(lambda z: X @ (z["t"] * z["g"] * z["b"]), t=bbvi.real()), "gb"),
    "two effects": (regression(lambda z: X @ (z["g"] * z["b"]) + X**2 @ (z["g"] * z["c"]), c=bbvi.real(4)), "gbc"),
    "looked up": (scaled(lambda z: TABLE[z["g"]]), "gb"),
    "looked up, with a scale": (scaled(lambda z: z["t"] * TABLE[z["g"]]), "gb"),
    "chosen": (scaled(lambda z: jnp.where(z["g"] == 1, z["t"], 0.1)), "gb"),
    "a sum": ((lambda z, y: -((z["g"] + z["b"] - 1.0) ** 2).sum(), BOTH), ""),
    "in another order": (regression(lambda z: X @ (z["g"] * z["b"][::-1])), ""),
    "matrix products of both": (regression(lambda z: (X @ z["g"]) * (X @ z["b"])), ""),
    "a jump": (regression(lambda z: X @ (z["g"] * jnp.sign(z["b"]))), ""),
    "a q of its own": ((regression(lambda z: X @ (z["g"] * z["b"]))[0], BOTH | {"b": bbvi.real(4, q=dist.Laplace)}), ""),
    "more than can be summed over": (
        (lambda z, y: -((jnp.ones(300) @ (z["g"] * z["b"])) ** 2), {"g": bbvi.binary(300), "b": bbvi.real(300)}), "",
    ),
    "many that share no term": (
        (lambda z, y: -((z["g"] * z["b"] - 1.0) ** 2), {"g": bbvi.binary(300), "b": bbvi.real(300)}), "gb",
    ),
    "assignments to as many means as points": (
        (lambda z, y: dist.Normal(z["mu"][z["k"]], 1.0).log_prob(y).sum() - (z["mu"] ** 2).sum(),
         {"k": bbvi.categorical(20, 20), "mu": bbvi.real(20)}), "",
    ),
    "numbers": (
        (lambda z, y: dist.Normal(z["a"] + z["g"] * z["b"], z["s"]).log_prob(y).sum() - z["a"] ** 2 - z["b"] ** 2 - z["s"],
         {"g": bbvi.binary(), "a": bbvi.real(), "b": bbvi.real(), "s": bbvi.positive()}), "gb",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_meets_element_by_element_is_paired(case):
    (log_joint, latents), expected = CASES[case]
    problem, flat, groups = bind(bbvi.Model(log_joint, **latents), X[:, 0])
    assert ["".join(block.names) for block in find_pairs(analyse(problem, flat, groups))] == [expected] * bool(expected)


def test_locals_are_paired_and_globals_with_locals_are_not():
    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: 0.1 * beta["g"] - beta["c"] ** 2,
        log_local=lambda beta, z, row: dist.Bernoulli(0.3).log_prob(z["h"]) + dist.Normal(0, 1).log_prob(z["e"]),
        log_likelihood=lambda beta, z, row: (
            dist.Normal(z["h"] * z["e"] + beta["g"] * z["f"] + z["h"] * beta["c"], 1).log_prob(row) - z["f"] ** 2
        ),
        globals={"g": bbvi.binary(), "c": bbvi.real()},
        locals={"h": bbvi.binary(), "e": bbvi.real(), "f": bbvi.real()},
    )
    problem, flat, groups = bind(model, np.zeros(5, np.float32))
    assert [block.names for block in find_pairs(analyse(problem, flat, groups))] == [("h", "e")]


def test_arrays_of_two_axes_are_paired():
    problem, flat, groups = bind(three(), Y)
    assert [block.names for block in find_pairs(analyse(problem, flat, groups))] == [("g", "b")]
