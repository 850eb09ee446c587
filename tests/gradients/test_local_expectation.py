"""Exact sums over the values of discrete latents: what is exact, what is left to chance, at what cost."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import bbvi
from bbvi.blankets.analysis import analyse
from bbvi.diagnostics.moments import full_gradient
from bbvi.draws.draws import draw_values
from bbvi.gradients.impossible import without_impossible_values
from bbvi.gradients.mixed import Mixed
from bbvi.model.problem import bind
from bbvi.numerics.address import seed_key
from tests import opaque_models
from tests.compiled import compiled
from tests.exact import FLAT, HIERARCHICAL, largest_gap
from tests.gradients.test_score import ROUNDING, exact

ONE_BY_ONE, TOGETHER = bbvi.LocalExpectation(joint=False), bbvi.LocalExpectation()
FINITE = [
    name for name in [*FLAT, *HIERARCHICAL] if name not in ("counts", "bounded", "tree", "two_chains")
]  # these have counts without a bound, or Markov trees


def estimate_of(model, gradient, num, **keywords):
    """One estimate at the model's lambda, compiled, with all groups."""
    batch = None if model.groups is None else model.batch(np.arange(model.problem.num_groups))
    draws = bbvi.MonteCarlo(num, **keywords)

    def run(params):
        return gradient.estimate(model.analysis, params, model.data, batch, draws=draws, key=seed_key(1))

    estimate = jax.jit(run)(model.params["globals"])
    return estimate, full_gradient(estimate, batch, model.params["locals"])


@pytest.mark.parametrize("name", FINITE)
def test_a_model_of_discrete_latents_alone_has_its_exact_gradient_from_one_draw(name):
    model = exact(name)
    estimate, found = estimate_of(model, TOGETHER, 1)
    assert largest_gap(found, model.gradient()) < ROUNDING
    outcomes = {latent: jnp.asarray(z) for latent, z in model.outcomes().items()}
    log_p = np.asarray(compiled(jax.vmap(model.log_joint))(outcomes), np.float64)
    q = model.probabilities()
    elbo = (q * (log_p - np.log(q))).sum()
    assert abs(float(estimate.elbo) - elbo) < 1e-5 * (1 + abs(elbo)) and float(estimate.elbo_error) == 0


@pytest.mark.parametrize("name", ["chain", "categories", "groups"])
def test_one_element_at_a_time_leaves_only_the_others_to_chance(name):
    """An element that shares no factor with another latent has its exact gradient; the others do not."""
    model = exact(name)
    found, truth = estimate_of(model, ONE_BY_ONE, 1)[1], model.gradient()
    if name == "categories":
        np.testing.assert_allclose(found["c"]["logits"][1], truth["c"]["logits"][1], rtol=1e-5, atol=1e-6)
    assert largest_gap(found, truth) > 1e-3


@pytest.mark.parametrize("gradient", [ONE_BY_ONE, TOGETHER])
@pytest.mark.parametrize("chunk", [5, 1])
def test_chunks_of_draws_change_the_gradient_by_rounding_only(gradient, chunk):
    model, y = mixture()
    start = bbvi.fit(model, y, stop=bbvi.Budget(steps=0))
    problem, flat, _ = bind(model, y)
    analysis = analyse(problem, flat, None)._replace(wanted=frozenset(["which"]))

    def run(draws):
        made = jax.jit(lambda p: gradient.estimate(analysis, p, flat, None, draws=draws, key=seed_key(2)))
        found = made(start.params)
        return found.globals, found.fisher, found.elbo, found.elbo_error

    whole, parts = run(bbvi.MonteCarlo(12)), run(bbvi.MonteCarlo(12, chunk=chunk))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5), whole, parts)


# ---- beside latents of other kinds ----------------------------------------------------------------------------------


def mixture():
    """Points on a line, the component of each, and the components' means."""
    y = jnp.array([-1.0, 0.3, 2.2, 3.1, 1.2])

    def log_joint(z, y):
        picked = dist.Normal(z["means"][z["which"]], 1).log_prob(y)
        return {"means": dist.Normal(0, 3).log_prob(z["means"]), "y": picked + 0.2 * z["which"]}

    return bbvi.Model(log_joint, means=bbvi.real(3), which=bbvi.categorical(3, 5)), y


def test_only_the_latents_that_are_wanted_are_estimated_and_need_few_values():
    model, y = mixture()
    problem, flat, _ = bind(model, y)
    analysis = analyse(problem, flat, None)
    params = bbvi.fit(model, y, stop=bbvi.Budget(steps=0)).params
    draws, key = bbvi.MonteCarlo(3), seed_key(0)
    wanted = analysis._replace(wanted=frozenset(["which"]))
    found = compiled(lambda params: ONE_BY_ONE.estimate(wanted, params, flat, None, draws=draws, key=key))(params)
    assert set(found.globals) == set(found.fisher["globals"]) == {"which"} and not found.rows
    with pytest.raises(ValueError, match=r"those of 'means' ~ Normal cannot be listed; use gradient=bbvi.Score\(\)"):
        ONE_BY_ONE.estimate(analysis, params, flat, None, draws=draws, key=key)
    with pytest.raises(ValueError, match="those of 'n' ~ Poisson cannot be listed"):
        bbvi.fit(*FLAT["counts"](), gradient=TOGETHER, stop=bbvi.Budget(steps=1))


def test_the_gradient_of_assignments_beside_continuous_means_is_unbiased():
    """E[log N(y | mu_k, 1)] of a normal mu_k is known."""
    model, y = mixture()
    start = bbvi.fit(model, y, stop=bbvi.Budget(steps=0), seed=4)
    mean, sd = start.mean()["means"], start.sd()["means"]
    log_p = -0.5 * ((np.asarray(y)[:, None] - mean) ** 2 + sd**2) + 0.2 * np.arange(3)

    def elbo(logits):
        log_q = jax.nn.log_softmax(logits)
        return (jnp.exp(log_q) * (log_p - log_q)).sum()

    truth = compiled(jax.grad(elbo))(start.params["which"]["logits"])
    for gradient in (ONE_BY_ONE, TOGETHER):
        mixed = Mixed((("means", bbvi.Score()), ("which", gradient)))
        moments = bbvi.gradient_moments(model, y, start, gradient=mixed, draws=bbvi.MonteCarlo(5), repeats=4000, seed=1)
        errors = np.abs(moments.mean["which"]["logits"] - truth) / moments.standard_error["which"]["logits"]
        assert errors.max() < 4.5


def ragged_mixture():
    """Groups of one or three visits, each visit in a state, with positive rates, a level of the group and a bit for all."""
    rng = np.random.default_rng(0)
    lengths = [1, 3, 3, 1]

    def log_local(beta, z, row):
        stay = 0.8 * (z["state"][1:] == z["state"][:-1]) * beta["sticky"]
        return {
            "level": dist.Normal(0, 1).log_prob(z["level"]),
            "stay": jnp.where(row["mask"]["visit"][1:], stay, 0),
        }

    def log_likelihood(beta, z, row):
        term = dist.Normal(beta["rate"][z["state"]] + z["level"], 1).log_prob(row["y"])
        return jnp.where(row["mask"]["visit"], term, 0).sum()

    model = bbvi.HierarchicalModel(
        joint=(),
        log_prior=lambda beta: dist.Gamma(2, 1).log_prob(beta["rate"]).sum() + 0.3 * beta["sticky"],
        log_local=log_local,
        log_likelihood=log_likelihood,
        globals={"rate": bbvi.positive(3), "sticky": bbvi.binary()},
        locals={"state": bbvi.categorical(3, "visit"), "level": bbvi.real()},
    )
    return model, bbvi.ragged(visit={"y": [rng.normal(1, 1, n) for n in lengths]})


@pytest.fixture(scope="module")
def by_score():
    model, data = ragged_mixture()
    start = bbvi.fit(model, data, stop=bbvi.Budget(steps=0), seed=3)
    settings = {"draws": bbvi.MonteCarlo(4), "batch_size": 2}
    return start, settings, bbvi.gradient_moments(model, data, start, repeats=8000, seed=2, **settings)


@pytest.mark.parametrize("gradient", [ONE_BY_ONE, TOGETHER])
def test_beside_continuous_latents_in_ragged_groups_the_mean_is_that_of_the_score(gradient, by_score, monkeypatch):
    start, settings, other = by_score
    monkeypatch.setattr(importlib.import_module("bbvi.gradients.every_value"), "_MOST_TIMES", 3)
    choice = {"rate": bbvi.Score(), "sticky": gradient, "state": gradient, "level": bbvi.Score()}
    mixed = Mixed(tuple(choice.items()))
    one = bbvi.gradient_moments(*ragged_mixture(), start, gradient=mixed, repeats=4000, seed=1, **settings)
    for name in ("sticky", "state"):
        gap = np.abs(one.mean[name]["logits"] - other.mean[name]["logits"])
        error = np.hypot(one.standard_error[name]["logits"], other.standard_error[name]["logits"])
        assert np.all(gap <= 4.5 * error + 1e-5)
        assert np.sum(one.variance[name]["logits"]) < 0.7 * np.sum(other.variance[name]["logits"])


@pytest.mark.parametrize("gradient", [ONE_BY_ONE, TOGETHER])
def test_locals_beside_held_globals_have_the_gradient_at_draws_of_these(gradient):
    """One global bit and each local's factors: given the draws of w, the gradient of z is a mean over them."""
    model = exact("ragged_groups")
    analysis, batch = model.analysis._replace(fit_globals=False), model.batch(np.arange(3))
    draws, key = bbvi.MonteCarlo(7), seed_key(5)
    made = jax.jit(lambda p: gradient.estimate(analysis, p, None, batch, draws=draws, key=key))
    found = made(model.params["globals"])
    w = np.asarray(
        draw_values(
            model.problem,
            model.problem.globals,
            model.params["globals"],
            key=key,
            samples=jnp.arange(7, dtype=jnp.uint32),
        )[0]["w"]
    )
    assert 0 < w.sum() < 7 and not found.globals
    for row, group in enumerate(np.asarray(batch.groups)):
        y, logits = model.groups.take(np.array([group]))["y"][0], np.asarray(batch.params["z"]["logits"][row])
        p, delta = 1 / (1 + np.exp(-logits)), 0.8 * w.mean() + np.asarray(y) - 0.5
        truth = np.where(np.arange(2) < model.lengths["visit"][group], p * (1 - p) * (delta - logits), 0)
        np.testing.assert_allclose(found.rows["z"]["logits"][row], truth, atol=1e-5)


def test_an_opaque_function_has_the_gradient_of_the_same_in_jax():
    latents = {"mu": bbvi.real(), "theta": bbvi.real(4), "level": bbvi.real(3), "k": bbvi.categorical(3, 4)}
    params = bbvi.fit(
        bbvi.Model(opaque_models.flat_jax, joint=(), **latents), opaque_models.Y, stop=bbvi.Budget(steps=0)
    ).params
    found, draws = [], bbvi.MonteCarlo(3)
    for function in (bbvi.opaque(opaque_models.flat_numpy), opaque_models.flat_jax):
        problem, flat, _ = bind(bbvi.Model(function, **latents), opaque_models.Y)
        analysis = analyse(problem, flat, None)._replace(wanted=frozenset(["k"]))
        made = jax.jit(lambda p, t=analysis, d=flat: ONE_BY_ONE.estimate(t, p, d, None, draws=draws, key=seed_key(0)))
        found.append(made(params).globals)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), *found)


# ---- values that are vectors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("gradient", [ONE_BY_ONE, TOGETHER])
def test_unit_vectors_have_the_gradient_of_categories(gradient):
    table = jnp.array([[0.3, -1.0, 0.6], [1.1, 0.2, -0.4], [0.0, 0.5, 0.1]])

    def by_vectors(z, _):
        return z["z"][0] @ table @ z["z"][1]

    def by_codes(z, _):
        return table[z["z"][0], z["z"][1]]

    found = []
    logits = jnp.array([[0.1, 0.5, -0.3], [-0.2, 0.4, 0.0]])
    latents = (bbvi.one_hot(3, 2), bbvi.categorical(3, 2))
    for function, latent in zip((by_vectors, by_codes), latents, strict=True):
        problem, _, _ = bind(bbvi.Model(function, z=latent), None)
        analysis = analyse(problem, None, None)
        draws = bbvi.MonteCarlo(2000)
        made = jax.jit(lambda p, t=analysis, d=draws: gradient.estimate(t, p, None, None, draws=d, key=seed_key(0)))
        found.append(np.asarray(made({"z": {"logits": logits}}).globals["z"]["logits"]))
    # the draws are not the same, where they enter at all
    np.testing.assert_allclose(*found, atol=0.03 if gradient is ONE_BY_ONE else 1e-6)


# ---- rounding and cost ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gradient", [ONE_BY_ONE, TOGETHER])
def test_large_log_likelihoods_do_not_drown_the_gradient(gradient):
    """log p is about -10,000 for either value of a bit, and differs by about 1."""
    y = 1.4 + 0.0001 * jnp.arange(2.0)

    def log_joint(z, y):
        return {"y": -0.5 * ((y + 0.00005 * z["x"]) / 0.01) ** 2 + 0.0 * z["other"], "other": z["other"] * 0.5}

    model = bbvi.Model(log_joint, x=bbvi.binary(2), other=bbvi.binary())
    start = bbvi.fit(model, y, stop=bbvi.Budget(steps=0))
    moments = bbvi.gradient_moments(model, y, start, gradient=gradient, draws=bbvi.MonteCarlo(50), repeats=2)
    p = np.asarray(start.mean()["x"], np.float64)
    delta = -0.5 * (np.diff(((np.asarray(y)[:, None] + [0, 0.00005]) / 0.01) ** 2)[:, 0])
    truth = p * (1 - p) * (delta - np.asarray(start.params["x"]["logits"]))
    # the values of log p themselves carry an error of 1e-3
    np.testing.assert_allclose(moments.mean["x"]["logits"], truth, atol=1e-3)


def grid(size):
    def log_joint(z, _):
        s = 2.0 * z["x"] - 1
        return (s[1:] * s[:-1]).sum() + (s[:, 1:] * s[:, :-1]).sum()

    return bbvi.Model(log_joint, x=bbvi.binary(size, size)), None


@pytest.mark.parametrize(
    "model, wanted, one_by_one, together",
    [
        (grid(5), None, 3, 4),  # two colours
        (mixture(), ["which"], 3, 3),  # assignments share no factor
        (FLAT["walk"](), None, 5, 16),  # each observation reads all steps before it
        (FLAT["categories"](), None, 4, 6),  # a bit and a category, and a category on its own
        (HIERARCHICAL["groups"](), None, 4, 8),
        (ragged_mixture(), ["sticky", "state"], 6, 6),  # 18 together is more than twice as many
    ],
    ids=["grid", "mixture", "walk", "categories", "groups", "ragged_mixture"],
)
def test_evaluations_are_counted(model, wanted, one_by_one, together):
    problem, flat, groups = bind(*model)
    analysis = analyse(problem, flat, groups)._replace(wanted=None if wanted is None else frozenset(wanted))
    assert (ONE_BY_ONE.evaluations(analysis), TOGETHER.evaluations(analysis)) == (one_by_one, together)


# ---- values that log p rules out ------------------------------------------------------------------------------------

SEEN, ABSENT = jnp.array([0, 2, 1, 0]), 0.3


def occupancy(z, seen):
    """Sites are occupied or not; where something was seen, they are."""
    own = dist.Bernoulli(ABSENT).log_prob(z["absent"])
    return own + jnp.where(z["absent"] == 1, jnp.where(seen > 0, -jnp.inf, 0.0), dist.Poisson(1.5).log_prob(seen))


def of_three(z, seen):
    """The same sites in three states, of which 0 and 2 are like absent and occupied, and 1 like occupied but rare."""
    own = jnp.log(jnp.array([ABSENT, 0.1, 0.6]))[z["state"]]
    return own + jnp.where(z["state"] == 0, jnp.where(seen > 0, -jnp.inf, 0.0), dist.Poisson(1.5).log_prob(seen))


ABSENT_GIVEN_NONE = ABSENT / (ABSENT + (1 - ABSENT) * np.exp(-1.5))


@pytest.mark.parametrize("gradient", [ONE_BY_ONE, TOGETHER])
@pytest.mark.parametrize(
    "log_joint, latents", [(occupancy, {"absent": bbvi.binary(4)}), (of_three, {"state": bbvi.categorical(3, 4)})]
)
def test_q_is_exact_beside_values_that_are_impossible(log_joint, latents, gradient):
    posterior = bbvi.fit(bbvi.Model(log_joint, **latents), SEEN, gradient=gradient)
    absent = posterior.probs()[next(iter(latents))][..., 1 if "absent" in latents else 0]
    assert posterior.converged
    np.testing.assert_allclose(absent, np.where(np.asarray(SEEN) > 0, 0.0, ABSENT_GIVEN_NONE), atol=2e-3)
    assert np.all(np.asarray(absent)[np.asarray(SEEN) > 0] == 0)


def test_what_log_p_rules_out_in_company_alone_stays():
    """Either of two bits may be 1, though not both: neither value of either is impossible."""

    def log_joint(z, field):
        either = jnp.where(z["a"] * z["b"] == 1, -jnp.inf, 0.0)
        return field * (z["a"] + z["b"]) + either

    problem, data, groups = bind(bbvi.Model(log_joint, a=bbvi.binary(), b=bbvi.binary()), jnp.array(0.2))
    analysis, key = analyse(problem, data, groups), seed_key(0)
    start = {"globals": {"a": {"logits": jnp.array(0.1)}, "b": {"logits": jnp.array(-0.1)}}, "locals": {}}
    assert without_impossible_values(analysis, start, data, key) == start


@pytest.mark.parametrize("gradient", [ONE_BY_ONE, TOGETHER])
def test_impossible_values_that_q_has_are_not_hidden(gradient):
    problem, data, groups = bind(bbvi.Model(occupancy, absent=bbvi.binary(4)), SEEN)
    analysis, params = analyse(problem, data, groups), {"absent": {"logits": jnp.zeros(4)}}

    @compiled
    def elbo(params):
        return gradient.estimate(analysis, params, data, None, draws=bbvi.MonteCarlo(50), key=seed_key(1)).elbo

    assert not np.isfinite(elbo(params))


@pytest.mark.parametrize("batch_size", [None, 3])
def test_impossible_values_of_groups_are_left_out_too(batch_size):
    visits = bbvi.ragged(visit={"seen": [[0, 0], [0, 2, 0], [1], [0], [0, 0, 0], [3, 1], [0, 0]]})
    unseen = np.array([2, 0, 0, 1, 3, 0, 2])  # visits to sites where nothing was seen

    def likelihood(beta, z, row):
        own = jnp.where(
            z["occupied"] == 1, dist.Poisson(0.8).log_prob(row["seen"]), jnp.where(row["seen"] > 0, -jnp.inf, 0.0)
        )
        return jnp.where(row["mask"]["visit"], own, 0)

    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["level"]),
        log_local=lambda beta, z, row: dist.Bernoulli(0.6).log_prob(z["occupied"]),
        log_likelihood=likelihood, globals={"level": bbvi.real()}, locals={"occupied": bbvi.binary()},
    )  # fmt: skip
    posterior = bbvi.fit(model, visits, batch_size=batch_size, stop=bbvi.Budget(steps=300))
    exact = np.where(unseen > 0, 0.6 * np.exp(-0.8 * unseen) / (0.6 * np.exp(-0.8 * unseen) + 0.4), 1.0)
    np.testing.assert_allclose(posterior.probs()["occupied"][..., 1], exact, atol=0.02)
