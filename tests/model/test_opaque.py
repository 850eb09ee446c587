"""Functions that JAX does not trace give the blankets, gradients and runs of those that it does."""

import multiprocessing
import re
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sparse

import bbvi
from bbvi.blankets.blankets import find_blankets
from bbvi.model.groups import first_row
from bbvi.model.problem import bind
from tests import opaque_models as models

ROOT = Path(__file__).parents[2]
FEW = bbvi.Budget(steps=6)


@pytest.fixture(scope="module")
def processes():
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as executor:
        yield executor


def opaque_hierarchical(**options):
    wrapped = {
        "prior": models.prior_numpy, "local": models.local_numpy, "likelihood": models.likelihood_numpy
    }  # fmt: skip
    return models.hierarchical_model(**{name: bbvi.opaque(fn, **options) for name, fn in wrapped.items()})


PAIRS = {
    "flat": (models.flat_model(bbvi.opaque(models.flat_numpy)), models.flat_model(models.flat_jax), models.Y),
    "all three": (opaque_hierarchical(), models.hierarchical_model(), models.cohort()),
    "likelihood alone": (
        models.hierarchical_model(likelihood=bbvi.opaque(models.likelihood_numpy)),
        models.hierarchical_model(),
        models.cohort(),
    ),
}


def blankets_of(model, data):
    problem, flat, groups = bind(model, data)
    blankets = find_blankets(problem, flat, None if groups is None else first_row(groups))
    return {
        ("group" if scope.of_groups else "prior", latent, re.sub(r"\.\d+$|\W", "", term), factor): pattern.pairs()
        .toarray()[:, factor]
        .tolist()
        for scope in blankets.scopes
        for latent, patterns in scope.patterns.items()
        for term, pattern in patterns.items()
        for factor in range(int(np.prod(problem.shape(latent))))
    }


def assert_same_run(one, other):
    jax.tree.map(np.testing.assert_array_equal, one.params, other.params)
    np.testing.assert_array_equal(one.history["elbo"], other.history["elbo"])


# ---- the same mathematics ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pair", PAIRS)
def test_blankets_are_those_of_the_trace(pair):
    opaque, traced, data = PAIRS[pair]
    assert blankets_of(opaque, data) == blankets_of(traced, data)


@pytest.mark.parametrize("pair", PAIRS)
def test_gradients_agree_draw_by_draw(pair):
    opaque, traced, data = PAIRS[pair]
    start = bbvi.fit(traced, data, stop=bbvi.Budget(steps=0), seed=2)
    options = {"draws": bbvi.MonteCarlo(20), "repeats": 3, "seed": 5, "gradient": bbvi.Score(True, None)}
    one, other = (bbvi.gradient_moments(model, data, start, **options) for model in (opaque, traced))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), one, other)


def test_a_number_is_one_term_that_reads_everything():
    def total(z, y):
        return float(sum(np.sum(term) for term in models.flat_numpy(z, y).values()))

    assert all(members == [True] for members in blankets_of(models.flat_model(bbvi.opaque(total)), models.Y).values())


def test_an_index_in_the_row_makes_a_global_read_whole():
    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: -0.5 * beta["w"] ** 2,
        log_likelihood=bbvi.opaque(
            lambda beta, z, row: {"y": models.normal(row["y"], beta["w"][row["k"]]), "one": [0.0]}
        ),
        globals={"w": bbvi.real(30)},
    )
    found = blankets_of(model, {"y": np.zeros(12), "k": np.arange(12)})
    assert [found["group", "w", "log_likelihoody", i] for i in range(30)] == [[True]] * 30


def test_many_latents_are_moved_in_sets():
    calls = []

    def chain(z, data):
        calls.append(1)
        return {"x": -0.5 * z["x"] ** 2, "step": -0.5 * np.diff(z["x"]) ** 2, "mu": -0.5 * z["mu"] ** 2}

    size = 3000
    model = bbvi.Model(bbvi.opaque(chain), x=bbvi.real(size), mu=bbvi.real())
    problem, _, _ = bind(model, None)
    known = problem.opaque["log_joint"].known
    assert len(calls) < 2100
    latents = ["mu"] + ["x"] * size
    step = (
        sparse.diags_array([np.ones(size - 1), np.ones(size - 1)], offsets=[0, 1], shape=(size - 1, size)).toarray() > 0
    )
    x = np.array(latents) == "x"
    np.testing.assert_array_equal(known[:1], ~x[None])
    np.testing.assert_array_equal(known[1:size], np.concatenate([np.zeros((size - 1, 1), bool), step], 1))
    np.testing.assert_array_equal(
        known[size:], np.concatenate([np.zeros((size, 1), bool), np.eye(size, dtype=bool)], 1)
    )


def test_a_term_that_is_never_finite_reads_everything():
    def log_joint(z, data):
        hidden = np.nan if z["a"] > -50 else z["a"] + z["b"]
        return {"hidden": hidden, "seen": -(z["a"] ** 2) - z["b"] ** 2}

    problem, _, _ = bind(bbvi.Model(bbvi.opaque(log_joint), a=bbvi.real(), b=bbvi.real()), None)
    assert problem.opaque["log_joint"].known[0].all()


# ---- ways to call -----------------------------------------------------------------------------------------------------


def test_serial_vectorized_threads_and_processes_make_the_same_run(processes):
    def fit(fn, **options):
        model = bbvi.Model(bbvi.opaque(fn, **options), mu=bbvi.real(), theta=bbvi.real(4))
        return bbvi.fit(model, models.Y, stop=FEW, draws=bbvi.MonteCarlo(11), gradient=bbvi.Score(True, None))

    serial = fit(models.small_numpy)
    assert_same_run(serial, fit(models.small_vectorized, vectorized=True))
    assert_same_run(serial, fit(models.small_numpy, executor=processes))
    with ThreadPoolExecutor(2) as threads:
        assert_same_run(serial, fit(models.small_vectorized, vectorized=True, executor=threads))


def test_groups_in_batches_make_the_same_run_in_every_way(processes):
    def fit(fn, **options):
        model = models.hierarchical_model(likelihood=bbvi.opaque(fn, **options))
        return bbvi.fit(
            model, models.cohort(), stop=FEW, draws=bbvi.MonteCarlo(7), batch_size=3, gradient=bbvi.Score(True, None)
        )

    serial = fit(models.likelihood_numpy)
    assert_same_run(serial, fit(models.likelihood_vectorized, vectorized=True))
    assert_same_run(serial, fit(models.likelihood_numpy, executor=processes))


def test_large_data_travel_once_to_each_worker(processes):
    data = np.zeros((200, 400))  # larger than what is sent every time
    model = bbvi.Model(bbvi.opaque(_reads_table, executor=processes), mu=bbvi.real())
    assert_same_run(
        bbvi.fit(model, data, stop=FEW),
        bbvi.fit(bbvi.Model(bbvi.opaque(_reads_table), mu=bbvi.real()), data, stop=FEW),
    )


def _reads_table(z, table):
    return models.normal(z["mu"], table[0, 0])


def test_a_thousand_draws_of_ten_thousand_elements_pass_through_the_host():
    size = 10_000
    model = bbvi.Model(
        bbvi.opaque(lambda z, y: -0.5 * ((z["x"] - y) ** 2).sum(-1), vectorized=True), x=bbvi.real(size, init=0.0)
    )
    posterior = bbvi.fit(
        model,
        np.zeros(size),
        stop=bbvi.Budget(steps=2),
        draws=bbvi.MonteCarlo(1000, chunk=1000),
        gradient=bbvi.Score(True, None),
    )
    assert np.isfinite(posterior.history["elbo"]).all() and len(posterior.history) == 2


# ---- seeds ------------------------------------------------------------------------------------------------------------


def test_chunks_do_not_change_the_run_of_a_stochastic_function():
    model = bbvi.Model(bbvi.opaque(models.noisy, stochastic=True), mu=bbvi.real())
    whole, cut = (
        bbvi.fit(model, stop=bbvi.Budget(steps=8), draws=bbvi.MonteCarlo(12, chunk=chunk)) for chunk in (None, 5)
    )
    np.testing.assert_allclose(whole.history["elbo"], cut.history["elbo"], rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), whole.params, cut.params)


def test_every_draw_of_every_group_and_step_has_its_own_seed():
    seen = {}

    def likelihood(beta, z, row, *, seed):
        seen.setdefault(seed, set()).add((float(beta["w"][0]), float(z["x"][0]), float(row["age"])))
        return models.likelihood_numpy(beta, z, row)

    def prior(beta, *, seed):
        seen.setdefault(seed, set()).add((float(beta["w"][0]),))
        return models.prior_numpy(beta)

    model = models.hierarchical_model(
        prior=bbvi.opaque(prior, stochastic=True), likelihood=bbvi.opaque(likelihood, stochastic=True)
    )
    bbvi.fit(model, models.cohort(), stop=bbvi.Budget(steps=5), draws=bbvi.MonteCarlo(6))
    # the seeds of the checks before the first step are used again and again, each draw's own but once
    assert sum(len(calls) == 1 for calls in seen.values()) == 5 * 6 * (5 + 1)


def test_draws_at_the_same_value_have_different_seeds():
    seen = []

    def log_joint(z, data, *, seed):
        seen.append((int(z["k"]), seed))
        return -0.1 * z["k"]

    model = bbvi.Model(bbvi.opaque(log_joint, stochastic=True), k=bbvi.binary())
    posterior = bbvi.fit(model, stop=bbvi.Budget(steps=0))
    seen.clear()
    posterior.elbo(50)
    assert len({value for value, _ in seen}) == 2
    assert len({seed for _, seed in seen}) == 50


def test_a_stochastic_run_is_the_same_run_again():
    model = bbvi.Model(bbvi.opaque(models.noisy, stochastic=True), mu=bbvi.real())
    assert_same_run(*(bbvi.fit(model, stop=FEW) for _ in range(2)))


def test_undeclared_randomness_is_detected():
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="stochastic=True"):
        bbvi.fit(bbvi.Model(bbvi.opaque(lambda z, y: rng.normal() - z["mu"] ** 2), mu=bbvi.real()))
    with pytest.raises(ValueError, match="must come from seed="):
        bbvi.fit(
            bbvi.Model(bbvi.opaque(lambda z, y, seed: rng.normal() - z["mu"] ** 2, stochastic=True), mu=bbvi.real())
        )


# ---- declared structure, and the re-check -----------------------------------------------------------------------------


def test_declared_structure_is_used_as_it_is():
    eye = np.eye(4, dtype=bool)
    reads = {
        "mu": "mu",
        "theta": {"mu": True, "theta": sparse.csr_array(eye)},
        "level": {"level": np.eye(3, dtype=bool)},
        "y": {"theta": eye, "level": True, "k": eye},
    }
    declared = models.flat_model(bbvi.opaque(models.flat_numpy, reads=reads))
    assert blankets_of(declared, models.Y) == blankets_of(models.flat_model(models.flat_jax), models.Y)


def test_a_reading_that_was_not_declared_is_an_error():
    reads = {"mu": "mu", "theta": "theta", "level": ["level"], "y": ["theta", "level", "k"]}
    with pytest.raises(ValueError, match="theta, element 0, changed .* latent 'mu', which reads= does not declare"):
        bbvi.fit(models.flat_model(bbvi.opaque(models.flat_numpy, reads=reads)), models.Y)


def hides_a_dependence(z, data):
    """Reads b in the first term only where the fit goes, not where it starts."""
    return {"a": -0.5 * (z["a"] - 20) ** 2 - (z["b"] if z["a"] > 12 else 0.0), "b": -0.5 * z["b"] ** 2}


def test_a_dependence_that_appears_during_the_fit_is_caught_at_the_same_step_each_time():
    model = bbvi.Model(bbvi.opaque(hides_a_dependence), a=bbvi.real(init=0.0), b=bbvi.real())
    said = []
    for _ in range(2):
        with pytest.raises(RuntimeError, match="a, element 0, changed .* element 0 of latent 'b'") as caught:
            bbvi.fit(model, stop=bbvi.Budget(steps=500))
        said.append(str(caught.value))
        assert len(caught.value.posterior.history) % 20 == 0
    assert said[0] == said[1]


# ---- failures ---------------------------------------------------------------------------------------------------------


def failing_fit(path, checkpoint, word, *, executor=None, steps=30):
    """A run that fails after its tenth step or so: at the first chunk that ends there."""
    model = bbvi.Model(bbvi.opaque(models.fails_once_flagged, executor=executor), mu=bbvi.real())
    stop, draws, gradient = bbvi.Budget(steps=steps), bbvi.MonteCarlo(10), bbvi.Score(True, None)
    for posterior in bbvi.iterate(model, str(path), stop=stop, draws=draws, gradient=gradient, checkpoint=checkpoint):
        if word and len(posterior.history) >= 10:
            path.write_text(word, encoding="utf-8")
    return posterior


def assert_kept_and_resumed(tmp_path, caught, whole):
    kept = caught.value.posterior
    made = len(kept.history)
    assert 10 <= made < 30
    assert np.isfinite(kept.history["elbo"]).all()
    np.testing.assert_array_equal(kept.history["elbo"], whole.history["elbo"][:made])
    assert "state.npz" in str(caught.value) and ".posterior" in str(caught.value)
    assert str(made) in str(caught.value)
    (tmp_path / "flag").unlink()
    resumed = failing_fit(tmp_path / "flag", tmp_path / "state.npz", None)
    assert_same_run(resumed, whole)


def test_an_exception_keeps_the_fit_and_a_checkpoint_goes_on(tmp_path):
    whole = failing_fit(tmp_path / "flag", None, None)
    with pytest.raises(
        RuntimeError, match=r"fails_once_flagged.* sample \d+.* mu = .*ArithmeticError: the solver"
    ) as caught:
        failing_fit(tmp_path / "flag", tmp_path / "state.npz", "raise")
    assert_kept_and_resumed(tmp_path, caught, whole)


def test_an_exception_in_a_worker_says_the_same(tmp_path, processes):
    whole = failing_fit(tmp_path / "flag", None, None)
    with pytest.raises(RuntimeError, match=r"fails_once_flagged.* sample \d+.*ArithmeticError: the solver") as caught:
        failing_fit(tmp_path / "flag", tmp_path / "state.npz", "raise", executor=processes)
    assert "in fails_once_flagged" in "".join(caught.value.__notes__)
    assert_kept_and_resumed(tmp_path, caught, whole)


def test_a_dead_worker_keeps_the_fit_and_a_checkpoint_goes_on(tmp_path):
    whole = failing_fit(tmp_path / "flag", None, None)
    executor = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    with pytest.raises(RuntimeError, match="a worker died") as caught:
        failing_fit(tmp_path / "flag", tmp_path / "state.npz", "die", executor=executor)
    executor.shutdown()
    assert_kept_and_resumed(tmp_path, caught, whole)


def test_a_failing_group_is_named():
    def likelihood(beta, z, row):
        if row["age"] == 3 and failing:
            raise FloatingPointError("overflow")
        return models.likelihood_numpy(beta, z, row)

    failing = []
    model = models.hierarchical_model(likelihood=bbvi.opaque(likelihood))
    run = bbvi.iterate(model, models.cohort(), stop=bbvi.Budget(steps=10))
    next(run)
    failing.append(True)
    with pytest.raises(RuntimeError, match="sample 0 of group 3, at w = .* x = .*overflow"):
        list(run)


def test_a_failure_outside_a_fit_is_an_error_too():
    failing = []

    def log_joint(z, y):
        if failing:
            raise ArithmeticError("no")
        return -(z["mu"] ** 2)

    posterior = bbvi.fit(bbvi.Model(bbvi.opaque(log_joint), mu=bbvi.real()), stop=FEW)
    failing.append(True)
    for ask in (posterior.elbo, posterior.khat):
        with pytest.raises(RuntimeError, match="ArithmeticError: no"):
            ask(10)


BAD = {
    "None": (lambda z, y: None, {}, ValueError, "returned None.*forget `return`"),
    "strings": (lambda z, y: {"a": "high"}, {}, TypeError, "term 'a' must be a log density"),
    "complex numbers": (lambda z, y: 1j * z["mu"], {}, TypeError, "must be a log density"),
    "its own exception": (lambda z, y: 1 / 0, {}, ZeroDivisionError, "division"),
    "no samples axis": (lambda z, y: -(z["mu"] ** 2).sum(), {"vectorized": True}, ValueError, r"first axis.*x.sum\(axis=-1\)"),
    "mixed samples": (lambda z, y: z["mu"] - z["mu"].mean(), {"vectorized": True}, ValueError, "must not mix"),
    "a term too many": (lambda z, y: z["mu"], {"reads": {"a": "mu"}}, ValueError, "the terms are"),
    "an unknown latent": (lambda z, y: z["mu"], {"reads": {"": "nu"}}, ValueError, "names 'nu'"),
    "a matrix of another shape": (lambda z, y: z["mu"], {"reads": {"": {"mu": np.ones((2, 2), bool)}}}, ValueError, r"\(1, 1\)"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_mistakes_are_named(case):
    function, options, error, message = BAD[case]
    with pytest.raises(error, match=message):
        bbvi.fit(bbvi.Model(bbvi.opaque(function, **options), mu=bbvi.real()))


def test_a_function_that_cannot_travel_is_named(processes):
    with pytest.raises(ValueError, match="the function cannot be sent to worker processes.*top level of a module"):
        bbvi.fit(bbvi.Model(bbvi.opaque(lambda z, y: -(z["mu"] ** 2), executor=processes), mu=bbvi.real()))


def test_another_shape_later_is_named():
    calls = []

    def log_joint(z, y):
        calls.append(1)
        return np.zeros(2 if len(calls) < 200 else 3) - z["mu"] ** 2

    with pytest.raises(RuntimeError, match=r"shapes \[\(3,\)\], expected \[\(2,\)\]"):
        bbvi.fit(bbvi.Model(bbvi.opaque(log_joint), mu=bbvi.real()), stop=FEW)


def test_arguments_of_opaque_are_checked():
    with pytest.raises(TypeError, match="takes a function, got int"):
        bbvi.opaque(3)
    with pytest.raises(TypeError, match="opaque already"):
        bbvi.opaque(bbvi.opaque(models.flat_numpy))
    with pytest.raises(TypeError, match="executor= takes"):
        bbvi.opaque(models.flat_numpy, executor=4)
    with pytest.raises(TypeError, match="reads= takes a dict"):
        bbvi.opaque(models.flat_numpy, reads=["mu"])


def test_called_with_numbers_it_is_the_function_and_in_a_trace_an_error():
    square = bbvi.opaque(lambda z, y: -(z["mu"] ** 2))
    assert square({"mu": 3.0}, None) == -9
    with pytest.raises(TypeError, match="inside a function that JAX traces"):
        bbvi.fit(bbvi.Model(lambda z, y: 2.0 * square(z, y), mu=bbvi.real()))
    with pytest.raises(TypeError, match="inside a function that JAX traces"):
        jax.jit(square)({"mu": jnp.ones(())}, None)


# ---- the rest of the library ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_is_asked_of_a_posterior_is_the_same_in_both(tmp_path):
    data = models.cohort()
    answers, gradient = [], bbvi.Score(True, None)
    for model in (opaque_hierarchical(), models.hierarchical_model()):
        posterior = bbvi.fit(model, data, stop=FEW, draws=bbvi.MonteCarlo(10), gradient=gradient)
        posterior.save(tmp_path / "posterior.npz")
        loaded = bbvi.load(tmp_path / "posterior.npz", model, data)
        score = bbvi.predictive_log_likelihood(
            posterior,
            data,
            data,
            observed=lambda row: row["mask"]["visit"][:, None],
            num_draws=50,
            stop=FEW,
            gradient=gradient,
        )
        khat = loaded.khat(50)
        answers.append(
            [posterior.elbo(50), loaded.elbo(50), loaded.elbo(50, data=data), khat, khat.locals, score.joint]
        )
    for one, other in zip(*answers, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-2, atol=1e-2)


def test_the_benchmark_of_processes_runs():
    command = [sys.executable, str(ROOT / "benchmarks" / "opaque.py"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(re.search(r"speed-up: ([\d.]+)", done.stdout)[1]) > 0
