"""Quasi-Monte Carlo: no bias, less variance, and bits that depend on the address alone."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import bbvi
from bbvi.blankets.analysis import analyse
from bbvi.draws.dimensions import dimensions
from bbvi.draws.draws import draw_latent
from bbvi.gradients.control_variates import LeaveOneOut
from bbvi.gradients.mixed import Mixed
from bbvi.model.problem import bind
from bbvi.numerics.address import seed_key
from bbvi.numerics.nets import MOST_DIMENSIONS
from tests.exact import FLAT, HIERARCHICAL
from tests.families.test_families import (
    CONTINUOUS,
    DISCRETE,
    exact_gradient_continuous,
    exact_gradient_discrete,
    parameters,
)
from tests.gradients.test_control_variates import gamma_chain
from tests.gradients.test_score import exact, slope_of_eight

ESTIMATORS = {
    "cross-fitted": bbvi.Score(),
    "no control variate": bbvi.Score(control_variate=None),
    "pathwise": bbvi.Pathwise(),
}
# numpyro has no icdf for these, or one that needs another package
NOT_BY_INVERSION = ("StudentT", "Geometric")


def errors_off(moments, truth):
    """By how many standard errors the farthest entry is off."""
    gaps = jax.tree.map(
        lambda m, t, e: float(np.max(np.abs(m - t) / (e + 1e-6 + 1e-5 * np.abs(t)))),
        moments.mean, truth, moments.standard_error,
    )  # fmt: skip
    return max(jax.tree.leaves(gaps))


# ---- no bias -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "estimator", ["cross-fitted", "pathwise", pytest.param("no control variate", marks=pytest.mark.slow)]
)
def test_gradient_is_unbiased_for_every_family(estimator):
    """All families at once, each with a target of its own; 10,000 scrambles."""
    table = dict(CONTINUOUS) if estimator == "pathwise" else {**CONTINUOUS, **DISCRETE}
    table = {name: entry for name, entry in table.items() if name not in NOT_BY_INVERSION}
    latents = {f"z{k}": entry[0] for k, entry in enumerate(table.values())}
    targets = {f"z{k}": entry[-1] for k, entry in enumerate(table.values())}
    truth = {
        f"z{k}": exact_gradient_continuous(name) if name in CONTINUOUS else exact_gradient_discrete(name)
        for k, name in enumerate(table)
    }
    model = bbvi.Model(lambda z, _: {name: log_p(z[name]) for name, log_p in targets.items()}, **latents)
    start = bbvi.fit(model, stop=bbvi.Budget(steps=0)).replace({name: parameters(z) for name, z in latents.items()})
    settings = {"gradient": ESTIMATORS[estimator], "draws": bbvi.QuasiMonteCarlo(8), "seed": 1}
    found = bbvi.gradient_moments(model, None, start, repeats=10_000, **settings)
    assert errors_off(found, truth) < 4.5


@pytest.mark.parametrize(
    ("name", "estimator", "batch_size"),
    [
        ("categories", "cross-fitted", None), ("counts", "no control variate", None), ("groups", "cross-fitted", 2),
        ("ragged_groups", "cross-fitted", 2), ("ratings", "no control variate", 2),
    ],
)  # fmt: skip
def test_gradient_is_unbiased_where_outcomes_can_be_enumerated(name, estimator, batch_size):
    model, (_, data) = exact(name), {**FLAT, **HIERARCHICAL}[name]()
    found = bbvi.gradient_moments(
        model.model, data, model.posterior, gradient=ESTIMATORS[estimator], draws=bbvi.QuasiMonteCarlo(4),
        repeats=10_000, batch_size=batch_size, seed=5,
    )  # fmt: skip
    assert errors_off(found, dict(model.gradient())) < 4.5


def test_leave_one_out_on_a_net_would_be_biased_and_is_refused(monkeypatch):
    model, start = slope_of_eight()
    settings = {"draws": bbvi.QuasiMonteCarlo(8), "repeats": 10_000}
    gradient = bbvi.Score(control_variate=LeaveOneOut())
    with pytest.raises(ValueError, match="LeaveOneOut .* biased. Use control_variate=bbvi.CrossFit()"):
        bbvi.gradient_moments(model, None, start, gradient=gradient, **settings)
    monkeypatch.setattr(LeaveOneOut, "independent_draws", False)
    found = bbvi.gradient_moments(model, None, start, gradient=gradient, **settings)
    assert abs(found.mean["z"]["loc"] - 8) > 20 * found.standard_error["z"]["loc"]
    for gradient in (bbvi.Score(), Mixed((("z", bbvi.Score()),))):
        found = bbvi.gradient_moments(model, None, start, gradient=gradient, **settings)
        assert abs(found.mean["z"]["loc"] - 8) < 4 * found.standard_error["z"]["loc"]


# ---- less variance -------------------------------------------------------------------------------------------


def test_variance_of_a_chain_falls():
    model, y = gamma_chain()
    start = bbvi.fit(model, y, stop=bbvi.Budget(steps=0), seed=2)
    one, other = (
        bbvi.gradient_moments(model, y, start, draws=draws, repeats=300).variance["x"]
        for draws in (bbvi.MonteCarlo(256), bbvi.QuasiMonteCarlo(256))
    )
    for p in ("concentration", "mean"):
        assert np.median(one[p] / other[p]) > 5


# ---- dimensions ----------------------------------------------------------------------------------------------


def table_of(model, data):
    problem, flat, groups = bind(model, data)
    return dimensions(problem, analyse(problem, flat, groups).blankets)


def by_factor_of_q(reads, sizes, problem):
    """Columns of a vector, such as a one-hot one, as one."""
    blocks, at = [], 0
    for name, size in sizes.items():
        event = int(np.prod(problem.latents[name].event))
        blocks.append(reads[:, at : at + size * event].reshape(len(reads), size, event).any(-1))
        at += size * event
    assert at == reads.shape[1]
    return np.concatenate(blocks, axis=1)


@pytest.mark.parametrize("name", [*FLAT, *HIERARCHICAL])
def test_latents_that_a_factor_reads_together_have_dimensions_of_their_own(name):
    model, data = {**FLAT, **HIERARCHICAL}[name]()
    found = table_of(model, data)
    reads = bbvi.explain(model, data, group=int(name in HIERARCHICAL)).matrix.toarray().astype(bool)
    by_column = np.concatenate([table.reshape(len(table), -1)[:, 0] for table in found.values()])
    reads = by_factor_of_q(reads, {latent: len(table) for latent, table in found.items()}, bind(model, data)[0])
    assert len(by_column) == reads.shape[1]
    for row in reads:
        assert len(set(by_column[row])) == row.sum()


def test_uniforms_of_one_element_have_dimensions_of_their_own():
    model = bbvi.Model(
        lambda z, _: -(z["b"] ** 2).sum() - jnp.log(z["s"]).sum() - (z["o"] ** 2).sum() - z["n"].sum(),
        b=bbvi.unit_interval(3), s=bbvi.simplex(4, 2), o=bbvi.ordered(3), n=bbvi.real(5),
    )  # fmt: skip
    found = table_of(model, None)
    assert {name: table.shape for name, table in found.items()} == {
        "b": (3, 2, 2), "s": (2, 4, 2), "o": (1, 3, 1), "n": (5, 1, 1),
    }  # fmt: skip
    for table in found.values():
        for element in table.reshape(len(table), -1):
            assert len(set(element)) == len(element)


def ragged_model():
    def masked(row, axis, term):
        return jnp.where(row["mask"][axis], term, 0).sum()

    def log_local(beta, z, row):
        before = jnp.concatenate([jnp.zeros(1), z["x"][:-1]])
        return masked(row, "visit", dist.Normal(before + beta["m"], 1.0).log_prob(z["x"])) + masked(
            row, "test", dist.Gamma(2.0, 1.0).log_prob(z["t"])
        )

    def log_likelihood(beta, z, row):
        seen = masked(row, "visit", dist.Normal(z["x"] + z["o"], 1.0).log_prob(row["y"]))
        return seen + masked(row, "test", dist.Poisson(z["t"]).log_prob(row["k"]))

    return bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["m"]),
        log_local=log_local,
        log_likelihood=lambda beta, z, row: log_likelihood(beta, z, row) + dist.Normal(0, 1).log_prob(z["o"]),
        globals={"m": bbvi.real()},
        locals={"x": bbvi.real("visit"), "t": bbvi.positive("test"), "o": bbvi.real()},
    )


def cohort(*longer):
    y = [np.array([0.3, 1.0, -0.2]), np.array([0.5]), *longer]
    k = [np.array([1, 0]), np.array([2, 3, 1]), *[np.arange(5)] * len(longer)]
    return bbvi.ragged(visit={"y": y}, test={"k": k})


def test_dimensions_do_not_depend_on_padding():
    short, long = (table_of(ragged_model(), data) for data in (cohort(), cohort(np.ones(9))))
    for name, table in short.items():
        np.testing.assert_array_equal(table, long[name][: len(table)])


def test_too_many_latents_in_one_factor_are_refused():
    model = bbvi.Model(lambda z, _: -(z["z"].sum() ** 2), z=bbvi.real(MOST_DIMENSIONS + 1))
    with pytest.raises(ValueError, match="take 21202 random numbers, and Sobol's sequence has 21201 .*bbvi.explain"):
        bbvi.fit(model, draws=bbvi.QuasiMonteCarlo(4), stop=bbvi.Budget(steps=1))


# ---- bits are a function of the address ------------------------------------------------------------------------


def drawn(data, samples):
    """Draws of the second group's locals."""
    problem, flat, groups = bind(ragged_model(), data)
    draws = bbvi.QuasiMonteCarlo(16).arranged(problem, analyse(problem, flat, groups).blankets, 9)
    found = {}
    for name, latent in problem.locals.items():
        shapes = {p: latent.padded(problem.lengths) + e.raw_shape() for p, e in latent.family.parameters().items()}
        params = {p: jnp.zeros(shape) for p, shape in shapes.items()}
        where = {"key": seed_key(1), "group": 1, "samples": jnp.asarray(samples), "lengths": problem.lengths}
        found[name] = jax.jit(lambda p, n=name, z=latent, at=where: draw_latent(draws, n, z, p, **at))(params)
    return found


def test_padding_and_chunks_of_samples_do_not_change_a_bit():
    samples = np.arange(18, dtype=np.uint32)
    whole, padded = drawn(cohort(), samples), drawn(cohort(np.ones(9)), samples)
    chunk = drawn(cohort(), samples[5:9])
    for name, u in whole.items():
        corner = tuple(slice(size) for size in u.shape)
        np.testing.assert_array_equal(u, padded[name][corner])
        np.testing.assert_array_equal(u[..., 5:9], chunk[name])


def pair():
    return bbvi.Model(lambda z, _: -0.5 * (z["x"][0] - 1.0) ** 2 - (z["x"][1] - z["x"][0]) ** 2, x=bbvi.real(2))


@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_chunks_of_samples_change_rounding_only(chunk):
    start = bbvi.fit(pair(), stop=bbvi.Budget(steps=0))
    one, other = (
        bbvi.gradient_moments(pair(), None, start, draws=bbvi.QuasiMonteCarlo(16, chunk=c), repeats=3).mean["x"]
        for c in (None, chunk)
    )
    for p, leaf in one.items():
        np.testing.assert_allclose(leaf, other[p], rtol=1e-4, atol=1e-5)


def test_a_run_is_the_same_in_chunks_of_steps(monkeypatch):
    settings = {"draws": bbvi.QuasiMonteCarlo(8), "stop": bbvi.Budget(steps=12)}
    whole = bbvi.fit(pair(), **settings)
    monkeypatch.setattr(importlib.import_module("bbvi.fitting.run"), "_SECONDS_PER_CHUNK", 1e-9)
    jax.tree.map(np.testing.assert_array_equal, whole.params, bbvi.fit(pair(), **settings).params)


# ---- errors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bbvi.QuasiMonteCarlo(100), "power of two of points, got n = 100; the nearest is 128"),
        (
            lambda: bbvi.QuasiMonteCarlo(0),
            "QuasiMonteCarlo: the number of draws must be an integer of 1 or more, got 0",
        ),
        (lambda: bbvi.QuasiMonteCarlo(8, chunk=0), "QuasiMonteCarlo: chunk must be"),
    ],
)
def test_numbers_that_make_no_net_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_families_without_an_inverse_are_refused_by_name():
    model = bbvi.Model(lambda z, _: -(z["height"] ** 2.0), height=bbvi.count(q=dist.ZeroInflatedPoisson))
    with pytest.raises(ValueError, match="q of 'height' is ZeroInflatedPoisson.*no icdf.*MonteCarlo"):
        bbvi.fit(model, draws=bbvi.QuasiMonteCarlo(4), stop=bbvi.Budget(steps=1))


def test_double_precision_works():
    with jax.enable_x64(True):
        model = bbvi.Model(lambda z, _: -0.5 * (z["x"] - 1.0) ** 2, x=bbvi.real())
        posterior = bbvi.fit(model, draws=bbvi.QuasiMonteCarlo(32), stop=bbvi.Budget(steps=200))
        assert abs(posterior.mean()["x"] - 1) < 0.05
