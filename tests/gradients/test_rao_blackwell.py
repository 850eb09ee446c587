"""Section 3.1 end to end: no annotation, no bias, and far less variance."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import bbvi
from tests.exact import HIERARCHICAL, Exact


def chain_of_eight():
    """A Bernoulli chain added up in a loop."""

    def log_joint(z, bias):
        def step(carry, now):
            before, total = carry
            x, b = now
            return (x, total + dist.Bernoulli(logits=b + 1.5 * before - 0.4).log_prob(x)), None

        return jax.lax.scan(step, (jnp.int32(0), 0.0), (z["x"], bias))[0][1]

    return bbvi.Model(log_joint, joint=(), x=bbvi.binary(8)), jnp.linspace(-1.0, 1.0, 8)


def walk_of_eight():
    """x ~ N(cumsum z), an array without plates."""

    def log_joint(z, y):
        prior = dist.Bernoulli(0.4).log_prob(z["z"]).sum()
        return prior + dist.Normal(jnp.cumsum(z["z"]).astype(float), 1.0).log_prob(y).sum()

    return bbvi.Model(log_joint, joint=(), z=bbvi.binary(8)), jnp.arange(8) * 0.45


MODELS = {
    "chain by scan": (chain_of_eight, None),
    "cumulative sum": (walk_of_eight, None),
    "minibatched locals": (HIERARCHICAL["groups"], 2),
    "minibatched look-ups": (HIERARCHICAL["ratings"], 1),
    "minibatched pairs of look-ups": (HIERARCHICAL["matches"], 2),
}


@pytest.mark.parametrize("variate", [None, bbvi.LeaveOneOut()], ids=["Eq. 6", "leave-one-out"])
@pytest.mark.parametrize("name", MODELS)
def test_the_mean_of_400_000_draws_is_the_enumerated_gradient(name, variate):
    make, batch_size = MODELS[name]
    model, data = make()
    truth = Exact(model, data)
    moments = bbvi.gradient_moments(
        model, data, truth.posterior, gradient=bbvi.Score(True, variate), draws=bbvi.MonteCarlo(10), repeats=40_000,
        batch_size=batch_size, seed=11,
    )  # fmt: skip
    gaps = jax.tree.map(
        lambda m, e, t: np.abs(np.asarray(m) - np.asarray(t)) / np.maximum(np.asarray(e), 1e-9),
        moments.mean, moments.standard_error, dict(truth.gradient()),
    )  # fmt: skip
    assert max(float(leaf.max()) for leaf in jax.tree.leaves(gaps)) < 4


def test_the_factors_of_sixty_visits_lose_nearly_all_their_variance():
    """The paper's model as one scalar for each function, in the wild state of its random start."""
    num_labs, num_factors, visits = 17, 5, 60
    rng = np.random.default_rng(0)
    data = bbvi.ragged(visit={"labs": [rng.gamma(4, 0.25, (visits, num_labs))]})

    def log_local(beta, z, row):
        before = jnp.concatenate([jnp.ones((1, num_factors)), z["x"][:-1]])
        drift = jnp.where(
            row["mask"]["visit"][:, None], bbvi.GammaE(jnp.maximum(before, 0.2), 0.25).log_prob(z["x"]), 0
        )
        return dist.Normal(0, 1).log_prob(z["o"]).sum() + drift.sum()

    def log_likelihood(beta, z, row):
        term = dist.Normal(z["x"] @ beta["W"].T + z["o"], 0.3).log_prob(row["labs"])
        return jnp.where(row["mask"]["visit"][:, None], term, 0).sum()

    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["W"]).sum(),
        log_local=log_local,
        log_likelihood=log_likelihood,
        globals={"W": bbvi.real(num_labs, num_factors)},
        locals={"o": bbvi.real(num_labs), "x": bbvi.positive("visit", num_factors)},
    )
    start = bbvi.fit(model, data, stop=bbvi.Budget(steps=0))
    plain, blanket = (
        bbvi.gradient_moments(model, data, start, gradient=g, draws=bbvi.MonteCarlo(50), repeats=100).variance["x"]
        for g in (bbvi.Score(False, None), bbvi.Score(True, None))
    )
    for parameter in plain:
        ratio = np.asarray(plain[parameter]) / np.asarray(blanket[parameter])
        assert np.median(ratio) > 1000
        assert ratio.min() > 30


def test_a_loop_of_a_thousand_steps_is_followed_step_by_step():
    def log_joint(z, _):
        def step(carry, x):
            before, total = carry
            return (x, total + dist.Normal(before, 1.0).log_prob(x)), None

        return jax.lax.scan(step, (0.0, 0.0), z["x"])[0][1]

    found = bbvi.explain(bbvi.Model(log_joint, x=bbvi.real(1000)))
    expected = np.eye(1000, dtype=bool) | np.eye(1000, k=-1, dtype=bool)
    np.testing.assert_array_equal(found.matrix[:1000].toarray(), expected)
    assert not found.lost
