"""The examples reach the answers they claim."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent


def example(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_eight_schools_has_the_exact_means_of_the_schools_and_a_bound_on_the_evidence():
    module = example("eight_schools")
    mean, sd, log_evidence = module.exact(module.EFFECT, module.STANDARD_ERROR)
    posterior = module.main()
    assert posterior.converged
    np.testing.assert_array_less(np.abs(posterior.mean()["theta"] - mean[2:]), 0.3 * sd[2:])
    assert log_evidence - 3 < posterior.elbo(1000) < log_evidence
    assert posterior.khat(20_000) > 0.7


def test_gamma_poisson_has_the_exact_rates():
    module = example("gamma_poisson")
    mean, sd = module.exact(module.TIME, module.FAILURES)
    posterior = module.main()
    assert posterior.converged
    np.testing.assert_array_less(np.abs(posterior.mean()["rate"] - mean[2:]), 0.1 * sd[2:])
    np.testing.assert_allclose(posterior.sd()["rate"], sd[2:], rtol=0.1)


def test_earthquakes_come_in_calm_and_busy_years():
    module = example("hmm")
    posterior = module.main()
    assert posterior.converged
    # by maximum likelihood with three states: 13.1, 19.7, 29.7 (Zucchini and MacDonald 2009)
    np.testing.assert_allclose(np.sort(posterior.mean()["rate"]), [13.1, 19.7, 29.7], rtol=0.06)


@pytest.mark.slow
def test_mixture_finds_the_components():
    module = example("mixture")
    posterior = module.main()
    _, component = module.simulate(200, seed=4)
    assert np.mean(posterior.probs()["component"].argmax(1) == component) > 0.97
    for name, truth in (("weight", module.WEIGHT), ("centre", module.CENTRE), ("spread", module.SPREAD)):
        np.testing.assert_array_less(np.abs(posterior.mean()[name] - truth), 4 * posterior.sd()[name])


def test_spike_and_slab_has_the_exact_inclusion_probabilities():
    module = example("spike_and_slab")
    exact = module.exact(*module.simulate(150, seed=1))
    posterior = module.main()
    assert posterior.converged and posterior.khat(5000) < 0.7
    np.testing.assert_allclose(posterior.probs()["included"][:, 1], exact, atol=0.05)


def test_minibatches_of_ragged_groups_find_the_exact_effects():
    module = example("hierarchical_minibatches")
    mean, sd = module.exact(module.simulate(300, seed=1))
    posterior = module.main()
    np.testing.assert_array_less(np.abs(posterior.mean()["effect"] - mean[3:]), 0.15 * sd[3:])
    for name, exact_mean, exact_sd in zip(("mean", "between", "within"), mean, sd, strict=False):
        assert abs(posterior.mean()[name] - exact_mean) < 0.3 * exact_sd


def test_a_numpyro_function_is_fitted_whole_and_in_batches_and_predicts():
    module = example("from_numpyro")
    y = module.simulate(300, seed=0)
    whole, batches, predicted = module.main()
    # the posterior of mu has nearly the mean of the readings
    for posterior in (whole, batches):
        assert abs(posterior.mean()["mu"] - y.mean()) < 0.3 * y.std() / np.sqrt(300)
    np.testing.assert_allclose(predicted.std(), y.std(), rtol=0.05)


def test_logistic_regression_by_rows_agrees_with_laplace():
    module = example("logistic_rows")
    mode, sd = module.laplace(*module.simulate(2000, seed=2))
    posterior = module.main()
    assert posterior.converged
    np.testing.assert_array_less(np.abs(posterior.mean()["weight"] - mode), 0.25 * sd)
    np.testing.assert_allclose(posterior.sd()["weight"], sd, rtol=0.1)


def test_a_likelihood_in_plain_python_has_the_exact_means():
    module = example("opaque_simulator")
    mean, sd = module.exact(module.MEMBERS, module.INFECTED)
    posterior = module.main()
    np.testing.assert_array_less(np.abs(posterior.mean()["log_rate"] - mean[1:]), 0.25 * sd[1:])


@pytest.mark.slow
def test_gamma_normal_time_series_predicts_better_than_averages(tmp_path):
    path = tmp_path / "plot.png"
    _, verdict = example("gamma_normal_ts").main(quick=True, path=path)
    assert verdict["error"] < verdict["plain"]
    assert verdict["score"] - 2 * verdict["score"].standard_error > verdict["plain_score"]
    assert path.stat().st_size > 10_000


def test_every_example_is_tested():
    tested = set(re.findall(r'example\("(\w+)"\)', Path(__file__).read_text(encoding="utf-8")))
    assert tested == {path.stem for path in (ROOT / "examples").glob("*.py")}


def test_ratings_are_predicted_better_than_by_averages():
    _, verdict = example("ratings").main(quick=True)
    assert verdict["error"] < 0.5 * verdict["plain"]


def test_models_are_compared_by_what_they_predict():
    table = example("compare_models").main()
    assert list(table.index) == ["negative binomial", "poisson"]
