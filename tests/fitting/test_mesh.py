"""Devices that share out the groups change the order of sums, and nothing else."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import numpyro.distributions as dist
import pytest

import bbvi
from tests.mesh_worker import CASES, cohort, components, rows

WORKER = Path(__file__).parents[1] / "mesh_worker.py"
# sums over groups are added up in another order: rounding of float32, which steps carry on
ROUNDING = 2e-4


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What a process with two devices found."""
    path = tmp_path_factory.mktemp("mesh") / "results.json"
    made = subprocess.run([sys.executable, "-W", "ignore", str(WORKER), str(path)], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    return json.loads(path.read_text())


@pytest.mark.parametrize("case", CASES)
def test_two_devices_give_the_parameters_of_one(results, case):
    one, two = results["found"][case]
    assert one["stopped"] == two["stopped"] and one["setbacks"] == two["setbacks"]
    np.testing.assert_allclose(two["params"], one["params"], atol=ROUNDING, rtol=ROUNDING)
    # the ELBO of steps whose draws have steep terms carries on what parameters differ by
    np.testing.assert_allclose(two["elbo"], one["elbo"], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(two["change"], one["change"], rtol=1e-3, atol=1e-5)


def test_a_step_is_taken_back_on_all_devices(results):
    assert sum(results["found"]["steps taken back"][1]["setbacks"]) > 0


@pytest.mark.parametrize("devices", ["on one", "on two"])
def test_a_run_goes_on_with_any_number_of_devices(results, devices):
    np.testing.assert_allclose(
        results["resumed"][devices]["params"], results["found"]["discrete"][1]["params"], atol=ROUNDING
    )
    assert len(results["resumed"][devices]["elbo"]) == len(results["found"]["discrete"][1]["elbo"])


class Mine(bbvi.AbstractStop):
    """A rule that may look at rows."""


def flat():
    return bbvi.Model(lambda z: dist.Normal(0, 1).log_prob(z["x"]), x=bbvi.real()), None


def simulated():
    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["m"]),
        log_likelihood=bbvi.opaque(lambda beta, z, y: float(-((y - beta["m"]) ** 2))),
        globals={"m": bbvi.real()},
    )
    return model, np.zeros(3)


class Source:
    """Groups that are read when asked for."""

    def __len__(self):
        return 41

    def __getitem__(self, numbers):
        return jax.tree.map(lambda leaf: leaf[numbers], rows()[1])


REFUSED = {
    "no mesh": (components, {"mesh": 2}, TypeError, "takes a jax.sharding.Mesh"),
    "other axes": (components, {"axes": ("data",)}, ValueError, "one, 'groups'"),
    "flat": (flat, {}, ValueError, "a flat Model has none"),
    "opaque": (simulated, {}, ValueError, "log_likelihood is opaque"),
    "stream": (lambda: (rows()[0], Source()), {}, ValueError, "not yet those fetched from a source"),
    "own rule": (components, {"stop": Mine()}, ValueError, "on_mesh = True"),
    "draws that adapt": (cohort, {"draws": bbvi.AdaptiveDraws()}, ValueError, "a fixed number of draws"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_devices_cannot_share_is_refused(case):
    made, settings, error, words = REFUSED[case]
    settings = dict(settings)
    mesh = settings.pop("mesh", None) or jax.make_mesh((1,), settings.pop("axes", ("groups",)))
    with pytest.raises(error, match=words):
        bbvi.fit(*made(), mesh=mesh, **settings)
