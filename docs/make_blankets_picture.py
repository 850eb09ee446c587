"""Draw docs/images/blankets.png: the blankets of the paper's Gamma-Normal time series (section 5.2), one patient.

Usage: python docs/make_blankets_picture.py
"""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import bbvi


def log_prior(beta):
    return dist.Normal(0, 1).log_prob(beta["W"]).sum()


def log_local(beta, z, patient):
    before = jnp.concatenate([jnp.ones((1, 2)), z["x"][:-1]])
    drift = bbvi.GammaE(before, 1.0).log_prob(z["x"]).sum()
    return dist.Normal(0, 1).log_prob(z["o"]).sum() + drift


def log_likelihood(beta, z, patient):
    return dist.Normal(z["x"] @ beta["W"].T + z["o"], 0.3).log_prob(patient["labs"]).sum()


model = bbvi.HierarchicalModel(
    log_prior=log_prior,
    log_local=log_local,
    log_likelihood=log_likelihood,
    globals={"W": bbvi.real(5, 2)},  # labs by factors
    locals={"o": bbvi.real(5), "x": bbvi.positive(8, 2)},  # visits by factors
)


def simulate(num_patients):
    """Labs of 8 visits, from the model but for the drift."""
    rng = np.random.default_rng(0)
    x, offset = rng.gamma(4, 0.25, (num_patients, 8, 2)), rng.normal(size=(num_patients, 1, 5))
    return {"labs": rng.normal(x @ rng.normal(size=(2, 5)) + offset, 0.3)}


if __name__ == "__main__":
    patients = simulate(20)
    posterior = bbvi.fit(model, patients, stop=bbvi.Budget(steps=1000), progress=False)
    found = bbvi.explain(model, patients, posterior)
    print(found)
    found.plot().savefig(Path(__file__).parent / "images" / "blankets.png", bbox_inches="tight")
