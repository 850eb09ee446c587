"""The elements of a plate as groups: the same log joint, each group counted once, and ties between groups refused."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer import Predictive

import bbvi
from tests.bridges.numpyro_models import DESIGN, OUTCOME, logistic
from tests.bridges.test_from_numpyro import some_latents, total

SERIES = np.random.default_rng(3).normal(size=(5, 3))


def by_index(x, y, batch=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("N", len(x), subsample_size=batch) as i:
        numpyro.sample("y", dist.Bernoulli(logits=x[i] @ w), obs=y[i])


def by_statement(x, y, batch=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("N", len(x), subsample_size=batch):
        x, y = numpyro.subsample(x, event_dim=1), numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def whole(x, y, size=40):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("N", size):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def nested(y):
    mu = numpyro.sample("mu", dist.Normal(0, 3))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("series", len(y), dim=-2) as i:
        top = numpyro.sample("top", dist.Gamma(3.0, 1.0))
        level = numpyro.sample("level", dist.Uniform(-top, top))
        weight = numpyro.sample("weight", dist.Dirichlet(jnp.ones(3)))
        with numpyro.plate("time", 3, dim=-1):
            noise = numpyro.sample("noise", dist.Normal(mu, spread))
            mean = level + noise + weight[..., 0] + jnp.arange(5.0)[i][:, None]
            numpyro.sample("y", dist.Normal(mean, 1), obs=y)


CASES = {
    "by index": (by_index, (DESIGN, OUTCOME), "N", ["x", "y"]),
    "by index, a batch": (by_index, (DESIGN, OUTCOME, 10), "N", ["x", "y"]),
    "by index, without rows": (by_index, (DESIGN, OUTCOME, 10), "N", []),
    "by subsample": (by_statement, (DESIGN, OUTCOME, 10), "N", ["x", "y"]),
    "whole": (whole, (DESIGN, OUTCOME), "N", ["x", "y"]),
    "scaled": (handlers.scale(whole, scale=0.5), (DESIGN, OUTCOME), "N", ["x", "y"]),
    "nested": (nested, (SERIES,), "series", ["y"]),
}


@pytest.mark.parametrize("name", CASES)
def test_groups_add_up_to_the_whole(name):
    fn, args, plate, rows = CASES[name]
    flat, data = bbvi.from_numpyro(fn, *args)
    model, groups = bbvi.from_numpyro(fn, *args, groups=plate, rows=rows)
    num = len(groups["group"])

    def both(z):
        beta = {n: x for n, x in z.items() if n in model.globals}
        local = {n: x for n, x in z.items() if n in model.locals}
        own = {n: jnp.broadcast_to(x, (num, *x.shape)) + 0 for n, x in local.items()}

        def of(z, row):
            terms = model.log_likelihood(beta, z, row) | (model.log_local(beta, z, row) if model.locals else {})
            return total(terms)

        sites = model.origin.sites({n: x[None] for n, x in (beta | own).items()})
        back = {n: x if n in beta else jnp.moveaxis(sites_of(flat, n, own[n]), 0, 0) for n, x in z.items()}
        return total(model.log_prior(beta)) + jax.vmap(of)(own, groups).sum(), total(flat.log_joint(back, data)), sites

    def sites_of(flat, name, value):
        shape = (*flat.globals[name].shape, *flat.globals[name].event)
        return value.reshape(shape)

    ours, theirs, sites = jax.jit(both)(some_latents(model, 0))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    for site, value in sites.items():
        assert value.shape[1:] == np.shape(numpyro_value(fn, args, site))


def numpyro_value(fn, args, name):
    full = (*args[:2], None) if len(args) == 3 else args
    return handlers.trace(handlers.seed(fn, 0)).get_trace(*full)[name]["value"]


def test_a_fit_in_batches_has_the_posterior_of_the_whole():
    def function(y, size):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("N", size):
            level = numpyro.sample("level", dist.Normal(mu, 1))
            numpyro.sample("y", dist.Normal(level, 1), obs=y)

    y = np.random.default_rng(0).normal(1.0, 1.4, 60)
    model, groups = bbvi.from_numpyro(function, y, 60, groups="N", rows=["y"])
    posterior = bbvi.fit(model, groups, batch_size=10)
    precision = 1 + 60 / 2
    assert abs(posterior.mean()["mu"] - y.sum() / 2 / precision) < 0.25 / np.sqrt(precision)
    draws = posterior.to_numpyro(300)
    assert draws["level"].shape == (300, 60)
    drawn = Predictive(function, posterior_samples=draws)(jax.random.key(0), None, 60)["y"]
    np.testing.assert_allclose((drawn - draws["level"]).std(), 1, rtol=0.05)


def missing_in_groups(y, observed):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("N", len(y)):
        numpyro.sample("y", dist.Normal(mu, 1), obs=y, obs_mask=observed)


def test_missing_observations_in_groups_are_no_locals():
    y, observed = np.array([0.5, -1.0, 2.0]), np.array([True, False, True])
    model, groups = bbvi.from_numpyro(missing_in_groups, y, observed, groups="N", rows=["y", "observed"])
    assert not model.locals
    terms = jax.vmap(lambda row: model.log_likelihood({"mu": 0.3}, {}, row)["y_observed"][0])(groups)
    np.testing.assert_allclose(terms, np.where(observed, dist.Normal(0.3, 1).log_prob(y), 0), rtol=1e-5)


def test_what_is_not_cut_is_refused():
    with pytest.raises(ValueError, match="in one group is not what it is in the whole: name in rows="):
        bbvi.from_numpyro(whole, DESIGN, OUTCOME, groups="N", rows=["x"])
    with pytest.raises(ValueError, match="makes no plate of that name"):
        bbvi.from_numpyro(logistic, DESIGN, OUTCOME, groups="M")
    with pytest.raises(ValueError, match="no argument of the call"):
        bbvi.from_numpyro(logistic, DESIGN, OUTCOME, groups="N", rows=["z"])
    with pytest.raises(ValueError, match="its first axis must be"):
        bbvi.from_numpyro(lambda x, y: whole(x.T, y), DESIGN.T, OUTCOME, groups="N", rows=["x"])
    with pytest.raises(ValueError, match="are cut along the plate"):
        bbvi.from_numpyro(whole, DESIGN, OUTCOME, rows=["x"])
    with pytest.raises(TypeError, match="a list of names"):
        bbvi.from_numpyro(whole, DESIGN, OUTCOME, groups="N", rows="x")


def test_a_statement_that_ties_the_groups_together_is_refused():
    def tied(y):
        with numpyro.plate("N", len(y)):
            level = numpyro.sample("level", dist.Normal(0, 1))
            numpyro.sample("y", dist.Normal(level, 1), obs=y)
        numpyro.sample("sum", dist.Normal(level.sum(), 0.1), obs=0.0)

    with pytest.raises(ValueError, match="'sum' stands outside of the plate 'N' and reads what is in it"):
        bbvi.from_numpyro(tied, SERIES[0], groups="N", rows=["y"])


def shrunk(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1 / np.sqrt(len(y))))
    with numpyro.plate("N", 6):
        numpyro.sample("y", dist.Normal(mu, 1), obs=y)


def penalised(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    numpyro.factor("penalty", -len(y) * mu**2)
    with numpyro.plate("N", 6):
        numpyro.sample("y", dist.Normal(mu, 1), obs=y)


@pytest.mark.parametrize("fn, name", [(shrunk, "mu"), (penalised, "penalty")])
def test_a_prior_that_depends_on_the_number_of_rows_is_refused(fn, name):
    with pytest.raises(ValueError, match=f"density of '{name}' in one group is not what it is in the whole"):
        bbvi.from_numpyro(fn, SERIES[:, 0].repeat(2)[:6], groups="N", rows=["y"])


def test_globals_on_any_support_may_be_looked_up_by_rows():
    def by_level(y, level):
        corr = numpyro.sample("corr", dist.LKJCholesky(2, 1.0))
        with numpyro.plate("level", 2):
            a = numpyro.sample("a", dist.Normal(0, 1))
        with numpyro.plate("N", 4):
            numpyro.sample("y", dist.Normal(a[level] + corr[1, 0], 1), obs=y)

    model, data = bbvi.from_numpyro(by_level, np.ones(4), np.array([0, 1, 1, 0]), groups="N", rows=["y", "level"])
    assert bbvi.fit(model, data, batch_size=2, stop=bbvi.Budget(steps=1)).num_groups == 4
