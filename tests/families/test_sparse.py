"""A joint Normal with a sparse precision: its density, draws, covariances and Fisher information are those of dense algebra."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree

import bbvi
from bbvi.model.latents import random_starts
from bbvi.numerics.address import Address, seed_key
from tests.compiled import compiled

#: sizes that blocks and tiles do not divide, a core as large as the vector, and a band as wide
CASES = {
    "chain": (40, bbvi.SparsePrecision(1)),
    "core": (6, bbvi.SparsePrecision(0, 2)),
    "other order": (8, bbvi.SparsePrecision(3, 1, order=(2, 7, 5, 0, 3, 1, 6, 4))),
    "core alone": (4, bbvi.SparsePrecision(0, 9)),
    "one block": (5, bbvi.SparsePrecision(7)),
}


def parameters(size, covariance):
    latent = bbvi.real(size, q=covariance)
    raw = random_starts({"z": latent}, {}, seed_key(4))["z"]
    rng = np.random.default_rng(size)
    return latent.family, {name: jnp.asarray(0.4 * rng.normal(size=leaf.shape)) for name, leaf in raw.items()}


def matrix_of(covariance, params, size):
    """The unit lower triangular factor, entry by entry, in the order that it has."""
    core, width = min(covariance.core, size), covariance.width
    at = {name: ([], []) for name in ("lower", "below", "band", "within")}
    for i in range(size):
        for j in range(i):
            if j < core:
                name = "lower" if i < core else "below"
            elif width and (j - core) // width == (i - core) // width:
                name = "within"
            elif width and (j - core) // width == (i - core) // width - 1:
                name = "band"
            else:
                continue
            at[name][0].append(i)
            at[name][1].append(j)
    matrix = jnp.eye(size)
    for name, (rows, columns) in at.items():
        assert (name in params) == bool(rows)
        if rows:
            matrix = matrix.at[np.array(rows), np.array(columns)].set(jnp.ravel(params[name]))
    return matrix


def covariance_of(covariance, params):
    size, scale = len(params["loc"]), jnp.exp(params["scale"])
    inverse = jnp.linalg.inv(matrix_of(covariance, params, size))
    back = np.argsort(covariance.order) if covariance.order else np.arange(size)
    return (inverse @ inverse.T)[back][:, back] * jnp.outer(scale, scale)


@pytest.mark.parametrize("case", CASES)
def test_sparse_precision_is_that_of_dense_algebra(case):
    """The density, the matrix that makes draws, the standard deviations, and F^-1 as derivatives of the covariance give it."""
    size, covariance = CASES[case]
    with jax.enable_x64(True):
        family, params = parameters(size, covariance)
        flat, shaped = ravel_pytree(params)
        u = np.random.default_rng(1).normal(size=size)
        gradient = jnp.asarray(np.random.default_rng(2).normal(size=len(flat)))

        def both(flat):
            params = shaped(flat)
            sigma = covariance_of(covariance, params)
            precision = jnp.linalg.inv(sigma)
            gap, log_det = u - params["loc"], jnp.linalg.slogdet(2 * jnp.pi * sigma)[1]
            spread = jax.jacobian(lambda flat: covariance_of(covariance, shaped(flat)))(flat)
            location = jax.jacobian(lambda flat: shaped(flat)["loc"])(flat)
            whitened = jnp.einsum("ij,jka->ika", precision, spread)
            information = location.T @ precision @ location + jnp.einsum("ija,jib->ab", whitened, whitened) / 2
            dense = sigma, -0.5 * (gap @ precision @ gap + log_det), gradient
            root = jax.vmap(lambda e: covariance.correlate(params, e), out_axes=1)(jnp.eye(size))
            root = root * jnp.exp(params["scale"][:, None])
            found = ravel_pytree(family.natural_gradient(params, shaped(gradient)))[0]
            return dense, (root @ root.T, family.log_prob(params, u), information @ found)

        dense, found = compiled(both)(flat)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(b, a, rtol=1e-7, atol=1e-8), dense, found)
        sd = covariance.sd(params) * np.exp(params["scale"])
        np.testing.assert_allclose(sd, np.sqrt(np.diag(dense[0])), rtol=1e-9)


@pytest.mark.parametrize("pattern", [bbvi.SparsePrecision(0, 7, 2), bbvi.SparsePrecision(9, 2, 2)])
def test_with_all_links_it_is_the_full_rank_normal_whose_scales_depend_on_parents(pattern):
    size, full = 7, bbvi.FullRank(2)
    with jax.enable_x64(True):
        family, params = parameters(size, pattern)
        dense = bbvi.real(size, q=full).family
        rows = np.tril_indices(size, -1)

        def as_dense(p):
            rest = {name: p[name] for name in ("loc", "scale", "slopes")}
            return {**rest, "lower": (matrix_of(pattern, p, size) - jnp.eye(size))[rows]}

        u, noise = np.random.default_rng(3).normal(size=(2, size))

        def all_of(one, covariance, p):
            log_q, gradient = jax.value_and_grad(one.log_prob)(p, u)
            return log_q, covariance.correlate(p, noise), one.natural_gradient(p, gradient)

        *found, moved = compiled(lambda p: all_of(family, pattern, p))(params)
        expected = compiled(lambda p: all_of(dense, full, p))(as_dense(params))
        as_found = (*found, as_dense(moved))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9), as_found, tuple(expected))


def target(z, _):
    """A walk seen with noise, whose evidence is that of a Normal."""
    x = z["x"]
    return dist.Normal(x[:-1], 0.5).log_prob(x[1:]).sum() + dist.Normal(x, 1.0).log_prob(jnp.arange(6.0) / 3).sum()


def exact_gradient(params, covariance):
    with jax.enable_x64(False):
        steps = jnp.eye(6)[1:] - jnp.eye(6)[:-1]
        precision = 4 * steps.T @ steps + jnp.eye(6)
        mean = jnp.linalg.solve(precision, jnp.arange(6.0) / 3)

        def elbo(p):
            gap, sigma = p["loc"] - mean, covariance_of(covariance, p)
            return p["scale"].sum() - 0.5 * (gap @ precision @ gap + jnp.trace(precision @ sigma))

        return compiled(jax.grad(elbo))(params)


@pytest.mark.parametrize(
    ("gradient", "draws"), [(bbvi.Pathwise(), bbvi.MonteCarlo(10)), (bbvi.Score(), bbvi.QuasiMonteCarlo(16))]
)
def test_gradient_is_unbiased(gradient, draws):
    covariance = bbvi.SparsePrecision(2, 1, order=(3, 0, 1, 2, 4, 5))
    model = bbvi.Model(target, x=bbvi.real(6, q=covariance))
    _, params = parameters(6, covariance)
    posterior = bbvi.fit(model, stop=bbvi.Budget(steps=0)).replace({"x": params})
    truth = exact_gradient(params, covariance)
    found = bbvi.gradient_moments(model, None, posterior, gradient=gradient, draws=draws, repeats=5000, seed=1)
    for name, mean in found.mean["x"].items():
        error = np.asarray(found.standard_error["x"][name])
        assert np.all(np.abs(mean - np.asarray(truth[name])) < 4.5 * error + 1e-4 * (1 + np.abs(truth[name]))), name


def test_each_group_has_a_sparse_factor_of_its_own():
    """Three numbers of each group in a chain: the posterior is known, and so is the evidence."""
    y = np.array([[0.5, -0.2, 0.1], [1.4, 0.3, 0.8], [-0.6, -1.0, 0.0], [0.3, 0.2, 0.1]], np.float32)

    def log_local(beta, z, row):
        return dist.Normal(jnp.concatenate([jnp.zeros(1), z["x"][:-1]]), 1.0).log_prob(z["x"])

    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: 0.0, log_local=log_local, globals={},
        log_likelihood=lambda beta, z, row: dist.Normal(z["x"], 0.5).log_prob(row),
        locals={"x": bbvi.real(3, q=bbvi.SparsePrecision(1))},
    )  # fmt: skip
    posterior = bbvi.fit(model, y, gradient=bbvi.Pathwise(), draws=bbvi.MonteCarlo(20), batch_size=2)
    walk = np.tril(np.ones((3, 3)))
    evidence = dist.MultivariateNormal(jnp.zeros(3), walk @ walk.T + 0.25 * jnp.eye(3)).log_prob(y).sum()
    assert abs(posterior.elbo(1000) - float(evidence)) < 5e-3
    sd = np.sqrt(np.diag(np.linalg.inv(4 * np.eye(3) + np.linalg.inv(walk @ walk.T))))
    np.testing.assert_allclose(posterior.sd()["x"], np.broadcast_to(sd, (4, 3)), rtol=5e-3)


def test_a_factor_that_rounding_would_drown_has_no_draws():
    family = bbvi.real(2, q=bbvi.SparsePrecision(1)).family
    address = Address(seed_key(0), jnp.uint32(0), jnp.uint32(0), jnp.uint32(0))
    sample = compiled(lambda params: family.sample(params, address))
    for link, is_drawn in ((300.0, True), (1e9, False)):
        params = {"loc": jnp.zeros(2), "scale": jnp.zeros(2), "band": jnp.array([[link]])}
        assert bool(jnp.all(jnp.isfinite(sample(params)))) == is_drawn


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bbvi.SparsePrecision(-1), "width must be an integer of 0 or more, got -1"),
        (lambda: bbvi.SparsePrecision(1, True), "core must be an integer of 0 or more, got True"),
        (lambda: bbvi.SparsePrecision(1, 2, 3), "the parents are among the core's 2 entries, got 3"),
        (lambda: bbvi.SparsePrecision(1, order=(0, 0)), "order must have each number from 0 on once"),
        (
            lambda: bbvi.real(3, q=bbvi.SparsePrecision(1, order=(1, 0))).family.parameters(),
            "order has 2 numbers, and the vector 3",
        ),
    ],
)
def test_a_pattern_that_cannot_be_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
