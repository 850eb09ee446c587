"""Blocks of several latents in one factor of q: exact gradients and fits, and answers by latent."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import bbvi
from bbvi.model.joint import Block
from tests.compiled import compiled

MEAN = jnp.array([0.5, -0.3, 0.2])
SIGMA = jnp.array([[0.8, 0.5, -0.3], [0.5, 0.6, -0.1], [-0.3, -0.1, 0.7]])
FAST = {"gradient": bbvi.Pathwise(), "draws": bbvi.MonteCarlo(20), "optimizer": bbvi.adagrad(0.2)}
NOTHING = bbvi.Budget(steps=0)


def log_joint(z, _):
    """mu, log tau and shift are jointly Normal, `other` is Normal and reads mu not at all: the evidence is 1."""
    x = jnp.stack([z["mu"], jnp.log(z["tau"]), z["shift"][0]])
    return {
        "joint": dist.MultivariateNormal(MEAN, SIGMA).log_prob(x) - jnp.log(z["tau"]),
        "other": dist.Normal(1.0, 0.5).log_prob(z["other"]),
    }


def model(**settings):
    latents = {"mu": bbvi.real(), "tau": bbvi.positive(), "other": bbvi.real(2), "shift": bbvi.real(1)}
    return bbvi.Model(log_joint, joint=[("mu", "tau", "shift")], **latents | settings)


@pytest.fixture(scope="module")
def fitted():
    return bbvi.fit(model(), stop=bbvi.Budget(steps=2500), **FAST)


def test_a_correlated_target_is_fitted_exactly(fitted):
    assert abs(fitted.elbo(4000)) < 3e-3
    sd = np.sqrt(np.diag(SIGMA))
    np.testing.assert_allclose(fitted.mean()["mu"], MEAN[0], atol=0.01)
    np.testing.assert_allclose(fitted.sd()["mu"], sd[0], rtol=0.01)
    np.testing.assert_allclose(fitted.mean()["tau"], np.exp(MEAN[1] + SIGMA[1, 1] / 2), rtol=0.01)
    np.testing.assert_allclose(fitted.quantile(0.9)["shift"], [MEAN[2] + sd[2] * 1.2816], atol=0.02)
    draws = fitted.sample(40_000)
    found = np.cov(np.stack([draws["mu"], np.log(draws["tau"]), draws["shift"][:, 0]]).astype(np.float64))
    error = np.sqrt((np.asarray(SIGMA) ** 2 + np.outer(sd, sd) ** 2) / 40_000)
    assert (np.abs(found - np.asarray(SIGMA)) < 5 * error + 0.01).all()


def test_answers_are_by_latent_in_the_order_of_their_declaration(fitted):
    names = ["mu", "tau", "other", "shift"]
    draws = fitted.sample(5)
    assert [list(table) for table in (draws, fitted.mean(), fitted.sd(), fitted.quantile(0.5))] == [names] * 4
    assert {name: np.shape(value) for name, value in draws.items()} == {
        "mu": (5,), "tau": (5,), "other": (5, 2), "shift": (5, 1),
    }  # fmt: skip
    assert list(fitted.summary().index) == ["mu", "tau", "other[0]", "other[1]", "shift[0]"]
    assert set(fitted.to_arviz(10).posterior.data_vars) == set(names)
    assert set(fitted.params) == {"mu+tau+shift", "other"}
    with pytest.raises(TypeError, match="'tau' is positive: it has no finite list of values"):
        fitted.probs()["tau"]


def test_log_prob_is_the_density_of_the_block_and_the_rest(fitted):
    z = {name: value[0] for name, value in fitted.sample(1, 3).items()}

    @compiled
    def expected(params, z):
        whole, other = params["mu+tau+shift"], params["other"]
        matrix = jnp.eye(3).at[np.tril_indices(3, -1)].set(whole["lower"])
        scale = jnp.exp(whole["scale"])
        sigma = scale[:, None] * jnp.linalg.inv(matrix.T @ matrix) * scale
        x = jnp.stack([z["mu"], jnp.log(z["tau"]), z["shift"][0]])
        of_block = dist.MultivariateNormal(whole["loc"], sigma).log_prob(x) - x[1]
        return of_block + dist.Normal(other["loc"], jnp.exp(other["scale"])).log_prob(z["other"]).sum()

    np.testing.assert_allclose(compiled(fitted.log_prob)(z), expected(fitted.params, z), rtol=1e-4)


def test_a_blanket_is_the_union_of_its_members_and_each_term_counts_once():
    found = bbvi.explain(model())
    assert found.latents[:3] == ["mu+tau+shift[0]", "mu+tau+shift[1]", "mu+tau+shift[2]"]
    of_block = {term for term, row in zip(found.terms, found.matrix.toarray(), strict=True) if row[:3].any()}
    of_other = {term for term, row in zip(found.terms, found.matrix.toarray(), strict=True) if row[3:].any()}
    assert of_block and of_other and not of_block & of_other


@pytest.mark.parametrize("gradient", [bbvi.Score(), bbvi.Pathwise()])
def test_gradient_is_unbiased(gradient):
    """Against minus the divergence of two Normals; a term counted twice, or not at all, would show."""
    start = bbvi.fit(model(), stop=NOTHING, seed=2)
    precision = jnp.linalg.inv(SIGMA)

    def elbo(p):
        scale, matrix = jnp.exp(p["scale"]), jnp.eye(3).at[np.tril_indices(3, -1)].set(p["lower"])
        sigma, gap = scale[:, None] * jnp.linalg.inv(matrix.T @ matrix) * scale, p["loc"] - MEAN
        return 0.5 * jnp.linalg.slogdet(sigma)[1] - 0.5 * (gap @ precision @ gap + jnp.trace(precision @ sigma))

    truth = compiled(jax.grad(elbo))(start.params["mu+tau+shift"])
    found = bbvi.gradient_moments(
        model(), None, start, gradient=gradient, draws=bbvi.MonteCarlo(10), repeats=10_000, seed=1
    )
    for name, value in truth.items():
        mean, error = (np.asarray(part["mu+tau+shift"][name]) for part in (found.mean, found.standard_error))
        assert np.all(np.abs(mean - value) < 4.5 * error + 1e-4 * (1 + np.abs(value))), name


def groups(joint):
    """Each group has an intercept and a slope, whose sum alone is measured well; the globals are two such as well."""

    def log_likelihood(beta, z, row):
        return dist.Normal(z["a"] + z["b"] + beta["c"] + beta["d"], 0.5).log_prob(row["y"])

    def log_local(beta, z, row):
        return dist.Normal(0, 1).log_prob(z["a"]) + dist.Normal(0, 1).log_prob(z["b"])

    return bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["c"]) + dist.Normal(0, 1).log_prob(beta["d"]),
        log_local=log_local, log_likelihood=log_likelihood, globals={"c": bbvi.real(), "d": bbvi.real()},
        locals={"a": bbvi.real(), "b": bbvi.real()}, joint=joint,
    )  # fmt: skip


Y = {"y": jnp.array([0.5, 1.4, -0.6])}


def best_elbo(blocks):
    """log evidence minus the divergence of a Normal from the best Normal without covariance between these blocks."""
    read = np.zeros((3, 8))  # c, d, then a and b of each group
    for group in range(3):
        read[group, [0, 1, 2 + 2 * group, 3 + 2 * group]] = 1
    precision = np.eye(8) + 4 * read.T @ read
    sigma = read @ read.T + 0.25 * np.eye(3)
    evidence = -0.5 * (np.asarray(Y["y"]) @ np.linalg.solve(sigma, Y["y"]) + np.linalg.slogdet(2 * np.pi * sigma)[1])
    kept = sum(np.linalg.slogdet(precision[np.ix_(block, block)])[1] for block in blocks)
    return evidence - 0.5 * (kept - np.linalg.slogdet(precision)[1])


def test_blocks_of_globals_and_of_locals_reach_the_best_elbo_of_their_structure():
    apart = best_elbo([[k] for k in range(8)])
    joined = best_elbo([[0, 1], [2, 3], [4, 5], [6, 7]])
    assert joined > apart + 1
    posterior = bbvi.fit(groups([("c", "d"), ("a", "b")]), Y, stop=bbvi.Budget(steps=2500), **FAST)
    elbo = posterior.elbo(4000)
    assert abs(elbo - joined) < 4 * elbo.standard_error + 5e-3
    assert {name: np.shape(value) for name, value in posterior.sample(4).items()} == {
        "c": (4,), "d": (4,), "a": (4, 3), "b": (4, 3),
    }  # fmt: skip
    assert np.isfinite(posterior.khat(500).locals).all()


def test_prediction_reads_the_draws_of_blocks_as_those_of_a_sampler():
    joined = groups([("c", "d"), ("a", "b")])
    posterior = bbvi.fit(joined, Y, stop=NOTHING)
    draws = {name: np.asarray(value) for name, value in posterior.sample(200).items()}
    one = bbvi.predictive_log_likelihood(draws, None, Y, model=joined)
    other = bbvi.predictive_log_likelihood(draws, None, Y, model=groups(()))
    np.testing.assert_allclose(one.joint, other.joint, rtol=1e-5)


def test_saved_blocks_come_back_and_others_are_refused(tmp_path, fitted):
    fitted.save(tmp_path / "posterior.npz")
    again = bbvi.load(tmp_path / "posterior.npz", model())
    np.testing.assert_array_equal(again.mean()["tau"], fitted.mean()["tau"])
    apart = bbvi.Model(log_joint, joint=(), **model().globals)
    with pytest.raises(ValueError, match="belongs to another model: latent 'mu' is absent there"):
        bbvi.load(tmp_path / "posterior.npz", apart)


def test_a_start_at_values_is_that_of_the_members():
    start = {"mu": bbvi.real(init=3.0), "tau": bbvi.positive(init=0.5), "shift": bbvi.real(1, init=-1.0)}
    params = bbvi.fit(model(**start), stop=NOTHING).params["mu+tau+shift"]
    np.testing.assert_allclose(params["loc"], [3.0, np.log(0.5), -1.0], rtol=1e-6)


def test_a_sampler_moves_each_latent_of_a_block_on_its_own():
    joined = bbvi.Model(
        lambda z, _: dist.Normal(1.0, 0.5).log_prob(z["a"]) + dist.Gamma(3.0, 2.0).log_prob(z["b"]),
        joint=[("a", "b")], a=bbvi.real(), b=bbvi.positive(),
    )  # fmt: skip
    draws = bbvi.metropolis_within_gibbs(joined, num_draws=500, num_burn_in=200).posterior
    assert abs(float(draws["a"].mean()) - 1.0) < 0.2 and abs(float(draws["b"].mean()) - 1.5) < 0.3


@pytest.mark.parametrize(
    ("joint", "message"),
    [
        ([("mu", "sigma")], r"joint= names \['sigma'\]; the latents are \['mu', 'tau', 'n', 'k', 's'\]"),
        ([("mu", "tau"), ("tau", "s")], "a latent is in one block at the most"),
        ([("mu", "n")], "'n' is count; a block is Normal"),
        ([("mu", "s")], "'s' has a q= of its own"),
        ([("mu", "k")], "'k' starts from parameters of its own q"),
        ([("mu",)], "has a single number, and nothing to be joined with"),
        ("mu", r'joint= takes a list of tuples of names, such as \[\("mu", "tau"\)\], got'),
        (5, r'joint= takes a list of tuples of names, such as \[\("mu", "tau"\)\], got 5'),
        ([Block(("mu", "tau"), 2)], "at most 1 can be parents"),
        ([Block(("mu", "tau"), 1, 0)], "and those in the core; got 1, 0"),
        (
            [Block(("tau", "mu"), 1, skewed=True)],
            "skewed=True is for numbers with bounds, and .* has none beside parents",
        ),
        ([Block(("mu", "tau"), 0, 1, skewed=True)], "skewed=True is for a dense block, and .* has a core"),
        ([Block(("mu",), forest=(-1,), skewed=True)], "skewed=True is for a dense block, and .* has a forest"),
    ],
)
def test_a_block_that_cannot_be_is_refused(joint, message):
    latents = {
        "mu": bbvi.real(), "tau": bbvi.positive(init=1.0), "n": bbvi.count(), "k": bbvi.real(init={"loc": 0.0}),
        "s": bbvi.real(q=dist.Laplace),
    }  # fmt: skip
    with pytest.raises((ValueError, TypeError), match=message):
        bbvi.Model(lambda z, _: 0.0, joint=joint, **latents)


def test_a_block_starts_at_the_values_that_are_given_and_elsewhere_in_the_middle():
    latents = {"mu": bbvi.real(2, init=[1.0, 2.0]), "tau": bbvi.positive(), "shift": bbvi.interval(0.0, 4.0)}
    block = bbvi.Model(lambda z, _: 0.0, joint=[tuple(latents)], **latents).factors["globals"]["mu+tau+shift"]
    np.testing.assert_allclose(block.init, [1.0, 2.0, 1.0, 2.0])


def test_a_start_of_one_member_is_that_of_its_entry_in_each_factor():
    latents = {"a": bbvi.real(3, init=[1.0, 2.0, 3.0]), "b": bbvi.positive(3), "c": bbvi.real(3, 2, init=0.5)}
    model = bbvi.Model(lambda z, _: 0.0, joint=[Block(("a", "b", "c"), axes=1)], **latents)
    start = model.factors["globals"]["a+b+c"]
    assert start.shape == (3,) and start.event == (4,)
    np.testing.assert_allclose(start.init, [[k, 1.0, 0.5, 0.5] for k in (1.0, 2.0, 3.0)])


def test_blocks_across_kinds_or_of_opaque_functions_are_refused():
    with pytest.raises(ValueError, match=r"\('a', 'c'\) has globals and locals in it"):
        groups([("a", "c")])
    opaque = bbvi.Model(
        bbvi.opaque(lambda z, _: -float(z["a"] + z["b"])), joint=[("a", "b")], a=bbvi.real(), b=bbvi.real()
    )
    with pytest.raises(ValueError, match="joint= is for functions in JAX, and log_joint is opaque"):
        bbvi.fit(opaque)
