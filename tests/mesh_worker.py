"""Fits without a mesh and with one of several devices, to be run as a process of its own.

python mesh_worker.py RESULTS            without a mesh, and with two devices of this process
python mesh_worker.py RESULTS CHECKPOINT with the devices of all processes that the environment names
python mesh_worker.py RESULTS CHECKPOINT STEP  the same, where the last process is killed at this step
"""

import json
import os
import signal
import sys
import tempfile

import numpy as np

STEPS = 30


def rows():
    """Plain rows without locals."""
    x = np.random.default_rng(0).normal(size=(41, 3)).astype(np.float32)
    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["w"]),
        log_likelihood=lambda beta, z, row: dist.Normal(row["x"] @ beta["w"], 1).log_prob(row["y"]),
        globals={"w": bbvi.real(3)},
    )
    return model, {"x": x, "y": x @ np.array([1.0, -1, 0.5], np.float32)}


def cohort():
    """Groups of different lengths, which fall into three buckets, with packed locals."""
    rng, lengths = np.random.default_rng(0), [5, 4, 5, 1, 3, 5, 4, 5, 30, 25, 5]

    def log_local(beta, z, row):
        states = jnp.where(row["mask"]["visit"], dist.Gamma(2, 2).log_prob(z["x"]), 0)
        return {"level": dist.Normal(beta["mu"], 1).log_prob(z["level"]), "states": states}

    def log_likelihood(beta, z, row):
        noise = dist.Normal(z["level"], beta["scale"] * z["x"])
        return jnp.where(row["mask"]["visit"], noise.log_prob(row["labs"]), 0)

    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["mu"]) + dist.Gamma(2, 2).log_prob(beta["scale"]),
        log_local=log_local,
        log_likelihood=log_likelihood,
        globals={"mu": bbvi.real(), "scale": bbvi.positive()},
        locals={"level": bbvi.real(), "x": bbvi.positive("visit")},
    )
    return model, bbvi.ragged(visit={"labs": [rng.normal(size=n).astype(np.float32) for n in lengths]})


def components():
    """A discrete local in each group."""
    y = np.concatenate([np.linspace(-1, 1, 7), np.linspace(3, 5, 6)]).astype(np.float32)
    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 3).log_prob(beta["mu"]),
        log_local=lambda beta, z, row: dist.Categorical(jnp.ones(2) / 2).log_prob(z["k"]),
        log_likelihood=lambda beta, z, row: dist.Normal(beta["mu"][z["k"]], 1).log_prob(row),
        globals={"mu": bbvi.real(2)},
        locals={"k": bbvi.categorical(2)},
    )
    return model, y


def broken():
    """A level that starts where log p overflows, so that steps are taken back."""
    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["m"]),
        log_local=lambda beta, z, y: dist.Normal(beta["m"], 1).log_prob(z["t"]),
        log_likelihood=lambda beta, z, y: jnp.where(z["t"] > 3.5, jnp.inf, dist.Normal(z["t"], 1).log_prob(y)),
        globals={"m": bbvi.real()},
        locals={"t": bbvi.real()},
    )
    return model, np.linspace(0, 2, 7).astype(np.float32)


CASES = {
    "rows": (rows, {"batch_size": 10}),
    "ragged, along paths": (cohort, {"batch_size": 4}),
    # a step by the score multiplies what rounding differs by: few of them
    "ragged, by the score": (cohort, {"batch_size": 4, "score": (True,), "steps": 10}),
    "ragged, all groups": (cohort, {}),
    "discrete": (components, {"batch_size": 5}),
    "discrete, Eq. 3": (components, {"batch_size": 5, "score": (False, None), "steps": 10}),
    "discrete, all groups, until converged": (components, {"steps": 300}),
    "steps taken back": (broken, {"batch_size": 3, "score": (True,), "steps": 60}),
}


def fit(case, mesh, **others):
    """The one call that runs with and without a mesh share."""
    model, settings = CASES[case]
    own = {name: value for name, value in settings.items() if name == "batch_size"} | others
    if "score" in settings:
        own["gradient"] = bbvi.Score(*settings["score"])
    stop = [bbvi.Converged(), bbvi.Budget(steps=own.pop("steps", settings.get("steps", STEPS)))]
    return bbvi.fit(*model(), draws=bbvi.MonteCarlo(20), stop=stop, mesh=mesh, **own)


def flat(posterior):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(posterior._params)]).astype(float).tolist()


def seen(posterior):
    history = {name: np.asarray(posterior.history[name], float).tolist() for name in ("elbo", "change", "setbacks")}
    return {"params": flat(posterior), "stopped": posterior.stopped, **history}


if __name__ == "__main__":
    if len(sys.argv) == 2:
        os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
    import conftest  # noqa: F401  (the cache of compiled programs)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpyro.distributions as dist  # noqa: E402

import bbvi  # noqa: E402


def on_processes(results, checkpoint, last_step=None):
    """Fit with other processes, each of which writes down what it sees; `last_step` is where the last one is killed."""
    with bbvi.distributed() as mesh:
        me = jax.process_index()
        if last_step is not None:
            model, settings = CASES["discrete"]
            rules = [bbvi.Converged(), bbvi.Budget(steps=STEPS)]
            settings = settings | {"draws": bbvi.MonteCarlo(20), "stop": rules, "checkpoint": checkpoint}
            for posterior in bbvi.iterate(*model(), mesh=mesh, checkpoint_seconds=0, **settings):
                if posterior._num_steps() >= last_step and me == jax.process_count() - 1:
                    os.kill(os.getpid(), signal.SIGKILL)
            return
        found = {}
        for case in ("ragged, along paths", "discrete"):
            posterior = fit(case, mesh, checkpoint=f"{checkpoint}-{case}")
            found[case] = seen(posterior) | {"bound": float(posterior.elbo(100))}
            found[case]["rows"] = len(posterior.summary())
        posterior.save(f"{results}.{me}.npz")
    with open(f"{results}.{me}", "w") as file:
        json.dump(found, file)


if __name__ == "__main__" and len(sys.argv) > 2:
    on_processes(*sys.argv[1:3], *map(int, sys.argv[3:]))
elif __name__ == "__main__":
    mesh = jax.make_mesh((2,), ("groups",))
    found = {case: [seen(fit(case, None)), seen(fit(case, mesh))] for case in CASES}
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/run"
        fit("discrete", mesh, checkpoint=path, steps=12)
        resumed = {"on two": seen(fit("discrete", mesh, checkpoint=path))}
        fit("discrete", mesh, checkpoint=f"{path}1", steps=12)
        resumed["on one"] = seen(fit("discrete", None, checkpoint=f"{path}1"))
    with open(sys.argv[1], "w") as file:
        json.dump({"found": found, "resumed": resumed}, file)
