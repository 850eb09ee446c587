"""The natural gradient: Fisher information, straight steps in natural parameters, and what a step of size 1 must hit."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.special
from jax.flatten_util import ravel_pytree

import bbvi
from bbvi.families import AbstractFamily, Dirichlet, constrain, score
from bbvi.fitting.optimizers import ascend, check_optimizer
from tests.compiled import compiled
from tests.families.test_families import CONTINUOUS, DISCRETE, grid, log_mass, parameters


def latent_of(name):
    return (CONTINUOUS[name] if name in CONTINUOUS else DISCRETE[name])[0]


def is_own(family, method):
    """Whether a family has its own natural gradient or straight line."""
    return getattr(type(family), method) is not getattr(AbstractFamily, method)


def has_closed_form(family):
    params = {name: jnp.zeros(entry.raw_shape()) for name, entry in family.parameters().items()}
    return is_own(family, "natural_gradient") or family.information(params) is not None


EXPONENTIAL = [name for name in (*CONTINUOUS, *DISCRETE) if is_own(latent_of(name).family, "along")]


def information(name):
    """The Fisher information by quadrature or enumeration, in the order of a raveled lambda."""
    latent = latent_of(name)
    params = parameters(latent)
    if name in DISCRETE:
        values = jnp.asarray(DISCRETE[name][1])
        log_q, h = compiled(jax.vmap(lambda v: score(latent.family, params, v)))(values)
        mass = np.exp(np.asarray(log_q, np.float64))
    else:
        values, du, family = grid(name)
        log_q, log_slope = compiled(lambda values: log_mass(params, values, family))(values)
        _, h = compiled(jax.vmap(lambda v: score(family, params, v)))(values)
        mass = np.nan_to_num(np.exp(np.asarray(log_q + log_slope, np.float64))) * du
    h = np.stack([np.where(mass > 0, np.asarray(leaf, np.float64).T, 0) for leaf in jax.tree.leaves(h)], -1)
    h = h.reshape(len(mass), -1) if name not in ("Categorical", "OneHot") else np.asarray(h)[..., 0].T
    return (h * mass[:, None]).T @ h


def some_gradient(name, params):
    """A gradient that an ELBO can have: that of a categorical's logits sums to 0."""
    flat, shaped = ravel_pytree(params)
    g = np.random.default_rng(3).normal(size=flat.shape)
    return shaped(jnp.asarray(g - g.mean() if name in ("Categorical", "OneHot") else g, flat.dtype))


# of a concentration that hardly matters, draws cannot tell the information
@pytest.mark.parametrize("name", [name for name in (*CONTINUOUS, *DISCRETE) if not name.startswith("NegativeBinomial")])
def test_natural_gradient_solves_with_the_fisher_information(name):
    family, params = latent_of(name).family, parameters(latent_of(name))
    gradient = some_gradient(name, params)
    direction = ravel_pytree(compiled(family.natural_gradient)(params, gradient))[0]
    expected = np.linalg.lstsq(information(name), np.asarray(ravel_pytree(gradient)[0], np.float64), rcond=1e-6)[0]
    # 256 draws for families without a closed form: four standard deviations of the mean of as many squared scores, which
    # have the tails of an exponential's
    tolerance = 5e-3 if has_closed_form(family) else 4 * np.sqrt(8 / 256)
    assert np.linalg.norm(direction - expected) < tolerance * np.linalg.norm(expected)


def covariance_of(family, params):
    """Of a joint Normal, from what its parameters mean."""
    size, scale = len(params["loc"]), jnp.exp(params["scale"])
    if "directions" in params:
        return (jnp.eye(size) + params["directions"] @ params["directions"].T) * jnp.outer(scale, scale)
    matrix = jnp.eye(size).at[np.tril_indices(size, -1)].set(params["lower"]) / scale
    return jnp.linalg.inv(matrix.T @ matrix)


@pytest.mark.parametrize(
    ("size", "q", "tolerance"),
    [(2, bbvi.FullRank(), 1e-8), (5, bbvi.FullRank(), 1e-8), (6, bbvi.LowRank(1), 5e-3), (40, bbvi.LowRank(3), 5e-3)],
)
def test_natural_gradient_of_a_joint_normal_solves_with_its_fisher_information(size, q, tolerance):
    """F of a Normal: d loc' P d loc + tr(P dS P dS) / 2, by derivatives of its location and covariance S = P^-1.

    What the solution misses is measured by F itself, which is blind to a rotation of a low-rank Normal's directions.
    """
    family = bbvi.real(size, q=q).family
    rng = np.random.default_rng(size)
    with jax.enable_x64(True):
        shapes = {name: entry.raw_shape() for name, entry in family.parameters().items()}
        flat, shaped = ravel_pytree({name: rng.normal(size=shape) for name, shape in shapes.items()})

        @compiled
        def found_and_missed(flat, wanted):
            spread = jax.jacobian(lambda flat: covariance_of(family, shaped(flat)))(flat)
            location = jax.jacobian(lambda flat: shaped(flat)["loc"])(flat)
            precision = jnp.linalg.inv(covariance_of(family, shaped(flat)))
            whitened = jnp.einsum("ij,jka->ika", precision, spread)
            information = location.T @ precision @ location + jnp.einsum("ija,jib->ab", whitened, whitened) / 2
            gradient = information @ wanted
            found = ravel_pytree(family.natural_gradient(shaped(flat), shaped(gradient)))[0]
            return gradient, information @ found - gradient

        gradient, missed = found_and_missed(flat, rng.normal(size=len(flat)))
        assert np.linalg.norm(missed) < tolerance * np.linalg.norm(gradient)


@pytest.mark.parametrize("name", EXPONENTIAL)
def test_a_step_is_straight_in_natural_parameters(name):
    """log q(z) - log q(z') is linear in them, so along a straight line it changes as much in each of two halves."""
    family, params = latent_of(name).family, parameters(latent_of(name))
    direction = jax.tree.map(lambda leaf: 0.3 * leaf, some_gradient(name, params))
    z = jnp.array(
        [0, 1, 3] if name in ("Categorical", "Poisson") else [0, 1] if name == "Bernoulli" else [-0.7, 0.4, 1.1]
    )

    @compiled
    def ratios(t):
        at = family.along(params, jax.tree.map(lambda leaf: t * leaf, direction))
        log_q = jax.vmap(lambda v: family.log_prob(at, v))(z)
        return log_q[1:] - log_q[0]

    start, middle, end = (np.asarray(ratios(t)) for t in (0.0, 0.5, 1.0))
    np.testing.assert_allclose(end - middle, middle - start, rtol=1e-3, atol=1e-5)
    assert np.abs(end - start).max() > 1e-2


@pytest.mark.parametrize("name", EXPONENTIAL)
def test_a_step_leaves_in_its_direction(name):
    family, params = latent_of(name).family, parameters(latent_of(name))
    direction = some_gradient(name, params)
    line = compiled(lambda t: family.along(params, jax.tree.map(lambda leaf: t * leaf, direction)))
    _, found = jax.jvp(line, (0.0,), (1.0,))
    for p in direction:
        np.testing.assert_allclose(found[p], direction[p], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("concentration", [1e-3, 1.0, 50.0, 1e6])
@pytest.mark.parametrize("k", [2, 5])
def test_natural_gradient_of_a_dirichlet_keeps_its_digits_in_single_precision(k, concentration):
    """Against double precision; F^-1 of a large total is a difference of nearly equal numbers."""
    family = Dirichlet(k)
    rng = np.random.default_rng(k)
    params = {"concentration": np.log(concentration), "mean": rng.normal(size=k - 1)}
    with jax.enable_x64(True):

        @compiled
        def log_a(flat):
            return family._log_concentrations({"concentration": flat[0], "mean": flat[1:]})

        flat = np.concatenate([np.atleast_1d(params["concentration"]), params["mean"]])
        jacobian, a = np.asarray(jax.jacobian(log_a)(flat)), np.exp(np.asarray(log_a(flat)))
    trigamma = scipy.special.polygamma(1, a)
    exact = jacobian.T @ (np.diag(a**2 * trigamma) - scipy.special.polygamma(1, a.sum()) * np.outer(a, a)) @ jacobian
    gradient = exact @ np.ones(k)  # all parts of the direction count alike
    params = jax.tree.map(np.float32, params)
    gradient = {"concentration": np.float32(gradient[0]), "mean": np.float32(gradient[1:])}
    found = jax.device_get(compiled(family.natural_gradient)(params, gradient))
    np.testing.assert_allclose(np.concatenate([found["concentration"][None], found["mean"]]), 1, rtol=2e-3)
    back = compiled(family.along)(params, jax.tree.map(np.zeros_like, found))
    np.testing.assert_allclose(back["mean"], params["mean"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(back["concentration"], params["concentration"], rtol=1e-5, atol=1e-6)


# ---- one step of the transformation ------------------------------------------------------------------------


def stepped(family, params, gradient, optimizer):
    @compiled
    def step(params, gradient):
        return ascend(optimizer, gradient, optimizer.init(params), params, {"z": family})

    new, state = step(*({"z": jax.tree.map(jnp.float32, tree)} for tree in (params, gradient)))
    return new["z"], state


# ---- conjugate models: one step of size 1 -------------------------------------------------------------------


def normal_gamma():
    """Both factors of a Normal sample with unknown mean and precision, each given the start of the other."""
    y = np.random.default_rng(0).normal(1.0, 0.7, 20)

    def log_joint(z, y):
        log_p = dist.Normal(0, 3).log_prob(z["mu"]) + dist.Gamma(2, 1).log_prob(z["tau"])
        return log_p + dist.Normal(z["mu"], z["tau"] ** -0.5).log_prob(y).sum()

    start = {"loc": 0.8, "scale": 0.2}, {"concentration": 10.0, "mean": 1.5}
    model = bbvi.Model(log_joint, mu=bbvi.real(init=start[0]), tau=bbvi.positive(init=start[1]))
    precision = 1 / 9 + 20 * 1.5
    tau = 2 + 20 / 2, 1 + 0.5 * (((y - 0.8) ** 2).sum() + 20 * 0.2**2)
    return model, y, {"mu": (1.5 * y.sum(), precision), "tau": tau}


def poisson(latent):
    y = np.random.default_rng(0).poisson(4.5, 10)

    def log_joint(z, y):
        return dist.Gamma(2, 1).log_prob(z["x"]) + dist.Poisson(z["x"]).log_prob(y).sum()

    return bbvi.Model(log_joint, x=latent), y, {"x": (2.0 + y.sum(), 1.0 + 10)}


def gamma_poisson():
    return poisson(bbvi.positive(init={"concentration": 30.0, "mean": 4.0}))


def gamma_e_poisson():
    return poisson(bbvi.positive(q=bbvi.GammaE, init={"mean": 4.0, "variance": 0.5}))


def dirichlet_categorical():
    y = np.random.default_rng(0).choice(4, 30, p=[0.1, 0.2, 0.3, 0.4])

    def log_joint(z, y):
        return dist.Dirichlet(jnp.ones(4)).log_prob(z["x"]) + dist.Categorical(z["x"]).log_prob(y).sum()

    latent = bbvi.simplex(4, init={"concentration": 25.0, "mean": np.full(4, 0.25)})
    return bbvi.Model(log_joint, x=latent), y, {"x": 1.0 + np.bincount(y, minlength=4)}


def beta_bernoulli():
    y = np.random.default_rng(0).binomial(1, 0.3, 20)

    def log_joint(z, y):
        return dist.Beta(1, 1).log_prob(z["x"]) + dist.Bernoulli(z["x"]).log_prob(y).sum()

    latent = bbvi.unit_interval(init={"concentration": 15.0, "mean": 0.4})
    return bbvi.Model(log_joint, x=latent), y, {"x": (1.0 + y.sum(), 1.0 + 20 - y.sum())}


def mixture_label():
    """A categorical factor: the step adds up to the exact probabilities of the labels."""
    log_p = jnp.array([0.3, -0.4, 1.2])
    model = bbvi.Model(lambda z, _: log_p[z["x"]], x=bbvi.categorical(3))
    return model, None, {"x": log_p - log_p.mean()}


def natural_parameters(family, params):
    """For the families above, up to linear maps."""
    values = constrain(family, params)
    if "scale" in values:
        return jnp.array([values["loc"] / values["scale"] ** 2, values["scale"] ** -2])
    if "logits" in values:
        return values["logits"] - values["logits"].mean()
    if "variance" in values:
        return jnp.array([values["mean"] ** 2 / values["variance"], values["mean"] / values["variance"]])
    total, mean = values["concentration"], values["mean"]
    if family.chart.support is dist.constraints.positive:
        return jnp.array([total, total / mean])
    return total * (mean if mean.ndim else jnp.array([mean, 1 - mean]))


@pytest.mark.parametrize(
    "case",
    [normal_gamma, gamma_poisson, gamma_e_poisson, dirichlet_categorical, beta_bernoulli, mixture_label],
)
def test_a_step_of_size_one_is_the_coordinate_update_of_a_conjugate_model(case):
    """Natural parameters are linear in the gradient, so that its standard errors become theirs."""
    model, y, exact = case()
    start = bbvi.fit(model, y, stop=bbvi.Budget(steps=0))
    moments = bbvi.gradient_moments(model, y, start, draws=bbvi.MonteCarlo(2000), repeats=200)
    for name, expected in exact.items():
        family, params = model.globals[name].family, start.params[name]
        mean, shaped = ravel_pytree(moments.mean[name])

        @compiled
        @jax.vmap
        def ends(gradient, family=family, params=params, shaped=shaped):
            new, state = stepped(family, params, shaped(gradient), bbvi.natural(1.0, reach=1e6))
            return natural_parameters(family, new), state.shortened

        moves = np.diag(ravel_pytree(moments.standard_error[name])[0])
        (found, *moved), shortened = ends(mean + np.vstack([np.zeros_like(moves[:1]), moves]))
        assert not shortened.any()
        error = sum(np.abs(one - found) for one in moved)
        assert np.all(np.abs(np.subtract(found, expected)) < 4 * error)
        assert np.all(error < 0.01 * np.abs(expected).max())


def test_rows_reach_their_posteriors_in_a_few_visits():
    """Where q is the posterior the noise vanishes, so that batches leave no error behind."""
    y = np.random.default_rng(1).normal(0, 1.25**0.5, 40)  # as the model has it
    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: 0.0,
        log_local=lambda beta, z, row: dist.Normal(0, 1).log_prob(z["x"]),
        log_likelihood=lambda beta, z, row: dist.Normal(z["x"], 0.5).log_prob(row),
        globals={},
        locals={"x": bbvi.real()},
    )
    posterior = bbvi.fit(model, y, batch_size=10, optimizer=bbvi.natural(), stop=bbvi.Budget(steps=160))
    assert np.max(np.abs(posterior.mean()["x"] - 0.8 * y)) < 0.1 * 0.2**0.5
    assert np.max(np.abs(posterior.sd()["x"] / 0.2**0.5 - 1)) < 0.05


# ---- its limits ---------------------------------------------------------------------------------------------


def test_a_step_out_of_the_domain_is_halved_until_inside_and_counted():
    family = latent_of("Normal").family
    # the precision would become 1 - 5 < 0, then 1 - 2.5 < 0, then 1 - 5/4 < 0, then 1 - 5/8
    params = {"loc": np.zeros(3), "scale": np.zeros(3)}
    new, state = stepped(
        family, params, {"loc": np.ones(3), "scale": np.array([5.0, 0.5, -5.0])}, bbvi.natural(1.0, reach=1e6)
    )
    np.testing.assert_allclose(np.exp(-2 * new["scale"]), [1 - 5 / 8, 0.5, 6.0], rtol=1e-5)
    np.testing.assert_allclose(new["loc"], [1 / 8 / (1 - 5 / 8), 2.0, 1 / 6], rtol=1e-5)
    assert int(state.shortened) == 1


def test_a_step_beyond_reach_is_shortened_to_it():
    params = {"loc": np.array([0.0, 0.0]), "scale": np.log([0.1, 0.1])}
    new, state = stepped(
        latent_of("Normal").family, params, {"loc": np.array([1e6, 1.0]), "scale": np.zeros(2)}, bbvi.natural(reach=0.5)
    )
    np.testing.assert_allclose(new["loc"], [0.05, 0.01], rtol=1e-5)
    assert int(state.shortened) == 1


def test_the_size_of_a_factors_steps_falls_with_its_own_gradients():
    family, optimizer = latent_of("Normal").family, bbvi.natural(0.8, reach=1e6)
    params = {"z": {"loc": jnp.zeros(2), "scale": jnp.zeros(2)}}
    gradient = {"z": {"loc": jnp.array([3.0, 30.0]), "scale": jnp.zeros(2)}}
    state = optimizer.init(params)
    step = compiled(lambda state: ascend(optimizer, gradient, state, params, {"z": family}))
    for lengths in ([0.0, 0.0], [9.0, 25.0], [18.0, 50.0]):
        new, state = step(state)
        expected = 0.8 / np.sqrt(1 + np.array(lengths)) * [3.0, 30.0]
        np.testing.assert_allclose(new["z"]["loc"], expected, rtol=1e-5)
    assert int(state.shortened) == 0


@pytest.mark.parametrize("name", [*CONTINUOUS, *DISCRETE])
def test_steps_of_locals_do_not_depend_on_other_rows(name):
    check_optimizer(bbvi.natural(), {"z": latent_of(name).family})


def test_no_gradient_no_step():
    for name in (*CONTINUOUS, *DISCRETE):
        params = parameters(latent_of(name))
        new, state = stepped(latent_of(name).family, params, jax.tree.map(jnp.zeros_like, params), bbvi.natural())
        for p in params:
            np.testing.assert_allclose(new[p], params[p], atol=1e-6)
        assert int(state.shortened) == 0


@pytest.mark.parametrize("settings", [{"eta": 0.0}, {"reach": -1.0}])
def test_settings_that_cannot_work_are_refused(settings):
    with pytest.raises(ValueError, match=f"natural: {next(iter(settings))} must be"):
        bbvi.natural(**settings)
