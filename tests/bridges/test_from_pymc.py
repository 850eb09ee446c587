"""PyMC models brought to bbvi have PyMC's log densities, term by term, and the blankets that are read off by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bbvi

pm = pytest.importorskip("pymc", reason="PyMC is not installed: pip install pymc")
pytestmark = [
    pytest.mark.compat,
    pytest.mark.filterwarnings("ignore"),  # PyMC's own: no BLAS, imputation, checks of parameters left out
]
RNG = np.random.default_rng(0)
EFFECT, ERROR = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
X, Y = RNG.normal(size=(6, 2)), RNG.normal(size=6)
COUNTS = np.array([4, 5, 4, 0, 1, 4])


def conjugate():
    mu = pm.Normal("mu")
    pm.Normal("y", mu, 1, observed=Y)


def schools():
    mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
    theta = pm.Normal("theta", mu, tau, dims="school")
    pm.Normal("y", theta, ERROR, observed=EFFECT, dims="school")


def schools_apart():
    mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
    theta = pm.Deterministic("theta", mu + tau * pm.Normal("z", dims="school"), dims="school")
    pm.Normal("y", theta, ERROR, observed=EFFECT, dims="school")


def regression():
    x = pm.Data("x", X)
    w, sigma = pm.Normal("w", shape=2), pm.Exponential("sigma", 1)
    pm.Normal("y", x @ w, sigma, observed=Y)


def logistic():
    a, w = pm.Normal("a"), pm.Laplace("w", 0, 1)
    pm.Bernoulli("y", logit_p=a + w * X[:, 0], observed=(Y > 0).astype(int))


def rates():
    rate = pm.Gamma("rate", 2, 1, shape=6)
    pm.Poisson("y", rate, observed=COUNTS)
    pm.Potential("smooth", -0.5 * (rate[1:] - rate[:-1]) ** 2)


def mixture():
    weight = pm.Dirichlet("weight", np.ones(3))
    centre = pm.Normal("centre", 0, 3, shape=3)
    which = pm.Categorical("which", weight, shape=6)
    pm.Normal("y", centre[which], 1, observed=Y)


def covariance():
    chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.Exponential.dist(1.0))
    pm.MvNormal("y", np.zeros(2), chol=chol, observed=X)


def change_point():
    switch = pm.DiscreteUniform("switch", 0, 5)
    early, late = pm.Exponential("early", 1), pm.Exponential("late", 1)
    pm.Poisson("y", pm.math.switch(switch >= np.arange(6), early, late), observed=COUNTS)


def bounds():
    low = pm.Uniform("low", -1, 1)
    width = pm.Uniform("inside", low, low + 2)
    share = pm.Beta("share", 2, 2)
    pm.Normal("y", low + width * share, 1, observed=Y)


def missing():
    mu = pm.Normal("mu")
    pm.Normal("y", mu, 1, observed=np.array([1.0, np.nan, 2.0]))


def trials():
    found = pm.Binomial("found", n=7, p=0.4)
    cut = pm.Normal("cut", [0, 1], 1, transform=pm.distributions.transforms.ordered, initval=[0.0, 1.0])
    pm.Normal("y", found * cut[0] + cut[1], 2, observed=Y)


def walk():
    x = pm.GaussianRandomWalk("x", sigma=1, init_dist=pm.Normal.dist(), steps=5)
    pm.StudentT("y", nu=4, mu=x, sigma=1, observed=Y)


# how many elements of terms read so many numbers of the latents: an ordered vector is one factor of q, read as a whole; the density
# and the Jacobian of a variable with moving bounds are two terms. Of a Cholesky factor the first six terms are not told by hand
MODELS = {
    conjugate: {1: 7},
    schools: {1: 10, 3: 8},
    schools_apart: {1: 10, 3: 8},
    regression: {1: 3, 3: 6},
    logistic: {1: 2, 2: 6},
    rates: {1: 12, 2: 5},
    mixture: {1: 3, 3: 1, 4: 12},
    change_point: {1: 3, 3: 6},
    bounds: {1: 2, 2: 2, 3: 6},
    missing: {1: 3, 2: 1},
    trials: {1: 1, 2: 2, 3: 6},
    walk: {1: 7, 2: 5},
    covariance: None,
}


@functools.cache
def brought(write):
    with pm.Model(coords={"school": list("ABCDEFGH")}) as written:
        write()
    return written, *bbvi.from_pymc(written)


@functools.cache
def numbers(write):
    """Each term by PyMC at random points of its unconstrained space, with the latents there."""
    written, model, _ = brought(write)
    by_value = {written.rvs_to_values[rv].name: rv for rv in written.free_RVs}
    kept = [rv for name, rv in by_value.items() if name in model.globals and name != rv.name]
    plain = [rv for rv in written.free_RVs if rv not in kept]
    names = [v.name for v in [*written.basic_RVs, *written.potentials]]
    outputs = [
        *written.logp(sum=False, jacobian=False), *(written.logp(vars=rv, sum=False)[0] for rv in kept),
        *written.replace_rvs_by_values(plain),
    ]  # fmt: skip
    evaluate = written.compile_fn(outputs, mode="FAST_COMPILE", on_unused_input="ignore")
    found = []
    for seed in range(3):
        rng, start = np.random.default_rng(seed), written.initial_point(random_seed=0)
        point = {n: x + 0.5 * rng.normal(size=np.shape(x)) if x.dtype.kind == "f" else x for n, x in start.items()}
        values = evaluate(point)
        terms = dict(zip(names, values, strict=False))
        terms |= dict(zip((rv.name for rv in kept), values[len(names) :], strict=False))
        z = dict(zip((rv.name for rv in plain), values[len(names) + len(kept) :], strict=True))
        found.append(
            (terms, z | {written.rvs_to_values[rv].name: point[written.rvs_to_values[rv].name] for rv in kept})
        )
    return found


@pytest.mark.parametrize("write", MODELS)
def test_log_densities_are_those_of_pymc(write):
    _, model, data = brought(write)
    for expected, z in numbers(write):
        found = model.log_joint({name: jnp.asarray(x) for name, x in z.items()}, data)
        assert found.keys() == expected.keys()
        for name, term in found.items():
            if np.shape(term) != np.shape(
                expected[name]
            ):  # a vector's, which PyMC adds up where its transform takes it whole
                term = term.sum()
            np.testing.assert_allclose(term, expected[name], rtol=2e-4, atol=2e-4, err_msg=name)


@pytest.mark.parametrize("write", [write for write, reads in MODELS.items() if reads])
def test_blankets_are_those_read_off_by_hand(write):
    _, model, data = brought(write)
    reads = np.asarray(bbvi.explain(model, data).matrix.toarray().sum(1)).astype(int)
    found, times = np.unique(reads[reads > 0], return_counts=True)
    assert dict(zip(found.tolist(), times.tolist(), strict=True)) == MODELS[write]


def test_supports_and_settings_of_jax_are_kept():
    assert not jax.config.read("jax_enable_x64")
    supports = {name: latent.support for write in MODELS for name, latent in brought(write)[1].globals.items()}
    assert supports["tau"] == "positive" and supports["weight"] == "simplex" and supports["which"] == "categorical"
    assert supports["low"] == "interval" and supports["inside_interval__"] == "real" and supports["cut"] == "ordered"
    assert supports["share"] == "unit_interval" and supports["switch"] == "categorical"


def test_a_fit_finds_the_exact_posterior_and_speaks_pymc_to_arviz():
    posterior = bbvi.fit(*brought(conjugate)[1:])
    np.testing.assert_allclose(posterior.mean()["mu"], Y.sum() / 7, atol=0.1)
    data = posterior.to_arviz(200)
    assert data["log_likelihood"]["y"].shape == (1, 200, 6)
    assert abs(float(data["posterior_predictive"]["y"].mean()) - Y.sum() / 7) < 0.3
    np.testing.assert_allclose(data["observed_data"]["y"], Y)


def test_dims_and_deterministics_are_kept():
    _, model, _ = brought(schools_apart)
    posterior = bbvi.fit(model, None, stop=bbvi.Budget(steps=0))
    draws = posterior.sample(5)
    sites = model.origin.sites(draws)
    np.testing.assert_allclose(sites["theta"], draws["mu"][:, None] + draws["tau"][:, None] * draws["z"], rtol=1e-5)
    assert model.origin.dims["theta"] == ("school",) and list(model.origin.coords["school"]) == list("ABCDEFGH")


def test_what_cannot_be_brought_is_refused():
    with pm.Model() as written:
        pm.Geometric("g", 0.3)
    with pytest.raises(ValueError, match="'g' is geometric"):
        bbvi.from_pymc(written)
    with pytest.raises(TypeError, match=r"takes a pymc.Model"):
        bbvi.from_pymc(3)
    with pytest.raises(ValueError, match="no free variables"):
        bbvi.from_pymc(pm.Model())
