"""Section 5.3: Metropolis-Hastings within Gibbs draws from the exact posterior."""

import functools
import itertools

import arviz
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.sparse as sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import bbvi
from bbvi.blankets.colouring import colour, is_valid
from bbvi.families import Positive
from bbvi.numerics.quantiles import log_ratio_to_mean
from bbvi.sampling.proposals import GammaStep
from tests import exact
from tests.compiled import compiled

CHAINS = {"num_draws": 2000, "num_burn_in": 500, "seed": 3}


def close(draws, name, mean, sd, errors=4.0):
    """Mean and sd of every element within so many Monte Carlo standard errors."""
    return close_in(draws.posterior, name, mean, sd, errors)


def close_in(group, name, mean, sd, errors=4.0):
    x = group[name].values
    x = x.reshape(*x.shape[:2], -1).astype(float)
    mean, sd = np.broadcast_to(np.ravel(mean), x.shape[-1:]), np.broadcast_to(np.ravel(sd), x.shape[-1:])
    for i in range(x.shape[-1]):
        one = x[:, :, i]
        assert abs(one.mean() - mean[i]) < errors * arviz.mcse(one, method="mean"), (name, i, one.mean(), mean[i])
        assert abs(one.std() - sd[i]) < errors * arviz.mcse(one, method="sd"), (name, i, one.std(), sd[i])
    return True


def normal():
    def log_joint(z, y):
        return dist.Normal(0, 2).log_prob(z["mu"]) + dist.Normal(z["mu"], 1).log_prob(y).sum()

    precision = 1 / 4 + 3
    return bbvi.Model(log_joint, mu=bbvi.real()), jnp.array([1.0, 2.0, 4.0]), {"mu": (7 / precision, precision**-0.5)}


def gamma_poisson():
    def log_joint(z, y):
        return dist.Gamma(0.7, 0.5).log_prob(z["rate"]).sum() + dist.Poisson(z["rate"]).log_prob(y).sum()

    y = jnp.array([0.0, 1.0, 4.0])
    a, b = 0.7 + np.asarray(y), 1.5
    return bbvi.Model(log_joint, rate=bbvi.positive(3)), y, {"rate": (a / b, a**0.5 / b)}


def beta_bernoulli():
    def log_joint(z, y):
        return dist.Beta(2, 1).log_prob(z["p"]) + dist.Bernoulli(z["p"]).log_prob(y).sum()

    return bbvi.Model(log_joint, p=bbvi.unit_interval()), jnp.array([0, 0, 0, 1]), {"p": (3 / 7, (12 / 49 / 8) ** 0.5)}


def uniform_interval():
    def log_joint(z, y):
        return dist.Uniform(-1, 3).log_prob(z["x"])

    return bbvi.Model(log_joint, x=bbvi.interval(-1.0, 3.0)), None, {"x": (1.0, 4 / 12**0.5)}


def dirichlet_multinomial():
    def log_joint(z, y):
        return dist.Dirichlet(jnp.ones(3)).log_prob(z["p"]) + (y * jnp.log(z["p"])).sum()

    a = np.array([3.0, 2.0, 6.0])
    mean = a / a.sum()
    model = bbvi.Model(log_joint, p=bbvi.simplex(3))
    return model, jnp.array(a) - 1, {"p": (mean, np.sqrt(mean * (1 - mean) / (a.sum() + 1)))}


def order_statistics():
    def log_joint(z, y):
        return dist.Normal(0, 1).log_prob(z["x"])

    mean, sd = np.pi**-0.5, (1 - 1 / np.pi) ** 0.5  # of the smaller and the larger of two standard normals
    return bbvi.Model(log_joint, x=bbvi.ordered(2)), None, {"x": ([-mean, mean], sd)}


def poisson_count():
    def log_joint(z, y):
        return dist.Poisson(1.3).log_prob(z["n"])

    return bbvi.Model(log_joint, n=bbvi.count()), None, {"n": (1.3, 1.3**0.5)}


def bounded_count():
    n = np.arange(5)
    p = np.exp(0.3 * n) / np.exp(0.3 * n).sum()
    mean, latent = p @ n, bbvi.count(q=functools.partial(dist.Binomial, total_count=4))
    return bbvi.Model(lambda z, y: 0.3 * z["n"], n=latent), None, {"n": (mean, (p @ (n - mean) ** 2) ** 0.5)}


def one_hot_vector():
    p = np.array([0.2, 0.5, 0.3])
    model = bbvi.Model(lambda z, y: (np.log(p) * z["which"]).sum(), which=bbvi.one_hot(3))
    return model, None, {"which": (p, (p * (1 - p)) ** 0.5)}


CONJUGATE = [
    normal, gamma_poisson, beta_bernoulli, uniform_interval, dirichlet_multinomial, order_statistics, poisson_count,
    bounded_count, one_hot_vector,
]  # fmt: skip


@pytest.mark.parametrize("case", CONJUGATE)
def test_draws_have_the_moments_of_the_exact_posterior(case):
    model, data, truth = case()
    draws = bbvi.metropolis_within_gibbs(model, data, **CHAINS)
    assert all(close(draws, name, *moments) for name, moments in truth.items())
    assert (bbvi.mixing(draws)["largest R-hat"] < 1.02).all()


@pytest.mark.parametrize("case", [normal, gamma_poisson])
def test_plain_metropolis_hastings_is_exact_too(case):
    model, data, truth = case()
    draws = bbvi.metropolis_hastings(model, data, num_draws=4000, num_burn_in=500, seed=3)
    assert all(close(draws, name, *moments) for name, moments in truth.items())


def test_without_the_hastings_correction_gamma_draws_are_wrong(monkeypatch):
    model, data, truth = gamma_poisson()
    right = GammaStep.__call__
    monkeypatch.setattr(GammaStep, "__call__", lambda *a: (right(*a)[0], jnp.zeros(())))
    draws = bbvi.metropolis_within_gibbs(model, data, **CHAINS)
    with pytest.raises(AssertionError):
        close(draws, "rate", *truth["rate"], errors=10.0)


@pytest.mark.parametrize("uniform", [0.001, 0.3, 0.9, 0.9999])
def test_gamma_correction_is_the_ratio_of_gamma_densities(uniform):
    from scipy.stats import gamma

    class Fixed:
        def uniform(self):
            return jnp.float32(uniform)

    step, z = 0.4, 1.7
    a = 1 / step**2
    u, correction = GammaStep(Positive())(jnp.float32(np.log(z)), jnp.float32(np.log(step)), Fixed())
    new = np.exp(float(u))
    exactly = gamma(a, scale=new / a).logpdf(z) - gamma(a, scale=z / a).logpdf(new)
    assert np.isclose(float(correction), exactly, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("s", [1.0, 0.6, 0.2, 0.01])
def test_gamma_proposals_have_gamma_quantiles(s):
    from scipy.stats import gamma, norm

    x = np.linspace(-5, 5, 101)
    a = 1 / s**2
    z = np.where(x < 0, gamma.ppf(norm.cdf(x), a), gamma.isf(norm.sf(x), a))
    assert np.abs(np.asarray(log_ratio_to_mean(jnp.float32(x), jnp.float32(s))) - np.log(z / a)).max() < 3e-5


def test_discrete_posterior_by_enumeration():
    model, data = exact.counts()
    values = list(itertools.product(range(25), range(2)))
    log_p = np.array([float(sum(model.log_joint({"n": n, "b": b}, data).values())) for n, b in values])
    p = np.exp(log_p - log_p.max())
    p = p / p.sum()
    draws = bbvi.metropolis_within_gibbs(model, data, num_draws=5000, num_burn_in=200)
    n, b = draws.posterior["n"].values, draws.posterior["b"].values
    for value, probability in zip(values, p, strict=True):
        if probability > 0.01:
            hit = ((n == value[0]) & (b == value[1])).astype(float)
            assert abs(hit.mean() - probability) < 4 * arviz.mcse(hit, method="mean")


def test_bits_without_preference_are_independent():
    model = bbvi.Model(lambda z, y: dist.Bernoulli(0.5).log_prob(z["b"]).sum(), b=bbvi.binary(2))
    b = bbvi.metropolis_within_gibbs(model, num_draws=4000, num_burn_in=10).posterior["b"].values
    both = (b[..., 0] * b[..., 1]).astype(float)
    assert abs(both.mean() - 0.25) < 4 * arviz.mcse(both, method="mean")


def ragged_normal(lengths=(1, 3, 2, 5), padding=0):
    """mu ~ N(0, 2), x_iv a walk from mu with N(0, 1) steps, y_iv ~ N(x_iv, 0.5): all jointly normal."""
    rng = np.random.default_rng(1)
    y = [rng.normal(1.0, 1.0, n) for n in lengths]
    extra = [np.zeros(max(lengths) + padding)] if padding else []

    def log_local(beta, z, row):
        before = jnp.concatenate([beta["mu"][None], z["x"][:-1]])
        return jnp.where(row["mask"]["visit"], dist.Normal(before, 1).log_prob(z["x"]), 0)

    def log_likelihood(beta, z, row):
        seen = row["mask"]["visit"] & row["seen"]
        return jnp.where(seen, dist.Normal(z["x"], 0.5).log_prob(row["y"]), 0)

    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 2).log_prob(beta["mu"]),
        log_local=log_local, log_likelihood=log_likelihood, globals={"mu": bbvi.real()},
        locals={"x": bbvi.real("visit")},
    )  # fmt: skip
    seen = [*([True] * len(lengths)), *([False] * len(extra))]
    return model, bbvi.ragged(visit={"y": [*y, *extra]}, group={"seen": seen}), y


def exact_ragged(y):
    """Posterior means and sds of mu and of each group's x."""
    num = 1 + sum(map(len, y))
    precision, linear = np.zeros((num, num)), np.zeros(num)
    precision[0, 0] = 1 / 4
    at = 1
    for of_group in y:
        before = 0
        for value in of_group:
            precision[np.ix_([before, at], [before, at])] += [[1, -1], [-1, 1]]
            precision[at, at] += 4
            linear[at] += 4 * value
            before, at = at, at + 1
    covariance = np.linalg.inv(precision)
    return covariance @ linear, np.sqrt(np.diag(covariance))


def test_ragged_groups_have_the_exact_posterior():
    model, cohort, y = ragged_normal()
    draws = bbvi.metropolis_within_gibbs(model, cohort, num_draws=4000, num_burn_in=500)
    mean, sd = exact_ragged(y)
    assert close(draws, "mu", mean[0], sd[0])
    x = draws.posterior["x"]
    assert x.dims == ("chain", "draw", "group", "visit")
    at = 1
    for group, of_group in enumerate(y):
        part = draws.posterior.isel(group=group, visit=slice(len(of_group)))
        assert close_in(part, "x", mean[at : at + len(of_group)], sd[at : at + len(of_group)])
        assert np.isnan(x.values[:, :, group, len(of_group) :]).all()
        at += len(of_group)


def test_padded_length_does_not_change_the_draws():
    options = {"num_draws": 30, "num_burn_in": 20}
    hold = {"mu": jnp.array([0.3])}
    model, cohort, y = ragged_normal()
    longer_model, longer, _ = ragged_normal(padding=4)
    short = bbvi.metropolis_within_gibbs(model, cohort, hold=hold, **options).posterior["x"].values
    long = bbvi.metropolis_within_gibbs(longer_model, longer, hold=hold, **options).posterior["x"].values
    for group, of_group in enumerate(y):
        n = len(of_group)
        assert np.allclose(short[:, :, group, :n], long[:, :, group, :n], rtol=1e-5, atol=1e-5)


def test_buckets_do_not_change_the_draws(monkeypatch):
    model, cohort, _ = ragged_normal(lengths=(2, 2, 9))
    options = {"num_draws": 10, "num_burn_in": 10, "num_chains": 2}
    whole = bbvi.metropolis_within_gibbs(model, cohort, **options).posterior
    monkeypatch.setattr("bbvi.sampling.sample._WORTH_BUCKETS", 0)
    parts = bbvi.metropolis_within_gibbs(model, cohort, **options).posterior
    for name in whole.data_vars:
        assert np.allclose(whole[name], parts[name], rtol=1e-3, atol=1e-3, equal_nan=True), name


def test_same_seed_same_bits():
    model, cohort, _ = ragged_normal()
    one, two = (bbvi.metropolis_within_gibbs(model, cohort, num_draws=20, num_burn_in=20, seed=7) for _ in range(2))
    other = bbvi.metropolis_within_gibbs(model, cohort, num_draws=20, num_burn_in=20, seed=8)
    assert np.array_equal(one.posterior["x"], two.posterior["x"], equal_nan=True)
    assert not np.array_equal(one.posterior["mu"], other.posterior["mu"])


def test_how_sweeps_are_cut_into_chunks_does_not_change_the_draws(monkeypatch):
    """How long a chunk is depends on the clock."""
    model, cohort, _ = ragged_normal()
    found = []
    for length in (1, 3, 20):
        monkeypatch.setattr("bbvi.sampling.chains.next_length", lambda *_, length=length: length)
        found.append(bbvi.metropolis_within_gibbs(model, cohort, num_draws=40, num_burn_in=40, seed=7))
    for other in found[1:]:
        assert np.array_equal(found[0].posterior["x"], other.posterior["x"], equal_nan=True)


def test_held_globals_stay_and_locals_follow_their_conditional():
    model, cohort, y = ragged_normal()
    globals_ = np.linspace(-2, 2, 4 * 1500)
    draws = bbvi.metropolis_within_gibbs(model, cohort, num_draws=1500, num_burn_in=300, hold={"mu": globals_}, thin=3)
    assert np.allclose(draws.posterior["mu"].values.ravel(), globals_, atol=1e-6)
    # group 0 has one visit: E x = E (mu + 4 y) / 5, var x = 1/5 + var(mu)/25
    part = draws.posterior.isel(group=0, visit=[0])
    assert close_in(part, "x", 4 * y[0][0] / 5, np.sqrt(1 / 5 + globals_.var() / 25), errors=5)


def test_draws_go_into_the_predictive_likelihood():
    model, cohort, _ = ragged_normal()
    trained = bbvi.metropolis_within_gibbs(model, cohort, num_draws=50, num_burn_in=50, keep=["mu"])
    assert list(trained.posterior.data_vars) == ["mu"]
    tested = bbvi.metropolis_within_gibbs(model, cohort, num_draws=50, num_burn_in=50, hold=trained)
    score = bbvi.predictive_log_likelihood(
        tested, cohort, cohort, model=model, observed=lambda row: row["mask"]["visit"]
    )
    assert np.isfinite(score.per_observation)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**31))
def test_no_factor_reads_two_elements_of_one_colour(rows, columns, seed):
    reads = sparse.csr_array(np.random.default_rng(seed).random((rows, columns)) < 0.3)
    assert is_valid(reads, colour(reads))
    dense = reads.toarray()
    of = colour(reads)
    assert all(len(set(of[row])) == row.sum() for row in dense)


def gamma_normal_ts(num_factors=3, num_labs=4):
    def log_local(beta, z, row):
        before = jnp.concatenate([jnp.ones((1, num_factors)), z["x"][:-1]])
        drift = bbvi.GammaE(before, 1.0).log_prob(z["x"])
        return dist.Normal(0, 1).log_prob(z["o"]).sum() + jnp.where(row["mask"]["visit"][:, None], drift, 0).sum()

    def log_likelihood(beta, z, row):
        term = dist.Normal(z["x"] @ beta["W"].T + z["o"], 0.1).log_prob(row["labs"])
        return jnp.where(row["mask"]["visit"][:, None], term, 0).sum()

    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["W"]).sum(),
        log_local=log_local, log_likelihood=log_likelihood, globals={"W": bbvi.real(num_labs, num_factors)},
        locals={"o": bbvi.real(num_labs), "x": bbvi.positive("visit", num_factors)},
    )  # fmt: skip
    rng = np.random.default_rng(0)
    return model, bbvi.ragged(visit={"labs": [rng.normal(size=(n, num_labs)) for n in (7, 4, 12)]})


@pytest.mark.parametrize("num_factors", [2, 3, 5])
def test_the_papers_time_series_needs_as_few_colours_as_any_colouring(num_factors, monkeypatch):
    """K elements of a row of W, and of x at a visit, share a factor; the offsets share none."""
    from bbvi.sampling.chains import Options
    from bbvi.sampling.sample import _prepare

    monkeypatch.setattr("bbvi.sampling.sample._WORTH_BUCKETS", 0)
    model, cohort = gamma_normal_ts(num_factors)
    run = _prepare(model, cohort, bbvi.Coordinatewise(), Options(1, 1, num_chains=1))
    for moves, names in zip(run.scene.moves, [("W",), *[("o", "x")] * 3], strict=False):
        counts = {move.names[0]: len(move.colours) for move in moves}
        assert counts == {name: 1 if name == "o" else num_factors for name in names}
    found = bbvi.explain(model, cohort, group=2)
    colours = np.concatenate([run.scene.colours[-1][name].ravel() for name in ("o", "x")])
    of_locals = sparse.csr_array(found.matrix[:, 4 * num_factors :])
    assert is_valid(of_locals, colours)
    assert is_valid(sparse.csr_array(found.matrix[:, : 4 * num_factors]), run.scene.colours[0]["W"].ravel())


def test_log_joint_of_the_record_is_that_of_the_draw():
    """Factors are kept up to date move by move: in the end they are those of the final state."""
    model, cohort = gamma_normal_ts()
    draws = bbvi.metropolis_within_gibbs(model, cohort, num_draws=5, num_burn_in=30, num_chains=1)
    last = draws.posterior.isel(chain=0, draw=-1)
    beta = {"W": jnp.asarray(last["W"].values)}
    of_group = compiled(lambda beta, z, row: model.log_local(beta, z, row) + model.log_likelihood(beta, z, row))
    total = compiled(model.log_prior)(beta)
    for group in range(3):
        z = {name: np.nan_to_num(last[name].values[group], nan=1.0) for name in ("o", "x")}
        total = total + of_group(beta, z, cohort.take(group))
    assert np.isclose(float(draws.sample_stats["lp"][0, -1]), float(total), rtol=1e-4)


def test_look_ups_by_data_are_coloured_and_exact():
    item = np.array([0, 1, 2, 2, 1, 1])
    y = np.array([1.0, -1.0, 0.5, 0.0, 2.0, 0.3])
    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["v"]).sum(),
        log_likelihood=lambda beta, z, row: dist.Normal(beta["v"][row["item"]], 1).log_prob(row["y"]),
        globals={"v": bbvi.real(4)},
    )
    draws = bbvi.metropolis_within_gibbs(model, {"item": item, "y": y}, **CHAINS)
    count, total = np.bincount(item, minlength=4), np.bincount(item, weights=y, minlength=4)
    assert close(draws, "v", total / (1 + count), (1 + count) ** -0.5)


@pytest.mark.parametrize(
    "options, says",
    [
        ({"num_draws": 0}, "num_draws must be an integer of at least 1"),
        ({"keep": ["nu"]}, "the latents are"),
        ({"hold": {"mu": jnp.zeros(1)}}, "the model needs locals"),
    ],
)
def test_mistakes_are_named(options, says):
    model, data, _ = normal()
    with pytest.raises(ValueError, match=says):
        bbvi.metropolis_within_gibbs(model, data, **options)


def test_opaque_and_impossible_starts_are_refused():
    opaque = bbvi.Model(bbvi.opaque(lambda z, y: -(float(z["mu"]) ** 2)), mu=bbvi.real())
    with pytest.raises(ValueError, match="opaque"):
        bbvi.metropolis_within_gibbs(opaque)
    never = bbvi.Model(lambda z, y: jnp.where(z["mu"] > 100, 0.0, -jnp.inf), mu=bbvi.real())
    with pytest.raises(ValueError, match="not finite where the chains start"):
        bbvi.metropolis_within_gibbs(never)
