"""Locals given globals: which are chosen, what their gradients are, and that q is the posterior where that is such a q."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import bbvi
from bbvi.blankets.analysis import analyse
from bbvi.gradients.structure import choose_structure
from bbvi.model.joint import Block
from bbvi.model.problem import bind

NUM, VISITS = 12, 4
SDS, NOISE = np.array([0.7, 0.5]), 1.0
rng = np.random.default_rng(0)
X = rng.normal(size=(NUM, VISITS))
Y = rng.normal([[2.0]] - X, 1.3)
DATA = {"x": X, "y": Y}


def lines(**options):
    """An intercept and a slope for each group, around unknown means; all scales are known."""
    return bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 5).log_prob(beta["mean"]).sum(),
        log_local=lambda beta, z, row: {
            "a": dist.Normal(beta["mean"][0], SDS[0]).log_prob(z["a"]), "b": dist.Normal(beta["mean"][1], SDS[1]).log_prob(z["b"])
        },
        log_likelihood=lambda beta, z, row: dist.Normal(z["a"] + z["b"] * row["x"], NOISE).log_prob(row["y"]),
        globals={"mean": bbvi.real(2)},
        locals={"a": bbvi.real(), "b": bbvi.real()},
        **options,
    )  # fmt: skip


def exact():
    """Return mean and covariance of means, then intercepts and slopes in turn, and the log evidence."""
    to_latents = np.concatenate([np.eye(2), *[np.eye(2)] * NUM])
    prior = np.diag(np.concatenate([[0, 0], np.tile(SDS**2, NUM)])) + 25 * to_latents @ to_latents.T
    design = np.zeros((NUM, VISITS, 2 + 2 * NUM))
    for i in range(NUM):
        design[i, :, 2 + 2 * i : 4 + 2 * i] = np.stack([np.ones(VISITS), X[i]], 1)
    design, y = design.reshape(-1, 2 + 2 * NUM), Y.ravel()
    of_data = design @ prior @ design.T + NOISE**2 * np.eye(len(y))
    gain = np.linalg.solve(of_data, design @ prior).T
    evidence = -0.5 * (y @ np.linalg.solve(of_data, y) + np.linalg.slogdet(2 * np.pi * of_data)[1])
    return gain @ y, prior - gain @ design @ prior, evidence


@functools.cache
def fitted(batch_size=None, **options):
    return bbvi.fit(lines(), DATA, batch_size=batch_size, draws=bbvi.MonteCarlo(20), **options)


def test_q_of_a_linear_model_is_its_posterior():
    posterior, (mean, covariance, evidence) = fitted(), exact()
    sd = np.sqrt(np.diag(covariance))
    found = posterior.mean(), posterior.sd()
    for table, of, rtol in ((found[0], mean, 1e-3), (found[1], sd, 1e-3)):
        np.testing.assert_allclose(table["mean"], of[:2], rtol=rtol)
        np.testing.assert_allclose(np.stack([table["a"], table["b"]], 1).ravel(), of[2:], rtol=rtol, atol=1e-3)
    elbo = posterior.elbo(100)
    np.testing.assert_allclose(elbo, evidence, rtol=1e-5)
    assert elbo.standard_error < 1e-4  # log p - log q is the same at every draw
    assert posterior.converged and posterior.khat(1000) < 0.5 and (posterior.khat(1000).locals < 0.5).all()


def test_draws_have_the_correlations_of_the_posterior():
    _, covariance, _ = exact()
    draws = fitted().sample(40_000)
    x = np.concatenate([draws["mean"], np.stack([draws["a"], draws["b"]], -1).reshape(40_000, -1)], 1)
    sd = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(np.corrcoef(x.T), covariance / sd / sd[:, None], atol=5 / np.sqrt(40_000))
    np.testing.assert_allclose(x[:, 2:].std(0), sd[2:], rtol=0.03)


def test_densities_at_draws_are_those_that_made_them():
    posterior, (mean, covariance, _) = fitted(), exact()
    z = posterior.sample(20)
    x = np.concatenate([z["mean"], np.stack([z["a"], z["b"]], -1).reshape(20, -1)], 1) - mean
    log_p = -0.5 * ((x @ np.linalg.inv(covariance)) * x).sum(1) - 0.5 * np.linalg.slogdet(2 * np.pi * covariance)[1]
    np.testing.assert_allclose(jax.vmap(posterior.log_prob)(z), log_p, atol=0.02)


def test_minibatches_lead_to_the_same_posterior():
    posterior, (mean, covariance, evidence) = fitted(4), exact()
    sd = np.sqrt(np.diag(covariance))
    assert posterior.converged
    np.testing.assert_allclose(posterior.sd()["mean"], sd[:2], rtol=0.05)
    np.testing.assert_allclose((posterior.mean()["mean"] - mean[:2]) / sd[:2], 0, atol=0.1)
    np.testing.assert_allclose(posterior.sd()["a"], sd[2::2], rtol=0.02)
    assert evidence - 0.05 < posterior.elbo(2000) < evidence + 0.01


def test_locals_of_new_groups_follow_held_globals():
    new = {"x": X[:3] + 1, "y": Y[:3]}
    held = bbvi.fit(lines(), new, hold=fitted(), draws=bbvi.MonteCarlo(20))
    own, leading = held.params["a+b"], held.model.factors["globals"]["mean"].family
    frame = jax.jacobian(lambda b: leading.features(held.params["mean"], b))(jnp.zeros(2))
    for i in range(3):
        design = np.stack([np.ones(VISITS), new["x"][i]], 1)
        regression = np.linalg.solve(np.diag(1 / SDS**2) + design.T @ design, np.diag(1 / SDS**2))
        np.testing.assert_allclose(own["tilt"][i] @ frame, regression, atol=0.01)
    np.testing.assert_array_equal(held.params["mean"]["loc"], fitted().params["mean"]["loc"])
    scored = bbvi.predictive_log_likelihood(fitted(), new, new)
    assert np.isfinite(scored.pointwise).all()


def test_a_saved_posterior_answers_as_before(tmp_path):
    posterior = fitted()
    posterior.save(tmp_path / "q.npz")
    again = bbvi.load(tmp_path / "q.npz", lines(), DATA)
    assert again.structure == posterior.structure
    for one, other in ((posterior, again), (posterior.sample(3), again.sample(3)), (posterior.sd(), again.sd())):
        one, other = (x.params if isinstance(x, bbvi.Posterior) else dict(x) for x in (one, other))
        jax.tree.map(np.testing.assert_array_equal, one, other)
    with pytest.raises(ValueError, match="belongs to another model"):
        bbvi.load(tmp_path / "q.npz", lines(joint=()), DATA)


def test_a_fit_that_was_interrupted_ends_where_it_would_have(tmp_path):
    whole = {"batch_size": 4, "draws": bbvi.MonteCarlo(5), "seed": 3}
    until = lambda steps: [bbvi.Converged(1e-9), bbvi.Budget(steps=steps)]  # noqa: E731
    for steps in (50, 70, 230):  # at a new frame, after it, and after the second one
        in_parts = bbvi.fit(lines(), DATA, stop=until(steps), checkpoint=tmp_path / "run", **whole)
    at_once = bbvi.fit(lines(), DATA, stop=until(230), **whole)
    jax.tree.map(np.testing.assert_array_equal, in_parts.params, at_once.params)
    np.testing.assert_array_equal(in_parts.history["elbo"], at_once.history["elbo"])
    assert np.any(at_once.params["mean"]["frame_loc"] != 0)


def test_a_posterior_to_start_from_is_taken_over():
    again = bbvi.fit(lines(), DATA, start=fitted(), stop=bbvi.Budget(steps=0))
    jax.tree.map(np.testing.assert_array_equal, again.params, fitted().params)


def counts(scale=bbvi.positive(), joint=None):  # noqa: B008
    """Counts with an effect of the group, of unknown scale, and a positive factor of the group."""
    return bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["level"]) + dist.HalfNormal(1).log_prob(beta["scale"]),
        log_local=lambda beta, z, y: {
            "e": dist.Normal(0, beta["scale"]).log_prob(z["e"]), "r": dist.LogNormal(beta["level"], 0.5).log_prob(z["r"])
        },
        log_likelihood=lambda beta, z, y: dist.Poisson(z["r"] * jnp.exp(beta["level"] + z["e"])).log_prob(y),
        globals={"level": bbvi.real(), "scale": scale},
        locals={"e": bbvi.real(), "r": bbvi.positive()},
        joint=joint,
    )  # fmt: skip


COUNTS = jnp.array([[1.0, 3.0], [0.0, 2.0], [4.0, 2.0], [1.0, 0.0]])


@functools.cache
def elsewhere():
    """A q of these counts at which globals and locals depend on each other, in some frame."""
    start = bbvi.fit(counts(), COUNTS, stop=bbvi.Budget(steps=0), gradient=bbvi.Pathwise())
    generator = np.random.default_rng(1)

    def moved(path, leaf):
        name = jax.tree_util.keystr(path)
        offset = np.log(0.4) if "'scale'" in name else 0.0
        return jnp.asarray(offset + (0.05 if "swell" in name else 0.2) * generator.normal(size=leaf.shape), float)

    return start.replace(jax.tree_util.tree_map_with_path(moved, start.params))


@functools.cache
def by_scores(num=40_000):
    """Scores of all parameters at draws from q, and log p - log q there, by the densities alone."""
    posterior, model = elsewhere(), counts()
    z = {name: jnp.asarray(x) for name, x in posterior.sample(num).items()}

    def log_p(z):
        beta, local = ({n: z[n] for n in names} for names in (model.globals, model.locals))
        terms = jax.vmap(lambda own, y: [model.log_local(beta, own, y), model.log_likelihood(beta, own, y)])(
            local, COUNTS
        )
        return model.log_prior(beta) + sum(jnp.sum(term) for term in jax.tree.leaves(terms))

    def one(z):
        log_q, score = jax.value_and_grad(lambda params: posterior.replace(params).log_prob(z))(posterior.params)
        return score, log_p(z) - log_q

    return jax.lax.map(one, z, batch_size=1000)


def of_fitted(tree):
    """Leave out the frame, which is no parameter that is fitted."""
    return {n: {p: leaf for p, leaf in own.items() if not p.startswith("frame")} for n, own in tree.items()}


def test_scores_of_all_parameters_have_mean_zero():
    scores, _ = by_scores()
    for leaf in jax.tree.leaves(of_fitted(scores)):
        assert (np.abs(leaf.mean(0)) < 5 * leaf.std(0) / np.sqrt(len(leaf)) + 1e-6).all()


@pytest.mark.parametrize("batch_size", [None, 2])
def test_gradients_agree_with_those_by_the_score(batch_size):
    scores, weights = by_scores()
    moments = bbvi.gradient_moments(
        counts(), COUNTS, elsewhere(), draws=bbvi.MonteCarlo(20), repeats=3000, batch_size=batch_size
    )
    for name, own in of_fitted(elsewhere().params).items():
        for p in own:
            noisy = scores[name][p] * jnp.reshape(weights - weights.mean(), (-1, *[1] * own[p].ndim))
            error = np.hypot(noisy.std(0) / np.sqrt(len(noisy)), moments.standard_error[name][p])
            np.testing.assert_array_less(
                np.abs(noisy.mean(0) - moments.mean[name][p]), 5 * error, err_msg=f"{name} {p}"
            )
    assert all((moments.mean["level+scale"][f"frame_{p}"] == 0).all() for p in ("loc", "scale", "lower"))


def test_score_gradients_of_such_a_q_are_refused():
    with pytest.raises(ValueError, match="only the gradient along paths"):
        bbvi.gradient_moments(counts(), COUNTS, elsewhere(), gradient=bbvi.Score(), repeats=2)


def structure(model, data):
    problem, flat, groups = bind(model, data)
    return choose_structure(analyse(problem, flat, groups))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (lines(), {Block(("a", "b"), given=("mean",)), Block(("mean",))}),
        (lines(joint=()), None),
        (counts(), {Block(("e", "r"), given=("level", "scale")), Block(("level", "scale"), skewed=True)}),
        (counts(bbvi.positive(q=dist.LogNormal)), {Block(("e", "r"), given=("level",)), Block(("level",))}),
    ],
    ids=["one of globals", "by hand", "joint", "one outside"],
)
def test_locals_are_given_the_block_of_globals_that_share_their_terms(model, expected):
    data = DATA if "mean" in model.globals else COUNTS
    if expected is None:
        assert bbvi.fit(model, data, stop=bbvi.Budget(steps=0)).structure == ()
    else:
        assert set(structure(model, data)) == expected


def wide(num):
    return bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["w"]).sum() - (beta["w"] ** 2).sum() ** 2,
        log_local=lambda beta, z, y: dist.Normal(beta["w"].sum(), 1).log_prob(z["z"]),
        log_likelihood=lambda beta, z, y: dist.Normal(z["z"].sum(), 1).log_prob(y),
        globals={"w": bbvi.real(num)},
        locals={"z": bbvi.real(10)},
    )


def test_locals_depend_on_few_globals_only():
    y = np.zeros(3)
    assert [bool(block.given) for block in structure(wide(51), y)].count(True) == 1  # 510 numbers a group
    assert not any(block.given for block in structure(wide(52), y))


@pytest.mark.parametrize(("batch_size", "is_given"), [(None, True), (2, True), (1, False)])
def test_small_batches_leave_the_globals_out(batch_size, is_given):
    data = jax.tree.map(lambda x: np.tile(x, (2, 1)), DATA)  # 24 groups
    found = bbvi.fit(lines(), data, batch_size=batch_size, stop=bbvi.Budget(steps=0)).structure
    assert any(block.given for block in found) == is_given


def test_blocks_by_hand_say_what_locals_are_given():
    chosen = structure(counts(), COUNTS)
    by_hand = bbvi.fit(counts(joint=chosen), COUNTS, stop=bbvi.Budget(steps=0))
    assert by_hand.structure == chosen
    assert "e, r, given level, scale" in str(bbvi.explain(counts(), COUNTS))
    follows = Block(("e", "r"), given=("level", "scale"))._replace
    for blocks, message in (
        ([follows()], "is no block of globals"),
        ([Block(("level", "scale")), follows(skewed=True)], "cannot be in given="),
        ([Block(("level", "scale"), parents=1, core=1), follows()], "cannot be in given="),
    ):
        with pytest.raises(ValueError, match=message):
            counts(joint=blocks)


def effects(**options):
    """Counts in groups with an effect each: poisson_groups of the benchmarks, in groups."""
    return bbvi.HierarchicalModel(
        log_prior=lambda beta: {
            "level": dist.Normal(0, 3).log_prob(beta["level"]), "slope": dist.Normal(0, 1).log_prob(beta["slope"]),
            "tau": dist.HalfNormal(1).log_prob(beta["tau"]),
        },
        log_local=lambda beta, z, row: dist.Normal(0, beta["tau"]).log_prob(z["effect"]),
        log_likelihood=lambda beta, z, row: dist.Poisson(
            jnp.exp(beta["level"] + beta["slope"] * row["x"] + z["effect"])
        ).log_prob(row["y"]),
        globals={"level": bbvi.real(), "slope": bbvi.real(), "tau": bbvi.positive()},
        locals={"effect": bbvi.real()},
        **options,
    )  # fmt: skip


def test_counts_with_an_unknown_scale_have_nearly_the_sds_of_nuts():
    generator = np.random.default_rng(23)
    group, x = np.repeat(np.arange(25), 6), generator.normal(size=150)
    y = generator.poisson(np.exp(0.5 + 0.4 * x + 0.6 * generator.normal(size=25)[group]))
    data = {"x": x.reshape(25, 6), "y": y.reshape(25, 6).astype(float)}
    # of benchmarks/accuracy.json: 10,000 draws and more
    mean, sd = np.array([0.41013, 0.41095, 0.63157]), np.array([0.15006, 0.060966, 0.13251])
    blocks = [("level", "slope", "tau")]
    given, apart = (bbvi.fit(effects(joint=own), data) for own in (None, blocks))
    tables = [np.array([float(q.sd()[name]) for name in ("level", "slope", "tau")]) / sd for q in (given, apart)]
    assert given.converged and given.structure[-1].given
    np.testing.assert_allclose(tables[0], 1, atol=0.1)
    assert tables[1].min() < 0.7
    found = np.array([float(given.mean()[name]) for name in ("level", "slope", "tau")])
    np.testing.assert_allclose((found - mean) / sd, 0, atol=0.15)
    assert given.elbo() > apart.elbo() + 0.5
