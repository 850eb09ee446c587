"""q(z_i | beta): natural gradients, frames and marginals are those of the joint law of globals and locals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bbvi.families import Conditional, Framed, FullRank, Joined, JointNormal
from bbvi.families.charts import Positive, Real, vectors
from bbvi.numerics.address import Address

GLOBALS, LOCALS = 3, 2


def chart(*kinds):
    return Joined(tuple(vectors(kind, 1) for kind in kinds))


LEADING = Framed(JointNormal(chart(*[Real()] * GLOBALS), FullRank()))
FOLLOWING = Conditional(JointNormal(chart(Real(), Positive()), FullRank()), GLOBALS)


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def some(family, seed, size=0.3):
    generator = np.random.default_rng(seed)
    found = {p: size * generator.normal(size=x.raw_shape()) for p, x in family.parameters().items()}
    # scales vary little, and q is wider than its frame
    smaller = {"tilt": lambda x: x / 3, "swell": lambda x: x / 9, "frame_scale": lambda x: x - 1}
    return {p: smaller.get(p, lambda x: x)(leaf) for p, leaf in found.items()}


def points(moments):
    """Return points with weights that have these moments, and all others of a Normal up to the third."""
    steps = np.sqrt(GLOBALS) * np.asarray(moments.root).T
    return np.concatenate([moments.mean + steps, moments.mean - steps])


def divergence(new, old, t):
    """KL between Normals of locals given t, in coordinates."""

    def law(params):
        given = FOLLOWING.own(FOLLOWING.given(params, t))
        matrix = jnp.eye(LOCALS).at[np.tril_indices(LOCALS, -1)].set(given["lower"]) * jnp.exp(-given["scale"])
        return given["loc"], matrix.T @ matrix

    (m, p), (n, q) = law(old), law(new)
    return 0.5 * (
        jnp.trace(q @ jnp.linalg.inv(p)) + (n - m) @ q @ (n - m) - jnp.linalg.slogdet(q @ jnp.linalg.inv(p))[1]
    )


def test_natural_gradient_is_that_of_the_exact_fisher_information():
    leading, params = some(LEADING, 0), some(FOLLOWING, 1) | {"swell": np.zeros((LOCALS, GLOBALS))}
    moments = LEADING.moments(leading)
    flat, shaped = jax.flatten_util.ravel_pytree(params)
    fisher = np.mean(
        [jax.hessian(lambda x, t=t: divergence(shaped(x), params, t))(flat) for t in points(moments)], axis=0
    )
    gradient = some(FOLLOWING, 2)
    found = FOLLOWING.informed(moments, 1.0).natural_gradient(params, gradient)
    flat_found, flat_gradient = (
        jax.flatten_util.ravel_pytree({p: own[p] for p in params})[0] for own in (found, gradient)
    )
    np.testing.assert_allclose(fisher @ flat_found, flat_gradient, rtol=1e-8, atol=1e-8)


def test_natural_gradient_stays_an_ascent_where_scales_vary():
    params = some(FOLLOWING, 1, 1.0)
    gradient = some(FOLLOWING, 2)
    found = FOLLOWING.informed(LEADING.moments(some(LEADING, 0)), 0.1).natural_gradient(params, gradient)
    assert sum(np.vdot(found[p], gradient[p]) for p in params) > 0


def drawn(num=200_000):
    """Draw globals and locals; return the features and the locals' coordinates."""
    leading, params = some(LEADING, 0), some(FOLLOWING, 1)
    word = jnp.uint32(0)

    def at(sample):
        addresses = [Address(jnp.array([k, 7], jnp.uint32), word, word, sample) for k in range(2)]
        t = LEADING.features(leading, LEADING.sample(leading, addresses[0]))
        u = FOLLOWING.sample(params, addresses[1])
        shifts = FOLLOWING.shifts(params, t[:, None])
        return t, FOLLOWING.moved(params, shifts, u[:, None])[:, 0]

    return leading, params, *jax.jit(jax.vmap(at))(jnp.arange(num, dtype=jnp.uint32))


def test_moments_of_features_and_marginals_are_those_of_draws():
    leading, params, t, u = drawn()
    moments = LEADING.moments(leading)
    error = 5 / np.sqrt(len(t))
    np.testing.assert_allclose(t.mean(0), moments.mean, atol=error * t.std(0).max())
    np.testing.assert_allclose(np.cov(t.T), moments.root @ moments.root.T, atol=3 * error * t.var(0).max())
    np.testing.assert_allclose(moments.root @ moments.inverse, np.eye(GLOBALS), atol=1e-12)
    z, found = FOLLOWING.chart.value(u), FOLLOWING.informed(moments, 1.0).marginals(params)
    np.testing.assert_allclose(found.mean(), z.mean(0), atol=error * z.std(0).max())
    np.testing.assert_allclose(found.std(), z.std(0), rtol=0.05)
    for p in (0.05, 0.5, 0.99):
        below = (np.asarray(z) < found.ppf(p)).mean(0)
        np.testing.assert_allclose(below, p, atol=5 * np.sqrt(p * (1 - p) / len(t)))


def test_steps_do_not_grow_where_q_is_narrower_than_its_frame():
    leading = some(LEADING, 0)
    narrow = leading | {"frame_scale": leading["scale"], "scale": leading["scale"] - 5}
    back = LEADING.moments(narrow).inverse
    np.testing.assert_allclose(back, LEADING.moments(leading | {"frame_scale": leading["scale"]}).inverse, rtol=1e-12)


def test_moments_where_the_scales_of_globals_depend_on_parents():
    family = Framed(JointNormal(LEADING.chart, FullRank(1)))
    params, word = some(family, 3), jnp.uint32(0)
    moments = family.moments(params)
    draw = jax.vmap(lambda k: family.sample(params, Address(jnp.array([1, 7], jnp.uint32), word, word, k)))
    t = jax.vmap(lambda u: family.features(params, u))(jax.jit(draw)(jnp.arange(200_000, dtype=jnp.uint32)))
    np.testing.assert_allclose(np.cov(t.T), moments.root @ moments.root.T, atol=0.02 * t.var(0).max())
    np.testing.assert_allclose(moments.root @ moments.inverse, np.eye(GLOBALS), atol=1e-12)


def test_density_of_locals_integrates_to_one_at_any_globals():
    _, params, t, _ = drawn(3)
    grid = np.linspace(-12, 12, 400)
    cells = np.stack(np.meshgrid(grid, grid), -1).reshape(-1, 2)
    for own in t:
        # in coordinates, without the volume of the chart
        log_q = jax.vmap(
            lambda u, own=own: FOLLOWING.log_prob(FOLLOWING.given(params, own), u) + FOLLOWING.chart.log_slope(u)
        )
        np.testing.assert_allclose(np.exp(log_q(cells)).sum() * (grid[1] - grid[0]) ** 2, 1, rtol=1e-6)


def test_a_new_frame_changes_no_density():
    leading, params, t, u = drawn(50)
    shift, matrix = LEADING.turn(leading)
    new, turned = LEADING.reframed(leading), FOLLOWING.turned(params, shift, matrix)
    beta = jax.vmap(lambda t: jnp.linalg.solve(jax.jacobian(lambda b: LEADING.features(leading, b))(t), t))(
        t - LEADING.features(leading, jnp.zeros(GLOBALS))
    )
    again = jax.vmap(lambda b: LEADING.features(new, b))(beta)

    def log_q(params, t, u):
        return jax.vmap(lambda t, u: FOLLOWING.log_prob(FOLLOWING.given(params, t), u))(t, u)

    np.testing.assert_allclose(jax.vmap(lambda b: LEADING.features(leading, b))(beta), t, atol=1e-10)
    np.testing.assert_allclose(log_q(turned, again, u), log_q(params, t, u), atol=1e-10)
    np.testing.assert_allclose(LEADING.moments(new).mean, 0, atol=1e-12)
