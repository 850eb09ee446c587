"""Processes that are joined give the parameters of one, and end together where one is lost."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import bbvi
from tests.fitting.test_mesh import ROUNDING
from tests.mesh_worker import components, fit, flat, seen

WORKER = Path(__file__).parents[1] / "mesh_worker.py"
CASES = ("ragged, along paths", "discrete")


def start(*arguments):
    """Start two processes that are to join."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        shared = os.environ | {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    command = [sys.executable, "-W", "ignore", str(WORKER), *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return [subprocess.Popen(command, env=shared | {"RANK": str(rank)}, **pipes) for rank in range(2)]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What each of two processes found, and where."""
    path = tmp_path_factory.mktemp("processes") / "results"
    for process in start(path, path.with_name("run")):
        output, _ = process.communicate(timeout=600)
        assert process.returncode == 0, output
    return [json.loads(Path(f"{path}.{rank}").read_text()) for rank in range(2)], path


@pytest.mark.parametrize("case", CASES)
def test_two_processes_give_the_parameters_of_one(results, case):
    (first, second), one = [found[case] for found in results[0]], seen(fit(case, None))
    assert first == second
    assert first["stopped"] == one["stopped"]
    np.testing.assert_allclose(first["params"], one["params"], atol=ROUNDING, rtol=ROUNDING)
    np.testing.assert_allclose(first["elbo"], one["elbo"], rtol=1e-4, atol=1e-3)


def test_posteriors_of_processes_are_ordinary(results):
    found, path = results
    posterior = bbvi.load(f"{path}.1.npz", components()[0], data=components()[1])
    np.testing.assert_array_equal(flat(posterior), found[0]["discrete"]["params"])
    assert found[0]["discrete"]["rows"] == len(posterior.summary())
    np.testing.assert_allclose(float(posterior.elbo(100)), found[0]["discrete"]["bound"], rtol=1e-5)


def test_a_process_that_is_killed_ends_the_others_and_the_run_goes_on(tmp_path):
    path = tmp_path / "run"
    first, last = start(tmp_path / "results", path, 11)
    last.communicate(timeout=600)
    lost = time.monotonic()
    output, _ = first.communicate(timeout=60)
    assert time.monotonic() - lost < 30
    assert first.returncode != 0 and "lost another one of the run" in output
    resumed = fit("discrete", None, checkpoint=path)
    np.testing.assert_allclose(flat(resumed), flat(fit("discrete", None)), atol=ROUNDING, rtol=ROUNDING)
