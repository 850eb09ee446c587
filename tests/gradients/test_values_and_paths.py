"""Factors q(g) q(b | g): gradients against sums over values and quadrature, by the score and by values and paths."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import bbvi
from bbvi.model.problem import bind
from bbvi.posterior.values import own_lengths
from tests.compiled import compiled
from tests.exact import hermite, nodes_of_pair

NOTHING = bbvi.Budget(steps=0)
NUM_NODES = 12
NODES, WEIGHTS = hermite(NUM_NODES)


def flat():
    """Two switched effects of positive size, in one term with a real number; a term each for the priors."""

    def log_joint(z, y):
        mean = (z["g"] * z["b"]).sum() + z["c"]
        prior = dist.Gamma(2.0, 2.0).log_prob(z["b"]) + dist.Bernoulli(0.4).log_prob(z["g"])
        return {"prior": prior, "c": dist.Normal(0, 1).log_prob(z["c"]), "y": dist.StudentT(5.0, mean, 0.7).log_prob(y)}

    latents = {"b": bbvi.positive(2), "g": bbvi.binary(2), "c": bbvi.real()}
    return bbvi.Model(log_joint, joint=[("b", "g")], **latents), jnp.array(1.4)


def looked_up():
    """A category chooses scale and place of two numbers beside it, one of them in an interval."""

    def log_joint(z, y):
        places, scales = jnp.array([-1.0, 0.5, 2.0]), jnp.array([0.3, 1.0, 2.0])
        own = dist.Normal(places[z["k"]], scales[z["k"]]).log_prob(z["a"]) + dist.Beta(2.0, 3.0).log_prob(z["s"])
        return {
            "own": own + 0.2 * z["k"],
            "y": dist.Normal(z["a"] * z["s"] + jnp.where(z["k"] == 2, z["a"], 0), 1.0).log_prob(y),
        }

    latents = {"k": bbvi.categorical(3), "a": bbvi.real(), "s": bbvi.unit_interval()}
    return bbvi.Model(log_joint, joint=[("k", "a", "s")], **latents), jnp.array(0.6)


def groups():
    """A switched effect of each visit of a group, of two lengths, and one of all groups that reads the same terms."""
    cohort = bbvi.ragged(visit={"y": [[0.7], [1.6, -0.4], [0.3], [2.0, 0.1]]})

    def seen(row, values):
        return jnp.where(row["mask"]["visit"], values, 0)

    def log_local(beta, z, row):
        return seen(row, dist.Bernoulli(0.3).log_prob(z["h"]) + dist.Normal(0, 1.5).log_prob(z["e"]))

    def log_likelihood(beta, z, row):
        mean = jnp.where(z["h"] == 1, z["e"], 0) + beta["g"] * beta["b"]
        return seen(row, dist.Normal(mean, 0.8).log_prob(row["y"]))

    return (
        bbvi.HierarchicalModel(
            log_prior=lambda beta: dist.Bernoulli(0.6).log_prob(beta["g"]) + dist.Normal(1, 1).log_prob(beta["b"]),
            log_local=log_local, log_likelihood=log_likelihood,
            globals={"g": bbvi.binary(), "b": bbvi.real()}, locals={"h": bbvi.binary("visit"), "e": bbvi.real("visit")},
            joint=[("g", "b"), ("h", "e")],
        ),
        cohort,
    )  # fmt: skip


MODELS = {"flat": flat, "looked up": looked_up, "groups": groups}


# ---- the ELBO by sums over values and Gauss-Hermite quadrature, differentiable in lambda -----------------------------------


def of_factor(latent, params):
    """Coordinates of one factor that stand for all its draws, and the probability of each."""
    if latent.support != "pair":
        u = params["loc"] + jnp.exp(params["scale"]) * NODES
        return (u[:, None] if latent.event else u), jnp.asarray(WEIGHTS)
    return nodes_of_pair(latent.family, params, NUM_NODES)


def outcomes(problem, latents, params, lengths):
    """Values of these latents, the probability of each outcome, and log q; padding stays at its first node."""
    factors = []
    for name, latent in latents.items():
        for index in np.ndindex(*problem.shape(name)):
            own = [lengths[a] if isinstance(a, str) else a for a in latent.shape]
            if all(i < size for i, size in zip(index, own, strict=True)):
                of_index = {p: leaf[index] for p, leaf in params[name].items()}
                u, weight = of_factor(latent, of_index)
                factors.append(
                    (name, index, u, weight, jax.vmap(functools.partial(latent.family.log_prob, of_index))(u))
                )
    grid = np.indices([len(weight) for *_, weight, _ in factors]).reshape(len(factors), -1)
    values = {n: jnp.zeros((grid.shape[1], *problem.shape(n), *x.event)) + 0.5 for n, x in latents.items()}
    weight, log_q = jnp.ones(grid.shape[1]), jnp.zeros(grid.shape[1])
    for at, (name, index, u, own, of_q) in zip(grid, factors, strict=True):
        values[name] = values[name].at[(slice(None), *index)].set(jax.vmap(latents[name].family.chart.value)(u[at]))
        weight, log_q = weight * own[at], log_q + of_q[at]
    return values, weight, log_q


def exact_elbo(bound, all_lengths, params):
    problem, given, cohort = bound
    beta, weight, log_q = outcomes(problem, problem.globals, params["globals"], {})
    total = lambda terms: sum(jnp.sum(leaf) for leaf in terms.values())  # noqa: E731
    value = jax.vmap(lambda b: total(problem.prior_terms(b, given)))(beta) - log_q
    for group in range(problem.num_groups):
        own = {axis: int(x[group]) for axis, x in all_lengths.items()}
        row = jax.tree.map(lambda leaf: leaf[0], cohort.take(np.array([group])))
        local = {n: {p: leaf[group] for p, leaf in x.items()} for n, x in params["locals"].items()}
        z, own_weight, own_q = outcomes(problem, problem.locals, local, own)
        of_group = jax.vmap(lambda b: jax.vmap(lambda x: total(problem.group_terms(b, x, row)))(z) @ own_weight)  # noqa: B023
        value = value + of_group(beta) - own_q @ own_weight
    return weight @ value


@functools.cache
def prepared(name):
    """The model, its data, q at a random lambda, and the exact gradient there."""
    model, data = MODELS[name]()
    posterior = bbvi.fit(model, data, stop=NOTHING, seed=3)
    generator = np.random.default_rng(1)
    moved = jax.tree.map(
        lambda leaf: leaf + 0.4 * generator.normal(size=leaf.shape).astype(np.float32), posterior.params
    )
    posterior = posterior.replace(moved)
    bound = bind(model, data)
    all_lengths = {} if bound[2] is None else own_lengths(bound[2])
    gradient = compiled(jax.grad(lambda p: exact_elbo(bound, all_lengths, p)))(posterior._params)
    return model, data, posterior, {**gradient["globals"], **gradient["locals"]}


def test_other_estimators_say_what_to_use():
    model, y = flat()
    for gradient, words in (
        (
            bbvi.LocalExpectation(),
            r"'b\+g' has continuous numbers beside discrete ones; use gradient=bbvi.ValuesAndPaths",
        ),
        (bbvi.Pathwise(), r"'b\+g' is discrete"),
        (bbvi.ValuesAndPaths(), "'c' shares no factor with a discrete latent"),
    ):
        with pytest.raises(ValueError, match=words):
            bbvi.fit(model, y, gradient=gradient, stop=bbvi.Budget(steps=1))


CASES = [("flat", None), ("looked up", None), ("groups", None), ("groups", 2)]


@pytest.mark.parametrize("gradient", [bbvi.Auto(), bbvi.Score()], ids=["values and paths", "score"])
@pytest.mark.parametrize(("name", "batch_size"), CASES)
def test_gradients_are_unbiased(name, batch_size, gradient):
    model, data, posterior, truth = prepared(name)
    moments = bbvi.gradient_moments(
        model,
        data,
        posterior,
        gradient=gradient,
        draws=bbvi.MonteCarlo(10),
        repeats=4000,
        batch_size=batch_size,
        seed=1,
    )
    for latent, entries in truth.items():
        for p, value in entries.items():
            mean, error = (np.asarray(part[latent][p], np.float64) for part in (moments.mean, moments.standard_error))
            # of what pads a short group there is no gradient
            value = np.where((error > 0) | (np.abs(mean) > 0), np.asarray(value), 0)
            assert np.all(np.abs(mean - value) < 4.5 * error + 1e-4 * (1 + np.abs(value))), (
                latent,
                p,
                mean,
                value,
                error,
            )
