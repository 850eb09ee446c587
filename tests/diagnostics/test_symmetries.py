"""Components that can change places are found; those that cannot are not."""

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
import pytest

import bbvi
from bbvi.diagnostics.symmetries import Exchangeable

Y = jnp.array([0.3, -2.0, 1.7, 0.2])


def mixture(z, y):
    own = jnp.log(z["w"])[z["which"]] + dist.Normal(z["mu"][z["which"]], z["sd"]).log_prob(y)
    return dist.Normal(0, 3).log_prob(z["mu"]).sum() + dist.Gamma(2, 2).log_prob(z["sd"]) + own.sum()


def hidden_chain(z, y):
    moves = jnp.log(z["moves"])[z["state"][:-1], z["state"][1:]].sum()
    return moves + dist.Normal(z["mu"], 3).log_prob(0).sum() + dist.Normal(z["mu"][z["state"]], 1).log_prob(y).sum()


def ordered_mixture(z, y):
    terms = dist.Normal(z["mu"], 1).log_prob(y[:, None]) + jnp.log(z["w"])
    return dist.Normal(jnp.arange(3.0), 1).log_prob(z["mu"]).sum() + jax.nn.logsumexp(terms, -1).sum()


MODELS = {
    "mixture": (
        mixture,
        {"w": bbvi.simplex(3), "mu": bbvi.real(3), "sd": bbvi.positive(), "which": bbvi.categorical(3, 4)},
        [Exchangeable(3, ("w", "mu", "which"))],
    ),
    "hidden chain": (
        hidden_chain,
        {"moves": bbvi.simplex(3, 3), "mu": bbvi.real(3), "state": bbvi.categorical(3, 4)},
        [Exchangeable(3, ("moves", "mu", "state"))],
    ),
    "priors that differ": (ordered_mixture, {"w": bbvi.simplex(3), "mu": bbvi.real(3)}, []),
}


@pytest.mark.parametrize("name", MODELS)
def test_exchangeable_components_are_named(name):
    log_joint, latents, expected = MODELS[name]
    found = bbvi.explain(bbvi.Model(log_joint, **latents), Y)
    assert found.exchangeable == expected
    assert ("can change places" in repr(found).lower()) == bool(expected)


def test_topics_of_groups_are_exchangeable():
    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Dirichlet(jnp.ones(4)).log_prob(beta["topic"]).sum(),
        log_local=lambda beta, z, row: dist.Dirichlet(jnp.ones(2)).log_prob(z["share"]),
        log_likelihood=lambda beta, z, row: (row["counts"] * jnp.log(z["share"] @ beta["topic"])).sum(),
        globals={"topic": bbvi.simplex(4, 2)},
        locals={"share": bbvi.simplex(2)},
    )
    found = bbvi.explain(model, {"counts": jnp.array([[3, 1, 0, 2], [0, 1, 4, 1]])})
    assert found.exchangeable == [Exchangeable(2, ("topic", "share"))]
