"""Eq. 4: every family, in one table that gets all shared tests."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.special
import scipy.stats

import bbvi
from bbvi.draws.draws import MonteCarlo, draw_latent, latent_values
from bbvi.families import constrain, score
from bbvi.model.latents import random_starts
from bbvi.numerics.address import Address, seed_key
from tests.compiled import compiled


def from_docs():
    """The family of the page on families."""
    page = (Path(__file__).parents[2] / "docs" / "families.md").read_text()
    names: dict = {}
    exec(page.split("```python\n")[-1].split("```")[0], names)
    return names["q"]


# ---- the table: a latent, and a log density on its support that is not conjugate to it -----------------------

CONTINUOUS = {
    "Normal": (bbvi.real(), lambda z: dist.StudentT(4.0, 1.0, 0.7).log_prob(z)),
    "LogNormal": (bbvi.positive(q=dist.LogNormal), lambda z: dist.Gamma(2.5, 1.5).log_prob(z)),
    "Gamma": (bbvi.positive(), lambda z: dist.LogNormal(0.3, 0.8).log_prob(z)),
    "Gamma, tiny shape": (
        bbvi.positive(init={"concentration": 0.05, "mean": 0.7}), lambda z: dist.Gamma(0.3, 0.5).log_prob(z),
    ),
    "GammaE": (bbvi.positive(q=bbvi.GammaE), lambda z: dist.LogNormal(-0.2, 0.6).log_prob(z)),
    "Beta": (bbvi.unit_interval(), lambda z: dist.Kumaraswamy(2.0, 3.0).log_prob(z)),
    "interval": (bbvi.interval(-1.0, 2.0), lambda z: -((z - 0.5) ** 2)),
    "StudentT": (bbvi.real(q=functools.partial(dist.StudentT, df=5.0)), lambda z: dist.Normal(0.5, 1.2).log_prob(z)),
    "StudentT, df fitted": (bbvi.real(q=dist.StudentT), lambda z: dist.Laplace(0.5, 1.2).log_prob(z)),
    "Laplace": (bbvi.real(q=dist.Laplace), lambda z: dist.Normal(0.5, 1.2).log_prob(z)),
    "Logistic": (bbvi.real(q=dist.Logistic), lambda z: dist.Normal(0.5, 1.2).log_prob(z)),
    "HalfNormal": (bbvi.positive(q=dist.HalfNormal), lambda z: dist.Gamma(2.0, 1.0).log_prob(z)),
    "Exponential": (bbvi.positive(q=dist.Exponential), lambda z: dist.Gamma(2.0, 1.0).log_prob(z)),
    "Weibull": (bbvi.positive(q=dist.Weibull), lambda z: dist.Gamma(2.0, 1.0).log_prob(z)),
    "Weibull, tiny shape": (
        bbvi.positive(q=dist.Weibull, init={"concentration": 0.05, "scale": 0.7}),
        lambda z: dist.Normal(0.0, 15.0).log_prob(jnp.log(z)),
    ),
    "InverseGamma": (bbvi.positive(q=dist.InverseGamma), lambda z: dist.LogNormal(0.3, 0.8).log_prob(z)),
    "Kumaraswamy": (bbvi.unit_interval(q=dist.Kumaraswamy), lambda z: dist.Beta(2.0, 3.0).log_prob(z)),
    "Gumbel, of the docs": (bbvi.real(q=from_docs()), lambda z: dist.Normal(0.5, 1.2).log_prob(z)),
    "Gumbel, by numpyro": (bbvi.real(q=dist.Gumbel), lambda z: dist.Normal(0.5, 1.2).log_prob(z)),
}  # fmt: skip
DISCRETE = {
    "Bernoulli": (bbvi.binary(), np.arange(2), lambda z: 0.8 * z),
    "Categorical": (bbvi.categorical(4), np.arange(4), lambda z: jnp.array([0.1, -0.5, 1.0, 0.3])[z]),
    "Poisson": (bbvi.count(), np.arange(40), lambda z: dist.NegativeBinomial2(2.0, 3.0).log_prob(z)),
    "Geometric": (bbvi.count(q=dist.Geometric), np.arange(400), lambda z: dist.Poisson(1.5).log_prob(z)),
    "NegativeBinomial": (bbvi.count(q=dist.NegativeBinomial2), np.arange(200), lambda z: dist.Poisson(1.5).log_prob(z)),
    "NegativeBinomial, nearly Poisson": (
        bbvi.count(q=dist.NegativeBinomialLogits, init={"concentration": 300.0, "mean": 2.0}), np.arange(60),
        lambda z: dist.Geometric(0.4).log_prob(z),
    ),
    "Binomial": (
        bbvi.count(q=functools.partial(dist.Binomial, total_count=10)), np.arange(11),
        lambda z: jnp.where(z < 4, 0.3 * z, 0.1 * z),
    ),
    "OneHot": (bbvi.one_hot(4), np.eye(4, dtype=int), lambda z: (jnp.array([0.1, -0.5, 1.0, 0.3]) * z).sum()),
}  # fmt: skip
GRIDS = {
    "StudentT": (-3000.0, 3000.0), "StudentT, df fitted": (-3000.0, 3000.0), "Gamma, tiny shape": (-1500.0, 10.0),
    "Weibull, tiny shape": (-1000.0, 85.0),
}  # fmt: skip
# where z underflows, the model still gets log z: the truth must not be evaluated at a floored z
FROM_LOG = {
    "Gamma, tiny shape": lambda u: 0.3 * np.log(0.5) - scipy.special.gammaln(0.3) - 0.7 * u - 0.5 * jnp.exp(u),
    "Weibull, tiny shape": lambda u: dist.Normal(0.0, 15.0).log_prob(u),
}


def parameters(latent):
    return random_starts({"z": latent}, {}, seed_key(4))["z"] | latent.given_start("z", {})


def grid(name):
    """Coordinates fine and wide enough for the trapezoid rule, for families on one real coordinate."""
    latent, _ = CONTINUOUS[name]
    low, high = GRIDS.get(name, (-30.0, 30.0))
    u = np.linspace(low, high, 400_001)
    return jnp.asarray(u), float(u[1] - u[0]), latent.family


def log_mass(params, u, family):
    """log q in coordinates: the density of z times |dz/du|."""

    @compiled
    def both(params, u):
        log_slope = (
            u if family.chart.log_value(u) is not None else jnp.log(jnp.abs(jax.vmap(jax.grad(family.chart.value))(u)))
        )
        return jax.vmap(lambda v: family.log_prob(params, v))(u), log_slope

    return both(params, u)


def scores(params, values, family):
    """log q at each of the values, and its derivative in lambda."""
    return compiled(lambda params, values: jax.vmap(lambda v: score(family, params, v))(values))(params, values)


def draws_of(latent, params, num, seed):
    """Coordinates of independent draws from q."""

    @compiled
    def drawn(params, samples):
        return draw_latent(
            MonteCarlo(num), "z", latent, params, key=seed_key(seed), group=0, samples=samples, lengths={}
        )

    return drawn(params, jnp.arange(num, dtype=jnp.uint32))


@pytest.mark.parametrize("name", CONTINUOUS)
def test_density_integrates_to_one_and_score_to_zero(name):
    latent, _ = CONTINUOUS[name]
    params = parameters(latent)
    u, du, family = grid(name)
    weight = np.exp(np.add(*log_mass(params, u, family), dtype=np.float64)) * du
    weight = np.where(np.isfinite(weight), weight, 0)
    assert abs(weight.sum() - 1) < 2e-3
    _, h = scores(params, u, family)
    for leaf in jax.tree.leaves(h):
        h64 = np.where(weight > 0, np.asarray(leaf, np.float64), 0)
        assert abs((weight * h64).sum()) < 2e-3 * np.sqrt((weight * h64**2).sum())


def exact_gradient_continuous(name):
    latent, log_p = CONTINUOUS[name]
    params = parameters(latent)
    u, du, family = grid(name)

    def elbo(p, u):
        target = FROM_LOG[name](u) if name in FROM_LOG else jax.vmap(lambda v: log_p(family.chart.value(v)))(u)
        log_q, log_slope = log_mass(p, u, family)
        mass = jnp.exp(log_q + log_slope) * du
        inside = mass > 1e-30
        return jnp.sum(jnp.where(inside, mass * (jnp.where(inside, target, 0) - jnp.where(inside, log_q, 0)), 0))

    return compiled(jax.grad(elbo))(params, u)


def exact_gradient_discrete(name):
    latent, values, log_p = DISCRETE[name]
    params = parameters(latent)

    def elbo(p, values):
        log_q = jax.vmap(lambda v: latent.family.log_prob(p, v))(values)
        return jnp.sum(jnp.exp(log_q) * (jax.vmap(log_p)(values) - log_q))

    return compiled(jax.grad(elbo))(params, jnp.asarray(values))


def assert_within_four_errors(model, posterior, truth, *, repeats=100_000, **settings):
    """A failing band is answered with ten times the repeats, never with another seed."""
    for factor in (1, 10):
        moments = bbvi.gradient_moments(model, None, posterior, repeats=repeats * factor, **settings)
        z = jax.tree.map(
            lambda m, t, e: float(np.max(np.abs(np.asarray(m) - np.asarray(t)) / np.asarray(e))),
            moments.mean["z"], truth, moments.standard_error["z"],
        )  # fmt: skip
        if max(z.values()) < 4:
            return
    raise AssertionError(f"gradient off by {z} standard errors at {repeats * factor} repeats")


@pytest.mark.parametrize("name", [*CONTINUOUS, *DISCRETE])
def test_default_gradient_is_unbiased(name):
    latent, log_p = CONTINUOUS[name] if name in CONTINUOUS else DISCRETE[name][::2]
    truth = exact_gradient_continuous(name) if name in CONTINUOUS else exact_gradient_discrete(name)
    model = bbvi.Model(lambda z, _: log_p(z["z"]), z=latent)
    posterior = bbvi.fit(model, stop=bbvi.Budget(steps=0)).replace({"z": parameters(latent)})
    assert_within_four_errors(model, posterior, truth, draws=bbvi.MonteCarlo(5), seed=1)


@pytest.mark.parametrize("name", CONTINUOUS)
def test_draws_follow_the_density(name):
    """Kolmogorov-Smirnov against the family's own quantile function or the integrated density."""
    latent, _ = CONTINUOUS[name]
    params = parameters(latent)
    u = np.asarray(draws_of(latent, params, 20_000, 9), np.float64)
    points, du, family = grid(name)
    cdf = np.cumsum(np.nan_to_num(np.exp(np.add(*log_mass(params, points, family), dtype=np.float64)))) * du
    uniform = np.interp(u, np.asarray(points), cdf)
    assert scipy.stats.kstest(uniform, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_draws_have_their_probabilities(name):
    latent, values, _ = DISCRETE[name]
    params, num = parameters(latent), 50_000
    draws = draws_of(latent, params, num, 2)
    log_q = compiled(jax.vmap(lambda v: latent.family.log_prob(params, v)))(jnp.asarray(values))
    p = np.exp(np.asarray(log_q, np.float64))
    assert abs(p.sum() - 1) < 1e-4
    rows = np.asarray(draws).reshape(-1, num)
    counts = np.array([(rows == np.reshape(value, (-1, 1))).all(0).sum() for value in values])
    likely = p * num > 5
    chi2 = ((counts - p * num) ** 2 / (p * num))[likely].sum()
    assert chi2 < likely.sum() + 4 * np.sqrt(2 * likely.sum())


@pytest.mark.parametrize("name", CONTINUOUS)
def test_coordinates_invert_value(name):
    latent, _ = CONTINUOUS[name]
    u = jnp.linspace(-3.0, 3.0, 7)
    back = compiled(jax.vmap(lambda v: latent.family.chart.coordinates(latent.family.chart.value(v))))(u)
    np.testing.assert_allclose(back, u, atol=2e-5)


@pytest.mark.parametrize("name", CONTINUOUS)
def test_moments_and_quantiles_agree_with_the_density(name):
    latent, _ = CONTINUOUS[name]
    params = parameters(latent)
    u, du, family = grid(name)
    mass = np.nan_to_num(np.exp(np.add(*log_mass(params, u, family), dtype=np.float64))) * du
    values = np.asarray(compiled(jax.vmap(family.chart.value))(u), np.float64)
    inside = mass > 0
    mean = (mass[inside] * values[inside]).sum()
    sd = np.sqrt((mass[inside] * (values[inside] - mean) ** 2).sum())
    found = family.marginals(params)
    np.testing.assert_allclose([found.mean(), found.std()], [mean, sd], rtol=2e-2)
    assert abs(np.interp(float(found.ppf(0.9)), values, np.cumsum(mass)) - 0.9) < 3e-3


STARTS = [
    *[(bbvi.real, q, value) for q in (dist.StudentT, dist.Laplace, dist.Logistic) for value in (-30.0, 0.0, 4.0)],
    *[
        (bbvi.positive, q, value)
        for q in (dist.HalfNormal, dist.Exponential, dist.Weibull, dist.InverseGamma)
        for value in (1e-3, 1.0, 2e4)
    ],
    *[(bbvi.unit_interval, dist.Kumaraswamy, value) for value in (0.02, 0.5, 0.97)],
    *[(bbvi.count, q, value) for q in (dist.Geometric, dist.NegativeBinomialLogits) for value in (0, 2, 300)],
    *[(bbvi.count, functools.partial(dist.Binomial, total_count=20), value) for value in (0, 9, 20)],
]


@pytest.mark.parametrize(("latent", "q", "value"), STARTS)
def test_a_start_at_a_value_puts_q_around_it(latent, q, value):
    made = latent(q=q, init=value)
    params = parameters(made)
    low, high = (made.family.marginals(params).ppf(p) for p in (0.05, 0.95))
    assert low <= value <= high


def test_a_law_whose_location_is_fixed_cannot_be_centred():
    latent = bbvi.real(q=functools.partial(dist.Laplace, loc=0.0), init=3.0)
    with pytest.raises(ValueError, match="Laplace has no rule to centre itself on a value"):
        latent.given_start("z", {})


EXTREMES = [
    (bbvi.positive(q=dist.HalfNormal), {"scale": 1e-37}),
    (bbvi.positive(q=dist.Exponential), {"rate": 1e37}),
    (bbvi.positive(q=dist.Weibull), {"concentration": 0.01, "scale": 1.0}),
    (bbvi.positive(q=dist.InverseGamma), {"concentration": 0.05, "harmonic_mean": 1.0}),
    (bbvi.unit_interval(q=dist.Kumaraswamy), {"concentration1": 0.01, "concentration0": 0.01}),
    (bbvi.unit_interval(q=dist.Kumaraswamy), {"concentration1": 0.01, "concentration0": 100.0}),
    (bbvi.unit_interval(q=dist.Kumaraswamy), {"concentration1": 100.0, "concentration0": 0.01}),
    (bbvi.real(q=dist.StudentT), {"df": 1e6, "loc": 0.0, "scale": 1.0}),
    (bbvi.count(q=dist.NegativeBinomial2), {"concentration": 1e6, "mean": 3.0}),
    (bbvi.count(q=dist.NegativeBinomial2), {"concentration": 1e-3, "mean": 1e-3}),
]


@pytest.mark.parametrize(("latent", "values"), EXTREMES)
def test_draws_and_scores_stay_finite_where_single_precision_ends(latent, values):
    family = latent.family
    params = compiled(lambda values: {name: family.parameters()[name].unconstrain(values[name]) for name in values})(
        jax.tree.map(jnp.asarray, values)
    )
    u = draws_of(latent, params, 2000, 3)
    log_q, h = scores(params, u, family)
    assert compiled(lambda u: jnp.all(family.chart.support(jax.vmap(family.chart.value)(u))))(u)
    for leaf in (u, log_q, *jax.tree.leaves(h)):
        assert np.all(np.isfinite(leaf))


def test_negative_binomial_keeps_its_digits_as_it_becomes_a_poisson():
    family, z = bbvi.count(q=dist.NegativeBinomial2).family, np.arange(12)
    at = compiled(lambda params: jax.vmap(lambda v: score(family, params, v))(jnp.asarray(z)))
    for concentration in (0.3, 9.9, 10.1, 1e3, 1e6):
        found, h = at({"concentration": jnp.log(concentration), "mean": jnp.log(3.0)})
        exact = scipy.stats.nbinom(concentration, concentration / (concentration + 3.0)).logpmf(z)
        np.testing.assert_allclose(found, exact, atol=2e-5)
        # the derivative in log c goes to zero as 1 / c: with mean m, E[h**2] is about (m / c)**2 / 2
        mean_square = (np.exp(exact) * np.asarray(h["concentration"], np.float64) ** 2).sum()
        assert mean_square < 2 * (3.0 / concentration) ** 2 + 1e-9


def test_the_information_of_inverse_gammas_and_negative_binomials_is_diagonal():
    """E[h_1 h_2] = 0, by quadrature and by summation."""

    def weights(family, params, u, log_slope):
        log_q, h = scores(params, u, family)
        return np.exp(np.asarray(log_q + log_slope, np.float64)), h

    u, z = jnp.linspace(-15.0, 15.0, 40_001), jnp.arange(200)
    inverse, count = bbvi.positive(q=dist.InverseGamma).family, bbvi.count(q=dist.NegativeBinomial2).family
    assert correlation(*weights(inverse, {"concentration": jnp.log(2.5), "harmonic_mean": jnp.log(0.4)}, u, u)) < 1e-3
    assert correlation(*weights(count, {"concentration": jnp.log(2.5), "mean": jnp.log(1.4)}, z, 0.0)) < 1e-3


def correlation(weight, h):
    one, other = (np.asarray(leaf, np.float64) for leaf in h.values())
    return abs((weight * one * other).sum()) / np.sqrt((weight * one**2).sum() * (weight * other**2).sum())


def test_dirichlet_gradient_is_unbiased():
    latent = bbvi.simplex(3)
    params = random_starts({"z": latent}, {}, seed_key(4))["z"]
    alpha = jnp.array([0.8, 2.0, 1.5])

    def log_p(z):
        return ((alpha - 1) * jnp.log(z)).sum() - 2 * (z[0] - 0.3) ** 2

    axis = np.linspace(-25, 25, 1201)
    area = (axis[1] - axis[0]) ** 2

    def elbo(p, a, b):
        log_z = jax.nn.log_softmax(jnp.stack([a, b, jnp.zeros_like(a)], -1))
        target = jax.vmap(log_p)(jnp.exp(log_z))
        log_q = jax.vmap(lambda u: latent.family.log_prob(p, u))(log_z)
        # the density of (a, b) is that of z on the simplex times the product of z
        mass = jnp.exp(log_q + log_z.sum(-1)) * area
        return jnp.sum(mass * (target - log_q))

    model = bbvi.Model(lambda z, _: log_p(z["z"]), z=latent)
    posterior = bbvi.fit(model, stop=bbvi.Budget(steps=0)).replace({"z": params})
    truth = compiled(jax.grad(elbo))(params, *(jnp.asarray(x.ravel()) for x in np.meshgrid(axis, axis, indexing="ij")))
    assert_within_four_errors(model, posterior, truth, draws=bbvi.MonteCarlo(5))


@pytest.mark.parametrize("concentration", [1e-3, 1e-2, 0.1, 1.0, 30.0, 1e4])
def test_gamma_draws_follow_scipy_in_log_space(concentration):
    latent = bbvi.positive(init={"concentration": concentration, "mean": 1.0})
    u = draws_of(latent, latent.given_start("z", {}), 20_000, 1)
    assert bool(jnp.all(jnp.isfinite(u)))
    # for tiny z the distribution function is z**a / Gamma(a + 1): no underflow in log space
    log_x = np.asarray(u, np.float64) + np.log(concentration)
    tail = concentration * log_x - scipy.special.gammaln(concentration + 1)
    p = np.where(log_x < -20, np.exp(tail), scipy.stats.gamma(concentration).cdf(np.exp(log_x)))
    assert scipy.stats.kstest(p, "uniform").pvalue > 1e-3


def test_tiny_gammas_are_floored_and_counted_not_zero():
    latent = bbvi.positive(init={"concentration": 0.01, "mean": 1.0})
    u = draws_of(latent, latent.given_start("z", {}), 1000, 1)
    values = np.asarray(latent_values(latent, u))
    assert (values > 0).all()
    assert 0.3 < np.asarray(latent.family.chart.floored(u)).mean() < 0.6
    model = bbvi.Model(lambda z, _: dist.Gamma(0.02, 0.02).log_prob(z["z"]), z=latent)
    fitted = bbvi.fit(model, stop=bbvi.Budget(steps=1), draws=bbvi.MonteCarlo(200))
    assert fitted.history["floored"].iloc[0] > 50


def test_ordered_is_one_factor_with_the_density_of_its_transform():
    latent = bbvi.ordered(3)
    params = random_starts({"z": latent}, {}, seed_key(4))["z"]
    address = Address(seed_key(0), jnp.uint32(0), jnp.uint32(0), jnp.uint32(0))

    @compiled
    def densities_and_draw(params, z):
        values = constrain(latent.family, params)
        base = dist.Normal(values["loc"], values["scale"]).to_event(1)
        expected = dist.TransformedDistribution(base, dist.transforms.OrderedTransform()).log_prob(z)
        found = latent.family.log_prob(params, latent.family.chart.coordinates(z))
        return found, expected, latent.family.chart.value(latent.family.sample(params, address))

    found, expected, draw = densities_and_draw(params, jnp.array([-0.4, 0.3, 1.9]))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert np.all(np.diff(draw) > 0)


def test_gamma_e_is_the_gamma_of_its_moments():
    d = bbvi.GammaE(jnp.array([2.0, 0.5]), jnp.array([0.5, 3.0]))
    np.testing.assert_allclose(d.log_prob(jnp.array([1.0, 0.2])), dist.Gamma(jnp.array([8.0, 1 / 12]), jnp.array([4.0, 1 / 6])).log_prob(
        jnp.array([1.0, 0.2])), rtol=1e-5)  # fmt: skip
    draws = compiled(lambda key: d.sample(key, (40_000,)))(jax.random.key(0))
    np.testing.assert_allclose(draws.mean(0), [2.0, 0.5], atol=0.05)
    mapped = jax.tree.map(lambda x: x, d)
    np.testing.assert_allclose(mapped.variance, d.variance)


@pytest.mark.skipif("NegativeBinomial" not in dist.__all__, reason="numpyro has it from 0.22 on")
def test_the_function_that_chooses_a_negative_binomial_is_the_same_family():
    latents = [bbvi.count(q=q) for q in (dist.NegativeBinomial, dist.NegativeBinomialLogits)]
    assert latents[0].family == latents[1].family
