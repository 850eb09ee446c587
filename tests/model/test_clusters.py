"""Calls of opaque functions on a cluster give the run that one process gives, and a lost worker loses nothing."""

import os
import time

import numpy as np
import pytest

import bbvi

DATA = np.array([0.3, -1.0, 2.0, 0.7])
SETTINGS = {"draws": bbvi.MonteCarlo(8), "stop": bbvi.Budget(steps=4), "gradient": bbvi.Score(True, None)}


def simulator():
    # a function inside a function, as a script or a notebook has it: it travels by value
    def log_joint(z, y):
        return {"prior": -0.5 * z["mu"] ** 2, "data": -0.5 * (y - z["mu"]) ** 2}

    return log_joint


def dies_once(flag):
    def log_joint(z, y):
        if flag.exists() and z["mu"] != 0:
            flag.unlink()
            os._exit(1)
        return -0.5 * z["mu"] ** 2 - 0.5 * ((y - z["mu"]) ** 2).sum()

    return log_joint


def hangs_when_flagged(flag):
    def log_joint(z, y):
        time.sleep(12 if flag.exists() else 0)
        return -0.5 * z["mu"] ** 2

    return log_joint


@pytest.fixture(scope="module")
def ray():
    library = pytest.importorskip("ray", reason="ray is not installed")
    library.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield bbvi.on_ray
    library.shutdown()


@pytest.fixture(scope="module")
def dask():
    library = pytest.importorskip("distributed", reason="dask.distributed is not installed")
    with (
        library.LocalCluster(2, threads_per_worker=1, dashboard_address=None) as cluster,
        library.Client(cluster) as client,
    ):
        yield lambda **options: bbvi.on_dask(client, **options)


@pytest.fixture(scope="module", params=["ray", "dask"])
def cluster(request):
    return request.getfixturevalue(request.param)


def lambda_of(posterior):
    return [posterior.params["mu"][name] for name in ("loc", "scale")]


def fitted(function, **options):
    return bbvi.fit(bbvi.Model(bbvi.opaque(function, **options), mu=bbvi.real()), DATA, **SETTINGS)


def test_a_cluster_does_not_change_the_run(cluster):
    here, there = fitted(simulator()), fitted(simulator(), executor=cluster())
    np.testing.assert_array_equal(lambda_of(here), lambda_of(there))


def test_a_worker_that_dies_loses_nothing(cluster, tmp_path):
    here = fitted(dies_once(tmp_path / "none"))
    flag = tmp_path / "flag"
    run = bbvi.iterate(bbvi.Model(bbvi.opaque(dies_once(flag), executor=cluster()), mu=bbvi.real()), DATA, **SETTINGS)
    next(run)
    flag.touch()
    *_, posterior = run
    assert not flag.exists()
    np.testing.assert_array_equal(lambda_of(here), lambda_of(posterior))


def test_a_call_that_hangs_is_an_error_that_names_it(cluster, tmp_path):
    function = hangs_when_flagged(tmp_path / "flag")
    run = bbvi.iterate(bbvi.Model(bbvi.opaque(function, executor=cluster(seconds=5)), mu=bbvi.real()), DATA, **SETTINGS)
    next(run)
    (tmp_path / "flag").touch()
    with pytest.raises(RuntimeError, match=r"log_joint.* mu = .*no answer within 5 s"):
        list(run)


def test_bad_settings_say_so(cluster):
    with pytest.raises(ValueError, match="retries must be an integer of 0 or more, got -1"):
        cluster(retries=-1)
    with pytest.raises(ValueError, match="seconds must be positive, got 0"):
        cluster(seconds=0)


def test_what_is_no_client_is_refused():
    pytest.importorskip("distributed", reason="dask.distributed is not installed")
    with pytest.raises(TypeError, match=r"takes a dask\.distributed\.Client, got str"):
        bbvi.on_dask("localhost")
