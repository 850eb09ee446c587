"""A latent that no prior term reads is named; priors in any form, and flat ones on bounded supports, are not missed."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import bbvi
from bbvi.blankets.blankets import find_blankets
from bbvi.blankets.priors import without_prior
from bbvi.model.problem import bind

X = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
DATA = {
    "x": X, "y": X.sum(1), "m": np.zeros(3, np.float32), "s": np.float32(2.0), "n": np.arange(20), "w": np.ones(20, np.float32),
}  # fmt: skip


def regression(z, d):
    return dist.Normal(d["x"] @ z["b"], 1.0).log_prob(d["y"]).sum()


def by_hand(z, d):
    return -0.5 * jnp.sum((d["y"] - d["x"] @ z["b"]) ** 2)


def poisson(z, d):
    return dist.Poisson(z["r"]).log_prob(d["n"]).sum()


B, R, U = {"b": bbvi.real(3)}, {"r": bbvi.positive()}, {"u": bbvi.unit_interval()}

# name: (log joint, latents, those without a prior)
FLAT = {
    "a regression": (regression, B, ["b"]),
    "weighted": (lambda z, d: (d["w"] * dist.Normal(d["x"] @ z["b"], 1.0).log_prob(d["y"])).sum(), B, ["b"]),
    "masked": (lambda z, d: jnp.where(d["w"] > 0, dist.Normal(d["x"] @ z["b"], 1.0).log_prob(d["y"]), 0).sum(), B, ["b"]),
    "as terms": (lambda z, d: {"y": dist.Normal(d["x"] @ z["b"], 1.0).log_prob(d["y"])}, B, ["b"]),
    "by hand": (by_hand, B, ["b"]),
    "a rate": (poisson, R, ["r"]),
    "one of two": (lambda z, d: regression(z, d) + poisson(z, d) + dist.Gamma(2, 1).log_prob(z["r"]), B | R, ["b"]),
    "a scale": (
        lambda z, d: dist.Normal(0.0, z["r"]).log_prob(d["y"]).sum(), R, ["r"],
    ),
}  # fmt: skip

PRIORS = {
    "a density": lambda z, d: regression(z, d) + dist.Normal(0, 1).log_prob(z["b"]).sum(),
    "with its numbers among the data": lambda z, d: regression(z, d) + dist.Normal(d["m"], d["s"]).log_prob(z["b"]).sum(),
    "the same by hand": lambda z, d: by_hand(z, d) - 0.5 * jnp.sum(((z["b"] - d["m"]) / d["s"]) ** 2),
    "by hand": lambda z, d: by_hand(z, d) - 0.5 * jnp.sum(z["b"] ** 2),
    "scaled by the data": lambda z, d: regression(z, d) - d["s"] * jnp.sum(z["b"] ** 2),
    "in one array with the likelihood": lambda z, d: (-((z["b"] - d["x"][0]) ** 2) - z["b"] ** 2).sum(),
    "nothing else": lambda z, d: dist.Normal(d["m"], d["s"]).log_prob(z["b"]).sum(),
    "nothing else, jointly": lambda z, d: dist.MultivariateNormal(d["m"], jnp.eye(3)).log_prob(z["b"]),
    "nothing else, by hand": lambda z, d: -0.5 * (z["b"] - d["m"]) @ (d["s"] * (z["b"] - d["m"])),
    "a number returned": lambda z, d: {"none": 0.0, "b": -jnp.sum(z["b"] ** 2)},
    "of each of them": lambda z, d: dist.MultivariateNormal(d["m"], jnp.eye(3)).log_prob(z["b"]) + regression(z, d),
    "in a loop": lambda z, d: jax.lax.scan(
        lambda c, i: (c - (z["b"][i % 3] - d["y"][i]) ** 2 - z["b"][i % 3] ** 2, None), 0.0, jnp.arange(20)
    )[0],
    "in a branch": lambda z, d: jax.lax.cond(d["s"] > 1, lambda b: -jnp.sum(b**2), lambda b: -jnp.sum(b**4), z["b"]),
    "a walk": lambda z, d: regression(z, d) + dist.Normal(z["b"][:-1], 1).log_prob(z["b"][1:]).sum(),
    "data in the function": lambda z, d: dist.Normal(X @ z["b"], 1.0).log_prob(X.sum(1)).sum(),
    "compiled": jax.jit(lambda z, d: regression(z, d) + dist.Normal(0, 1).log_prob(z["b"]).sum()),
}  # fmt: skip


def named(function, latents, data=DATA):
    problem, flat, _ = bind(bbvi.Model(function, **latents), data)
    return [words.split("'")[1] for words in without_prior(find_blankets(problem, flat, None))]


@pytest.mark.parametrize("name", FLAT)
def test_a_latent_without_a_prior_is_named(name):
    function, latents, expected = FLAT[name]
    assert named(function, latents) == expected


@pytest.mark.parametrize("name", PRIORS)
def test_a_prior_in_any_form_is_no_alarm(name):
    assert named(PRIORS[name], B) == []


def test_a_flat_prior_on_a_bounded_support_is_a_prior():
    assert named(lambda z, d: dist.Geometric(z["u"]).log_prob(d["n"]).sum(), U) == []


def rows(**changes):
    parts = {
        "log_prior": lambda beta: dist.Normal(0, 1).log_prob(beta["m"]),
        "log_local": lambda beta, z, row: dist.Normal(beta["m"], 1).log_prob(z["t"]),
        "log_likelihood": lambda beta, z, row: dist.Normal(z["t"], 1).log_prob(row).sum(),
        "globals": {"m": bbvi.real()},
        "locals": {"t": bbvi.real()},
    }
    return bbvi.HierarchicalModel(**(parts | changes))


HIERARCHIES = {
    "complete": (rows(), []),
    "a global beside": (
        rows(
            globals={"m": bbvi.real(), "c": bbvi.real(3)},
            log_likelihood=lambda beta, z, row: dist.Normal(z["t"] + row @ beta["c"], 1).log_prob(row).sum(),
        ),
        ["c"],
    ),
    "a local": (
        rows(log_local=lambda beta, z, row: dist.Normal(beta["m"], 1).log_prob(0.0)),
        ["t"],
    ),
    "a local with its numbers in the row": (
        rows(log_local=lambda beta, z, row: dist.Normal(row[0] + beta["m"], 1).log_prob(z["t"])), [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HIERARCHIES)
def test_groups_have_priors_of_their_own(name):
    model, expected = HIERARCHIES[name]
    problem, flat, _ = bind(model, X)
    blankets = find_blankets(problem, flat, jax.ShapeDtypeStruct((3,), np.float32))
    assert [words.split("'")[1] for words in without_prior(blankets)] == expected


def test_fit_warns_once_and_explain_says_the_same():
    model = bbvi.Model(regression, **B)
    with pytest.warns(
        UserWarning, match=r"no prior term reads 'b'.* dist.Normal\(0, 1\).log_prob\(z\[\"b\"\]\).sum\(\)"
    ) as seen:
        bbvi.fit(model, DATA, stop=bbvi.Budget(steps=1))
    assert len([w for w in seen if "no prior" in str(w.message)]) == 1
    assert seen[0].filename == __file__
    assert "no prior term reads 'b'" in repr(bbvi.explain(model, DATA))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        full = bbvi.Model(PRIORS["a density"], **B)
        bbvi.fit(full, DATA, stop=bbvi.Budget(steps=1))
    assert "Without a prior" not in repr(bbvi.explain(full, DATA))
