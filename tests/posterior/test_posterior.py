"""What a posterior answers agrees with its own draws, with closed forms and with other libraries' densities."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from matplotlib.figure import Figure
from numpyro.distributions import biject_to, constraints

import bbvi

NOTHING = bbvi.Budget(steps=0)
NUM = 20_000

LATENTS = {
    "real": bbvi.real(2),
    "gamma": bbvi.positive(2),
    "lognormal": bbvi.positive(2, q=dist.LogNormal),
    "by_variance": bbvi.positive(2, q=bbvi.GammaE),
    "weibull": bbvi.positive(2, q=dist.Weibull),
    "student": bbvi.real(2, q=functools.partial(dist.StudentT, df=9.0)),
    "unit": bbvi.unit_interval(2),
    "interval": bbvi.interval(-1, 3, 2),
    "ordered": bbvi.ordered(2, 3),
    "simplex": bbvi.simplex(3, 2),
    "binary": bbvi.binary(2),
    "count": bbvi.count(2),
    "bounded": bbvi.count(2, q=functools.partial(dist.Binomial, total_count=6)),
    "kumaraswamy": bbvi.unit_interval(2, q=dist.Kumaraswamy),
    "one_hot": bbvi.one_hot(3, 2),
}
VALUES = {name: (2, 3) if name in ("ordered", "simplex", "one_hot") else (2,) for name in LATENTS}


def read_all(z):
    return sum(jnp.sum(jnp.asarray(value, float)) for value in z.values())


@pytest.fixture(scope="module")
def flat():
    """One latent of every support, and a categorical one, at a random q."""
    model = bbvi.Model(lambda z, y: read_all(z), **LATENTS, label=bbvi.categorical(3, 2))
    return bbvi.fit(model, stop=NOTHING, seed=3)


@pytest.fixture(scope="module")
def draws(flat):
    return {name: np.asarray(value, np.float64) for name, value in flat.sample(NUM, seed=5).items()}


LENGTHS = [2, 3, 1]


@pytest.fixture(scope="module")
def ragged():
    """Globals, locals of one shape, and locals with a ragged axis, of vectors and of categories too."""

    def masked(z, row):
        mask = row["mask"]["visit"]
        return {
            "fixed": z["fixed"], "each": jnp.where(mask[:, None], z["each"], 0),
            "share": jnp.where(mask[:, None], z["share"], 0), "state": jnp.where(mask, z["state"] * 1.0, 0),
            "y": jnp.where(mask, row["y"], 0),
        }  # fmt: skip

    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: beta["w"],
        log_local=lambda beta, z, row: masked(z, row),
        log_likelihood=lambda beta, z, row: beta["w"].sum(),
        globals={"w": bbvi.real(4)},
        locals={
            "fixed": bbvi.positive(5),
            "each": bbvi.real("visit", 2),
            "share": bbvi.simplex(3, "visit"),
            "state": bbvi.categorical(3, "visit"),
        },
    )
    cohort = bbvi.ragged(visit={"y": [np.arange(float(length)) for length in LENGTHS]})
    return bbvi.fit(model, cohort, stop=NOTHING, seed=2)


# ---- shapes -----------------------------------------------------------------------------------------------------


def test_shapes_of_a_flat_model(flat):
    sample = flat.sample(7)
    for table in (flat.mean(), flat.sd(), flat.quantile(0.3)):
        assert {name: np.shape(value) for name, value in table.items()} == VALUES
    assert {name: value.shape for name, value in sample.items()} == {
        **{name: (7, *shape) for name, shape in VALUES.items()}, "label": (7, 2),
    }  # fmt: skip
    assert {name: value.shape for name, value in flat.probs().items()} == {
        "binary": (2, 2), "label": (2, 3), "one_hot": (2, 3),
    }  # fmt: skip


def test_shapes_of_a_hierarchical_model_have_groups_first_and_ragged_groups_at_their_own_length(ragged):
    sample, mean = ragged.sample(7), ragged.mean()
    assert sample["w"].shape == (7, 4)
    assert sample["fixed"].shape == (7, 3, 5)
    assert mean["w"].shape == (4,)
    assert mean["fixed"].shape == (3, 5)
    assert [one.shape for one in sample["each"]] == [(7, length, 2) for length in LENGTHS]
    assert [one.shape for one in sample["share"]] == [(7, length, 3) for length in LENGTHS]
    assert [one.shape for one in sample["state"]] == [(7, length) for length in LENGTHS]
    assert [one.shape for one in mean["each"]] == [(length, 2) for length in LENGTHS]
    assert [one.shape for one in ragged.quantile(0.5)["share"]] == [(length, 3) for length in LENGTHS]
    assert [one.shape for one in ragged.probs()["state"]] == [(length, 3) for length in LENGTHS]
    assert sample["each"].padded.shape == (7, 3, 3, 2)


@pytest.mark.parametrize("groups", [1, [1], [2, 0], np.array([0, 1, 2])])
def test_groups_restricts_and_agrees_with_the_unrestricted(ragged, groups):
    numbers = np.atleast_1d(groups)
    of_all = ragged.mean(), ragged.sd(), ragged.quantile(0.2), ragged.probs()
    of_some = (
        ragged.mean(groups=groups), ragged.sd(groups=groups), ragged.quantile(0.2, groups=groups),
        ragged.probs(groups=groups),
    )  # fmt: skip
    for whole, part in zip(of_all, of_some, strict=True):
        assert set(whole) == set(part)
        for name in set(whole) - {"w"}:
            assert len(part[name]) == len(numbers)
            for i, number in enumerate(numbers):
                np.testing.assert_array_equal(part[name][i], whole[name][number])
    assert set(of_some[0]) == {"w", "fixed", "each", "share"}


def test_a_draw_depends_on_the_seed_and_on_nothing_else(ragged):
    sample, again, other = ragged.sample(7, seed=1), ragged.sample(7, seed=1), ragged.sample(7, seed=2)
    some, more = ragged.sample(7, seed=1, groups=[2, 0]), ragged.sample(9, seed=1)
    for name in sample:
        padded = [np.asarray(getattr(s[name], "padded", s[name])) for s in (sample, again, other, more)]
        np.testing.assert_array_equal(padded[0], padded[1])
        assert (padded[0] != padded[2]).any()
        np.testing.assert_array_equal(padded[0], padded[3][:7])
    for name in ("each", "share", "state"):
        np.testing.assert_array_equal(some[name][0], sample[name][2])
        np.testing.assert_array_equal(some[name][1], sample[name][0])
    np.testing.assert_array_equal(some["fixed"], sample["fixed"][:, [2, 0]])


def test_draws_of_different_groups_and_elements_are_different_numbers(ragged):
    alike = ragged.params | {"fixed": jax.tree.map(jnp.zeros_like, ragged.params["fixed"])}
    sample = np.asarray(ragged.replace(alike).sample(7)["fixed"])
    assert len(np.unique(sample)) == sample.size


# ---- moments ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LATENTS)
def test_mean_and_sd_agree_with_draws(flat, draws, name):
    x = draws[name]
    mean, sd = np.asarray(flat.mean()[name], np.float64), np.asarray(flat.sd()[name], np.float64)
    # ordered vectors have no closed form: their moments are those of 8192 draws of their own
    per_draw = 1 / NUM + (1 / 8192 if name == "ordered" else 0)
    assert (np.abs(mean - x.mean(0)) < 5 * x.std(0) * np.sqrt(per_draw)).all()
    fourth = ((x - x.mean(0)) ** 4).mean(0)
    error = np.sqrt((fourth - x.var(0) ** 2) * per_draw) / (2 * x.std(0))
    assert (np.abs(sd - x.std(0)) < 5 * error + 1e-6).all()


@pytest.mark.parametrize("name", LATENTS)
@pytest.mark.parametrize("p", [0.05, 0.5, 0.95])
def test_quantiles_agree_with_draws(flat, draws, name, p):
    quantile = np.asarray(flat.quantile(p)[name], np.float64)
    error = 5 * np.sqrt(p * (1 - p) * (1 / NUM + (1 / 8192 if name == "ordered" else 0)))
    assert ((draws[name] < quantile).mean(0) <= p + error).all()
    assert ((draws[name] <= quantile).mean(0) >= p - error).all()


def test_probs_agree_with_draws(flat, draws):
    np.testing.assert_allclose(flat.probs()["one_hot"], flat.mean()["one_hot"], atol=1e-6)
    for name, size in (("binary", 2), ("label", 3)):
        probs = flat.probs()[name]
        np.testing.assert_allclose(probs.sum(-1), 1, atol=1e-6)
        seen = np.stack([(draws[name] == k).mean(0) for k in range(size)], -1)
        assert (np.abs(seen - probs) < 5 * np.sqrt(probs * (1 - probs) / NUM)).all()


# ---- log_prob -----------------------------------------------------------------------------------------------------


def densities(params):
    """log q of each latent, by numpyro."""
    raw = {name: {p: jnp.asarray(v) for p, v in entries.items()} for name, entries in params.items()}
    loc_scale = {
        name: (entries["loc"], jnp.exp(entries["scale"]))
        for name, entries in raw.items()
        if "scale" in entries and "loc" in entries
    }
    gamma = {p: jnp.exp(v) for p, v in raw["gamma"].items()}
    by_variance = {p: jnp.exp(v) for p, v in raw["by_variance"].items()}
    unit = jnp.exp(raw["unit"]["concentration"]), jax.nn.sigmoid(raw["unit"]["mean"])
    simplex = jnp.exp(raw["simplex"]["concentration"])[..., None] * biject_to(constraints.simplex)(
        raw["simplex"]["mean"]
    )

    def squeezed(name, target, dims):
        normal = dist.Normal(*loc_scale[name]).to_event(dims)
        return dist.TransformedDistribution(normal, biject_to(target))

    return {
        "real": dist.Normal(*loc_scale["real"]),
        "gamma": dist.Gamma(gamma["concentration"], gamma["concentration"] / gamma["mean"]),
        "lognormal": dist.LogNormal(*loc_scale["lognormal"]),
        "by_variance": bbvi.GammaE(by_variance["mean"], by_variance["variance"]),
        "weibull": dist.Weibull(jnp.exp(raw["weibull"]["scale"]), jnp.exp(raw["weibull"]["concentration"])),
        "student": dist.StudentT(9.0, *loc_scale["student"]),
        "unit": dist.Beta(unit[0] * unit[1], unit[0] * (1 - unit[1])),
        "interval": squeezed("interval", constraints.interval(-1.0, 3.0), 0),
        "ordered": squeezed("ordered", constraints.ordered_vector, 1),
        "simplex": dist.Dirichlet(simplex),
        "binary": dist.Bernoulli(logits=raw["binary"]["logits"]),
        "count": dist.Poisson(jnp.exp(raw["count"]["rate"])),
        "bounded": dist.Binomial(6, logits=raw["bounded"]["logits"]),
        "kumaraswamy": dist.Kumaraswamy(*(jnp.exp(raw["kumaraswamy"][f"concentration{i}"]) for i in (1, 0))),
        "one_hot": dist.MultinomialLogits(raw["one_hot"]["logits"], 1),
        "label": dist.Categorical(logits=raw["label"]["logits"]),
    }


def test_log_prob_is_the_sum_of_numpyro_densities_and_vmaps_over_draws(flat):
    z = flat.sample(7, seed=9)
    expected = sum(q.log_prob(z[name]).reshape(7, -1).sum(-1) for name, q in densities(flat.params).items())
    np.testing.assert_allclose(jax.vmap(flat.log_prob)(z), expected, rtol=2e-5, atol=2e-4)
    first = {name: value[0] for name, value in z.items()}
    np.testing.assert_allclose(flat.log_prob(first), expected[0], rtol=2e-5, atol=2e-4)


def test_log_prob_is_differentiable_in_lambda_through_replace(flat):
    z = {name: value[0] for name, value in flat.sample(7, seed=9).items()}
    gradient = jax.grad(lambda params: flat.replace(params).log_prob(z))(flat.params)
    loc, scale = flat.params["real"]["loc"], jnp.exp(flat.params["real"]["scale"])
    standard = (z["real"] - loc) / scale
    np.testing.assert_allclose(gradient["real"]["loc"], standard / scale, rtol=1e-5)
    np.testing.assert_allclose(gradient["real"]["scale"], standard**2 - 1, rtol=1e-4, atol=1e-5)
    one = jax.nn.sigmoid(flat.params["binary"]["logits"])
    np.testing.assert_allclose(gradient["binary"]["logits"], z["binary"] - one, rtol=1e-5, atol=1e-6)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_log_prob_sees_no_padding(ragged):
    z = {name: jax.tree.map(lambda leaf: leaf[0], value) for name, value in ragged.sample(7).items()}
    padded = np.array(z["each"].padded)
    value = ragged.log_prob(z)
    padded[0, 2:], padded[2, 1:] = 1e6, -1e6
    assert ragged.log_prob(z | {"each": padded}) == value
    padded[0, 1] += 1.0
    assert ragged.log_prob(z | {"each": padded}) != value
    normal = dist.Normal(ragged.params["each"]["loc"], jnp.exp(ragged.params["each"]["scale"]))
    mask = np.arange(3) < np.array(LENGTHS)[:, None]
    moved = ragged.log_prob(z | {"each": padded}) - value
    expected = (normal.log_prob(padded) - normal.log_prob(z["each"].padded))[mask].sum()
    np.testing.assert_allclose(moved, expected, rtol=1e-3)


# ---- ELBO and k-hat -----------------------------------------------------------------------------------------------

Y = np.array([0.5, 1.5, 1.0])


def conjugate():
    def log_joint(z, y):
        return dist.Normal(0, 1).log_prob(z["mu"]) + dist.Normal(z["mu"], 1).log_prob(y).sum()

    return bbvi.Model(log_joint, mu=bbvi.real())


@pytest.fixture(scope="module")
def start():
    return bbvi.fit(conjugate(), Y, stop=NOTHING)


def at(posterior, loc, sd):
    return posterior.replace({"mu": {"loc": jnp.float32(loc), "scale": jnp.log(jnp.float32(sd))}})


def test_elbo_at_the_exact_posterior_is_the_log_evidence(start):
    exact = at(start, Y.sum() / 4, 0.5)
    covariance = np.eye(3) + np.ones((3, 3))
    evidence = -0.5 * (Y @ np.linalg.solve(covariance, Y) + np.linalg.slogdet(2 * np.pi * covariance)[1])
    elbo = exact.elbo(200)
    assert elbo == pytest.approx(evidence, abs=1e-4)
    assert elbo.standard_error < 1e-5
    assert exact.khat(200) < 0


def test_elbo_of_another_q_is_the_closed_form(start):
    loc, sd = 0.2, 0.9
    expected = -0.5 * (loc**2 + sd**2) - 0.5 * ((Y - loc) ** 2 + sd**2).sum() - 2 * np.log(2 * np.pi)
    expected += 0.5 * np.log(2 * np.pi * np.e) + np.log(sd)
    elbo = at(start, loc, sd).elbo(20_000, seed=1)
    assert abs(elbo - expected) < 4 * elbo.standard_error
    assert 0.001 < elbo.standard_error < 0.05
    assert elbo != at(start, loc, sd).elbo(20_000, seed=2)


def test_khat_tells_a_good_q_from_a_bad_one(start):
    good, bad = at(start, 0.75, 0.55).khat(2000), at(start, 0.75, 0.15).khat(2000)
    assert good < 0.7 < bad
    assert good.locals is None


def grouped():
    return bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["m"]),
        log_local=lambda beta, z, y: dist.Normal(beta["m"], 1).log_prob(z["t"]),
        log_likelihood=lambda beta, z, y: dist.Normal(z["t"], 1).log_prob(y),
        globals={"m": bbvi.real()},
        locals={"t": bbvi.real()},
        joint=(),
    )


@pytest.fixture(scope="module")
def group_start():
    return bbvi.fit(grouped(), Y, stop=NOTHING)


def set_groups(posterior, m, sd_m, t, sd_t):
    def raw(loc, sd):
        return {"loc": jnp.asarray(loc, jnp.float32), "scale": jnp.log(jnp.asarray(sd, jnp.float32))}

    return posterior.replace({"m": raw(m, sd_m), "t": raw(t, sd_t)})


def test_elbo_of_a_hierarchical_model_is_the_closed_form(group_start):
    m, sd_m, t, sd_t = 0.3, 0.7, np.array([0.1, 1.2, 0.9]), np.array([0.5, 0.8, 1.1])
    expected = -0.5 * (m**2 + sd_m**2) - 0.5 * ((t - m) ** 2 + sd_t**2 + sd_m**2).sum()
    expected += -0.5 * ((Y - t) ** 2 + sd_t**2).sum() - 3.5 * np.log(2 * np.pi)
    expected += 2 * np.log(2 * np.pi * np.e) + np.log(sd_m) + np.log(sd_t).sum()
    elbo = set_groups(group_start, m, sd_m, t, sd_t).elbo(20_000)
    assert abs(elbo - expected) < 4 * elbo.standard_error
    assert elbo.standard_error < 0.05


def test_khat_of_locals_points_to_the_group_whose_q_is_too_narrow(group_start):
    # given m, each t has sd sqrt(1/2); given the data, m has precision 1 + 3/2
    m, sd_m = 0.5 * Y.sum() / 2.5, 2.5**-0.5
    t, sd = (m + Y) / 2, np.full(3, np.sqrt(0.5))
    khat = set_groups(group_start, m, sd_m, t, sd * np.array([1.0, 0.1, 1.1])).khat(2000)
    assert khat.locals[0] < 0.7
    assert khat.locals[2] < 0.7
    assert khat.locals[1] > 0.7
    assert set_groups(group_start, m, sd_m, t, sd).khat(1000) < 0.7
    assert set_groups(group_start, m, sd_m * 0.15, t, sd).khat(1000) > 0.7


# ---- tables, files and pictures -------------------------------------------------------------------------------------


def test_summary_names_every_element_and_agrees_with_the_tables(flat):
    table = flat.summary()
    assert {"real[0]", "real[1]", "ordered[1,2]", "simplex[0,2]", "label[1]"} <= set(table.index)
    row = table.loc["gamma[1]"]
    assert row["mean"] == pytest.approx(float(flat.mean()["gamma"][1]))
    assert row["sd"] == pytest.approx(float(flat.sd()["gamma"][1]))
    assert row["5%"] == pytest.approx(float(flat.quantile(0.05)["gamma"][1]))
    assert row["95%"] == pytest.approx(float(flat.quantile(0.95)["gamma"][1]))
    assert table.attrs["note"] == ""


def test_summary_shows_discrete_latents_by_mode_and_probability(flat):
    table, probs = flat.summary(), flat.probs()
    for name, size in (("label", 3), ("binary", 2)):
        row = table.loc[f"{name}[1]"]
        assert row["mode"] == int(np.argmax(probs[name][1]))
        assert [row[f"p({k})"] for k in range(size)] == pytest.approx(list(map(float, probs[name][1])))
        assert pd.isna(row["mean"])
    assert pd.isna(table.loc["binary[0]"]["p(2)"])


def test_summary_of_a_latent_of_many_values_shows_its_mode_alone():
    model = bbvi.Model(lambda z, _: -jnp.abs(z["day"] - 7.0), day=bbvi.categorical(30))
    posterior = bbvi.fit(model, stop=bbvi.Budget(steps=0))
    table, probs = posterior.summary(), posterior.probs()["day"]
    assert list(table.columns) == ["mode", "p(mode)"]
    assert table.loc["day"]["p(mode)"] == pytest.approx(float(np.max(probs)))
    assert "all 30 values" in table.attrs["note"]


def test_summary_of_groups_leaves_out_padding_and_obeys_groups(ragged):
    index = set(ragged.summary().index)
    assert {"fixed[0,4]", "each[1,2,1]", "share[1,2,0]", "state[1,2]"} <= index
    assert not {"each[0,2,0]", "share[2,1,0]", "state[2,1]"} & index
    some = ragged.summary(groups=[2])
    assert [label for label in some.index if label.startswith("state")] == ["state[2,0]"]
    row = ragged.summary().loc["state[2,0]"]
    assert row["p(1)"] == pytest.approx(float(ragged.probs()["state"][2][0, 1]))


def test_summary_is_limited_and_says_what_it_left_out(ragged):
    table = ragged.summary(limit=2)
    assert [label for label in table.index if label.startswith("fixed")] == ["fixed[0,0]", "fixed[0,1]"]
    assert "fixed: 2 of 15 elements shown; use limit= or groups=" in table.attrs["note"]
    assert "w: 2 of 4 elements shown" in table.attrs["note"]
    assert "w: 2 of 4 elements shown" in repr(table)
    assert "w: 2 of 4 elements shown" in table._repr_html_()


def test_to_arviz_names_dimensions_and_marks_padding(ragged):
    data = ragged.to_arviz(7, seed=4)
    values = data.posterior
    assert values.attrs["inference_library"] == "bbvi"
    assert values["w"].dims == ("chain", "draw", "w_dim_0")
    assert values["fixed"].dims == ("chain", "draw", "group", "fixed_dim_0")
    assert values["each"].dims == ("chain", "draw", "group", "visit", "each_dim_1")
    assert values["share"].dims == ("chain", "draw", "group", "visit", "share_dim_1")
    assert list(values["visit"].values) == [0, 1, 2]
    assert list(values["group"].values) == [0, 1, 2]
    sample = ragged.sample(7, seed=4)
    for name in ("each", "share", "state"):
        for group, length in enumerate(LENGTHS):
            array = values[name].values[0][:, group]
            np.testing.assert_array_equal(array[:, :length], sample[name][group])
            assert np.isnan(array[:, length:]).all()
    np.testing.assert_array_equal(values["w"].values[0], sample["w"])


@pytest.fixture(scope="module")
def fitted():
    return bbvi.fit(conjugate(), Y, stop=bbvi.Budget(steps=40), draws=bbvi.MonteCarlo(20))


def test_save_and_load_give_the_same_bits(tmp_path, flat, ragged, fitted):
    for number, posterior in enumerate((flat, ragged, fitted)):
        path = tmp_path / f"{number}.npz"
        posterior.save(path)
        loaded = bbvi.load(path, posterior.model)
        jax.tree.map(np.testing.assert_array_equal, loaded.params, posterior.params)
        jax.tree.map(lambda a, b: a.dtype == b.dtype or pytest.fail(), loaded.params, posterior.params)
        assert loaded.history.equals(posterior.history)
        assert (loaded.converged, loaded.stopped) == (posterior.converged, posterior.stopped)
        assert loaded.summary().equals(posterior.summary())
        for mine, its in zip(jax.tree.leaves(loaded.sample(7)), jax.tree.leaves(posterior.sample(7)), strict=True):
            np.testing.assert_array_equal(mine, its)


def test_a_loaded_posterior_needs_its_data_for_an_elbo(tmp_path, fitted, group_start):
    path = tmp_path / "posterior.npz"
    fitted.save(path)
    assert bbvi.load(path, conjugate(), data=Y).elbo(50) == fitted.elbo(50)
    with pytest.raises(ValueError, match="loaded without its data; pass data="):
        bbvi.load(path, conjugate()).elbo(50)
    assert bbvi.load(path, conjugate()).elbo(50, data=Y) == fitted.elbo(50)
    group_start.save(path)
    with pytest.raises(ValueError, match="loaded without its data; pass data="):
        bbvi.load(path, grouped()).elbo(50)
    with pytest.raises(ValueError, match="was fitted to 3 groups, the data have 4"):
        bbvi.load(path, grouped(), data=np.arange(4.0))


def test_history_has_one_row_for_each_step(fitted):
    history = fitted.history
    assert list(history.columns) == ["elbo", "elbo_error", "change", "floored", "draws", "setbacks", "seconds"]
    assert list(history.index) == list(range(1, 41))
    assert (np.diff(history["seconds"]) > 0).all()
    assert (history["draws"] == 20).all()
    assert history["change"].iloc[0] > history["change"].iloc[-1] >= 0
    assert history["elbo"].iloc[-5:].mean() > history["elbo"].iloc[:2].mean()


def test_plot_shows_the_elbo_and_carries_the_verdict(fitted):
    figure = fitted.plot()
    assert isinstance(figure, Figure)
    top, bottom = figure.axes
    assert top.get_title(loc="left") == f"not converged after 40 steps ({bbvi.Budget(steps=40)})"
    assert top.get_ylabel() == "ELBO (nats)"
    assert len(top.lines[0].get_ydata()) == 40
    np.testing.assert_array_equal(bottom.lines[0].get_ydata(), fitted.history["change"])
    assert len(figure.axes) == 2


def test_html_shows_verdict_and_table(fitted):
    html = fitted._repr_html_()
    assert html.startswith(f"<p>not converged after 40 steps ({bbvi.Budget(steps=40)}); ")
    assert "<th>mu</th>" in html
    assert f"not converged after 40 steps ({bbvi.Budget(steps=40)}); " in repr(fitted)
    assert repr(fitted.summary()).startswith(fitted.verdict + "\n")
