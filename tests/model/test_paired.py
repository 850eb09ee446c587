"""A discrete latent and continuous ones that share factors q(g_i) q(b_i | g_i): the family, its answers, and what is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import bbvi
from bbvi.families import Bernoulli, Categorical, Paired, PerValue
from bbvi.families.charts import Positive, Real, Through
from bbvi.families.law import score
from bbvi.model.joint import Block
from tests.compiled import compiled
from tests.exact import nodes_of_pair
from tests.gradients.test_values_and_paths import groups

BITS = Paired(Bernoulli().chart, (Positive(),))
CODES = Paired(Categorical(3).chart, (Real(), Through(dist.constraints.interval(-1.0, 2.0))))
FAMILIES = {"a bit": PerValue(BITS, Bernoulli()), "a category": PerValue(CODES, Categorical(3))}


def some_params(family, seed=0):
    generator = np.random.default_rng(seed)
    return {p: jnp.asarray(0.7 * generator.normal(size=x.raw_shape()), float) for p, x in family.parameters().items()}


@pytest.mark.parametrize("name", FAMILIES)
def test_scores_have_mean_zero_and_natural_gradients_are_those_of_their_covariance(name):
    family = FAMILIES[name]
    params = some_params(family)
    u, weight = nodes_of_pair(family, params, 30)
    _, scores = compiled(lambda params, u: jax.vmap(functools.partial(score, family, params))(u))(params, u)
    names = sorted(scores)
    flat = np.concatenate([np.asarray(scores[p], np.float64).reshape(len(u), -1) for p in names], 1)
    weight = np.asarray(weight, np.float64)
    np.testing.assert_allclose(weight @ flat, 0, atol=2e-5)
    fisher = (flat * weight[:, None]).T @ flat
    generator = np.random.default_rng(1)
    gradient = fisher @ generator.normal(size=len(fisher))  # in the range of F, which is blind to a shift of all logits
    shapes = [np.shape(params[p]) for p in names]
    cut = np.split(gradient, np.cumsum([int(np.prod(s)) for s in shapes])[:-1])
    given = {p: jnp.asarray(part.reshape(s), float) for p, part, s in zip(names, cut, shapes, strict=True)}
    found = compiled(family.natural_gradient)(params, given)
    direction = np.concatenate([np.ravel(found[p]) for p in names])
    np.testing.assert_allclose(fisher @ direction, gradient, atol=2e-4 * np.abs(gradient).max())


def test_the_density_is_that_of_a_bit_and_of_a_log_normal_given_it():
    family = FAMILIES["a bit"]
    params = some_params(family)
    for g, b in ((0, 0.3), (1, 2.5)):
        u = family.chart.coordinates(jnp.array([g, b]))
        normal = dist.LogNormal(params["loc"][g, 0], jnp.exp(params["scale"][g, 0]))
        expected = dist.BernoulliLogits(params["logits"]).log_prob(g) + normal.log_prob(b)
        np.testing.assert_allclose(family.log_prob(params, u), expected, rtol=1e-5)


def test_a_value_that_q_gives_up_moves_no_less_along_its_own_gradient():
    """What is given a value has F and a gradient that both carry its probability."""
    family = FAMILIES["a bit"]
    params = some_params(family)
    found = []
    for logit in (0.0, -60.0):
        own = {**params, "logits": jnp.asarray(logit)}
        q = jnp.exp(family.log_q(own))[:, None]
        gradient = {
            "logits": jnp.zeros(()),
            "loc": q * jnp.array([[1.0], [2.0]]),
            "scale": q * jnp.array([[0.5], [0.2]]),
        }
        found.append(family.natural_gradient(own, gradient))
    for p in ("loc", "scale"):
        np.testing.assert_allclose(found[0][p], found[1][p], rtol=1e-5)


def test_steps_stay_finite_where_q_has_no_doubt_left():
    """An effect of a hundred standard errors: the other value has a probability next to the smallest number."""

    def log_joint(z, y):
        prior = dist.Bernoulli(0.3).log_prob(z["g"]) + dist.Normal(0, 1).log_prob(z["b"])
        return prior.sum() + dist.Normal(z["g"] * z["b"], 0.1).log_prob(y).sum()

    y = jnp.stack([jnp.full(60, 2.0), jnp.zeros(60)], 1)
    posterior = bbvi.fit(bbvi.Model(log_joint, g=bbvi.binary(2), b=bbvi.real(2)), y)
    assert posterior.converged and posterior.probs()["g"][0, 1] == 1.0
    precision = 60 / 0.1**2
    given = precision / (precision + 1), (precision + 1) ** -0.5
    np.testing.assert_allclose(posterior.mean()["b"][0], 2.0 * given[0], atol=0.1 * given[1])
    np.testing.assert_allclose(posterior.sd()["b"][0], given[1], rtol=0.03)
    odds = 0.3 / 0.7 * given[1]
    np.testing.assert_allclose(posterior.probs()["g"][1, 1], odds / (1 + odds), rtol=0.05)


def three():
    """Elements of shape (3, 2) beside a number of its own, in one term for each and one for all."""

    def log_joint(z, y):
        prior = dist.Bernoulli(0.4).log_prob(z["g"]) + dist.Gamma(2.0, 1.0).log_prob(z["b"])
        return {"prior": prior, "c": dist.Normal(0, 0.1).log_prob(z["c"]),
                "y": dist.Normal(z["g"] * z["b"] + z["c"], 0.5).log_prob(y)}  # fmt: skip

    return bbvi.Model(log_joint, g=bbvi.binary(3, 2), c=bbvi.real(), b=bbvi.positive(3, 2))


Y = jnp.array([[0.1, 2.0], [-0.3, 1.2], [3.0, 0.6]])


@pytest.fixture(scope="module")
def fitted():
    return bbvi.fit(three(), Y)


def test_defaults_pair_what_is_multiplied(fitted):
    assert fitted.structure == (Block(("g", "b")),)
    assert fitted.estimators == {"g+b": "ValuesAndPaths()", "c": "Pathwise()"}
    assert fitted.converged
    assert "binary(3, 2) ~ Bernoulli and Normal" in repr(fitted.model)
    words = repr(bbvi.explain(three(), Y, fitted))
    assert "g, b" in words and "Bernoulli and Normal" in words and "ValuesAndPaths()" in words
    assert (
        bbvi.fit(bbvi.Model(three().log_joint, joint=(), **three().globals), Y, stop=bbvi.Budget(steps=1)).structure
        == ()
    )


def test_answers_are_by_latent_and_agree_with_draws(fitted):
    draws = {name: np.asarray(value, np.float64) for name, value in fitted.sample(20_000, 3).items()}
    assert list(draws) == ["g", "c", "b"] and draws["g"].shape == draws["b"].shape == (20_000, 3, 2)
    assert fitted.sample(2)["g"].dtype == np.int32 and set(np.unique(draws["g"])) <= {0, 1} and (draws["b"] > 0).all()
    for name in ("g", "b", "c"):
        error = draws[name].std(0) / np.sqrt(20_000)
        assert (np.abs(draws[name].mean(0) - fitted.mean()[name]) < 5 * error + 2e-4).all(), name
        np.testing.assert_allclose(draws[name].std(0), fitted.sd()[name], rtol=0.06, atol=0.01)
    np.testing.assert_allclose(fitted.probs()["g"][..., 1], fitted.mean()["g"], rtol=1e-5)
    for p in (0.05, 0.5, 0.9):
        quantile = fitted.quantile(p)
        assert quantile["g"].dtype.kind == "i" and quantile["b"].shape == (3, 2)
        assert (np.abs((draws["b"] <= quantile["b"]).mean(0) - p) < 0.02).all()
    assert list(fitted.summary().index)[:7] == [f"g[{i},{j}]" for i in range(3) for j in range(2)] + ["c"]
    assert set(fitted.to_arviz(5).posterior.data_vars) == {"g", "b", "c"}
    assert np.isfinite(fitted.khat(1000)) and np.isfinite(fitted.elbo(500))


def test_the_density_of_a_draw_is_that_of_all_factors(fitted):
    z = {name: value[0] for name, value in fitted.sample(1, 5).items()}
    pair, other = fitted.params["g+b"], fitted.params["c"]
    loc, scale = (np.take_along_axis(pair[p][..., 0], z["g"][..., None], -1)[..., 0] for p in ("loc", "scale"))
    expected = (
        dist.BernoulliLogits(pair["logits"]).log_prob(z["g"]).sum()
        + dist.LogNormal(loc, np.exp(scale)).log_prob(z["b"]).sum()
    )
    expected = expected + dist.Normal(other["loc"], jnp.exp(other["scale"])).log_prob(z["c"])
    np.testing.assert_allclose(fitted.log_prob(z), expected, rtol=1e-5)
    many = compiled(jax.vmap(fitted.log_prob))(fitted.sample(4, 5))
    np.testing.assert_allclose(many[0], fitted.log_prob({n: v[0] for n, v in fitted.sample(4, 5).items()}), rtol=1e-5)


def test_inclusion_probabilities_and_effects_are_exact_where_elements_are_apart(fitted):
    """Given c, elements are independent: by quadrature over b, and over c."""
    b = np.linspace(1e-4, 15, 4000)
    c = np.linspace(-0.6, 0.6, 301)
    y = np.asarray(Y, np.float64).ravel()
    prior = b * np.exp(-b) * (b[1] - b[0])
    density = lambda mean: np.exp(-2 * (y - mean) ** 2)  # noqa: E731
    on = 0.4 * np.array([prior @ density((b + one)[:, None]) for one in c])
    off = 0.6 * np.array([density(one) for one in c])
    weight = np.exp(-50 * c**2 + np.log(on + off).sum(1))
    exact = ((on / (on + off)) * (weight / weight.sum())[:, None]).sum(0).reshape(3, 2)
    np.testing.assert_allclose(fitted.probs()["g"][..., 1], exact, atol=0.02)


def test_saved_pairs_come_back_and_start_a_fit(fitted, tmp_path):
    fitted.save(tmp_path / "q.npz")
    again = bbvi.load(tmp_path / "q.npz", three(), Y)
    assert again.structure == fitted.structure
    np.testing.assert_array_equal(again.sample(3, 1)["b"], fitted.sample(3, 1)["b"])
    on = bbvi.fit(three(), Y, start=again, stop=bbvi.Budget(steps=0))
    np.testing.assert_array_equal(on.params["g+b"]["loc"], fitted.params["g+b"]["loc"])


def test_a_fit_goes_on_from_a_checkpoint(tmp_path):
    whole = bbvi.fit(three(), Y, stop=bbvi.Budget(steps=20))
    path = tmp_path / "checkpoint"
    bbvi.fit(three(), Y, stop=bbvi.Budget(steps=10), checkpoint=path, checkpoint_seconds=0.0)
    again = bbvi.fit(three(), Y, stop=bbvi.Budget(steps=20), checkpoint=path)
    assert len(again.history) == 20
    np.testing.assert_array_equal(whole.history["elbo"], again.history["elbo"])
    jax.tree.map(np.testing.assert_array_equal, whole.params, again.params)


def test_pairs_of_groups_of_different_lengths():
    model, cohort = groups()
    posterior = bbvi.fit(model, cohort, batch_size=2, stop=bbvi.Budget(steps=60))
    assert np.isfinite(posterior.history["elbo"]).all()
    draws = posterior.sample(7)
    assert draws["h"][1].shape == (7, 2) and draws["e"][0].shape == (7, 1) and draws["g"].shape == (7,)
    assert [x.shape for x in posterior.probs()["h"]] == [(1, 2), (2, 2), (1, 2), (2, 2)]
    assert posterior.quantile(0.5)["h"].padded.dtype.kind == "i"
    z = {
        name: jax.tree.map(lambda leaf: leaf[0], value) if name in ("g", "b") else value
        for name, value in draws.items()
    }
    z |= {name: np.asarray(draws[name].padded)[0] for name in ("h", "e")}
    assert np.isfinite(posterior.log_prob(z))
    assert np.isfinite(posterior.khat(200).locals).all() and np.isfinite(posterior.elbo(200))
    assert len(posterior.summary()) == 2 + 2 * 6


def test_a_start_at_values_is_that_of_the_members():
    latents = {"g": bbvi.binary(2, init=np.array([1, 0])), "b": bbvi.positive(2, init=np.array([0.5, 3.0]))}
    model = bbvi.Model(lambda z, _: -(z["g"] * z["b"]).sum(), joint=[("g", "b")], **latents)
    params = bbvi.fit(model, stop=bbvi.Budget(steps=0)).params["g+b"]
    np.testing.assert_allclose(params["logits"], [2.0, -2.0])
    np.testing.assert_allclose(params["loc"][..., 0], np.log([[0.5, 0.5], [3.0, 3.0]]), rtol=1e-6)
    with pytest.raises(ValueError, match="init of 'b' is outside its support"):
        bbvi.Model(lambda z, _: 0.0, joint=[("g", "b")], g=bbvi.binary(), b=bbvi.positive(init=-1.0))


@pytest.mark.parametrize(
    ("joint", "message"),
    [
        (
            [("g", "short")],
            r"paired element by element, since 'g' is discrete, and differ in shape: 'g' has \(3,\), 'short' has \(2,\)",
        ),
        ([("g", "h", "b")], r"has the discrete latents \['g', 'h'\].*pair each discrete latent"),
        (
            [("g",)],
            r"has the discrete latents \['g'\]; a factor q\(g_i\) q\(b_i \| g_i\) has one of them and continuous ones",
        ),
        ([("g", "n")], "'n' is count; a block is Normal.*or it pairs a binary or categorical latent"),
        ([("o", "b")], "'o' is one_hot; a block is Normal"),
        ([("g", "v")], "'v' is simplex; a block is Normal"),
        ([("g", "s")], "'s' has a q= of its own; beside a discrete latent"),
        ([("g", "k")], "'k' starts from parameters of its own q"),
        ([("g", "b"), ("h", "b")], "a latent is in one block at the most"),
        (
            [Block(("g", "b"), 1)],
            r"\('g', 'b'\) are paired element by element: these have no parents, core, axes or skew",
        ),
        ([Block(("g", "b"), skewed=True)], "these have no parents, core, axes or skew"),
    ],
)
def test_a_pair_that_cannot_be_is_refused(joint, message):
    latents = {
        "g": bbvi.binary(3), "h": bbvi.binary(3), "b": bbvi.real(3), "short": bbvi.real(2), "n": bbvi.count(3),
        "o": bbvi.one_hot(3, 3), "v": bbvi.simplex(3, 3), "s": bbvi.real(3, q=dist.Laplace), "k": bbvi.real(3, init={"loc": 0.0}),
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        bbvi.Model(lambda z, _: 0.0, joint=joint, **latents)


def test_pairs_across_kinds_are_refused():
    model, _ = groups()
    with pytest.raises(ValueError, match=r"\('g', 'e'\) has globals and locals in it"):
        bbvi.HierarchicalModel(
            log_prior=model.log_prior, log_local=model.log_local, log_likelihood=model.log_likelihood,
            globals=model.globals, locals=model.locals, joint=[("g", "e")],
        )  # fmt: skip
