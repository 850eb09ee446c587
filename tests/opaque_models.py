"""The models of `test_opaque.py`, in NumPy and in JAX; worker processes import this file."""

import os

import jax.numpy as jnp
import numpy as np

import bbvi


def normal(x, mean, sd=1.0):
    """A log density up to a constant: bbvi drops from the gradient a constant that it sees in a trace."""
    return -0.5 * ((x - mean) / sd) ** 2


# ---- flat: a mean, its groups, a categorical that chooses a level -----------------------------------------------------

Y = np.array([0.3, -1.0, 2.0, 0.7])


def flat_numpy(z, y):
    return {
        "mu": normal(z["mu"], 0.0, 2.0),
        "theta": normal(z["theta"], z["mu"]),
        "level": normal(z["level"], 0.0),
        "y": normal(y, z["theta"] + z["level"][z["k"]]),
    }


def flat_jax(z, y):
    level = jnp.where(z["k"][:, None] == jnp.arange(3), z["level"], 0.0).sum(1)
    return {
        "mu": jnp.square(z["mu"] / 2.0) / -2,
        "theta": jnp.square(z["theta"] - z["mu"]) / -2,
        "level": jnp.square(z["level"]) / -2,
        "y": jnp.square(y - z["theta"] - level) / -2,
    }


def small_numpy(z, y):
    return {"mu": normal(z["mu"], 0.0, 2.0), "theta": normal(z["theta"], z["mu"]), "y": normal(y, z["theta"])}


def small_vectorized(z, y):
    theta = normal(z["theta"], z["mu"][:, None])
    return {"mu": normal(z["mu"], 0.0, 2.0), "theta": theta, "y": normal(y, z["theta"])}


def flat_model(log_joint):
    k = bbvi.categorical(3, 4, init=[0, 1, 2, 1])
    return bbvi.Model(log_joint, joint=(), mu=bbvi.real(), theta=bbvi.real(4), level=bbvi.real(3), k=k)


# ---- hierarchical: ragged visits, a global for each of two labs -------------------------------------------------------


def cohort():
    rng = np.random.default_rng(3)
    return bbvi.ragged(
        visit={"labs": [rng.normal(size=(n, 2)) for n in (3, 1, 4, 2, 4)]}, group={"age": np.arange(5.0)}
    )


def prior_jax(beta):
    return jnp.square(beta["w"]) / -2


def local_jax(beta, z, row):
    return jnp.where(row["mask"]["visit"], jnp.square(z["x"]) / -2, 0.0)


def likelihood_jax(beta, z, row):
    mean = z["x"][:, None] + beta["w"] * row["age"]
    return jnp.where(row["mask"]["visit"][:, None], jnp.square(row["labs"] - mean) / -2, 0.0)


def prior_numpy(beta):
    return normal(beta["w"], 0.0)


def local_numpy(beta, z, row):
    return np.where(row["mask"]["visit"], normal(z["x"], 0.0), 0.0)


def likelihood_numpy(beta, z, row):
    mean = z["x"][:, None] + beta["w"] * row["age"]
    return np.where(row["mask"]["visit"][:, None], normal(row["labs"], mean), 0.0)


def likelihood_vectorized(beta, z, row):
    mean = z["x"][:, :, None] + beta["w"][:, None, :] * row["age"]
    return np.where(row["mask"]["visit"][:, None], normal(row["labs"], mean), 0.0)


def hierarchical_model(prior=prior_jax, local=local_jax, likelihood=likelihood_jax):
    return bbvi.HierarchicalModel(
        log_prior=prior, log_local=local, log_likelihood=likelihood,
        globals={"w": bbvi.real(2)}, locals={"x": bbvi.real("visit")}, joint=(),
    )  # fmt: skip


# ---- misbehaviour -----------------------------------------------------------------------------------------------------


def noisy(z, y, *, seed):
    """An unbiased guess of a log likelihood: one random number for each call."""
    return {"prior": normal(z["mu"], 0.0), "noisy": normal(1.0, z["mu"]) + 0.1 * np.random.default_rng(seed).normal()}


def fails_once_flagged(z, path):
    """Fail, or end the process, from the moment the file says so."""
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            word = file.read()
        if word == "die":
            os._exit(3)
        if word == "raise":
            raise ArithmeticError("the solver did not converge")
    return {"prior": normal(z["mu"], 0.0), "data": normal(1.0, z["mu"])}
