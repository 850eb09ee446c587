"""What is given to ArviZ: densities of observations against closed forms, predictions, names of axes; on ArviZ 0.2x and 1.x."""

import functools

import jax.numpy as jnp
import matplotlib

matplotlib.use("agg")
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
import xarray as xr

import bbvi

Y = np.random.default_rng(0).normal(1.0, 1.0, 12).astype(np.float32)
N = 4000


def exact_loo(y):
    """log p(y_i | y_-i) of mu ~ N(0, 1), y_i ~ N(mu, 1)."""
    rest = y.sum() - y
    precision = len(y)  # of mu given the other n - 1 numbers and the prior
    return dist.Normal(rest / precision, np.sqrt(1 + 1 / precision)).log_prob(y)


def log_joint(z, data):
    return dist.Normal(0, 1).log_prob(z["mu"]) + dist.Normal(z["mu"], 1).log_prob(data["y"]).sum()


def predict(z, data, key):
    return {"y": dist.Normal(z["mu"], 1).sample(key, jnp.shape(data["y"]))}


@functools.cache
def flat():
    return bbvi.fit(bbvi.Model(log_joint, mu=bbvi.real()), {"y": Y, "x": np.arange(12.0)})


@functools.cache
def by_group():
    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["mu"]),
        log_likelihood=lambda beta, z, y: dist.Normal(beta["mu"], 1).log_prob(y),
        globals={"mu": bbvi.real()},
    )
    return bbvi.fit(model, Y)


@functools.cache
def ragged():
    """Three groups of lengths 3, 1, 2, of which one visit was not observed."""
    rows = [Y[:3], Y[3:4], Y[4:6]]
    seen = [[1.0, 1.0, 0.0], [1.0], [1.0, 1.0]]

    def log_likelihood(beta, z, row):
        each = dist.Normal(beta["mu"] + z["u"], 1).log_prob(row["y"])
        return jnp.where(row["mask"]["visit"], each * (row["seen"] > 0), 0).sum()

    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["mu"]),
        log_local=lambda beta, z, row: jnp.where(row["mask"]["visit"], dist.Normal(0, 1).log_prob(z["u"]), 0),
        log_likelihood=log_likelihood,
        globals={"mu": bbvi.real()},
        locals={"u": bbvi.real("visit")},
    )
    data = bbvi.ragged(visit={"y": rows, "seen": seen}, group={"age": [1.0, 2.0, 3.0]})
    return bbvi.fit(model, data, stop=bbvi.Budget(steps=50)), rows


@pytest.mark.compat
@pytest.mark.parametrize("posterior", [flat, by_group])
def test_loo_is_that_of_the_exact_posterior(posterior):
    import arviz as az

    data = posterior().to_arviz(N)
    assert list(data["log_likelihood"].data_vars) == ["log_likelihood"]
    pointwise = az.loo(data, pointwise=True)
    found = np.asarray(getattr(pointwise, "loo_i", None) if hasattr(pointwise, "loo_i") else pointwise.elpd_i)
    np.testing.assert_allclose(found, exact_loo(Y), atol=0.02)


@pytest.mark.compat
def test_arviz_compares_summarises_and_plots_a_fit():
    import arviz as az

    wide = bbvi.Model(
        lambda z, d: dist.Normal(0, 1).log_prob(z["mu"]) + dist.Normal(z["mu"], 3).log_prob(d["y"]).sum(),
        mu=bbvi.real(),
    )
    data = flat().to_arviz(500, predict=predict, prior={"mu": np.random.default_rng(1).normal(size=100)})
    other = bbvi.fit(wide, {"y": Y}).to_arviz(500)
    table = az.compare({"right": data, "wide": other})
    assert list(table.index) == ["right", "wide"]
    assert "mu" in az.summary(data, kind="stats").index
    az.plot_forest(data)
    plot_ppc = getattr(az, "plot_ppc", None) or az.plot_ppc_dist
    plot_ppc(data)
    groups = {str(name).strip("/") for name in (data.groups() if callable(data.groups) else data.groups)} - {""}
    assert groups == {
        "posterior", "sample_stats", "log_likelihood", "observed_data", "constant_data", "posterior_predictive", "prior",
        "prior_predictive",
    }  # fmt: skip
    assert list(data["observed_data"].data_vars) == ["y"] and list(data["constant_data"].data_vars) == ["x"]
    assert abs(float(data["prior_predictive"]["y"].mean())) < 0.5
    assert abs(float(data["posterior_predictive"]["y"].mean()) - Y.sum() / 13) < 0.1


def test_log_p_and_log_q_give_the_elbo():
    for posterior in (flat(), by_group(), ragged()[0]):
        stats = posterior.to_arviz(N)["sample_stats"]
        elbo = posterior.elbo(N, seed=1)
        difference = float((stats["log_p"] - stats["log_q"]).mean()) - elbo
        assert abs(difference) < 5 * elbo.standard_error + 1e-4


@pytest.mark.compat
def test_what_is_padded_or_missing_is_no_observation():
    posterior, rows = ragged()
    data = posterior.to_arviz(50, predict=lambda z, row, key: {"y": z["mu"] + z["u"]})
    assert data["log_likelihood"]["log_likelihood"].shape == (1, 50, 5)
    draws = posterior.sample(50)
    expected = dist.Normal(draws["mu"] + draws["u"][1][:, 0], 1).log_prob(rows[1][0])
    np.testing.assert_allclose(data["log_likelihood"]["log_likelihood"].values[0, :, 2], expected, rtol=1e-5)
    assert data["posterior_predictive"]["y"].shape == (1, 50, 6) and data["observed_data"]["y"].shape == (6,)
    assert list(data["observed_data"]["y"].coords["visit_of_group"].values[2:4]) == ["0, 2", "1, 0"]
    assert list(data["constant_data"].data_vars) == ["age", "seen"]


def named(z, d):
    scale = jnp.exp(z["s"])
    y = -0.5 * ((d["y"] - z["mu"]) / scale) ** 2 - z["s"]
    return {"prior": -0.5 * (z["mu"] ** 2 + z["s"] ** 2), "y": y.sum(), "by_hand": -12 * z["s"] + y.sum()}


def test_a_named_term_is_taken_apart_or_refused():
    model = bbvi.Model(named, mu=bbvi.real(), s=bbvi.real())
    posterior = bbvi.fit(model, {"y": Y}, stop=bbvi.Budget(steps=0))
    data = posterior.to_arviz(7, log_likelihood="y")
    z = posterior.sample(7)
    expected = -0.5 * ((Y - z["mu"][:, None]) / np.exp(z["s"][:, None])) ** 2 - z["s"][:, None]
    np.testing.assert_allclose(data["log_likelihood"]["y"].values[0], expected, rtol=1e-4)
    with pytest.raises(ValueError, match="could not be told"):
        posterior.to_arviz(7, log_likelihood="by_hand")
    with pytest.raises(ValueError, match="the function returns"):
        posterior.to_arviz(7, log_likelihood="x")
    # left to itself it takes nothing that it cannot tell apart, and says so
    assert "log_likelihood" in posterior.to_arviz(7)["posterior"].attrs


@pytest.mark.parametrize(
    "log_joint",
    [
        lambda z, d: -0.5 * z["mu"] ** 2 - 0.5 * ((d["y"] - z["mu"]) ** 2).sum(),
        lambda z, d: (
            dist.Normal(0, 1).log_prob(z["mu"]) + 2 * dist.Normal(z["mu"], jnp.abs(z["mu"])).log_prob(d["y"]).mean()
        ),
    ],
)
def test_a_number_whose_likelihood_cannot_be_told_has_none(log_joint):
    posterior = bbvi.fit(bbvi.Model(log_joint, mu=bbvi.real()), {"y": Y}, stop=bbvi.Budget(steps=0))
    data = posterior.to_arviz(5)
    assert "could not be told" in data["posterior"].attrs["log_likelihood"]
    with pytest.raises(ValueError, match="could not be told"):
        posterior.to_arviz(5, log_likelihood=True)


@pytest.mark.compat
def test_axes_have_the_names_of_the_latents_and_of_the_data():
    schools = ["Choate", "Deerfield", "Exeter"]
    model = bbvi.Model(
        lambda z, d: dist.Normal(0, 1).log_prob(z["theta"]).sum()
        + dist.Normal(z["theta"], 1).log_prob(d["y"]).sum() - (z["share"] ** 2).sum() - (z["level"] ** 2).sum(),
        theta=bbvi.real("school", coords={"school": schools}),
        share=bbvi.simplex("part", "school", coords={"part": ["a", "b"], "school": schools}),
        level=bbvi.ordered(2, "cut", coords={"cut": 3}),
    )  # fmt: skip
    posterior = bbvi.fit(
        model, pd.DataFrame({"y": Y[:3]}, index=pd.Index(schools, name="school")), stop=bbvi.Budget(steps=0)
    )
    data = posterior.to_arviz(4)
    assert data["posterior"]["theta"].dims == ("chain", "draw", "school")
    assert data["posterior"]["share"].dims == ("chain", "draw", "school", "part")
    assert data["posterior"]["level"].dims == ("chain", "draw", "level_dim_0", "cut")
    assert list(data["posterior"]["theta"].coords["school"].values) == schools
    assert data["log_likelihood"]["log_likelihood"].dims == ("chain", "draw", "school")
    assert data["observed_data"]["y"].dims == ("school",)
    table = xr.Dataset({"y": ("school", Y[:3])}, coords={"school": schools})
    again = bbvi.fit(model, table, stop=bbvi.Budget(steps=0)).to_arviz(4)
    assert list(again["observed_data"]["y"].coords["school"].values) == schools


@pytest.mark.parametrize("coords", [{"town": ["a"]}, {"school": "abc"}, {"school": 2.5}])
def test_coords_that_fit_no_axis_are_refused(coords):
    with pytest.raises((TypeError, ValueError), match="coords"):
        bbvi.real("school", coords=coords)


def test_groups_have_the_names_of_the_data():
    model = by_group().model
    patients = pd.Series(Y, index=pd.Index([f"p{i}" for i in range(12)], name="patient"))
    data = bbvi.fit(model, patients, stop=bbvi.Budget(steps=0)).to_arviz(3)
    assert data["log_likelihood"]["log_likelihood"].dims == ("chain", "draw", "patient")
