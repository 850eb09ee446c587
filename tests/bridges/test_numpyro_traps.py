"""What a NumPyro function may do that a log joint does not: brought exactly, or refused with the reason."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.infer import Predictive
from numpyro.infer.reparam import CircularReparam
from numpyro.infer.util import log_density

import bbvi
from tests.bridges.test_from_numpyro import some_latents, total

Y = np.array([0.5, -1.0, 2.0, 0.3])


def same_density(fn, *args, without=()):
    """Bring a function, and check its density against NumPyro's at a few points; `without` has statements that are dropped."""
    model, data = bbvi.from_numpyro(fn, *args)
    for seed in range(3):
        z = some_latents(model, seed)
        terms = model.log_joint(z, data)
        sites = {n: x[0] for n, x in model.origin.sites({n: x[None] for n, x in z.items()}).items()}
        filled = sites | {name: jnp.zeros(shape) for name, shape in dict(without).items()}
        jacobian = total({n: x for n, x in terms.items() if n.endswith(".jacobian")})
        theirs, trace = log_density(fn, args, {}, filled)
        left_out = sum(jnp.sum(trace[name]["fn"].log_prob(filled[name])) for name, _ in without)
        np.testing.assert_allclose(total(terms), theirs + jacobian - left_out, rtol=1e-4)
    return model, data


def normal(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("N", len(y)):
        numpyro.sample("y", dist.Normal(mu, 1), obs=y)


# ---- handlers around the function ------------------------------------------------------------------------------------


def number(y):
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(mu, tau), obs=y)


@pytest.mark.parametrize(
    "fn",
    [
        handlers.scale(number, scale=0.25),
        handlers.condition(number, data={"mu": 0.5}),
        handlers.substitute(number, data={"mu": 0.5}),
        handlers.seed(number, 0),
        handlers.scope(number, prefix="a"),
    ],
    ids=["scale", "condition", "substitute", "seed", "scope"],
)
def test_handlers_around_a_function_do_what_they_do_in_numpyro(fn):
    model, _ = same_density(fn, Y)
    assert [*model.globals] in (["tau", "mu"], ["tau"], ["a.tau", "a.mu"])


def test_a_reparametrised_statement_has_the_latents_of_its_parts():
    def angle(y):
        a = numpyro.sample("a", dist.VonMises(0.0, 2.0))
        numpyro.sample("y", dist.Normal(jnp.sin(a), 1), obs=y)

    model, _ = same_density(angle, Y)
    assert [latent.support for latent in model.globals.values()] == ["interval"]
    unwrapped = handlers.reparam(angle, config={"a": CircularReparam()})
    model, _ = bbvi.from_numpyro(unwrapped, Y)
    assert [*model.globals] == ["a_unwrapped"]


def test_bounds_of_what_is_observed_may_depend_on_a_latent_where_the_data_are_of_numpy():
    def abundance(found):
        there = numpyro.sample("there", dist.Poisson(6.0))
        numpyro.sample("found", dist.Binomial(there + 4, 0.4), obs=found)

    model, _ = same_density(abundance, np.array([3, 1, 4]))
    assert model.globals["there"].support == "count"


def test_a_function_without_observations_goes_to_arviz():
    def product():
        a = numpyro.sample("a", dist.Normal(0, 1))
        numpyro.factor("f", -(a**4))

    posterior = bbvi.fit(*bbvi.from_numpyro(product), stop=bbvi.Budget(steps=0))
    assert posterior.to_arviz(5)["posterior"]["a"].shape == (1, 5)


# ---- seeds and loops --------------------------------------------------------------------------------------------------


def test_a_statement_in_a_loop_may_be_on_any_support():
    def drift(y):
        first = numpyro.sample("first", dist.HalfNormal(1.0))

        def step(before, y):
            now = numpyro.sample("x", dist.TruncatedNormal(before, 1.0, low=0.0))
            numpyro.sample("y", dist.Normal(now, 1.0), obs=y)
            return now, None

        scan(step, first, y)

    model, _ = same_density(drift, Y)
    assert model.globals["x_unconstrained"].shape == (4,)


def test_a_seeded_loop_is_read():
    model, data = bbvi.from_numpyro(handlers.seed(chain, 0), Y)
    found = bbvi.explain(model, data)
    assert found.matrix.sum() == 1 + (4 + 4) + 4


def chain(y):
    first = numpyro.sample("first", dist.Normal(0, 1))

    def step(before, y):
        now = numpyro.sample("x", dist.Normal(before, 1.0))
        numpyro.sample("y", dist.Normal(now, 1.0), obs=y)
        return now, None

    scan(step, first, y)


# ---- missing observations ------------------------------------------------------------------------------------------------


def test_missing_observations_that_nothing_reads_are_no_latents_and_are_drawn_by_predictive():
    observed = np.array([True, False, True, False])

    def masked(y, observed):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("N", len(y)):
            numpyro.sample("y", dist.Normal(mu, 1), obs=y, obs_mask=observed)

    model, data = same_density(masked, Y, observed, without=[("y_unobserved", (4,))])
    assert [*model.globals] == ["mu"]
    posterior = bbvi.fit(model, data)
    np.testing.assert_allclose(posterior.sd()["mu"], np.sqrt(1 / 3), rtol=0.05)
    drawn = Predictive(masked, posterior_samples=posterior.to_numpyro(4000))(jax.random.key(0), Y, observed)
    np.testing.assert_allclose(drawn["y"][:, 1].std(), np.sqrt(1 + 1 / 3), rtol=0.1)
    np.testing.assert_array_equal(drawn["y"][:, 0], np.full(4000, Y[0], np.float32))


def test_missing_values_that_others_read_are_latents_and_only_these():
    observed = np.array([True, False, True, False])

    def imputed(x, observed, y):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("N", len(y)):
            x = numpyro.sample("x", dist.Normal(mu, 1), obs=x, obs_mask=observed)
            numpyro.sample("y", dist.Normal(x, 1), obs=y)

    model, _ = same_density(imputed, Y, observed, Y[::-1])
    assert model.globals["x_unobserved"].shape == (2,)
    draws = model.origin.sites({"mu": jnp.zeros(1), "x_unobserved": jnp.array([[5.0, 7.0]])})
    np.testing.assert_array_equal(draws["x_unobserved"][0, [1, 3]], [5.0, 7.0])


def test_a_prior_that_is_masked_away_is_flat_where_the_latent_is_read():
    def flat(y):
        with handlers.mask(mask=False):
            mu = numpyro.sample("mu", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(mu, 1), obs=y)

    model, data = same_density(flat, Y)
    posterior = bbvi.fit(model, data)
    np.testing.assert_allclose(posterior.mean()["mu"], Y.mean(), atol=0.05)


# ---- supports ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "law, latent, support",
    [
        (lambda: dist.Uniform(0.0, 1.0), "x", "unit_interval"),
        (lambda: dist.Uniform(-2.0, 5.0), "x", "interval"),
        (lambda: dist.Uniform(jnp.array([0.0, 1.0]), 5.0), "x_unconstrained", "real"),
        (lambda: dist.TruncatedNormal(low=1.0), "x_unconstrained", "real"),
        (lambda: dist.LKJCholesky(3, 1.0), "x_unconstrained", "real"),
        (lambda: dist.LKJ(3, 1.0), "x_unconstrained", "real"),
        (lambda: dist.Wishart(4.0, jnp.eye(2)), "x_unconstrained", "real"),
        (lambda: dist.ZeroSumNormal(1.0, (4,)), "x_unconstrained", "real"),
        (lambda: dist.Pareto(2.0, 3.0), "x_unconstrained", "real"),
        (lambda: dist.Dirichlet(jnp.ones((2, 3))), "x", "simplex"),
        (lambda: dist.MultivariateNormal(jnp.zeros(3), jnp.eye(3)).expand([2]), "x", "real"),
        (lambda: dist.Bernoulli(jnp.array([0.2, 0.7])), "x", "binary"),
        (lambda: dist.DiscreteUniform(3, 6), "x", "categorical"),
        (lambda: dist.Binomial(7, 0.3), "x", "count"),
        (lambda: dist.Poisson(3.0), "x", "count"),
        (lambda: dist.HalfNormal(1.0).expand([3, 2]).to_event(2), "x", "positive"),
    ],
)
def test_every_support_has_a_latent(law, latent, support):
    def function(y):
        x = numpyro.sample("x", law())
        numpyro.sample("y", dist.Normal(jnp.sum(x), 1), obs=y)

    model, _ = same_density(function, Y)
    assert {name: x.support for name, x in model.globals.items()} == {latent: support}
    draw = model.origin.sites({n: z[None] for n, z in some_latents(model, 0).items()})["x"][0]
    assert draw.shape == law().shape() and np.all(law().support(draw))


def test_bounds_that_depend_on_a_latent_move_with_it():
    def bounded(y):
        top = numpyro.sample("top", dist.Gamma(3.0, 1.0))
        x = numpyro.sample("x", dist.Uniform(0.0, top))
        numpyro.sample("y", dist.Normal(x, 1), obs=y)

    model, _ = same_density(bounded, Y)
    u, tops = jnp.array([1.0, 1.0]), jnp.array([2.0, 20.0])
    x = model.origin.sites({"top": tops, "x_unconstrained": u})["x"]
    np.testing.assert_allclose(x, tops * jax.nn.sigmoid(1.0), rtol=1e-5)


def test_a_point_mass_is_no_latent():
    def function(y):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        twice = numpyro.sample("twice", dist.Delta(2 * mu))
        numpyro.sample("y", dist.Normal(twice, 1), obs=y)

    model, data = bbvi.from_numpyro(function, Y)
    assert [*model.globals] == ["mu"]
    z = {"mu": jnp.array(0.7)}
    wanted = dist.Normal(0, 1).log_prob(0.7) + dist.Normal(1.4, 1).log_prob(Y).sum()
    np.testing.assert_allclose(total(model.log_joint(z, data)), wanted, rtol=1e-5)


# ---- what is refused ---------------------------------------------------------------------------------------------------------


def with_param(y):
    numpyro.sample("y", dist.Normal(numpyro.param("p", 0.0), 1), obs=y)


def with_choice(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    if mu > 0:
        numpyro.sample("y", dist.Normal(mu, 1), obs=y)


def with_sphere(y):
    numpyro.sample("x", dist.ProjectedNormal(jnp.ones(3)))


def with_counts_of_many(y):
    numpyro.sample("x", dist.Multinomial(5, jnp.ones(3) / 3))


def with_latent_mask(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with handlers.mask(mask=mu > 0):
        numpyro.sample("x", dist.Normal(0, 1))


def with_two_of_a_name(y):
    numpyro.sample("x", dist.Normal(0, 1))
    numpyro.sample("x", dist.Normal(0, 1))


def with_a_size_that_is_random(y):
    num = numpyro.sample("n", dist.Poisson(3.0))
    with numpyro.plate("N", num):
        numpyro.sample("x", dist.Normal(0, 1))


@pytest.mark.parametrize(
    "fn, why",
    [
        (with_param, "'p' is a numpyro.param"),
        (with_choice, "by the value of a latent"),
        (with_sphere, "no bijection"),
        (with_counts_of_many, "discrete latent 'x'"),
        (with_latent_mask, "masked by what depends on latents"),
        (with_two_of_a_name, "two statements have the name 'x'"),
        (with_a_size_that_is_random, "by the value of a latent"),
        (handlers.condition(normal, data={"mu": 0.0}), "no latents"),
    ],
)
def test_what_cannot_be_brought_is_refused_with_the_reason(fn, why):
    with pytest.raises((TypeError, ValueError), match=why):
        bbvi.from_numpyro(fn, Y)
