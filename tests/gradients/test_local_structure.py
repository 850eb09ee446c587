"""Locals of a group that share terms share factors of q: which, how well they fit, and what a posterior answers of them."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import bbvi
from bbvi.blankets.analysis import analyse
from bbvi.diagnostics.predict import quick_fit
from bbvi.gradients.structure import choose_structure
from bbvi.model.joint import Block
from bbvi.model.problem import bind
from tests.gradients.test_pathwise import assert_same_mean, at_start, moments

LENGTHS = [3, 1, 2, 5]
rng = np.random.default_rng(0)
COHORT = bbvi.ragged(
    visit={
        "y": [rng.normal(size=n).astype(np.float32) for n in LENGTHS],
        "x": [rng.normal(size=(n, 2)) for n in LENGTHS],
    }
)


def grouped(likelihood, joint=None, **locals_):
    """Locals with standard priors, of which one number for each visit is measured, a function of them."""

    def masked(row, terms):
        return jnp.where(row["mask"]["visit"].reshape(-1, *[1] * (terms.ndim - 1)), terms, 0)

    def log_likelihood(beta, z, row):
        mean = beta["m"] + likelihood(z, row)
        return masked(row, dist.Normal(mean.T, 0.5).log_prob(row["y"]).T)

    def log_local(beta, z, row):
        terms = {name: dist.Normal(0, 1).log_prob(z[name]) for name in locals_}
        return {name: masked(row, t) if "visit" in locals_[name].shape else t for name, t in terms.items()}

    return bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["m"]), log_local=log_local, log_likelihood=log_likelihood,
        globals={"m": bbvi.real()}, locals=locals_, joint=joint,
    )  # fmt: skip


def line(z, row):
    return z["a"] + z["b"] * row["x"][:, 0]


def lines(z, row):
    """Two lines, each of which is measured at each visit."""
    return z["a"] + z["b"] * row["x"][:, :1]


def states(z, row):
    return z["level"] + (z["s"] * row["x"]).sum(1)


M = Block(("m",))
CASES = {
    "an intercept and a slope": (line, {"a": bbvi.real(), "b": bbvi.real()}, [Block(("a", "b"), given=("m",)), M]),
    "those of two lines": (lines, {"a": bbvi.real(2), "b": bbvi.real(2)}, [Block(("a", "b"), axes=1, given=("m",)), M]),
    "a vector": (lambda z, row: row["x"] @ z["w"], {"w": bbvi.real(2)}, [Block(("w",), given=("m",)), M]),
    "states of visits": (states, {"level": bbvi.real(), "s": bbvi.real("visit", 2)}, []),
    "numbers that share no term": (lambda z, row: 0.0 * row["y"], {"a": bbvi.real(2), "b": bbvi.real()}, []),
    "a q of its own": (line, {"a": bbvi.real(), "b": bbvi.real(q=dist.Laplace)}, [M, Block(("a",), given=("m",))]),
    "too many": (lambda z, row: z["w"].sum() * row["y"], {"w": bbvi.real(65)}, [M, Block(("w",), axes=1, given=("m",))]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_locals_that_share_terms_share_a_factor(case):
    likelihood, latents, expected = CASES[case]
    problem, flat, groups = bind(grouped(likelihood, **latents), COHORT)
    assert list(choose_structure(analyse(problem, flat, groups))) == expected


def evidence():
    """Return the log evidence of `line` without the global."""
    total = 0.0
    for group, length in enumerate(LENGTHS):
        row = {name: np.asarray(COHORT.fields[name][group, :length], float) for name in ("x", "y")}
        design = np.stack([np.ones(length), row["x"][:, 0]], 1)
        total += dist.MultivariateNormal(np.zeros(length), design @ design.T + 0.25 * np.eye(length)).log_prob(row["y"])
    return float(total)


@pytest.mark.parametrize("axes", [0, 1])
def test_lines_are_fitted_exactly(axes):
    """Given the global, the posterior of each line is a Normal of two numbers, which the structure has."""
    latents = {"a": bbvi.real(*[2] * axes), "b": bbvi.real(*[2] * axes)}
    model = grouped(lines if axes else line, **latents)
    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: -0.5 * (beta["m"] * 1e3) ** 2 + np.log(1e3 / np.sqrt(2 * np.pi)),
        log_local=model.log_local, log_likelihood=model.log_likelihood, globals=model.globals, locals=model.locals,
    )  # fmt: skip
    posterior = bbvi.fit(model, COHORT, batch_size=4, stop=bbvi.Budget(steps=200))
    assert posterior.structure == (Block(("a", "b"), axes=axes, given=("m",)), M)
    elbo = posterior.elbo(2000)
    assert abs(float(elbo) - (1 + axes) * evidence()) < 4 * elbo.standard_error + 0.01


@pytest.fixture(scope="module")
def fitted():
    model = grouped(states, [Block(("s",), axes=1)], level=bbvi.real(), s=bbvi.positive("visit", 2))
    return model, bbvi.fit(model, COHORT, batch_size=2, stop=bbvi.Budget(steps=40))


def test_answers_are_by_latent_at_each_groups_length(fitted, tmp_path):
    model, posterior = fitted
    assert posterior.structure == (Block(("s",), axes=1),)
    assert "s: one factor for each entry of visit" in repr(bbvi.explain(model, COHORT, posterior))
    assert [x.shape for x in posterior.sample(3)["s"]] == [(3, n, 2) for n in LENGTHS]
    assert [x.shape for x in posterior.sd()["s"]] == [(n, 2) for n in LENGTHS]
    draws = np.asarray(posterior.sample(20_000)["s"][1])[:, 0]
    np.testing.assert_allclose(draws.mean(0), posterior.mean()["s"][1][0], rtol=0.05)
    z = {name: value[0] for name, value in posterior.sample(1).items() if name != "s"}
    z["s"] = np.asarray(posterior.sample(1)["s"].padded)[0]
    assert np.isfinite(posterior.log_prob(z)) and np.isfinite(posterior.khat(100).locals).all()
    assert quick_fit(posterior, 4)["draws"].num == 10
    score = bbvi.predictive_log_likelihood(posterior, COHORT, COHORT, observed=lambda row: row["mask"]["visit"])
    assert len(score.pointwise) == sum(LENGTHS) and np.isfinite(score.pointwise).all()
    posterior.save(tmp_path / "q.npz")
    again = bbvi.load(tmp_path / "q.npz", model, COHORT)
    assert again.structure == posterior.structure
    jax.tree.map(np.testing.assert_array_equal, again.params, posterior.params)
    assert bbvi.fit(model, COHORT, start=again, stop=bbvi.Budget(steps=1)).structure == posterior.structure


def test_a_fit_goes_on_from_a_checkpoint(fitted, tmp_path):
    model, whole = fitted
    for steps in (15, 40):
        again = bbvi.fit(
            model,
            COHORT,
            batch_size=2,
            stop=bbvi.Budget(steps=steps),
            checkpoint=tmp_path / "q",
            checkpoint_seconds=0.0,
        )
    jax.tree.map(np.testing.assert_array_equal, again.params, whole.params)


def test_gradients_have_the_mean_of_the_score_and_none_is_of_padding(fitted):
    model = grouped(states, [Block(("s",), axes=1)], level=bbvi.real(), s=bbvi.positive("visit", 2))
    start = at_start(model, COHORT)
    found = moments(model, COHORT, start, batch_size=2, repeats=4000)
    score = moments(model, COHORT, start, bbvi.Score(), batch_size=2, repeats=4000, draws=bbvi.MonteCarlo(100))
    assert_same_mean(found, score)
    padded = np.arange(5) >= np.array(LENGTHS)[:, None]
    for leaf in jax.tree.leaves(found.mean["s"]):
        assert np.all(np.asarray(leaf)[padded] == 0)


def test_axes_that_are_not_shared_are_refused():
    with pytest.raises(
        ValueError, match="a factor for each entry along 1 axes needs latents that share these; 'a' has"
    ):
        grouped(line, [Block(("a", "b"), axes=1)], a=bbvi.real(2), b=bbvi.real(3))
    with pytest.raises(ValueError, match="'s' has the ragged axis 'visit'; a block has one length"):
        grouped(states, [("level", "s")], level=bbvi.real(), s=bbvi.real("visit", 2))
