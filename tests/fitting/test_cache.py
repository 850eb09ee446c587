"""Compiled steps are used again for the same traces, and only for these."""

import gc
import os
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import bbvi
from bbvi.blankets.analysis import analyse
from bbvi.draws.batch import draw_groups
from bbvi.fitting import batches, loop
from bbvi.fitting import cache as compiled
from bbvi.model.problem import bind
from bbvi.numerics import xla as compiler

FEW = bbvi.Budget(steps=3)
Y = np.array([1.0, 2.0, 3.0])
MAPS = Path("/proc/self/maps")


@pytest.fixture(autouse=True)
def empty():
    compiled._kept.clear()


def model(scale=1.0):
    return bbvi.Model(
        lambda z, y: dist.Normal(0, scale).log_prob(z["mu"]) + dist.Normal(z["mu"], 1).log_prob(y).sum(), mu=bbvi.real()
    )


def fit(*arguments, **settings):
    return bbvi.fit(*arguments, stop=FEW, **settings)


def loops():
    return len(compiled._kept)


def test_the_same_fit_is_compiled_once():
    one, other = fit(model(), Y, seed=1), fit(model(), Y, seed=1)
    assert loops() == 1
    assert np.array_equal(one.params["mu"]["loc"], other.params["mu"]["loc"])


def test_other_data_compile_nothing():
    fit(model(), Y)
    other = fit(model(), Y + 1)
    assert loops() == 1
    compiled._kept.clear()
    assert np.array_equal(other.params["mu"]["loc"], fit(model(), Y + 1).params["mu"]["loc"])
    assert float(other.elbo(100)) == float(fit(model(), Y + 1).elbo(100))


def test_data_that_decide_what_is_read_are_another_step():
    chosen = bbvi.Model(
        lambda z, at: dist.Normal(0, 1).log_prob(z["mu"]).sum() + dist.Normal(z["mu"][at], 1).log_prob(Y).sum(),
        mu=bbvi.real(3),
    )
    score = {"gradient": bbvi.Score(), "optimizer": bbvi.natural()}
    fit(chosen, np.array([0, 1, 1]), **score)
    other = fit(chosen, np.array([2, 0, 2]), **score)
    assert loops() == 2
    compiled._kept.clear()
    assert np.array_equal(other.params["mu"]["loc"], fit(chosen, np.array([2, 0, 2]), **score).params["mu"]["loc"])


def test_what_is_read_is_nothing_to_paths():
    weighed = bbvi.Model(
        lambda z, x: dist.Normal(0, 1).log_prob(z["mu"]) + dist.Normal(z["mu"] * x, 1).log_prob(Y).sum(), mu=bbvi.real()
    )
    fit(weighed, np.array([1.0, 0.0, 0.0]), gradient=bbvi.Pathwise())
    other = fit(weighed, np.array([0.0, 1.0, 2.0]), gradient=bbvi.Pathwise())
    assert loops() == 1
    compiled._kept.clear()
    again = fit(weighed, np.array([0.0, 1.0, 2.0]), gradient=bbvi.Pathwise())
    assert np.array_equal(other.params["mu"]["loc"], again.params["mu"]["loc"])


def test_a_loop_that_was_kept_has_the_analysis_of_the_new_data():
    weighed = bbvi.Model(lambda z, x: -(((z["mu"] * x) - Y) ** 2).sum(), mu=bbvi.real())
    method = loop.Method(bbvi.Pathwise(), bbvi.MonteCarlo(3), bbvi.adagrad())
    analyses = [analyse(*bind(weighed, np.array(x))) for x in ([1.0, 0.0, 0.0], [0.0, 1.0, 2.0])]
    one, other = (compiled.compiled(analysis, method) for analysis in analyses)
    assert loops() == 1
    # another estimator, if one has to be found, goes by what is read there
    assert one.analysis is analyses[0] and other.analysis is analyses[1]


def test_another_budget_compiles_nothing():
    short, long = (bbvi.fit(model(), Y, stop=bbvi.Budget(steps=n)) for n in (3, 5))
    assert loops() == 1
    assert [len(short.history), len(long.history)] == [3, 5]
    assert np.array_equal(short.history["elbo"], long.history["elbo"][:3])


def test_a_function_that_reads_a_changed_variable_is_another_one():
    settings = {"scale": 1.0}
    changing = bbvi.Model(
        lambda z, y: dist.Normal(0, settings["scale"]).log_prob(z["mu"]) + dist.Normal(z["mu"], 1).log_prob(y).sum(),
        mu=bbvi.real(),
    )
    first = fit(changing, Y)
    settings["scale"] = 0.01
    second = fit(changing, Y)
    assert loops() == 2
    assert not np.array_equal(first.params["mu"]["loc"], second.params["mu"]["loc"])
    assert np.array_equal(second.params["mu"]["loc"], fit(model(0.01), Y).params["mu"]["loc"])


def test_an_array_in_the_function_counts():
    def with_array(values):
        weights = jnp.asarray(values)
        return bbvi.Model(lambda z, y: (weights * dist.Normal(z["mu"], 1).log_prob(y)).sum(), mu=bbvi.real())

    first, second = fit(with_array([1.0, 1.0, 1.0]), Y), fit(with_array([1.0, 0.0, 1.0]), Y)
    assert loops() == 2
    assert not np.array_equal(first.params["mu"]["loc"], second.params["mu"]["loc"])


@pytest.mark.parametrize(
    "settings",
    [
        {"gradient": bbvi.Score(control_variate=None)},
        {"draws": bbvi.MonteCarlo(7)},
        {"optimizer": bbvi.adagrad(0.5)},
    ],
)
def test_other_settings_are_another_step(settings):
    fit(model(), Y)
    fit(model(), Y, **settings)
    assert loops() == 2


def test_a_loop_over_other_constants_is_another_one():
    import jax

    def looped(values):
        steps = np.asarray(values)

        def log_joint(z, y):
            total, _ = jax.lax.scan(lambda t, s: (t + dist.Normal(s, 1).log_prob(z["mu"]), None), 0.0, steps)
            return total

        return bbvi.Model(log_joint, mu=bbvi.real())

    first, second = fit(looped([0.0, 1.0]), Y), fit(looped([0.0, 2.0]), Y)
    assert loops() == 2
    assert not np.array_equal(first.params["mu"]["loc"], second.params["mu"]["loc"])


def test_few_are_kept():
    for draws in range(2, 14):
        fit(model(), Y, draws=bbvi.MonteCarlo(draws))
    assert loops() == compiled._MOST


def test_an_option_that_xla_does_not_know_is_not_asked_for(monkeypatch):
    monkeypatch.setattr(compiler, "_OLDER_KERNELS", ("xla_cpu_no_such_option", False))
    assert "xla_cpu_no_such_option" not in compiler.for_many_runs()["compiler_options"]
    assert np.isfinite(fit(model(), Y).history["elbo"]).all()
    monkeypatch.undo()
    assert "xla_backend_optimization_level" in compiler.for_one_run()["compiler_options"]


class OnDisk:
    def __len__(self):
        return 5

    def __getitem__(self, numbers):
        return np.zeros(len(numbers))


def test_batches_of_a_stream_are_drawn_by_one_program(monkeypatch):
    traced = []
    monkeypatch.setattr(batches, "draw_groups", lambda *given: traced.append(1) or draw_groups(*given))
    groups = bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["m"]),
        log_likelihood=lambda beta, z, y: dist.Normal(beta["m"], 1).log_prob(y),
        globals={"m": bbvi.real()},
    )
    bbvi.fit(groups, OnDisk(), batch_size=2, gradient=bbvi.Pathwise(), stop=bbvi.Budget(steps=30))
    assert len(traced) < 10


def maps_and_megabytes():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return len(MAPS.read_text().splitlines()), pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def moments(posterior):
    return bbvi.gradient_moments(posterior.model, Y, posterior, gradient=bbvi.Score(), repeats=2)


#: what compiles something for a posterior
ASKED = [
    lambda posterior: posterior.sample(5), lambda posterior: posterior.elbo(5), lambda posterior: posterior.khat(50),
    lambda posterior: bbvi.explain(posterior.model, Y), moments,
]  # fmt: skip


def fit_and_ask(number):
    """Fit a function that no one has seen, and ask its posterior for one thing after another."""
    settings = {"gradient": bbvi.Pathwise(), "optimizer": bbvi.adagrad(), "draws": bbvi.MonteCarlo(2)}
    posterior = bbvi.fit(model(1.0 + number), Y, stop=bbvi.Budget(steps=1), restarts=1, **settings)
    ASKED[number % len(ASKED)](posterior)


def sample_chains(number):
    bbvi.metropolis_within_gibbs(model(1.0 + number), Y, num_draws=5, num_burn_in=5)


@pytest.mark.skipif(not MAPS.exists(), reason="the kernel does not list the maps of a process here")
@pytest.mark.parametrize(("times", "ask"), [(40, fit_and_ask), (6, sample_chains)])
def test_what_is_compiled_for_a_function_goes_with_it(monkeypatch, times, ask):
    monkeypatch.setattr(compiled, "_MOST", 2)
    seen = []
    for number in range(times):
        ask(number)
        gc.collect()
        seen.append(maps_and_megabytes())
    more_maps, more_megabytes = np.subtract(seen[-1], seen[times // 2])
    # a fit that is kept has 39 and 8, of half of them; the kernel ends a process that has 65,530 maps
    assert more_maps < 1.5 * times
    assert more_megabytes < 1.5 * times
