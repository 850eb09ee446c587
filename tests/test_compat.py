"""One small fit of each kind against a posterior known in closed form, and what can be asked of it: for every version."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import bbvi

pytestmark = pytest.mark.compat
Y = np.array([0.3, 1.2, -0.4, 0.8, 2.0], np.float32)


def normal(mean, x, sd=1.0):
    return dist.Normal(mean, sd).log_prob(x)


def flat():
    """mu ~ N(0, 1) and five observations: N(sum y / 6, 1 / 6)."""
    model = bbvi.Model(lambda z, y: normal(0, z["mu"]) + normal(z["mu"], y).sum(), mu=bbvi.real())
    return model, Y


def hierarchical(lengths=None):
    """Each z_i ~ N(0, 1) of its own, apart from the global: N(sum y_i / (n + 1), 1 / (n + 1)) of n observations."""
    rng = np.random.default_rng(0)
    rows = [rng.normal(size=n).astype(np.float32) for n in lengths or [3] * 8]
    name = "visit" if lengths else 3
    mask = (lambda row: row["mask"]["visit"]) if lengths else (lambda row: np.ones(3, bool))
    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: normal(0, beta["w"]),
        log_local=lambda beta, z, row: jnp.where(mask(row), normal(0, z["z"]), 0).sum(),
        log_likelihood=lambda beta, z, row: (
            jnp.where(mask(row), normal(z["z"], row["y"]), 0).sum()
            + jnp.where(mask(row), normal(beta["w"], row["y"]), 0).sum()
        ),
        globals={"w": bbvi.real()},
        locals={"z": bbvi.real(name)},
    )
    return model, bbvi.ragged(visit={"y": rows}) if lengths else {"y": np.stack(rows)}, rows


def check(posterior, name, mean, sd):
    np.testing.assert_allclose(posterior.mean()[name], mean, atol=0.1)
    np.testing.assert_allclose(posterior.sd()[name], sd, rtol=0.2)


def test_flat_fit_and_what_can_be_asked_of_it(tmp_path):
    model, y = flat()
    posterior = bbvi.fit(model, y)
    check(posterior, "mu", y.sum() / 6, 6**-0.5)
    draws = posterior.sample(4000)["mu"]
    assert abs(draws.mean() - y.sum() / 6) < 0.1
    assert posterior.khat(500) < 0.7
    assert np.isfinite(posterior.elbo(200))
    assert "mu" in posterior.summary().index
    assert len(posterior.history)
    data = posterior.to_arviz(10)
    assert dict(data.posterior["mu"].sizes) == {"chain": 1, "draw": 10}
    posterior.save(tmp_path / "posterior.npz")
    assert bbvi.load(tmp_path / "posterior.npz", model, y).mean()["mu"] == posterior.mean()["mu"]


def test_hierarchical_fit_by_batches():
    model, data, rows = hierarchical()
    posterior = bbvi.fit(model, data, batch_size=4, stop=bbvi.Budget(steps=1500))
    check(posterior, "w", sum(map(np.sum, rows)) / 25, 0.2)
    check(posterior, "z", np.stack(rows) / 2, 0.5**0.5)


def test_ragged_fit():
    model, data, rows = hierarchical([1, 4, 2, 3])
    posterior = bbvi.fit(model, data)
    for i, row in enumerate(rows):
        np.testing.assert_allclose(posterior.mean()["z"][i], row / 2, atol=0.1)
    assert np.isnan(posterior.to_arviz(5).posterior["z"].values).any()


def test_discrete_fit():
    model = bbvi.Model(lambda z, p: jnp.log(p)[z["k"]] + dist.Bernoulli(0.8).log_prob(z["b"]), k=bbvi.categorical(3), b=bbvi.binary())  # fmt: skip
    probs = bbvi.fit(model, jnp.array([0.2, 0.5, 0.3])).probs()
    np.testing.assert_allclose(probs["k"], [0.2, 0.5, 0.3], atol=0.05)
    np.testing.assert_allclose(probs["b"], [0.2, 0.8], atol=0.05)


def test_opaque_fit():
    log_joint = bbvi.opaque(lambda z, y: float(-0.5 * z["mu"] ** 2 - 0.5 * ((y - z["mu"]) ** 2).sum()))
    posterior = bbvi.fit(bbvi.Model(log_joint, mu=bbvi.real()), Y, stop=bbvi.Budget(steps=300))
    check(posterior, "mu", Y.sum() / 6, 6**-0.5)


def test_joint_fit():
    covariance = np.array([[1.0, 0.8], [0.8, 1.0]], np.float32)

    def log_joint(z, _):
        return dist.MultivariateNormal(jnp.zeros(2), covariance).log_prob(jnp.stack([z["a"], z["b"]]))

    posterior = bbvi.fit(bbvi.Model(log_joint, a=bbvi.real(), b=bbvi.real(), joint=[("a", "b")]), None)
    draws = posterior.sample(4000)
    assert abs(np.corrcoef(draws["a"], draws["b"])[0, 1] - 0.8) < 0.1


def test_quasi_monte_carlo_fit():
    model, y = flat()
    check(bbvi.fit(model, y, draws=bbvi.QuasiMonteCarlo(16)), "mu", y.sum() / 6, 6**-0.5)


def scanned():
    """A random walk written as a loop; its steps are N(0, 1)."""

    def log_joint(z, y):
        def step(before, at):
            now, seen = at
            return now, normal(before, now) + normal(now, seen)

        return jax.lax.scan(step, 0.0, (z["x"], y))[1].sum()

    return bbvi.Model(log_joint, x=bbvi.real(5)), Y


def test_factors_of_a_scan_are_found_and_fitted():
    model, y = scanned()
    found = bbvi.explain(model, y)
    reads = found.matrix.toarray().sum(1)
    assert sorted(reads) == [1, 2, 2, 2, 2]
    precision = 2 * np.eye(5) + np.diag([1, 1, 1, 1, 0]) - np.eye(5, k=1) - np.eye(5, k=-1)
    posterior = bbvi.fit(model, y, gradient=bbvi.Pathwise())
    np.testing.assert_allclose(posterior.mean()["x"], np.linalg.solve(precision, y), atol=0.1)


@pytest.mark.parametrize("latent", [bbvi.positive(3), bbvi.count(3), bbvi.unit_interval(3), bbvi.simplex(3)])
def test_draws_of_every_support_compile_in_seconds(latent):
    model = bbvi.Model(lambda z, _: -0.1 * (z["x"] ** 2).sum(), x=latent)
    posterior = bbvi.fit(model, None, stop=bbvi.Budget(steps=2))
    began = time.monotonic()
    jax.block_until_ready(posterior.sample(1000))
    bbvi.explain(model, None)
    posterior.elbo(100)
    assert time.monotonic() - began < 40


def test_mixing_of_chains():
    model, y = flat()
    table = bbvi.mixing(bbvi.metropolis_within_gibbs(model, y))
    assert table.loc["mu", "largest R-hat"] < 1.05
