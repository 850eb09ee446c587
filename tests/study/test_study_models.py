"""Section 5.2: the four models of the study, and the fifth."""

import ast
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import bbvi
import bbvi.study
from bbvi.study import models
from bbvi.study.mayo import load_mayo
from bbvi.study.models import MODELS
from bbvi.study.patients import scale_by_training_median
from bbvi.study.settings import Settings
from bbvi.study.simulate import simulate

S = Settings(
    num_factors=2, floor=0.2, level=3.0, sigma_w=0.8, sigma_o=0.7, sigma_x=0.25, sigma_l=0.3, alpha_0=1.1,
    alpha_w=1.2, beta_w=1.3, alpha_o=1.4, beta_o=1.5, alpha_x=1.6, beta_x=1.7, sigma_v=0.35, observation_variance=0.2,
)  # fmt: skip
LABS = [np.array([[2.0, np.nan, 3.0], [1.0, 0.4, np.nan], [np.nan, 2.2, 1.7]]), np.array([[1.5, 2.5, np.nan]])]
W = np.array([[0.5, 1.2], [0.3, 0.7], [1.1, 0.1]])
O = np.array([0.9, 1.4, 0.6])  # noqa: E741
X = np.array([[0.8, 1.5], [0.1, 1.9], [0.4, 2.2]])
NOISE = np.array([0.3, 0.5, 0.2])


def cohort():
    observed = [~np.isnan(labs) for labs in LABS]
    return bbvi.ragged(visit={"labs": [np.nan_to_num(labs) for labs in LABS], "observed": observed})


def gamma_e(mean, variance):
    return stats.gamma(mean**2 / variance, scale=variance / mean)


def scipys(name, num_visits):
    """The log joint of the patient with so many visits, by scipy: prior, local, likelihood."""
    x, labs = X[:num_visits], LABS[0] if num_visits == 3 else LABS[1]
    if name == "Log-T-TS":
        prior = stats.norm(0, S.sigma_w).logpdf(W).sum() + stats.halfnorm(scale=S.sigma_noise).logpdf(NOISE).sum()
        walk = stats.norm(0, S.walk).logpdf(np.diff(x, axis=0, prepend=0)).sum()
        likelihood = stats.t(S.degrees, x @ W.T + O, NOISE).logpdf(np.log(labs)) - np.log(labs)
        return prior, stats.norm(np.log(S.level), S.sigma_o).logpdf(O).sum() + walk, np.nansum(likelihood)
    gamma_prior = stats.gamma(S.alpha_x, scale=1 / S.beta_x).logpdf
    mean = x @ W.T + O
    if "Normal" in name:
        prior = stats.norm(0, S.sigma_w).logpdf(W).sum()
        offset = stats.norm(S.level, S.sigma_o).logpdf(O).sum()
        likelihood = stats.norm(mean, S.sigma_l).logpdf(labs)
    else:
        prior = stats.gamma(S.alpha_w, scale=1 / S.beta_w).logpdf(W).sum()
        offset = stats.gamma(S.alpha_o, scale=1 / S.beta_o).logpdf(O).sum()
        likelihood = gamma_e(mean, S.observation_variance).logpdf(labs)
    drift = {"Gamma-Normal-TS": S.sigma_x, "Gamma-TS": S.sigma_v}.get(name)
    factors = gamma_prior(x).sum()
    if drift is not None:
        first = gamma_e(S.alpha_0, drift).logpdf(x[0]) if name == "Gamma-Normal-TS" else gamma_prior(x[0])
        factors = first.sum() + gamma_e(np.maximum(x[:-1], S.floor), drift).logpdf(x[1:]).sum()
    return prior, offset + factors, np.nansum(likelihood)


@pytest.mark.parametrize("patient", [0, 1])
@pytest.mark.parametrize("name", MODELS)
def test_the_log_density_is_scipys(name, patient):
    model, row = MODELS[name].build(3, S), cohort().take(patient)
    beta, z = {"W": jnp.asarray(W), "noise": jnp.asarray(NOISE)}, {"o": jnp.asarray(O), "x": jnp.asarray(X)}
    ours = (model.log_prior(beta), model.log_local(beta, z, row), model.log_likelihood(beta, z, row))
    ours = [sum(float(leaf.sum()) for leaf in jax.tree.leaves(part)) for part in ours]
    np.testing.assert_allclose(ours, scipys(name, len(LABS[patient])), rtol=2e-5)


def prior_draw(name, s, num_labs, num_visits, key):
    keys = jax.random.split(key, 3)
    if "Normal" in name:
        weights = s.sigma_w * jax.random.normal(keys[0], (num_labs, s.num_factors))
        offset = s.level + s.sigma_o * jax.random.normal(keys[1], (num_labs,))
    else:
        weights = jax.random.gamma(keys[0], s.alpha_w, (num_labs, s.num_factors)) / s.beta_w
        offset = jax.random.gamma(keys[1], s.alpha_o, (num_labs,)) / s.beta_o
    x = jax.random.gamma(keys[2], s.alpha_x, (num_visits, s.num_factors)) / s.beta_x
    if name == "Log-T-TS":
        weights, offset = jax.random.normal(keys[0], weights.shape), jax.random.normal(keys[1], offset.shape)
        return {"W": weights, "noise": jnp.full(num_labs, 0.3)}, {"o": offset, "x": s.walk * jnp.cumsum(x - 1, 0)}
    return {"W": weights}, {"o": offset, "x": x}


@pytest.mark.parametrize("settings", [Settings.simulated(), Settings.paper()], ids=["simulated", "paper"])
@pytest.mark.parametrize("name", MODELS)
def test_the_log_joint_is_finite_at_prior_draws(name, settings):
    patients = simulate(3, seed=5)
    data, model = patients.ragged(), MODELS[name].build(17, settings)
    for i in range(3):
        row = data.take(i)
        beta, z = prior_draw(name, settings, 17, row["labs"].shape[0], jax.random.key(i))
        terms = (model.log_prior(beta), model.log_local(beta, z, row), model.log_likelihood(beta, z, row))
        assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(terms))
        likelihood = model.log_likelihood(beta, z, row)
        np.testing.assert_array_equal(np.asarray(likelihood != 0)[: len(patients.labs[i])], patients.observed[i])


@pytest.mark.parametrize("name", MODELS)
def test_blankets_are_found_for_each_element(name):
    found = bbvi.explain(MODELS[name].build(3, S), cohort())
    assert not found.lost
    reads = {row: set(np.array(found.latents)[m]) for row, m in zip(found.terms, found.matrix.toarray(), strict=True)}
    for v in range(3):
        for lab in range(3):
            expected = {f"W[{lab},0]", f"W[{lab},1]", f"x[{v},0]", f"x[{v},1]", f"o[{lab}]"}
            expected |= {f"noise[{lab}]"} & set(found.latents)
            assert reads[f"log_likelihood[{v},{lab}]"] in (expected, set())
    pairs = {frozenset(read) for factor, read in reads.items() if factor.startswith("log_local") and len(read) > 1}
    chain = {frozenset({f"x[{v},{k}]", f"x[{v + 1},{k}]"}) for v in range(2) for k in range(2)}
    assert pairs == (chain if name.endswith("TS") else set())


def short_patients():
    """Eight simulated patients at their first four visits, four of their labs: quick to compile."""
    whole = simulate(8, seed=1)
    return replace(
        whole, labs=[y[:4, :4] for y in whole.labs], times=[t[:4] for t in whole.times], names=whole.names[:4],
        truth=[t[:4, :4] for t in whole.truth],
    )  # fmt: skip


def fitted(name, train):
    model, eta = MODELS[name].build(4, replace(Settings.simulated(), num_factors=2)), MODELS[name].eta
    return bbvi.fit(
        model, train.ragged(), optimizer=bbvi.adagrad(eta), draws=bbvi.MonteCarlo(20), stop=bbvi.Budget(steps=40),
        batch_size=3, progress=False,
    )  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_no_model_reads_padding(name):
    train = scale_by_training_median(*load_mayo().take(range(14)).split(2))[0]
    model = MODELS[name].build(len(train.names), Settings.scaled())
    start = bbvi.fit(model, train.ragged(), stop=bbvi.Budget(steps=0))  # checks the padding of a few patients
    assert start.num_groups == 12


def test_a_fit_goes_up():
    elbo = fitted("Gamma-Normal-TS", short_patients()).history["elbo"].to_numpy()
    assert np.isfinite(elbo).all() and elbo[-5:].mean() > elbo[:5].mean()


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_fit_goes_up_and_scores_held_out_labs(name):
    train, test = short_patients().split(3)
    posterior = fitted(name, train)
    elbo = posterior.history["elbo"].to_numpy()
    assert np.isfinite(elbo).all() and elbo[-5:].mean() > elbo[:5].mean()
    kept, held = test.hold_out()
    score = bbvi.predictive_log_likelihood(
        posterior, test.ragged(kept), test.ragged(held), observed="observed", num_draws=20,
        draws=bbvi.MonteCarlo(20), stop=bbvi.Budget(steps=5), progress=False,
    )  # fmt: skip
    assert len(score.pointwise) == sum(away.sum() for away in held) and np.isfinite(score.pointwise).all()


def test_the_papers_hyperparameters_are_the_papers():
    paper = Settings.paper()
    assert paper.sigma_w == paper.sigma_o == paper.sigma_x == paper.sigma_v == paper.alpha_0 == 1
    assert paper.alpha_w == paper.beta_w == paper.alpha_o == paper.beta_o == paper.alpha_x == paper.beta_x == 1
    assert paper.sigma_l == paper.observation_variance == 0.01 and paper.level == 0
    assert {name: (entry.eta, entry.paper) for name, entry in MODELS.items()} == {
        "Gamma-Normal-TS": (1, -32.7), "Gamma-Normal": (1, -33.9), "Gamma-TS": (0.5, -174), "Gamma": (0.5, -175),
        "Log-T-TS": (0.5, None),
    }  # fmt: skip


def test_the_docs_fifth_model_is_a_model_and_joins_the_table():
    page = (Path(__file__).parents[2] / "docs" / "study.md").read_text()
    code = page[page.index("```python\n") + len("```python\n") :].split("```")[0]
    names = {**vars(models), "MODELS": dict(MODELS)}
    exec(code, names)
    (added,) = names["MODELS"].keys() - MODELS.keys()
    found = bbvi.explain(names["MODELS"][added].build(3, S), cohort())
    assert not found.lost and "log_likelihood[2,2]" in found.terms


def test_the_study_uses_public_names_only():
    folder = Path(bbvi.study.__file__).parent
    for path in [*folder.glob("*.py"), folder.parent / "command.py"]:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert not name.startswith("bbvi") or name == "bbvi" or name.startswith("bbvi.study"), (path, name)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "bbvi":
                assert node.attr in bbvi.__all__ or node.attr == "__version__", (path, node.attr)
