"""The gradient along the path of a draw: against exact gradients, against the score, and where it is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest
from jax.scipy.special import logsumexp

import bbvi
from bbvi.blankets.analysis import analyse
from bbvi.draws.drawer import Drawer, Rows
from bbvi.draws.draws import cut_samples
from bbvi.draws.layout import lay_out
from bbvi.families import Dirichlet
from bbvi.gradients.slopes import Slopes
from bbvi.model.problem import bind
from bbvi.model.start import starting_params
from bbvi.numerics.address import Address, seed_key
from bbvi.numerics.samplers import log_gamma_ratio
from bbvi.numerics.xla import for_one_run
from tests.compiled import compiled

DRAWS = bbvi.MonteCarlo(10)


def moments(model, data, start, gradient=None, repeats=2000, **keywords):
    gradient = bbvi.Pathwise() if gradient is None else gradient
    keywords = {"draws": DRAWS, **keywords}
    return bbvi.gradient_moments(model, data, start, gradient=gradient, repeats=repeats, **keywords)


def at_start(model, data=None, seed=3):
    return bbvi.fit(model, data, stop=bbvi.Budget(steps=0), seed=seed)


def assert_unbiased(found, truth, errors=4.5, rounding=2e-4):
    """Every entry within some standard errors of the truth."""
    for name, of_latent in found.mean.items():
        for p, mean in of_latent.items():
            gap = np.abs(np.asarray(mean) - np.asarray(truth[name][p]))
            allowed = errors * np.asarray(found.standard_error[name][p]) + rounding * (1 + np.abs(truth[name][p]))
            assert np.all(gap < allowed), (name, p, gap / allowed)


# ---- no bias: every family, against quadrature in its own coordinates ---------------------------------------------

FAMILIES = {
    "Normal": (bbvi.real(), lambda z: dist.StudentT(4.0, 1.0, 0.7).log_prob(z)),
    "LogNormal": (bbvi.positive(q=dist.LogNormal), lambda z: dist.Gamma(2.5, 1.5).log_prob(z)),
    "Gamma": (bbvi.positive(), lambda z: dist.LogNormal(0.3, 0.8).log_prob(z)),
    "Gamma, shape below 1": (
        bbvi.positive(init={"concentration": 0.4, "mean": 0.7}), lambda z: dist.Gamma(0.6, 0.5).log_prob(z),
    ),
    "Gamma, tiny shape": (
        bbvi.positive(init={"concentration": 0.05, "mean": 0.7}), lambda z: dist.Gamma(0.3, 0.5).log_prob(z),
    ),
    "Gamma, large shape": (
        bbvi.positive(init={"concentration": 300.0, "mean": 2.0}), lambda z: dist.Gamma(3.0, 2.0).log_prob(z),
    ),
    "GammaE": (bbvi.positive(q=bbvi.GammaE), lambda z: dist.LogNormal(-0.2, 0.6).log_prob(z)),
    "Beta": (bbvi.unit_interval(), lambda z: dist.Beta(2.0, 3.5).log_prob(z)),
    "Beta, small": (
        bbvi.unit_interval(init={"concentration": 0.8, "mean": 0.3}), lambda z: dist.Beta(2.0, 3.5).log_prob(z),
    ),
    "interval": (bbvi.interval(-1.0, 2.0), lambda z: -((z - 0.5) ** 2)),
    "StudentT": (bbvi.real(q=functools.partial(dist.StudentT, df=5.0)), lambda z: dist.Normal(0.5, 1.2).log_prob(z)),
    "StudentT, df fitted": (bbvi.real(q=dist.StudentT), lambda z: dist.Logistic(0.5, 1.2).log_prob(z)),
    "Laplace": (bbvi.real(q=dist.Laplace), lambda z: dist.Normal(0.5, 1.2).log_prob(z)),
    "Logistic": (bbvi.real(q=dist.Logistic), lambda z: dist.Normal(0.5, 1.2).log_prob(z)),
    "HalfNormal": (bbvi.positive(q=dist.HalfNormal), lambda z: dist.Gamma(2.0, 1.0).log_prob(z)),
    "Exponential": (bbvi.positive(q=dist.Exponential), lambda z: dist.Gamma(2.0, 1.0).log_prob(z)),
    "Weibull": (bbvi.positive(q=dist.Weibull), lambda z: dist.Gamma(2.0, 1.0).log_prob(z)),
    "InverseGamma": (bbvi.positive(q=dist.InverseGamma), lambda z: dist.LogNormal(0.3, 0.8).log_prob(z)),
    "Kumaraswamy": (bbvi.unit_interval(q=dist.Kumaraswamy), lambda z: dist.Beta(2.0, 3.0).log_prob(z)),
}  # fmt: skip


def exact_gradient(model, start, log_p, name):
    """The gradient of the ELBO by the trapezoid rule, in double precision."""
    family = model.globals["z"].family
    low, high = {"Gamma, tiny shape": (-900.0, 8.0)}.get(name, (-300.0, 300.0) if "StudentT" in name else (-60.0, 60.0))
    with jax.enable_x64(True):
        u = jnp.linspace(low, high, 400_001)
        params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), start.params["z"])

        def elbo(params, u):
            log_slope = jnp.log(jnp.abs(jax.vmap(jax.grad(family.chart.value))(u)))
            if family.chart.log_value(u) is not None:
                log_slope = u
            values = log_p(jax.vmap(family.chart.value)(u))
            if name == "Gamma, tiny shape":  # log z where z itself underflows
                values = -0.7 * u - 0.5 * jnp.exp(u) + dist.Gamma(0.3, 0.5).log_prob(1.0) + 0.5
            log_q = jax.vmap(lambda v: family.log_prob(params, v))(u)
            weight = jnp.exp(log_q + log_slope)
            return jnp.where(weight > 1e-300, weight * (values - log_q), 0).sum() * (u[1] - u[0])

        return {"z": jax.tree.map(np.asarray, compiled(jax.grad(elbo))(params, u))}


@pytest.mark.parametrize("name", FAMILIES)
def test_gradient_is_unbiased_for_every_family(name):
    latent, log_p = FAMILIES[name]
    model = bbvi.Model(lambda z, _: log_p(z["z"]), z=latent)
    start = at_start(model)
    assert_unbiased(moments(model, None, start, repeats=20_000), exact_gradient(model, start, log_p, name))


def test_gradient_of_a_dirichlet_is_unbiased():
    """E[sum c_k log z_k] and the entropy of a Dirichlet are known."""
    c = jnp.array([1.5, 0.3, 2.0])
    model = bbvi.Model(lambda z, _: (c * jnp.log(z["z"])).sum(), z=bbvi.simplex(3))
    start = at_start(model)
    family = model.globals["z"].family

    def elbo(params):
        a = jnp.exp(family._log_concentrations(params))
        digamma, gammaln = jax.scipy.special.digamma, jax.scipy.special.gammaln
        mean_log = digamma(a) - digamma(a.sum())
        return (c * mean_log).sum() - ((a - 1) * mean_log).sum() + gammaln(a).sum() - gammaln(a.sum())

    truth = {"z": compiled(jax.grad(elbo))(start.params["z"])}
    assert_unbiased(moments(model, None, start, repeats=20_000), truth)


def test_gradient_of_an_ordered_vector_has_the_mean_of_the_score():
    model = bbvi.Model(lambda z, y: dist.Normal(z["z"], 0.7).log_prob(y), z=bbvi.ordered(3))
    y = jnp.array([-1.0, 0.2, 1.5])
    start = at_start(model, y)
    assert_same_mean(moments(model, y, start), moments(model, y, start, bbvi.Score(), draws=bbvi.MonteCarlo(100)))


def assert_same_mean(one, other, errors=4.5):
    """Two estimates of the same mean."""
    for name, of_latent in one.mean.items():
        for p, mean in of_latent.items():
            error = np.hypot(one.standard_error[name][p], other.standard_error[name][p])
            gap = np.abs(np.asarray(mean) - np.asarray(other.mean[name][p]))
            assert np.all(gap <= errors * error + 1e-4 * (1 + np.abs(mean))), (name, p, gap / error)


# ---- paths: a draw's derivatives are kept, or what they are computed from -------------------------------------------


@jax.custom_jvp
def three_gammas(address, a):
    return jnp.log(a) + jax.vmap(lambda a_i, i: log_gamma_ratio(address, a_i, part=i))(
        a, jnp.arange(3, dtype=jnp.uint32)
    )


@functools.partial(three_gammas.defjvp, symbolic_zeros=True)
def _(primals, tangents):
    address, a = primals
    return jax.jvp(lambda a: three_gammas.__wrapped__(address, a), (a,), (tangents[1],))


class OwnDerivative(Dirichlet):
    """Draws by a function with a derivative of its own, in which values are stored on the way."""

    def sample(self, params, address):
        draws = three_gammas(address, jnp.exp(self._log_concentrations(params)))
        return draws - logsumexp(draws)


PATHS = {name: latent for name, (latent, _) in FAMILIES.items()} | {
    "Dirichlet": bbvi.simplex(3), "own derivative": bbvi.simplex(3, q=OwnDerivative(3)),
    "FullRank": bbvi.real(3, q=bbvi.FullRank()), "LowRank": bbvi.positive(3, q=bbvi.LowRank(1)),
}  # fmt: skip


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("draws", [bbvi.MonteCarlo(7), bbvi.QuasiMonteCarlo(8)])
def test_the_path_that_is_kept_is_that_of_the_draw(name, draws):
    latent = PATHS[name]
    model = bbvi.Model(lambda z, _: jnp.sum(z["x"]), x=latent)
    problem, _, _ = bind(model, None)
    analysis = analyse(problem, None, None)
    draws = draws.arranged(problem, analysis.blankets, 1)
    params = at_start(model).params["x"]
    family, drawer = latent.family, Drawer(draws, "x", latent, paths=True)
    words, samples = (jnp.array([3, 4], jnp.uint32), jnp.uint32(0), jnp.uint32(0)), jnp.arange(7, dtype=jnp.uint32)

    def draw(p):
        return jax.vmap(lambda s: draws.sample("x", family, p, Address(*words, s)), out_axes=-1)(samples)

    @functools.partial(jax.jit, **for_one_run())
    def both(params, slope):
        one = jax.tree.map(lambda leaf: leaf[None], (params, *words))
        rows = Rows(drawer.prepare(one[0]), *one[1:], None, None)
        u, path = drawer.coordinates(True, rows, samples)
        expected, back = jax.vjp(draw, params)
        found = drawer.along_path(*jax.tree.map(lambda leaf: leaf[0], (rows, path)), samples, slope)
        return (u[0], expected), (found, back(slope)[0])

    shape = jax.eval_shape(draw, params).shape
    points, slopes = both(params, jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32))
    np.testing.assert_allclose(*points, rtol=1e-5, atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), *slopes)


# ---- hierarchies -------------------------------------------------------------------------------------------------


def hierarchy():
    """Groups of one to seven visits, with positive states in a chain, a level, globals and a look-up of a site."""
    rng = np.random.default_rng(0)
    lengths = [1, 7, 3, 4, 2, 6]

    def log_local(beta, z, row):
        before = jnp.concatenate([jnp.ones(1), z["x"][:-1]])
        drift = bbvi.GammaE(jnp.maximum(before, 0.2), 0.25).log_prob(z["x"])
        return dist.Normal(beta["mu"], 1).log_prob(z["level"]) + jnp.where(row["mask"]["visit"], drift, 0).sum()

    def log_likelihood(beta, z, row):
        mean = beta["slope"] * z["x"] + z["level"] + beta["site"][row["site"]]
        return jnp.where(row["mask"]["visit"], dist.Normal(mean, 0.5).log_prob(row["y"]), 0)

    model = bbvi.HierarchicalModel(
        joint=(),
        log_prior=lambda beta: (
            dist.Normal(0, 1).log_prob(beta["mu"])
            + dist.Gamma(2.0, 2.0).log_prob(beta["slope"])
            + dist.Normal(0, 1).log_prob(beta["site"]).sum()
        ),
        log_local=log_local,
        log_likelihood=log_likelihood,
        globals={"mu": bbvi.real(), "slope": bbvi.positive(), "site": bbvi.real(3)},
        locals={"level": bbvi.real(), "x": bbvi.positive("visit")},
    )
    data = bbvi.ragged(
        visit={"y": [rng.normal(1, 1, n).astype(np.float32) for n in lengths]}, group={"site": [0, 2, 1, 2, 2, 0]}
    )
    return model, data


@pytest.mark.parametrize("batch_size", [2, pytest.param(6, marks=pytest.mark.slow)])
def test_ragged_groups_in_batches_have_the_mean_of_the_score(batch_size):
    model, data = hierarchy()
    start = at_start(model, data)
    found = moments(model, data, start, batch_size=batch_size, repeats=4000)
    score = moments(model, data, start, bbvi.Score(), batch_size=batch_size, repeats=4000, draws=bbvi.MonteCarlo(100))
    assert_same_mean(found, score)
    padded = np.arange(7) >= np.array([1, 7, 3, 4, 2, 6])[:, None]
    for leaf in jax.tree.leaves(found.mean["x"]):
        assert np.all(np.asarray(leaf)[padded] == 0)


def first_estimate(model, data, draws, gradient):
    """Parameters after a step of plain gradient ascent, and its ELBO."""
    fitted = bbvi.fit(model, data, gradient=gradient, draws=draws, optimizer=optax.sgd(1e-3), stop=bbvi.Budget(steps=1))
    return fitted.params, fitted.history


@pytest.mark.parametrize("flat", [True, False])
def test_chunks_of_draws_change_rounding_only(flat):
    model, data = eight_schools() if flat else hierarchy()
    whole, history = first_estimate(model, data, bbvi.MonteCarlo(30), bbvi.Pathwise())
    cut, cut_history = first_estimate(model, data, bbvi.MonteCarlo(30, chunk=7), bbvi.Pathwise())
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), whole, cut)
    # the ELBO is that of the score at the same draws
    _, score_history = first_estimate(model, data, bbvi.MonteCarlo(30), bbvi.Score())
    for other in (cut_history, score_history):
        np.testing.assert_allclose(other["elbo"], history["elbo"], rtol=1e-5)
        np.testing.assert_allclose(other["elbo_error"], history["elbo_error"], rtol=1e-3)


# ---- fits --------------------------------------------------------------------------------------------------------


def eight_schools():
    def log_joint(z, data):
        y, sigma = data
        return (
            dist.Normal(0, 5).log_prob(z["mu"])
            + dist.HalfCauchy(5).log_prob(z["tau"])
            + dist.Normal(z["mu"], z["tau"]).log_prob(z["theta"]).sum()
            + dist.Normal(z["theta"], sigma).log_prob(y).sum()
        )

    y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    sigma = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
    return bbvi.Model(log_joint, joint=(), mu=bbvi.real(), tau=bbvi.positive(), theta=bbvi.real(8)), (y, sigma)


def test_eight_schools_converge_to_the_same_q_as_by_the_score():
    model, data = eight_schools()
    path = bbvi.fit(model, data, gradient=bbvi.Pathwise(), draws=bbvi.MonteCarlo(10))
    score = bbvi.fit(model, data)
    assert path.converged
    for name in ("mu", "tau", "theta"):
        gap = np.abs(path.mean()[name] - score.mean()[name]) / score.sd()[name]
        assert np.all(gap < 0.2)
        np.testing.assert_allclose(path.sd()[name], score.sd()[name], rtol=0.1)
    assert abs(float(path.elbo(20_000)) - float(score.elbo(20_000))) < 0.05


def test_one_draw_is_enough():
    model = bbvi.Model(lambda z, y: dist.Normal(z["mu"], 1).log_prob(y).sum(), mu=bbvi.real())
    posterior = bbvi.fit(model, jnp.array([1.0, 2.0, 3.0]), gradient=bbvi.Pathwise(), draws=bbvi.MonteCarlo(1))
    assert abs(float(posterior.mean()["mu"]) - 2) < 0.05
    assert abs(float(posterior.sd()["mu"]) - 3**-0.5) < 0.05


def test_held_globals_stay():
    model, data = hierarchy()
    first = at_start(model, data)
    held = bbvi.fit(model, data, gradient=bbvi.Pathwise(), draws=DRAWS, hold=first, stop=bbvi.Budget(steps=5))
    for name in ("mu", "slope", "site"):
        jax.tree.map(np.testing.assert_array_equal, held.params[name], first.params[name])


# ---- variance ----------------------------------------------------------------------------------------------------


def test_variance_is_below_that_of_the_score_on_a_smooth_model():
    model, data = eight_schools()
    fitted = bbvi.fit(model, data, gradient=bbvi.Pathwise(), draws=DRAWS, stop=bbvi.Budget(steps=2000))
    path, score = (moments(model, data, fitted, g, repeats=500).variance for g in (bbvi.Pathwise(), bbvi.Score()))
    ratio = jax.tree.map(lambda a, b: np.ravel(b / a), path, score)
    assert np.all(np.concatenate(jax.tree.leaves(ratio)) > 2)


def test_variance_vanishes_where_q_is_the_posterior():
    init = {"loc": 1.0, "scale": 0.5}
    model = bbvi.Model(lambda z, _: dist.Normal(1.0, 0.5).log_prob(z["z"]), z=bbvi.real(init=init))
    found = moments(model, None, at_start(model), repeats=100)
    assert all(float(leaf) < 1e-9 for leaf in jax.tree.leaves(found.variance))


# ---- refusals ----------------------------------------------------------------------------------------------------


@jax.jit
def compiled_step(z):
    return jnp.where(z > 0, 1.0, 2.0)


JUMPS = {
    "where": lambda z: jnp.where(z > 0, 1.0, 2.0),
    "where in a compiled function": compiled_step,
    "times a comparison": lambda z: (z > 0) * 1.0,
    "floor": lambda z: jnp.floor(z),
    "round": lambda z: jnp.round(z),
    "sign": lambda z: jnp.sign(z),
    "remainder": lambda z: z % 1.0,
    "stop_gradient": lambda z: jax.lax.stop_gradient(z) * z,
    "is_finite": lambda z: jnp.isfinite(jnp.log(z)) * 1.0,
    "an index": lambda z: jnp.arange(5.0)[jnp.clip(z.astype(int), 0, 4)],
    "argmax": lambda z: jnp.arange(3.0)[jnp.argmax(z)],
    "argsort": lambda z: jnp.arange(3.0)[jnp.argsort(z)],
    "cond": lambda z: jax.lax.cond(z[0] > 0, lambda: 1.0, lambda: 2.0),
    "in a loop": lambda z: jax.lax.scan(lambda c, x: (c + jnp.floor(x), None), 0.0, z)[0],
    "while": lambda z: jax.lax.while_loop(lambda c: c < 3.0, lambda c: c + 1.0, z[0]),
}


def one_step(log_joint, **latents):
    latents = latents or {"z": bbvi.real(3)}
    model = bbvi.Model(log_joint, **latents)
    return bbvi.fit(model, None, gradient=bbvi.Pathwise(), draws=bbvi.MonteCarlo(2), stop=bbvi.Budget(steps=1))


@pytest.mark.parametrize("name", JUMPS)
def test_a_log_joint_that_jumps_is_refused(name):
    def log_joint(z, _):
        return {"prior": dist.Normal(0, 1).log_prob(z["z"]), "jump": JUMPS[name](z["z"]) * 1.0}

    with pytest.raises(ValueError, match=r"Pathwise: .*'z'.*bbvi.Score\(\)"):
        one_step(log_joint)


def test_the_refusal_names_the_line():
    with pytest.raises(ValueError, match=r"'gt' \(test_pathwise.py:\d+\)"):
        one_step(lambda z, _: dist.Normal(0, 1).log_prob(z["z"]).sum() + jnp.where(z["z"] > 0, 1.0, 2.0).sum())


def test_the_users_own_remainder_is_refused_after_numpyro_has_compiled_one():
    smooth = lambda z, _: dist.Normal(0, 1).log_prob(z["z"]) + dist.VonMises(z["z"], 1.0).log_prob(0.2)  # noqa: E731
    one_step(smooth)
    with pytest.raises(ValueError, match="Pathwise"):
        one_step(lambda z, _: dist.Normal(0, 1).log_prob(z["z"]) + jnp.remainder(z["z"], 2 * jnp.pi))


def test_a_group_function_that_jumps_is_refused():
    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["w"]),
        log_likelihood=lambda beta, z, row: jnp.where(beta["w"] > row["y"], 0.0, -1.0),
        globals={"w": bbvi.real()},
    )
    with pytest.raises(ValueError, match=r"Pathwise: .*'w'"):
        bbvi.fit(model, {"y": jnp.arange(4.0)}, gradient=bbvi.Pathwise(), stop=bbvi.Budget(steps=1))


@pytest.mark.parametrize("latent", [bbvi.binary(), bbvi.count(), bbvi.categorical(3)])
def test_discrete_latents_are_refused(latent):
    with pytest.raises(ValueError, match=r"Pathwise: the latent 'k' is discrete.*bbvi.Score\(\)"):
        one_step(lambda z, _: 0.1 * z["k"], k=latent)


def test_an_opaque_function_is_refused():
    with pytest.raises(ValueError, match=r"Pathwise: log_joint is opaque.*bbvi.Score\(\)"):
        one_step(bbvi.opaque(lambda z, _: -0.5 * z["z"] ** 2), z=bbvi.real())


def test_a_numpyro_family_without_a_derivative_is_refused():
    class Unknown(dist.Normal):
        reparametrized_params = ["loc"]  # noqa: RUF012

    with pytest.raises(
        ValueError, match=r"Pathwise: the latent 'z' has a q, Unknown, that numpyro draws without a derivative"
    ):
        one_step(lambda z, _: dist.Normal(0, 1).log_prob(z["z"]), z=bbvi.real(q=Unknown))


# ---- accepted ----------------------------------------------------------------------------------------------------

D = dist
SMOOTH = {
    "Normal": lambda z: D.Normal(z, z).log_prob(z),
    "Gamma": lambda z: D.Gamma(z, z).log_prob(z),
    "GammaE": lambda z: bbvi.GammaE(z, z).log_prob(z),
    "HalfNormal": lambda z: D.HalfNormal(z).log_prob(z),
    "HalfCauchy": lambda z: D.HalfCauchy(z).log_prob(z),
    "Beta": lambda z: D.Beta(z, z).log_prob(z / (1 + z)),
    "Dirichlet": lambda z: D.Dirichlet(z).log_prob(z / z.sum()),
    "StudentT": lambda z: D.StudentT(z, z, z).log_prob(z),
    "Laplace": lambda z: D.Laplace(z, z).log_prob(z),
    "TruncatedNormal": lambda z: D.TruncatedNormal(z, z, low=0.0, high=9.0).log_prob(z),
    "TruncatedCauchy": lambda z: D.TruncatedCauchy(z, z, low=0.0).log_prob(z),
    "Poisson": lambda z: D.Poisson(z).log_prob(3),
    "Bernoulli": lambda z: D.Bernoulli(logits=z).log_prob(1),
    "Categorical": lambda z: D.Categorical(probs=z / z.sum()).log_prob(1),
    "MultivariateNormal": lambda z: D.MultivariateNormal(z, jnp.eye(3) * (1 + z[0])).log_prob(z),
    "VonMises": lambda z: D.VonMises(z, z).log_prob(z),
    "mixture": lambda z: logsumexp(jnp.stack([D.Normal(z, 1).log_prob(0.3), D.Normal(-z, 2).log_prob(0.3)]), axis=0),
    "mixture, compiled": jax.jit(lambda z: logsumexp(z)),
    "numpyro's mixture": lambda z: D.MixtureSameFamily(D.Categorical(logits=z), D.Normal(z, 1.0)).log_prob(0.4),
    "softmax": lambda z: jnp.log(jax.nn.softmax(z)),
    "log_softmax": lambda z: jax.nn.log_softmax(z),
    "logaddexp": lambda z: jnp.logaddexp(z, 0.0),
    "a support by hand": lambda z: jnp.where(z > 0, -z, -jnp.inf),
    "maximum, clip, abs, relu": lambda z: jnp.maximum(z, 1.0) + jnp.clip(z, 0, 2) + jnp.abs(z - 1) + jax.nn.relu(z - 1),
    "sort": lambda z: jnp.sort(z) * jnp.arange(3.0),
    "scan": lambda z: jax.lax.scan(lambda c, x: (0.5 * c + x, c * x), 0.0, z)[1],
    "a derivative of one's own": lambda z: straight_through(z),
}


@jax.custom_jvp
def straight_through(z):
    return jnp.where(z > 1, z - 1, 0.0)


@straight_through.defjvp
def _(primals, tangents):
    return straight_through(*primals), (primals[0] > 1) * tangents[0]


@pytest.mark.parametrize("name", SMOOTH)
def test_the_slopes_of_a_smooth_function_are_its_derivatives(name):
    """Along log z, the coordinate of a gamma."""

    def log_joint(z, _):
        return {"prior": dist.Gamma(3.0, 2.0).log_prob(z["z"]), "term": SMOOTH[name](z["z"])}

    def total(u):
        return sum(term.sum() for term in log_joint({"z": jnp.exp(u)}, None).values())

    problem, data, groups = bind(bbvi.Model(log_joint, z=bbvi.positive(3)), None)
    u = jnp.asarray(np.random.default_rng(0).normal(0, 0.5, (3, 4)), jnp.float32)
    analysis, draws, key = analyse(problem, data, groups), bbvi.MonteCarlo(4), seed_key(0)
    start = starting_params(problem, key)["globals"]
    slopes = Slopes(analysis, data, None, problem.globals)

    @functools.partial(jax.jit, **for_one_run())
    def both(u):
        layout = lay_out(analysis, draws, start, None, key, cut_samples(draws, 1), paths=True)
        return slopes(layout, {"z": u}, 4), jax.vmap(jax.value_and_grad(total), in_axes=-1, out_axes=(0, -1))(u)

    (prior, _, found), (values, truth) = both(u)
    np.testing.assert_allclose(prior, values, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["z"], truth, rtol=1e-3, atol=1e-4)


def test_a_derivative_of_ones_own_is_used():
    @jax.custom_jvp
    def double(z):
        return z

    double.defjvp(lambda primals, tangents: (primals[0], 2 * tangents[0]))
    init = {"loc": 0.0, "scale": 1.0}
    for function in (double, jax.jit(lambda z: double(z)), lambda z: jax.lax.map(double, z[None])[0]):
        model = bbvi.Model(lambda z, _, f=function: f(z["z"]), z=bbvi.real(init=init))
        assert abs(float(moments(model, None, at_start(model), repeats=200).mean["z"]["loc"]) - 2) < 0.2
