"""A step that is not finite is a setback, not the end; a q that starts where log p is not finite is moved."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import bbvi


def cliff(z, _):
    """A Normal that is -inf beyond 3: q, at first, has no draw there, and wide ones do."""
    return jnp.where(z["x"] < 3.0, dist.Normal(0, 1).log_prob(z["x"]), -jnp.inf)


def test_a_fit_goes_on_after_draws_where_log_p_is_not_finite():
    model = bbvi.Model(cliff, x=bbvi.real(init={"loc": 0.0, "scale": 0.1}))
    with pytest.warns(RuntimeWarning):
        posterior = bbvi.fit(model, draws=bbvi.MonteCarlo(200), stop=bbvi.Budget(steps=300))
    assert posterior.outcome is bbvi.Outcome.BUDGET
    history = posterior.history
    assert history["setbacks"].sum() > 5  # one draw in a thousand is beyond
    assert np.isfinite(history["elbo"][history["setbacks"] == 0]).all()
    assert abs(float(posterior.mean()["x"])) < 0.3 and 0.6 < float(posterior.sd()["x"]) < 1.1


def test_a_fit_gives_up_after_many_setbacks_in_a_row():
    calls = 0

    def log_joint(z, data):
        nonlocal calls
        calls += 1
        return -0.5 * float(z["x"]) ** 2 if calls < 1000 else float("nan")

    model = bbvi.Model(bbvi.opaque(log_joint), x=bbvi.real())
    with pytest.warns(RuntimeWarning, match="non-finite gradient of 'x' at step .*, 20 times in a row"):
        posterior = bbvi.fit(model, draws=bbvi.MonteCarlo(20), stop=bbvi.Budget(steps=500))
    assert posterior.outcome is bbvi.Outcome.NON_FINITE
    assert posterior.history["setbacks"].sum() == 20 and np.isfinite(posterior.mean()["x"])


def test_a_model_that_is_nowhere_finite_gets_the_error_that_names_the_term():
    model = bbvi.Model(lambda z, _: jnp.log(-jnp.abs(z["x"]) - 1), x=bbvi.real())
    with pytest.raises(ValueError, match="is nan at a draw from the starting q"):
        bbvi.fit(model, stop=bbvi.Budget(steps=5))


def test_an_explosive_time_series_is_fitted():
    """|phi| > 1 is possible for q, and overflows within some hundred steps of time."""
    rng, x = np.random.default_rng(0), [0.0]
    for _ in range(400):
        x.append(0.9 * x[-1] + rng.normal())

    def log_joint(z, data):
        def step(level, noise):
            level = z["phi"] * level + noise
            return level, jnp.square(level)

        _, squares = jax.lax.scan(step, 0.0, data)
        return dist.Normal(0, 2).log_prob(z["phi"]) - 0.5 * squares.sum() / 5 - 0.5 * jnp.square(squares[-1]) ** 4

    model = bbvi.Model(log_joint, phi=bbvi.real(init={"loc": 0.0, "scale": 1.0}))
    with pytest.warns(RuntimeWarning, match="starting q had draws at which log p is not finite; it was narrowed"):
        posterior = bbvi.fit(model, np.diff(x).astype(np.float32), stop=[bbvi.Converged(), bbvi.Budget(steps=3000)])
    assert posterior.converged
    assert abs(float(posterior.mean()["phi"])) < 1


def test_a_start_outside_of_the_support_is_moved_into_it():
    model = bbvi.Model(
        lambda z, _: jnp.where(z["x"] > 20, dist.Normal(25, 0.5).log_prob(z["x"]), -jnp.inf), x=bbvi.real()
    )
    with pytest.warns(RuntimeWarning, match="moved and narrowed"):
        posterior = bbvi.fit(model)
    assert posterior.converged and abs(float(posterior.mean()["x"]) - 25) < 0.1


def test_a_group_that_overflows_does_not_end_a_fit_by_minibatches():
    y = np.random.default_rng(1).normal(size=20).astype(np.float32)
    far = np.where(np.arange(20) == 3, 30.0, 1.0).astype(np.float32)  # exp(30 z) squared overflows in one group

    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["mu"]),
        log_local=lambda beta, z, row: dist.Normal(beta["mu"], 1).log_prob(z["x"]),
        log_likelihood=lambda beta, z, row: -jnp.exp(row["far"] * z["x"]) + row["far"] * row["y"] * z["x"],
        globals={"mu": bbvi.real()},
        locals={"x": bbvi.real()},
    )
    posterior = bbvi.fit(model, {"y": y, "far": far}, batch_size=5, stop=bbvi.Budget(steps=800), seed=2)
    assert posterior.outcome is bbvi.Outcome.BUDGET
    assert np.isfinite(posterior.mean()["x"]).all()


def test_a_run_with_setbacks_goes_on_from_a_checkpoint_bit_by_bit(tmp_path):
    model = bbvi.Model(cliff, x=bbvi.real(init={"loc": 0.0, "scale": 0.1}))

    def run(steps, **how):
        with pytest.warns(RuntimeWarning):
            return bbvi.fit(model, draws=bbvi.MonteCarlo(200), stop=bbvi.Budget(steps=steps), **how)

    whole = run(300)
    assert run(150).history["setbacks"].sum() > 0
    run(150, checkpoint=tmp_path / "c")
    resumed = run(300, checkpoint=tmp_path / "c")
    np.testing.assert_array_equal(resumed.params["x"]["loc"], whole.params["x"]["loc"])
    np.testing.assert_array_equal(resumed.history["setbacks"], whole.history["setbacks"])


def test_an_opaque_function_that_returns_nan_is_set_back():
    def log_joint(z, data):
        x = float(z["x"])
        return -0.5 * (x - 1) ** 2 if x < 3.5 else float("nan")

    model = bbvi.Model(bbvi.opaque(log_joint), x=bbvi.real(init={"loc": 1.0, "scale": 0.5}))
    posterior = bbvi.fit(model, draws=bbvi.MonteCarlo(20), stop=bbvi.Budget(steps=60))
    assert posterior.outcome is bbvi.Outcome.BUDGET and np.isfinite(posterior.mean()["x"])


WORDS = np.random.default_rng(0).integers(0, 6, (3, 5))
COUNTS = np.r_[np.zeros(27), 5, 5, 10].astype(np.float32)


def topics(z, words):
    """Explicit assignments, and sparse priors: a share that underflows to 0 has a logarithm of -inf."""
    documents = jnp.arange(len(words))[:, None]
    return {
        "topics": dist.Dirichlet(jnp.full(6, 0.1)).log_prob(z["topics"]),
        "shares": dist.Dirichlet(jnp.full(2, 0.1)).log_prob(z["shares"]),
        "topic": jnp.log(z["shares"])[documents, z["topic"]],
        "words": jnp.log(z["topics"])[z["topic"], words],
    }


def corners(*shape):
    """A Dirichlet whose draws are 0 in single precision but for an entry or two."""
    return {"mean": np.full(shape, 1 / shape[-1]), "concentration": np.full(shape[:-1], 0.01 * shape[-1])}


def shares(z, counts):
    return dist.Dirichlet(jnp.full(30, 0.1)).log_prob(z["p"]) + dist.Multinomial(20, z["p"]).log_prob(counts)


def predators(rates, steps=30):
    """Lotka and Volterra's equations by steps that are far too long for most rates: the first draws overflow."""

    def step(state, _):
        prey, hunters = state
        prey, hunters = (
            prey + 0.5 * (rates[0] * prey - rates[1] * prey * hunters),
            hunters + 0.5 * (rates[2] * prey * hunters - rates[3] * hunters),
        )
        return (prey, hunters), jnp.stack([prey, hunters])

    return jax.lax.scan(step, (jnp.float32(3.0), jnp.float32(1.0)), None, length=steps)[1]


def hunted(z, seen):
    prior = dist.LogNormal(0, 1).log_prob(z["rates"]).sum()
    return prior + dist.LogNormal(jnp.log(predators(z["rates"])), 0.3).log_prob(seen).sum()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("log_joint", "latents", "data"),
    [
        (topics, {"topics": bbvi.simplex(6, 2, init=corners(2, 6)), "shares": bbvi.simplex(2, 3, init=corners(3, 2)), "topic": bbvi.categorical(2, 3, 5)}, WORDS),
        (shares, {"p": bbvi.simplex(30, init=corners(30))}, COUNTS),
        (hunted, {"rates": bbvi.positive(4)}, np.asarray(predators(jnp.array([0.5, 0.2, 0.1, 0.5])))),
    ],
)  # fmt: skip
def test_models_that_overflow_at_their_first_draws_are_fitted(log_joint, latents, data):
    model = bbvi.Model(log_joint, joint=(), **latents)
    posterior = bbvi.fit(model, data, stop=bbvi.Budget(steps=60), restarts=1)
    elbo = posterior.history["elbo"][posterior.history["setbacks"] == 0]
    assert posterior.outcome is bbvi.Outcome.BUDGET and len(elbo) > 30
    assert np.isfinite(elbo).all() and elbo.iloc[-10:].mean() > elbo.iloc[:10].mean()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(posterior.params))
