"""The line above a summary says how near q is to the posterior; k-hat in it is right, cheap and computed once."""

import warnings

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import bbvi
from bbvi.posterior import khat as khat_module
from bbvi.posterior import posterior as posterior_module
from bbvi.posterior import verdict as verdict_module
from bbvi.posterior.pareto import Khat, pareto_khat
from bbvi.posterior.storage import read, write

AT_ONCE = bbvi.Converged(tolerance=1e3, gain=1e3, min_steps=1)
NEXT = "try joint= or q=bbvi.FullRank(), or bbvi.metropolis_within_gibbs"


@pytest.fixture(scope="module")
def standard():
    """Two independent standard Normals, fitted, and data that nothing reads."""
    model = bbvi.Model(lambda z, y: -0.5 * (z["x"] ** 2).sum() + 0.0 * y, x=bbvi.real(2))
    return bbvi.fit(model, jnp.zeros(()), stop=AT_ONCE, draws=bbvi.MonteCarlo(5))


def narrow(posterior, sd):
    """The same posterior with q Normal(0, sd): its k is 1 - sd**2 for sd < 1, and below 0 for sd > 1."""
    return posterior.replace({"x": {"loc": np.zeros(2, "f"), "scale": np.full(2, np.log(sd), "f")}})


def test_the_standard_error_of_khat_is_its_spread_over_seeds():
    generator = np.random.default_rng(0)
    for slope in (0.1, 0.4, 0.7, -1.0):  # below 0 the ratios are bounded, and k is -2
        normals = generator.normal(size=(200, 4000))
        khats = [pareto_khat(slope * draws**2) for draws in normals]
        claimed = np.mean([khat.standard_error for khat in khats])
        # of 200 seeds the spread itself is known to 5 %
        assert 0.8 < np.std(khats) / claimed < 1.25


@pytest.mark.parametrize(("sd", "meaning"), [(0.9, "near"), (0.65, "tails"), (0.4, "trust"), (1.4, "near")])
def test_the_verdict_follows_a_khat_that_is_known(standard, sd, meaning):
    texts = {
        "near": "q is near the posterior",
        "tails": f"means are fine, tails less so; {NEXT.replace('try ', 'try posterior.reweighted(), ')}",
        "trust": f"do not trust the intervals; {NEXT}",
    }
    posterior = narrow(standard, sd)
    khat = posterior.khat()
    # the tail of a squared Normal nears its power law only as a logarithm grows
    assert abs(khat - (1 - sd**2)) < 0.1 + 3 * khat.standard_error if sd < 1 else khat < 0.1
    assert khat.standard_error < 0.07
    assert posterior.verdict == f"{posterior._ending()}; k-hat {khat!r}: {texts[meaning]}"
    assert repr(posterior.summary()).startswith(posterior.verdict)
    assert posterior.verdict in repr(posterior)


def test_khat_of_given_draws_does_not_look_for_more(standard):
    posterior = narrow(standard, 0.5)
    few = posterior.khat(1000)
    assert few.standard_error > 0.1
    assert few == posterior.khat(1000) != posterior.khat()


def test_the_verdict_is_computed_once_and_not_by_fit(standard, monkeypatch):
    posterior, counted = narrow(standard, 0.9), []
    ratios = posterior_module.Ratios
    monkeypatch.setattr(posterior_module, "Ratios", lambda *given: counted.append(1) or ratios(*given))
    lines = {posterior.verdict, posterior.verdict, posterior.summary().attrs["verdict"]}
    assert (len(lines), len(counted)) == (1, 1)
    assert narrow(posterior, 0.4).verdict not in lines
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bbvi.fit(posterior.model, jnp.zeros(()), stop=[bbvi.Converged(), bbvi.Budget(steps=3)])
    assert "not converged after 3 steps" in str(caught[-1].message)
    assert len(counted) == 2


def test_khat_is_saved_with_the_posterior(standard, tmp_path):
    path, posterior = tmp_path / "posterior.npz", narrow(standard, 0.9)
    posterior.save(path)
    ask = "; posterior.khat() tells how near q is to the posterior"
    assert bbvi.load(path, posterior.model).verdict == posterior._ending() + ask
    line = posterior.verdict
    posterior.save(path)
    assert bbvi.load(path, posterior.model).verdict == line
    header, arrays = read(path, "posterior")
    del header["khat"]  # as older files
    own = {name: value for name, value in header.items() if name not in ("bbvi", "format", "digest")}
    write(path, "posterior", own, arrays)
    assert bbvi.load(path, posterior.model).verdict == posterior._ending() + ask


def test_a_fit_that_has_not_converged_has_khat_and_is_told_to_go_on():
    model = bbvi.Model(lambda z, _: -0.5 * z["x"] ** 2, x=bbvi.real())
    line = bbvi.fit(model, stop=bbvi.Budget(steps=1), draws=bbvi.MonteCarlo(5)).verdict
    assert "; k-hat " in line
    assert line.endswith("go on with bbvi.fit(..., start=posterior) or a larger budget")


def groups(num, log_likelihood=lambda beta, z, y: 0.0 * y):
    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["m"]),
        log_local=lambda beta, z, y: dist.Normal(0, 1).log_prob(z["t"]),
        log_likelihood=log_likelihood,
        globals={"m": bbvi.real()},
        locals={"t": bbvi.real()},
    )
    return bbvi.fit(model, np.zeros(num), stop=AT_ONCE, draws=bbvi.MonteCarlo(5))


def test_the_verdict_of_many_groups_looks_at_the_globals_and_at_a_few_groups(monkeypatch):
    monkeypatch.setattr(khat_module, "_MOST", 4000)
    start = groups(57)
    sd = np.where(np.arange(57) < 30, 0.25, 1.0)
    exact = {"loc": jnp.zeros(()), "scale": jnp.zeros(())}
    posterior = start.replace({"m": exact, "t": {"loc": jnp.zeros(57), "scale": jnp.log(jnp.asarray(sd))}})
    looked_at = np.linspace(0, 56, 20).astype(int)
    bad = (looked_at < 30).sum()
    assert f" of the globals, above 0.7 in {bad} of 20 groups: do not trust the intervals; try " in posterior.verdict
    assert len(posterior.khat(200).locals) == 57
    good = start.replace({"m": exact, "t": {"loc": jnp.zeros(57), "scale": jnp.zeros(57)}})
    assert good.verdict.endswith("k-hat -inf of the globals, above 0.7 in 0 of 20 groups: q is near the posterior")


def test_khat_of_groups_calls_opaque_functions():
    simulated = groups(2, bbvi.opaque(lambda beta, z, y: 0.0 * float(z["t"])))
    exact = {"m": {"loc": jnp.zeros(()), "scale": jnp.zeros(())}, "t": {"loc": jnp.zeros(2), "scale": jnp.zeros(2)}}
    khat = simulated.replace(exact).khat(20)
    assert khat == -np.inf
    assert (khat.locals == -np.inf).all()


class OnDisk:
    def __len__(self):
        return 3

    def __getitem__(self, numbers):
        return np.zeros(len(numbers))


def test_streams_and_opaque_functions_are_left_alone_until_khat_is_asked_for():
    calls = []

    def log_joint(z, _):
        calls.append(1)
        return -0.5 * float(z["x"]) ** 2

    opaque = bbvi.fit(bbvi.Model(bbvi.opaque(log_joint), x=bbvi.real()), stop=AT_ONCE, draws=bbvi.MonteCarlo(5))
    calls.clear()
    assert opaque.verdict.endswith("; posterior.khat() tells how near q is to the posterior")
    assert not calls
    khat = opaque.khat()
    assert len(calls) == 1000
    assert f"; k-hat {khat!r}: " in opaque.verdict
    model = groups(3).model
    stream = bbvi.fit(model, OnDisk(), batch_size=2, stop=AT_ONCE, draws=bbvi.MonteCarlo(5))
    assert stream.verdict.endswith("; posterior.khat() tells how near q is to the posterior")


def test_a_model_whose_khat_would_take_long_is_left_alone(standard, monkeypatch):
    monkeypatch.setattr(verdict_module, "is_cheap", lambda ratios: False)
    assert "; posterior.khat() tells" in narrow(standard, 0.9).verdict


def test_ratios_of_discrete_latents_have_no_tail():
    """Two binary latents that are equal under p, and independent and fair under q: half of the ratios are 2, half 0."""
    model = bbvi.Model(lambda z, _: jnp.where(z["a"] == z["b"], 0.0, -30.0), a=bbvi.binary(), b=bbvi.binary())
    start = bbvi.fit(model, stop=AT_ONCE, draws=bbvi.MonteCarlo(5))
    posterior = start.replace({name: {"logits": jnp.zeros(())} for name in "ab"})
    assert posterior.khat() == -np.inf
    assert posterior.verdict.endswith("k-hat -inf: q is near the posterior")
    bad = start.replace({"a": {"logits": jnp.full((), -5.0)}, "b": {"logits": jnp.full((), -5.0)}})
    assert bad.verdict.endswith("k-hat inf: do not trust the intervals; try bbvi.metropolis_within_gibbs")


@pytest.mark.parametrize(("ratio", "often", "khat"), [(1.3, 5e-4, -np.inf), (500.0, 1e-3, np.inf), (3.0, 0.2, -np.inf)])
def test_a_rare_value_of_a_discrete_ratio_matters_if_it_is_large(ratio, often, khat):
    rare = np.random.default_rng(0).random(10_000) < often
    assert pareto_khat(np.where(rare, np.log(ratio), 0.0)) == khat


def test_ratios_that_are_not_numbers_give_the_worst_khat():
    ratios = np.random.default_rng(0).normal(size=1000)
    for broken in (np.nan, np.inf):
        assert pareto_khat(np.where(np.arange(1000) == 7, broken, ratios)) == np.inf
    # draws outside of p's support weigh nothing, and say nothing about the tail
    assert 0 < pareto_khat(np.where(np.arange(1000) % 2, -np.inf, ratios)) < 1


@pytest.mark.parametrize("khat", [Khat(0.25, 0.5), Khat(-np.inf, 0.0), Khat(np.nan, np.nan, [0.1, np.inf])])
def test_a_khat_is_made_again_from_its_dict(khat):
    again = Khat(**khat.as_dict())
    assert repr(again) == repr(khat)
    np.testing.assert_equal((again.standard_error, again.locals), (khat.standard_error, khat.locals))
