"""A fit with checkpoints, to be run as a process of its own and killed.

python checkpoint_worker.py CHECKPOINT POSTERIOR SECONDS_PER_CHUNK
"""

import importlib
import sys

import numpy as np
import numpyro.distributions as dist

import bbvi

STEPS = 5000
Y = np.array([0.5, 1.5, 1.0, -0.5, 2.0, 0.0])


def model():
    return bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["m"]),
        log_local=lambda beta, z, y: dist.Normal(beta["m"], 1).log_prob(z["t"]),
        log_likelihood=lambda beta, z, y: dist.Normal(z["t"], 1).log_prob(y),
        globals={"m": bbvi.real()},
        locals={"t": bbvi.real()},
    )


def run(checkpoint=None, *, steps=STEPS, data=Y, of=model, stop=bbvi.Converged(1e-9), **settings):  # noqa: B008
    """The one call that all runs here share."""
    settings = {"batch_size": 2, "draws": bbvi.MonteCarlo(10), "seed": 1} | settings
    return bbvi.fit(
        of(), data, stop=[stop, bbvi.Budget(steps=steps)], checkpoint=checkpoint, checkpoint_seconds=0, **settings
    )


if __name__ == "__main__":
    importlib.import_module("bbvi.fitting.run")._SECONDS_PER_CHUNK = float(sys.argv[3])
    run(sys.argv[1]).save(sys.argv[2])
