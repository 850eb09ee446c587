"""The structure of q by default: what shares terms shares a factor, and nothing else does."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import bbvi
from bbvi.blankets.analysis import analyse
from bbvi.gradients.structure import MOST_NUMBERS, choose_structure
from bbvi.model.joint import Block
from bbvi.model.problem import bind
from tests.gradients.test_pathwise import eight_schools

_APART, (EFFECT, ERROR) = eight_schools()
schools = _APART.log_joint
SCHOOLS = {"theta": bbvi.real(8), "mu": bbvi.real(), "tau": bbvi.positive()}


def squares(*groups):
    """Latents that interact within each group, and with nothing else."""
    return lambda z, _: sum(-(sum(z[name].sum() for name in names) ** 2) for names in groups)


def apart(z, _):
    return sum(-(value**2).sum() for value in z.values())


CASES = {
    "random effects": (schools, SCHOOLS, (EFFECT, ERROR), [Block(("mu", "tau", "theta"), 2)]),
    "funnel": (
        lambda z, _: dist.Normal(0, 3).log_prob(z["v"]) + dist.Normal(0, jnp.exp(z["v"])).log_prob(z["x"]).sum(),
        {"v": bbvi.real(), "x": bbvi.real(5)}, None, [Block(("v", "x"), 1)],
    ),
    "a mean and a scale for each of two kinds of effects": (
        lambda z, _: sum(
            dist.Normal(z["mu"][k], z["tau"][k]).log_prob(z[name]).sum() - z["tau"][k] - z["mu"][k] ** 2
            for k, name in enumerate(("a", "b"))
        ),
        {"a": bbvi.real(6), "b": bbvi.real(6), "mu": bbvi.real(2), "tau": bbvi.positive(2)}, None,
        [Block(("mu", "tau", "a", "b"), 2)],
    ),
    "rates": (
        lambda z, _: dist.Gamma(2.0, z["b"]).log_prob(z["rate"]).sum() - z["b"], {"b": bbvi.positive(), "rate": bbvi.positive(6)},
        None, [Block(("b", "rate"), 1, skewed=True)],
    ),
    "scalars": (squares("abc"), {name: bbvi.real() for name in "abc"}, None, [Block(("a", "b", "c"))]),
    "two parts": (
        squares("ab", "cd"), {name: bbvi.real() for name in "abcd"}, None, [Block(("a", "b")), Block(("c", "d"))],
    ),
    "no interaction": (apart, {"a": bbvi.real(), "b": bbvi.positive(7)}, None, []),
    "a vector by itself": (squares("a"), {"a": bbvi.real(6), "b": bbvi.real(init=0.0)}, None, [Block(("a",))]),
    "a q of its own": (squares("abc"), {"a": bbvi.real(), "b": bbvi.real(q=dist.Laplace), "c": bbvi.real()}, None,
                       [Block(("a", "c"))]),
    "discrete": (
        lambda z, _: -((z["a"] + z["b"] + z["k"]) ** 2) * 1.0, {"a": bbvi.real(), "b": bbvi.real(), "k": bbvi.binary()},
        None, [Block(("a", "b"))],
    ),
    "a jump": (lambda z, _: -((jnp.sign(z["a"]) + z["b"]) ** 2), {"a": bbvi.real(), "b": bbvi.real()}, None, []),
    "too large": (squares("abc"), {"a": bbvi.real(), "b": bbvi.real(MOST_NUMBERS), "c": bbvi.real()}, None,
                  [Block(("a", "c", "b"), 2, 2)]),
    "a chain": (
        lambda z, _: dist.Normal(z["x"][:-1], 1.0).log_prob(z["x"][1:]).sum() - z["x"][0] ** 2, {"x": bbvi.real(1000)}, None,
        [Block(("x",), 0, 0, 1)],
    ),
    "a chain with a scale": (
        lambda z, _: dist.Normal(z["x"][:-1], z["s"]).log_prob(z["x"][1:]).sum() - z["s"] ** 2,
        {"x": bbvi.real(200), "s": bbvi.positive()}, None, [Block(("s", "x"), 1, 1, 1)],
    ),
    "a grid": (
        lambda z, _: sum(-(jnp.diff(z["x"], axis=axis) ** 2).sum() for axis in (0, 1)), {"x": bbvi.real(15, 10)}, None,
        [Block(("x",), 0, 0, 10)],
    ),
    "crossed effects": (
        lambda z, _: -((z["a"][:, None] - z["b"]) ** 2).sum(), {"a": bbvi.real(150), "b": bbvi.real(20)}, None,
        [Block(("b", "a"), 0, 20)],
    ),
    "far too large": (squares("ab"), {"a": bbvi.real(40_000), "b": bbvi.real()}, None, []),
}  # fmt: skip


def chosen(model, data=None):
    problem, flat, groups = bind(model, data)
    return choose_structure(analyse(problem, flat, groups))


def test_a_series_beside_another_is_ordered_by_time():
    """A level and its slope: two numbers of each step, linked with those of the next."""

    def log_joint(z, _):
        level, slope = z["level"], z["slope"]
        return -((level[1:] - level[:-1] - slope[:-1]) ** 2).sum() - (jnp.diff(slope) ** 2).sum() - (level**2).sum()

    (block,) = chosen(bbvi.Model(log_joint, level=bbvi.real(100), slope=bbvi.real(100)))
    assert (block.core, block.width) == (0, 3)
    time = np.array(block.order) % 100
    assert np.abs(np.diff(time)).max() <= 2


def test_a_grid_that_is_too_wide_is_cut_into_strips():
    linked = lambda z, _: sum(-(jnp.diff(z["x"], axis=axis) ** 2).sum() for axis in (0, 1))  # noqa: E731
    (block,) = chosen(bbvi.Model(linked, x=bbvi.real(100, 100)))
    assert 8 <= block.width <= 20
    # most neighbours stay in blocks that are linked
    place = np.argsort(block.order).reshape(100, 100) // block.width
    kept = [np.abs(np.diff(place, axis=axis)) <= 1 for axis in (0, 1)]
    assert min(one.mean() for one in kept) > 0.8


def test_a_long_walk_is_fitted_exactly(tmp_path):
    """The evidence is known; apart, sds are about half of the exact ones."""
    num = 300
    y = np.sin(np.arange(num) / 20).astype(np.float32)

    def log_joint(z, y):
        steps = dist.Normal(z["x"][:-1], 0.3).log_prob(z["x"][1:]).sum()
        return dist.Normal(0, 3).log_prob(z["x"][0]) + steps + dist.Normal(z["x"], 1.0).log_prob(y).sum()

    model = bbvi.Model(log_joint, x=bbvi.real(num))
    posterior = bbvi.fit(model, y)
    moves = np.diff(np.eye(num), axis=0) / 0.3
    prior = moves.T @ moves
    prior[0, 0] += 1 / 9
    sigma = np.linalg.inv(prior + np.eye(num))
    evidence = dist.MultivariateNormal(np.zeros(num), np.linalg.inv(prior) + np.eye(num)).log_prob(y)
    assert posterior.converged
    assert abs(float(posterior.elbo(500)) - float(evidence)) < 0.02
    np.testing.assert_allclose(posterior.sd()["x"], np.sqrt(np.diag(sigma)), rtol=0.01)
    posterior.save(tmp_path / "q.npz")
    again = bbvi.load(tmp_path / "q.npz", model, y)
    assert again.structure == posterior.structure == (Block(("x",), 0, 0, 1),)
    np.testing.assert_array_equal(again.sample(3)["x"], posterior.sample(3)["x"])
    assert "0 numbers are linked with all, each other with those near it, in blocks of 1" in repr(
        bbvi.explain(model, y)
    )


@pytest.mark.parametrize("case", CASES)
def test_what_shares_terms_shares_a_factor(case):
    log_joint, latents, data, expected = CASES[case]
    if case == "a vector by itself":
        log_joint = lambda z, _: squares("a")(z, None) - z["b"] ** 2  # noqa: E731
    assert list(chosen(bbvi.Model(log_joint, **latents), data)) == expected


def test_globals_of_groups_share_a_factor():
    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["a"]) + dist.Normal(0, 1).log_prob(beta["b"]),
        log_local=lambda beta, z, row: dist.Normal(beta["a"], 1).log_prob(z["x"]),
        log_likelihood=lambda beta, z, row: dist.Normal(z["x"] + beta["b"], 1).log_prob(row),
        globals={"a": bbvi.real(), "b": bbvi.real()},
        locals={"x": bbvi.real()},
    )
    assert chosen(model, np.zeros(5, np.float32)) == (Block(("a", "b")), Block(("x",), given=("a", "b")))


@pytest.fixture(scope="module")
def fitted():
    return bbvi.fit(bbvi.Model(schools, **SCHOOLS), (EFFECT, ERROR))


def test_eight_schools_have_nearly_the_exact_scale(fitted):
    """By a sum over a grid of tau (examples/eight_schools.py): tau 3.60 with sd 3.22, mu 4.40 with 3.32; apart, tau has 1.4."""
    assert fitted.converged
    mean, sd = fitted.mean(), fitted.sd()
    assert abs(mean["tau"] - 3.6) < 0.1 * 3.2
    assert abs(mean["mu"] - 4.4) < 0.1 * 3.3
    assert 0.7 * 3.2 < sd["tau"] < 1.1 * 3.2
    assert 0.9 * 3.3 < sd["mu"] < 1.1 * 3.3
    assert set(mean) == set(SCHOOLS)


def test_a_posterior_keeps_its_structure(fitted, tmp_path):
    assert fitted.structure == (Block(("mu", "tau", "theta"), 2),)
    fitted.save(tmp_path / "q.npz")
    model = bbvi.Model(schools, **SCHOOLS)
    again = bbvi.load(tmp_path / "q.npz", model, (EFFECT, ERROR))
    assert again.structure == fitted.structure
    np.testing.assert_array_equal(again.sample(5, 1)["theta"], fitted.sample(5, 1)["theta"])
    on = bbvi.fit(model, (EFFECT, ERROR), start=fitted, stop=bbvi.Budget(steps=1))
    assert on.structure == fitted.structure
    # what was chosen can be given by hand
    by_hand = bbvi.fit(
        bbvi.Model(schools, joint=fitted.structure, **SCHOOLS), (EFFECT, ERROR), stop=bbvi.Budget(steps=1)
    )
    assert by_hand.structure == fitted.structure


def test_explain_names_the_structure(fitted):
    model = bbvi.Model(schools, **SCHOOLS)
    for posterior in (None, fitted):
        words = repr(bbvi.explain(model, (EFFECT, ERROR), posterior))
        assert "mu, tau, theta; the scales of the others depend on mu, tau" in words
    assert "share a factor" not in repr(bbvi.explain(bbvi.Model(schools, joint=(), **SCHOOLS), (EFFECT, ERROR)))


def test_factors_stay_apart_by_hand_and_for_estimators_without_paths():
    model, stop = bbvi.Model(schools, **SCHOOLS), bbvi.Budget(steps=1)
    assert bbvi.fit(model, (EFFECT, ERROR), gradient=bbvi.Score(), stop=stop).structure == ()
    assert bbvi.fit(bbvi.Model(schools, joint=(), **SCHOOLS), (EFFECT, ERROR), stop=stop).structure == ()


def test_one_number_that_would_have_to_be_several_at_a_seam_is_no_error():
    shift = jnp.arange(3.0)
    model = bbvi.Model(
        lambda z, _: jnp.where(z["a"] + shift > 0, z["a"] + shift, 0).sum() - (z["a"] ** 2).sum(), a=bbvi.real(1)
    )
    assert bbvi.explain(model, None).matrix.shape[1] == 1


@pytest.mark.parametrize(
    "rate", [lambda a, b: jnp.exp(a + b), lambda a, b: jnp.exp(jax.scipy.special.logsumexp(jnp.stack([a, b])))]
)
def test_a_joint_factor_follows_paths_through_what_is_trusted_to_be_continuous(rate):
    """A Poisson density takes xlogy, which tells cases apart and brings a derivative of its own."""
    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["a"]) + dist.Normal(0, 1).log_prob(beta["b"]),
        log_likelihood=lambda beta, z, row: dist.Poisson(rate(beta["a"], beta["b"])).log_prob(row),
        globals={"a": bbvi.real(), "b": bbvi.real()},
    )
    posterior = bbvi.fit(model, jnp.array([0.0, 2.0, 1.0]), stop=bbvi.Budget(steps=1))
    assert posterior.structure == (Block(("a", "b")),)
    assert posterior.estimators == {"a+b": "Pathwise()"}
