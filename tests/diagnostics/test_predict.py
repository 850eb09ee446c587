"""Section 5.1: held-out predictive likelihood."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.stats import norm

import bbvi
from bbvi.diagnostics.predict import quick_fit
from bbvi.posterior.arviz import inference_data

NOISE = 0.5


def model():
    """Normal group effects: the predictive distribution given q is known in closed form."""

    def log_likelihood(beta, z, row):
        term = dist.Normal(z["theta"], NOISE).log_prob(row["y"])
        return jnp.where(row["observed"], term, 0)

    return bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 5).log_prob(beta["mu"]),
        log_local=lambda beta, z, row: dist.Normal(beta["mu"], 1).log_prob(z["theta"]),
        log_likelihood=log_likelihood,
        globals={"mu": bbvi.real()},
        locals={"theta": bbvi.real()},
    )


@pytest.fixture(scope="module")
def case():
    rng = np.random.default_rng(0)
    y = 1 + rng.normal(size=(30, 1)) + NOISE * rng.normal(size=(30, 8))
    seen = rng.random(y.shape) < 0.75
    seen[:, 0] = True
    train, fit_data = {"y": y, "observed": np.ones_like(seen)}, {"y": y, "observed": seen}
    held_out = {"y": y, "observed": ~seen}
    posterior = bbvi.fit(model(), train)
    return y, seen, fit_data, held_out, posterior


@pytest.fixture(scope="module")
def score(case):
    _, _, fit_data, held_out, posterior = case
    return bbvi.predictive_log_likelihood(posterior, fit_data, held_out, observed="observed", num_draws=20_000)


def exact_local(y, seen, mu):
    precision = 1 + seen.sum(1) / NOISE**2
    return (mu + (y * seen).sum(1) / NOISE**2) / precision, precision**-0.5


def test_pointwise_density_is_the_closed_form(case, score):
    y, seen, _, _, posterior = case
    mean, sd = exact_local(y, seen, float(posterior.mean()["mu"]))
    expected = norm(mean[:, None], np.hypot(sd, NOISE)[:, None]).logpdf(y)[~seen]
    np.testing.assert_allclose(score.pointwise, expected, atol=0.1)
    assert abs(score.per_observation - expected.mean()) < 0.02
    assert (score.pointwise_error < 0.05).all()


def test_joint_density_is_the_closed_form(case, score):
    y, seen, _, _, posterior = case
    mean, sd = exact_local(y, seen, float(posterior.mean()["mu"]))
    for group in range(10):
        values = y[group][~seen[group]]
        if len(values):
            covariance = sd[group] ** 2 + NOISE**2 * np.eye(len(values))
            gap = values - mean[group]
            expected = -0.5 * (gap @ np.linalg.solve(covariance, gap) + np.linalg.slogdet(2 * np.pi * covariance)[1])
            assert abs(score.joint[group] - expected) < 0.2
        else:
            assert score.joint[group] == 0


def test_it_counts_held_out_observations_only(case, score):
    _, seen, _, _, _ = case
    assert len(score.pointwise) == (~seen).sum()
    np.testing.assert_array_equal(np.bincount(score.group, minlength=30), (~seen).sum(1))


def test_standard_error_is_that_of_group_means(case, score):
    _, seen, _, _, _ = case
    counts = (~seen).sum(1)
    totals = np.bincount(score.group, weights=score.pointwise, minlength=30)
    rng = np.random.default_rng(1)
    picks = rng.integers(0, 30, (4000, 30))
    bootstrap = totals[picks].sum(1) / counts[picks].sum(1)
    assert score.per_observation.standard_error == pytest.approx(bootstrap.std(), rel=0.2)


def test_mcmc_draws_take_the_place_of_a_posterior(case, score):
    y, seen, fit_data, held_out, posterior = case
    rng = np.random.default_rng(2)
    mu = float(posterior.mean()["mu"])
    mean, sd = exact_local(y, seen, mu)
    draws = {"mu": np.full(20_000, mu), "theta": mean + sd * rng.normal(size=(20_000, 30))}
    again = bbvi.predictive_log_likelihood(draws, fit_data, held_out, observed="observed", model=model())
    np.testing.assert_allclose(again.pointwise, score.pointwise, atol=0.12)
    by_chain = {"mu": draws["mu"].reshape(2, -1), "theta": draws["theta"].reshape(2, -1, 30)}
    idata = inference_data({"posterior": by_chain}, {"mu": [], "theta": ["group"]})
    third = bbvi.predictive_log_likelihood(idata, fit_data, held_out, observed="observed", model=model())
    np.testing.assert_allclose(third.pointwise, again.pointwise, rtol=1e-4)


def test_mistakes_are_named(case):
    _, _, fit_data, held_out, _ = case
    with pytest.raises(TypeError, match="pass model="):
        bbvi.predictive_log_likelihood({"mu": np.zeros(3)}, fit_data, held_out)
    with pytest.raises(ValueError, match="lack the latents"):
        bbvi.predictive_log_likelihood({"mu": np.zeros(3)}, fit_data, held_out, model=model())
    nothing = {**held_out, "observed": np.zeros_like(held_out["observed"])}
    draws = {"mu": np.zeros(3), "theta": np.zeros((3, 30))}
    with pytest.raises(ValueError, match="no observations"):
        bbvi.predictive_log_likelihood(draws, fit_data, nothing, observed="observed", model=model())
    with pytest.raises(ValueError, match="unsummed"):
        bbvi.predictive_log_likelihood(draws, fit_data, held_out, observed=lambda row: jnp.ones(5, bool), model=model())


def test_groups_without_globals_are_scored():
    cohort = bbvi.ragged(visit={"y": [[0.3], [1.0, -0.2]]})
    without = bbvi.HierarchicalModel(
        log_prior=lambda beta: 0.0,
        log_local=lambda beta, z, row: jnp.where(row["mask"]["visit"], dist.Normal(0, 1).log_prob(z["a"]), 0),
        log_likelihood=lambda beta, z, row: jnp.where(
            row["mask"]["visit"], dist.Normal(z["a"], NOISE).log_prob(row["y"]), 0
        ),
        globals={},
        locals={"a": bbvi.real("visit")},
    )
    posterior = bbvi.fit(without, cohort, stop=bbvi.Budget(steps=3))
    score = bbvi.predictive_log_likelihood(
        posterior, cohort, cohort, observed=lambda row: row["mask"]["visit"], stop=bbvi.Budget(steps=3)
    )
    assert len(score.pointwise) == 3
    assert np.isfinite(score.pointwise).all()


def test_it_prints_as_a_short_table(score):
    lines = repr(score).splitlines()
    assert len(lines) == 5 and all(len(line) < 100 for line in lines)
    assert "an observation" in lines[2] and f"{score.per_group.standard_error:.2g}" in lines[3]


def test_a_fit_for_predictions_ends_near_one_that_claims_convergence(case):
    """It says that it claims nothing, ends on the average of late iterates, and misses little of what predictions could be."""
    _, _, fit_data, _, posterior = case
    quick = bbvi.fit(model(), fit_data, hold=posterior, **quick_fit(posterior, 30))
    assert quick.outcome is bbvi.Outcome.STOPPED
    whole = bbvi.fit(model(), fit_data, hold=posterior)
    assert quick.elbo(1000) > whole.elbo(1000) - 0.02 * 30 - 0.3
