"""The compiled step does not grow with the number of latents, but with the number of families."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import bbvi
from bbvi.blankets.analysis import analyse
from bbvi.fitting.loop import Loop, Method
from bbvi.model.problem import bind
from bbvi.model.start import starting_params
from bbvi.numerics.address import seed_key

KINDS = {"a": bbvi.real, "a_of_group": bbvi.real, "b": bbvi.positive, "c": bbvi.unit_interval}


def together(z, sizes):
    """Vectors, from vectors or from as many scalars."""
    return {kind: z[kind] if kind in z else jnp.stack([z[f"{kind}{i}"] for i in range(n)]) for kind, n in sizes.items()}


def latents(sizes, scalars):
    """The same numbers as latents of their own, or one vector of each kind."""
    if scalars:
        return {f"{kind}{i}": KINDS[kind]() for kind, n in sizes.items() for i in range(n)}
    return {kind: KINDS[kind](n) for kind, n in sizes.items()}


def regression(scalars):
    sizes, rng = {"a": 12}, np.random.default_rng(0)
    x, y = rng.normal(size=(50, 12)).astype(np.float32), rng.normal(size=50).astype(np.float32)

    def log_joint(z, data):
        w = together(z, sizes)["a"]
        return dist.Normal(0, 1).log_prob(w).sum() + dist.Normal(data[0] @ w, 1).log_prob(data[1]).sum()

    return bbvi.Model(log_joint, **latents(sizes, scalars)), (x, y)


def three_families(scalars):
    sizes = {"a": 14, "b": 13, "c": 13}

    def log_joint(z, y):
        v = together(z, sizes)
        prior = dist.Normal(0, 1).log_prob(v["a"]).sum() + dist.Gamma(2.0, 1.0).log_prob(v["b"]).sum()
        mean = v["a"].sum() + v["b"].sum() * v["c"].sum()
        return prior + dist.Beta(2.0, 2.0).log_prob(v["c"]).sum() + dist.Normal(mean, 1).log_prob(y).sum()

    return bbvi.Model(log_joint, **latents(sizes, scalars)), np.arange(5.0, dtype=np.float32)


def in_groups(scalars):
    sizes, own = {"a": 4}, {"a_of_group": 4}

    def log_local(beta, z, row):
        return dist.Normal(together(beta, sizes)["a"], 1).log_prob(together(z, own)["a_of_group"]).sum()

    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 1).log_prob(together(beta, sizes)["a"]).sum(),
        log_local=log_local,
        log_likelihood=lambda beta, z, row: dist.Normal(together(z, own)["a_of_group"], 1).log_prob(row["y"]).sum(),
        globals=latents(sizes, scalars),
        locals=latents(own, scalars),
    )
    return model, {"y": np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)}


def num_lines(model, data, gradient):
    """The number of lines of the loop's program before XLA sees it."""
    problem, data, groups = bind(model, data)
    stops = (bbvi.Converged(), bbvi.Budget(steps=1000))
    size = 0 if groups is None else 3
    loop = Loop(
        analyse(problem, data, groups), Method(gradient, bbvi.MonteCarlo(100), bbvi.natural(), stops, size, 1000)
    )
    calls, key = [], seed_key(0)
    loop._compiled = lambda *given, long: calls.append(given)
    loop.run(loop.init(starting_params(problem, key)), key, data, groups, 1)
    return eqx.filter_jit(loop._run).lower(*calls[0]).as_text().count("\n")


@pytest.mark.parametrize("gradient", [bbvi.Pathwise(), bbvi.Score()], ids=["path", "score"])
@pytest.mark.parametrize(("model", "most"), [(regression, 1.3), (three_families, 1.5), (in_groups, 1.3)])
def test_scalars_of_their_own_make_a_step_hardly_longer_than_vectors(model, most, gradient):
    scalars, vectors = (num_lines(*model(one), gradient) for one in (True, False))
    assert scalars <= most * vectors, (scalars, vectors)
