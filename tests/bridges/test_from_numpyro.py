"""NumPyro's models through the bridge: the same densities as NumPyro's, and the blankets of the log joint written by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import Predictive
from numpyro.infer.util import log_density

import bbvi
from bbvi.blankets.blankets import find_blankets
from bbvi.model.problem import bind
from tests.bridges.numpyro_models import EFFECT, ERROR, MODELS, READINGS, eight_schools, hmm

QUICK = {"compiler_options": {"xla_backend_optimization_level": 0}}


def some_latents(model, seed):
    generator = np.random.default_rng(seed)
    latents = model.globals | model.locals
    return {name: jnp.asarray(latent.some_values({}, 1, generator)[0]) for name, latent in latents.items()}


def what_terms_read(model, data):
    """The latent elements that each element of the terms reads, in order of the sets."""
    problem, flat, _ = bind(model, data)
    scope = find_blankets(problem, flat, None).prior
    found = []
    for term, shape in scope.shapes.items():
        pairs, size = scope.pairs(term, problem.latents, []), int(np.prod(shape))
        own = [
            pairs[n].toarray() if n in pairs else np.zeros((size, np.prod(problem.shape(n), dtype=int)), bool)
            for n in problem.latents
        ]
        found += [tuple(row) for row in np.concatenate(own, 1).astype(int) if row.any()]
    return sorted(found)


def total(terms):
    return sum(jnp.sum(term) for term in terms.values())


@pytest.mark.parametrize("name", MODELS)
def test_densities_are_numpyros_and_blankets_those_written_by_hand(name):
    fn, args, kwargs, by_hand = MODELS[name]
    model, data = bbvi.from_numpyro(fn, *args, **kwargs)
    all_of_it = kwargs | {"batch": len(args[0])} if name == "subsampled logistic" else kwargs
    # in a program NumPyro cannot look elements of NumPy's arrays up
    own = jax.tree.map(lambda leaf: jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf, args)

    def both(z):
        terms = model.log_joint(z, data)
        sites = {n: x[0] for n, x in model.origin.sites({n: x[None] for n, x in z.items()}).items()}
        jacobian = total({n: x for n, x in terms.items() if n.endswith(".jacobian")})
        theirs, _ = log_density(fn, own, all_of_it, sites)
        return total(terms), theirs + jacobian, total(by_hand(z))

    for seed in range(3):
        ours, theirs, hand = jax.jit(both, **QUICK)(some_latents(model, seed))
        np.testing.assert_allclose(ours, theirs, rtol=1e-4)
        np.testing.assert_allclose(ours, hand, rtol=1e-4)
    written = bbvi.Model(lambda z, _: by_hand(z), **model.globals)
    assert what_terms_read(model, data) == what_terms_read(written, None)


def test_names_of_statements_are_names_of_terms_and_lines_are_the_users():
    model, data = bbvi.from_numpyro(eight_schools, ERROR, y=EFFECT)
    problem, flat, _ = bind(model, data)
    scope = find_blankets(problem, flat, None).prior
    assert [*scope.shapes] == [f"log_joint[{name!r}]" for name in ("mu", "tau", "theta", "y")]
    assert scope.shapes["log_joint['theta']"] == (8,)
    first = eight_schools.__code__.co_firstlineno
    lines = [scope.split.lines[term] for term in scope.shapes]
    assert lines == [f"numpyro_models.py:{first + k}" for k in (1, 2, 4, 5)]


def test_draws_go_back_to_numpyro_and_forward_to_predictions():
    model, data = bbvi.from_numpyro(eight_schools, ERROR, y=EFFECT)
    posterior = bbvi.fit(model, data, stop=bbvi.Budget(steps=0))
    draws = posterior.to_numpyro(500, seed=3)
    np.testing.assert_array_equal(draws["theta"], posterior.sample(500, seed=3)["theta"])
    predicted = Predictive(eight_schools, posterior_samples=draws)(jax.random.key(0), ERROR)["y"]
    ours = model.origin.predict(draws, jax.random.key(1))["y"]
    assert predicted.shape == ours.shape == (500, 8)
    for y in (predicted, ours):
        z = (y - draws["theta"]) / ERROR
        assert abs(z.mean()) < 4 / np.sqrt(z.size) and abs((z**2).mean() - 1) < 4 * np.sqrt(2 / z.size)
    pointwise = model.origin.log_likelihood(draws)["y"]
    np.testing.assert_allclose(pointwise, dist.Normal(draws["theta"], ERROR).log_prob(EFFECT), rtol=1e-5)
    np.testing.assert_array_equal(model.origin.observed["y"], EFFECT.astype(np.float32))


def test_arviz_gets_what_was_asked_of_a_function_that_was_brought():
    model, data = bbvi.from_numpyro(eight_schools, ERROR, y=EFFECT)
    posterior = bbvi.fit(model, data, stop=bbvi.Budget(steps=0))
    prior = Predictive(eight_schools, num_samples=7)(jax.random.key(0), ERROR)
    found = posterior.to_arviz(5, predict=lambda z, data, key: {"best": z["theta"].argmax()}, prior=prior)
    draws = posterior.to_numpyro(5)
    np.testing.assert_array_equal(found["posterior_predictive"]["best"].values[0], draws["theta"].argmax(1))
    np.testing.assert_array_equal(found["prior_predictive"]["best"].values[0], prior["theta"].argmax(1))
    np.testing.assert_array_equal(found["prior"]["tau"].values[0], prior["tau"])
    log_p = [total(model.log_joint({name: x[k] for name, x in draws.items()}, data)) for k in range(5)]
    np.testing.assert_allclose(found["sample_stats"]["log_p"].values[0], log_p, rtol=1e-4)
    assert found["log_likelihood"]["y"].shape == (1, 5, 8)
    plain = posterior.to_arviz(5, prior=prior, log_likelihood=False)
    assert plain["prior_predictive"]["y"].shape == (1, 7, 8) and not hasattr(plain, "log_likelihood")


@pytest.mark.parametrize(
    "asked, words",
    [
        ({"data": {"y": EFFECT}}, "leave data= out"),
        ({"log_likelihood": "theta"}, r"observed variables are \['y'\]"),
        ({"prior": {"mu": np.zeros(3)}}, r"lacks \['tau', 'theta'\]"),
    ],
)
def test_what_a_function_that_was_brought_cannot_give_arviz_is_an_error(asked, words):
    posterior = bbvi.fit(*bbvi.from_numpyro(eight_schools, ERROR, y=EFFECT), stop=bbvi.Budget(steps=0))
    with pytest.raises(ValueError, match=words):
        posterior.to_arviz(5, **asked)


def test_draws_of_discrete_latents_in_a_loop_go_back():
    model, data = bbvi.from_numpyro(hmm, READINGS, 3)
    posterior = bbvi.fit(model, data, stop=bbvi.Budget(steps=0))
    draws = posterior.to_numpyro(20)
    assert draws["state"].shape == (20, 10) and draws["transition"].shape == (20, 3, 3)
    predicted = Predictive(hmm, posterior_samples=draws, return_sites=["y"])(jax.random.key(0), READINGS, 3)
    assert predicted["y"].shape == (20, 10)


def test_a_model_that_was_not_brought_has_no_draws_for_numpyro():
    model = bbvi.Model(lambda z, _: -(z["m"] ** 2), m=bbvi.real())
    posterior = bbvi.fit(model, None, stop=bbvi.Budget(steps=0))
    with pytest.raises(ValueError, match="was not made by bbvi.from_numpyro"):
        posterior.to_numpyro(3)


def test_a_fit_of_a_conjugate_function_has_the_exact_posterior():
    def function(y):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(mu, 1), obs=y)

    y = np.array([1.0, 2.0, 0.5])
    posterior = bbvi.fit(*bbvi.from_numpyro(function, y))
    assert posterior.converged
    assert abs(posterior.mean()["mu"] - y.sum() / 4) < 0.05
    np.testing.assert_allclose(posterior.sd()["mu"], 0.5, rtol=0.05)


@pytest.mark.slow
def test_a_mixture_with_discrete_statements_finds_its_components():
    fn, args, kwargs, _ = MODELS["mixture"]
    posterior = bbvi.fit(*bbvi.from_numpyro(fn, *args, **kwargs), restarts=4)
    np.testing.assert_allclose(np.sort(posterior.mean()["centre"]), [-2, 1, 4], atol=0.5)
