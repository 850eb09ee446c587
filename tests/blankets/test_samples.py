"""A trace evaluated with samples last gives what mapping over samples gives; logarithms and lgamma are as promised."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bbvi
import bbvi.blankets.jaxpr.samples
from bbvi.blankets.jaxpr.samples import Last, run_last
from bbvi.fitting import cache as compiled
from bbvi.numerics import special
from bbvi.numerics.blas import jaxprs_inside

pytestmark = pytest.mark.compat

SHAPES = [jax.ShapeDtypeStruct((3,), jnp.float32), jax.ShapeDtypeStruct((3,), jnp.float32)]
X, Y = np.array([0.5, 2.0, 7.0], np.float32)[:, None] + np.linspace(0, 3, 5, dtype=np.float32), np.float32([1, -2, 3])


def evaluate(function, log=None, **settings):
    closed = jax.make_jaxpr(function)(*SHAPES)
    known = None if log is None else lambda: jnp.asarray(log)
    return np.asarray(run_last(closed, [Last(jnp.asarray(X), known), Y], 5, **settings)[0])


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x[:, None] @ y[None] + jnp.outer(x, x) @ y,
        lambda x, y: jnp.cumsum(jnp.concatenate([y, x])[::-1]).reshape(2, 3).T,
        lambda x, y: jax.lax.dynamic_slice(x, (y[1].astype(int) * 2,), (2,)),  # begins before the first element
        lambda x, y: jnp.pad(x, 1)[jnp.array([0, 2, 1])] * jnp.where(y > 0, x, y),
        lambda x, y: jax.lax.scan(lambda c, t: (c + t * x[0], c * y), 0.0, x)[1],
        lambda x, y: jnp.sort(x) + jax.lax.dynamic_slice(x, (1,), (1,)),
    ],
)
def test_samples_last_is_mapping_over_samples(function):
    mapped = jax.vmap(function, in_axes=(-1, None), out_axes=-1)(jnp.asarray(X), Y)
    np.testing.assert_allclose(evaluate(function), mapped, rtol=1e-5)


@pytest.mark.parametrize(
    ("function", "of_log"),
    [
        (lambda x, y: jnp.log(x), lambda log: log),
        (lambda x, y: jnp.log(x[1:] / 2), lambda log: log[1:] - np.log(2)),
        (lambda x, y: jnp.log(jnp.maximum(x, -1.0)), lambda log: log),
        (lambda x, y: jnp.log(jnp.maximum(x, 2.0)), lambda log: np.maximum(log, np.log(2))),
        (lambda x, y: jnp.log(x**2 * 3), lambda log: 2 * log + np.log(3)),
    ],
)
def test_a_known_logarithm_is_handed_over(function, of_log):
    """The logarithm says -200, where exp underflows."""
    log = np.full(X.shape, -200.0, np.float32)
    np.testing.assert_allclose(evaluate(function, log), of_log(log), rtol=1e-6)


def test_lgamma_is_replaced_unless_one_opts_out():
    def function(x, y):
        return jax.scipy.special.gammaln(x)

    exact = jax.lax.lgamma(jnp.asarray(X))
    assert np.array_equal(evaluate(function, fast_lgamma=False), exact)
    assert np.array_equal(evaluate(function), special.lgamma(jnp.asarray(X)))
    np.testing.assert_allclose(evaluate(function), exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("gradient", [bbvi.Score(), bbvi.Pathwise()])
def test_the_opt_out_reaches_the_fit(gradient, monkeypatch):
    """With the fast ones broken, a fit that opted out does not see them."""
    compiled._kept.clear()
    monkeypatch.setitem(bbvi.blankets.jaxpr.samples._FASTER, "lgamma", lambda x: x * jnp.nan)
    model = bbvi.Model(lambda z, _: -(z["z"] ** 2) - jax.scipy.special.gammaln(z["z"]), z=bbvi.positive())
    few = bbvi.Budget(steps=3)
    good = bbvi.fit(model, gradient=gradient, stop=few, fast_lgamma=False)
    assert np.isfinite(good.history["elbo"]).all()
    assert good.outcome is bbvi.Outcome.BUDGET
    seen = bbvi.gradient_moments(model, None, good, gradient=gradient, draws=bbvi.MonteCarlo(3), repeats=2)
    assert np.isnan(seen.mean["z"]["mean"])


@pytest.mark.parametrize("derivatives", [False, True])
def test_lapack_is_given_batches_that_no_threads_wait_for(derivatives):
    def function(x):
        factor = jnp.linalg.cholesky(x @ x.T + jnp.eye(24))
        return jax.scipy.linalg.solve_triangular(factor, jnp.ones(24), lower=True)

    x = 0.1 * jax.random.normal(jax.random.key(0), (24, 24, 100))
    closed = jax.make_jaxpr(function)(x[..., 0])

    def last(x):
        return run_last(closed, [Last(x)], 100, derivatives=derivatives)[0]

    def lapack(jaxpr):
        for eqn in jaxpr.eqns:
            yield from (eqn.invars[0].aval.shape for _ in range(eqn.primitive.name in ("cholesky", "triangular_solve")))
            for inner in jaxprs_inside(eqn):
                yield from lapack(inner)

    # a batch of more than 200,000 operations is shared out to threads, which can wait for each other for ever
    shapes = list(lapack(jax.make_jaxpr(jax.grad(lambda x: last(x).sum()) if derivatives else last)(x).jaxpr))
    assert len(shapes) >= 2 and all(np.prod(batch) * size**3 / 3 < 200_000 for *batch, size, _ in shapes)
    np.testing.assert_allclose(last(x), jax.vmap(function, -1, -1)(x), rtol=1e-5, atol=1e-6)
