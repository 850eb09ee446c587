"""Joint factors of q: exact gradients, exact fits of correlated targets, densities and moments of other libraries."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree
from numpyro.distributions import biject_to

import bbvi
from bbvi.model.latents import random_starts
from bbvi.numerics.address import Address, seed_key
from tests.compiled import compiled

COVARIANCES = {
    "FullRank": bbvi.FullRank(),
    "with parents": bbvi.FullRank(2),
    "with skews": bbvi.FullRank(0, (0, 2)),
    "with a core": bbvi.SparsePrecision(0, 3, 2),
    "LowRank": bbvi.LowRank(2),
}
SUPPORTS = {
    "real": lambda q: bbvi.real(4, q=q), "positive": lambda q: bbvi.positive(4, q=q),
    "unit_interval": lambda q: bbvi.unit_interval(4, q=q), "interval": lambda q: bbvi.interval(-1.0, 2.0, 4, q=q),
    "ordered": lambda q: bbvi.ordered(4, q=q), "simplex": lambda q: bbvi.simplex(4, q=q),
}  # fmt: skip
MEAN = jnp.array([0.5, -1.0, 0.2, 1.5])
SLOPES = jnp.array([[0.3, -0.2], [0.1, 0.35]])
SKEW = jnp.array([0.7, -0.4])
FACTOR = jnp.array([[0.8, 0, 0, 0], [0.7, 0.5, 0, 0], [-0.4, 0.6, 0.9, 0], [0.2, -0.7, 0.3, 0.6]])


def parameters(latent, scale=8.0):
    """Random ones, with correlations that matter."""
    raw = random_starts({"z": latent}, {}, seed_key(4))["z"]
    found = {name: leaf * (scale if name in ("lower", "below", "directions") else 1.0) for name, leaf in raw.items()}
    return found | {name: value for name, value in (("slopes", SLOPES), ("skew", SKEW)) if name in raw}


def lower(params):
    """The entries below the diagonal, row by row."""
    return jnp.concatenate([params["lower"], jnp.ravel(params.get("below", jnp.zeros(0)))])


def covariance(params):
    """Of the coordinates, by dense algebra."""
    scale, size = jnp.exp(params["scale"]), params["loc"].shape[-1]
    if "directions" in params:
        inner = jnp.eye(size) + params["directions"] @ params["directions"].T
    else:
        matrix = jnp.eye(size).at[np.tril_indices(size, -1)].set(lower(params))
        inverse, noise = jnp.linalg.inv(matrix), jnp.ones(size)
        if "slopes" in params:
            # the variance of entry i, given those before it, is exp(2 slopes w), and w of the parents is Normal
            noise = noise.at[2:].set(jnp.exp(2 * ((params["slopes"] @ inverse[:2, :2]) ** 2).sum(1)))
        inner = inverse @ jnp.diag(noise) @ inverse.T
    return scale[:, None] * inner * scale


@pytest.mark.parametrize("support", SUPPORTS)
def test_density_is_that_of_a_multivariate_normal_pushed_onto_the_support(support):
    latent = SUPPORTS[support](bbvi.FullRank())
    params, family = parameters(latent), latent.family
    assert (latent.shape, latent.event) == ((), (4,))

    def both(params):
        normal, bijection = dist.MultivariateNormal(params["loc"], covariance(params)), biject_to(family.chart.support)
        u = normal.sample(jax.random.key(1), (20,))
        z = bijection(u)
        jacobian = bijection.log_abs_det_jacobian(u, z).reshape(20, -1).sum(-1)
        found = jax.vmap(lambda z_i: family.log_prob(params, family.chart.coordinates(z_i)))(z)
        return found, normal.log_prob(u) - jacobian

    np.testing.assert_allclose(*compiled(both)(params), rtol=2e-3, atol=2e-3)


NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(100)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def two_pieces(skew, noise):
    """Standard normals that are wider on one side than on the other, with mean 0 and variance 1."""

    def wider(e):
        return e * jnp.cosh(skew) + jnp.sqrt(1 + e**2) * jnp.sinh(skew)

    mean = WEIGHTS @ wider(NODES)
    return (wider(noise) - mean) / jnp.sqrt(WEIGHTS @ (wider(NODES) - mean) ** 2)


def log_density_of_two_pieces(skew, x):
    """By the inverse function, and its derivative."""

    def inverse(x):
        at_nodes = NODES * jnp.cosh(skew) + jnp.sqrt(1 + NODES**2) * jnp.sinh(skew)
        mean = WEIGHTS @ at_nodes
        y = mean + x * jnp.sqrt(WEIGHTS @ (at_nodes - mean) ** 2)
        return y * jnp.cosh(skew) - jnp.sqrt(1 + y**2) * jnp.sinh(skew)

    return dist.Normal(0, 1).log_prob(inverse(x)) + jnp.log(jax.grad(inverse)(x))


def entry_by_entry(p, u):
    """Each entry a Normal given those before it, whose mean and log scale are linear in them, or one with a skew."""
    w, entries, total = (u - p["loc"]) / jnp.exp(p["scale"]), iter(lower(p)), 0.0
    skews = {0: p["skew"][0], 2: p["skew"][1]} if "skew" in p else {}
    for i in range(4):
        mean = -sum(next(entries) * w[j] for j in range(i))
        log_scale = p["slopes"][i - 2] @ w[:2] if i >= 2 and "slopes" in p else 0.0
        x = (w[i] - mean) * jnp.exp(-log_scale)
        of_x = log_density_of_two_pieces(skews[i], x) if i in skews else dist.Normal(0, 1).log_prob(x)
        total += of_x - log_scale - p["scale"][i]
    return total


@pytest.mark.parametrize("q", COVARIANCES)
def test_score_and_its_derivative_are_those_of_the_dense_density(q):
    """Second derivatives too: the low-rank density has a derivative of its own."""
    latent = bbvi.real(4, q=COVARIANCES[q])
    params, u = parameters(latent), jnp.array([0.3, -1.2, 0.8, 0.1])

    def dense(p):
        if "slopes" in p or "skew" in p:
            return entry_by_entry(p, u)
        return dist.MultivariateNormal(p["loc"], covariance(p)).log_prob(u)

    def both(p):
        functions = (lambda p: latent.family.log_prob(p, u), dense)
        return [
            (f(p), jax.grad(f)(p), jax.jvp(jax.grad(f), (p,), (jax.tree.map(jnp.ones_like, p),))[1]) for f in functions
        ]

    found, truth = compiled(both)(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=5e-3, atol=5e-3), found, truth)


def target(z, _):
    """A correlated Normal, as one factor; its evidence is 1."""
    return dist.MultivariateNormal(MEAN, scale_tril=FACTOR).log_prob(z["z"])


def exact_gradient(params):
    """Of the ELBO of a Normal q and a Normal target, which is minus their divergence."""
    precision = jnp.linalg.inv(FACTOR @ FACTOR.T)

    def elbo(p):
        gap, sigma = p["loc"] - MEAN, covariance(p)
        entropy = p["scale"].sum() if "lower" in p else 0.5 * jnp.linalg.slogdet(sigma)[1]
        for skew in p.get("skew", ()):
            entropy += WEIGHTS @ jnp.log(jax.vmap(jax.grad(two_pieces, 1), (None, 0))(skew, jnp.asarray(NODES)))
        return entropy - 0.5 * (gap @ precision @ gap + jnp.trace(precision @ sigma))

    return compiled(jax.grad(elbo))(params)


@pytest.mark.parametrize(
    ("gradient", "draws"),
    [
        (bbvi.Score(), bbvi.MonteCarlo(10)), (bbvi.Pathwise(), bbvi.MonteCarlo(10)),
        (bbvi.Score(), bbvi.QuasiMonteCarlo(16)), (bbvi.Pathwise(), bbvi.QuasiMonteCarlo(16)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("q", COVARIANCES)
def test_gradient_is_unbiased(q, gradient, draws):
    model = bbvi.Model(target, z=bbvi.real(4, q=COVARIANCES[q]))
    params = parameters(model.globals["z"], 2.0)
    posterior = bbvi.fit(model, stop=bbvi.Budget(steps=0)).replace({"z": params})
    truth = exact_gradient(params)
    found = bbvi.gradient_moments(model, None, posterior, gradient=gradient, draws=draws, repeats=20_000, seed=1)
    for name, mean in found.mean["z"].items():
        error = np.asarray(found.standard_error["z"][name])
        assert np.all(np.abs(mean - np.asarray(truth[name])) < 4.5 * error + 1e-4 * (1 + np.abs(truth[name]))), name


@pytest.mark.parametrize("q", COVARIANCES)
def test_nets_reach_the_draws_of_a_joint_factor(q):
    model = bbvi.Model(target, z=bbvi.real(4, q=COVARIANCES[q]))
    posterior = bbvi.fit(model, stop=bbvi.Budget(steps=0)).replace({"z": parameters(model.globals["z"], 2.0)})
    net, independent = (
        bbvi.gradient_moments(model, None, posterior, gradient=bbvi.Pathwise(), draws=draws, repeats=500)
        for draws in (bbvi.QuasiMonteCarlo(64), bbvi.MonteCarlo(64))
    )
    for name, error in net.standard_error["z"].items():
        gain = 2 if name == "slopes" else 5  # cubic in the noise
        assert gain * np.sum(np.square(error)) < np.sum(np.square(independent.standard_error["z"][name])), name


@pytest.mark.parametrize("parents", [0, 2])
def test_draws_with_skews_are_those_of_their_density(parents):
    """A narrower Normal over q has the mean 1 among draws of q, and weighs them to its own mean."""
    family = bbvi.real(4, q=bbvi.FullRank(parents, (0, 1, 3))).family
    params = parameters(bbvi.real(4, q=bbvi.FullRank(parents, (0, 1, 3)))) | {"skew": jnp.array([0.7, -0.4, 0.5])}
    zero = jnp.uint32(0)

    def one(sample):
        u = family.sample(params, Address(seed_key(3), zero, zero, sample))
        narrow = dist.Normal(params["loc"] + 0.2, 0.5 * jnp.exp(params["scale"]))
        return u, narrow.log_prob(u).sum() - family.log_prob(params, u)

    u, log_ratio = jax.jit(jax.vmap(one))(jnp.arange(40_000, dtype=jnp.uint32))
    ratio = np.exp(np.asarray(log_ratio, np.float64))
    assert abs(ratio.mean() - 1) < 4 * ratio.std() / 200
    gap = ratio[:, None] * np.asarray(u - params["loc"] - 0.2)
    assert np.all(abs(gap.mean(0)) < 4 * gap.std(0) / 200)


def test_natural_gradient_with_skews_solves_with_the_fisher_information():
    """F by a product of quadratures over both entries, with 100 nodes each, where the family takes 32."""
    family = bbvi.real(2, q=bbvi.FullRank(0, (0, 1))).family
    with jax.enable_x64(True):
        params = {
            "loc": jnp.array([0.3, -1.0]), "scale": jnp.array([0.2, -0.5]), "lower": jnp.array([0.8]),
            "skew": jnp.array([0.9, -0.5]),
        }  # fmt: skip
        flat, unravel = ravel_pytree(params)
        noise = jnp.asarray(np.stack(np.meshgrid(NODES, NODES), -1).reshape(-1, 2))
        weights = np.outer(WEIGHTS, WEIGHTS).ravel()
        gradient = jnp.arange(1.0, 1.0 + len(flat))

        @compiled
        def information_and_found(params, flat):
            correlated = jax.vmap(family.covariance.correlate, (None, 0))(params, noise)
            u = params["loc"] + jnp.exp(params["scale"]) * correlated
            scores = jax.vmap(jax.grad(lambda flat, u: family.log_prob(unravel(flat), u)), (None, 0))(flat, u)
            found = ravel_pytree(family.natural_gradient(params, unravel(gradient)))[0]
            return scores.T @ (weights[:, None] * scores), found

        information, found = information_and_found(params, flat)
        np.testing.assert_allclose(information @ found, gradient, rtol=5e-3)


DIRECTION = jnp.array([0.9, -0.8, 0.7, 1.0])
LOW = jnp.diag(jnp.array([0.6, 0.8, 0.5, 0.7])) + jnp.outer(DIRECTION, DIRECTION)


@pytest.mark.parametrize(
    ("q", "sigma"),
    [(bbvi.FullRank(), FACTOR @ FACTOR.T), (bbvi.LowRank(1), LOW), (None, LOW)],
    ids=["full", "low", "none"],
)
def test_a_correlated_normal_is_fitted_exactly_by_a_joint_q_and_not_by_mean_field(q, sigma):
    """The evidence is 1: the ELBO of the exact posterior is 0, that of independent entries minus their divergence."""
    model = bbvi.Model(
        lambda z, _: dist.MultivariateNormal(MEAN, sigma).log_prob(z["z"]), joint=(), z=bbvi.real(4, q=q)
    )
    posterior = bbvi.fit(
        model, gradient=bbvi.Pathwise(), draws=bbvi.MonteCarlo(20), optimizer=bbvi.adagrad(0.2),
        stop=bbvi.Budget(steps=3000),
    )  # fmt: skip
    elbo, precision = posterior.elbo(4000), np.linalg.inv(sigma)
    if q is None:
        best = -0.5 * (np.log(np.diag(precision)).sum() + np.linalg.slogdet(sigma)[1])
        assert best < -0.3
        assert abs(elbo - best) < 4 * elbo.standard_error + 1e-3
        return
    assert abs(elbo) < 2e-3
    np.testing.assert_allclose(posterior.mean()["z"], MEAN, atol=0.01)
    np.testing.assert_allclose(posterior.sd()["z"], np.sqrt(np.diag(sigma)), rtol=0.01)


@pytest.mark.parametrize("support", SUPPORTS)
def test_what_a_posterior_answers_agrees_with_its_draws(support):
    latent, num = SUPPORTS[support](bbvi.FullRank()), 20_000
    model = bbvi.Model(lambda z, _: z["z"].sum() * 1.0, z=latent)
    posterior = bbvi.fit(model, stop=bbvi.Budget(steps=0)).replace({"z": parameters(latent, 2.0)})
    x = np.asarray(posterior.sample(num, 5)["z"], np.float64)
    assert bool(np.all(np.asarray(latent.family.chart.support(jnp.asarray(x)))))
    # where there is no closed form, moments are those of 8192 draws
    per_draw = 1 / num + (1 / 8192 if support in ("ordered", "simplex") else 0)
    assert (np.abs(posterior.mean()["z"] - x.mean(0)) < 5 * x.std(0) * np.sqrt(per_draw)).all()
    below = (x < posterior.quantile(0.9)["z"]).mean(0)
    assert (np.abs(below - 0.9) < 5 * np.sqrt(0.09 * per_draw)).all()


def test_coordinates_of_draws_have_the_covariance_of_the_parameters():
    for q in COVARIANCES.values():
        latent, num = bbvi.real(4, q=q), 40_000
        model = bbvi.Model(lambda z, _: z["z"].sum(), z=latent)
        posterior = bbvi.fit(model, stop=bbvi.Budget(steps=0)).replace({"z": parameters(latent)})
        truth = np.asarray(covariance(posterior.params["z"]), np.float64)
        found = np.cov(np.asarray(posterior.sample(num, 2)["z"], np.float64).T)
        # of a Normal, and somewhat more where scales vary
        error = np.sqrt((truth**2 + np.outer(np.diag(truth), np.diag(truth))) / num) * (
            2 if getattr(q, "parents", 0) else 1
        )
        assert (np.abs(found - truth) < 5 * error).all()


def test_each_group_has_a_joint_factor_of_its_own():
    """Two correlated locals of each group: the posterior is known, and so is the evidence."""
    factor = jnp.array([[1.0, 0.0], [0.8, 0.6]])
    y = jnp.array([[0.5, -0.2], [1.4, 0.3], [-0.6, -1.0]])
    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: 0.0,
        log_local=lambda beta, z, row: dist.MultivariateNormal(jnp.zeros(2), scale_tril=factor).log_prob(z["x"]),
        log_likelihood=lambda beta, z, row: dist.Normal(z["x"], 0.5).log_prob(row["y"]),
        globals={}, locals={"x": bbvi.real(2, q=bbvi.FullRank())},
    )  # fmt: skip
    posterior = bbvi.fit(
        model, {"y": y}, gradient=bbvi.Pathwise(), draws=bbvi.MonteCarlo(20), optimizer=bbvi.adagrad(0.2),
        stop=bbvi.Budget(steps=2000),
    )  # fmt: skip
    evidence = dist.MultivariateNormal(jnp.zeros(2), factor @ factor.T + 0.25 * jnp.eye(2)).log_prob(y).sum()
    assert abs(posterior.elbo(1000) - float(evidence)) < 5e-3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bbvi.real(q=bbvi.FullRank()), r"bbvi.real: q=FullRank joins the entries of the last axis.*shape \(\)"),
        (
            lambda: bbvi.real("visit", q=bbvi.LowRank(2)),
            "whose length must be a number, 2 or more; got the shape .'visit'",
        ),
        (lambda: bbvi.real(1, q=bbvi.FullRank()), "2 or more"),
        (
            lambda: bbvi.real(2, q=bbvi.FullRank(0, (2,))).family.parameters(),
            "skewed has the numbers of entries, 0 to 1",
        ),
        (lambda: bbvi.count(3, q=bbvi.FullRank()), "bbvi.count: q=FullRank is a Normal, and this latent is discrete"),
        (lambda: bbvi.LowRank(0), "the rank must be an integer of 1 or more, got 0"),
    ],
)
def test_a_joint_q_that_cannot_be_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_posterior_of_another_rank_is_refused():
    def fitted(rank):
        model = bbvi.Model(lambda z, _: z["z"].sum(), z=bbvi.real(4, q=bbvi.LowRank(rank)))
        return model, bbvi.fit(model, stop=bbvi.Budget(steps=0))

    with pytest.raises(ValueError, match=r"LowRank\(rank=2\) .*there and .*LowRank\(rank=3\)"):
        bbvi.fit(fitted(3)[0], start=fitted(2)[1])


def test_a_matrix_that_rounding_would_drown_has_no_draws():
    """In float32 the density of such draws would be that of their rounding: an ELBO of a million in place of a loss."""
    family = bbvi.real(2, q=bbvi.FullRank()).family
    address = Address(seed_key(0), jnp.uint32(0), jnp.uint32(0), jnp.uint32(0))
    for lower, is_drawn in ((300.0, True), (1e6, False)):
        params = {"loc": jnp.zeros(2), "scale": jnp.zeros(2), "lower": jnp.array([lower])}
        assert bool(jnp.all(jnp.isfinite(family.sample(params, address)))) == is_drawn
