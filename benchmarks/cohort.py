"""The cohort and the model that all speed benchmarks share: the paper's Gamma-Normal time series (section 5.2).

803 patients with 5 to 120 visits (median 25, mean about 34), 17 labs of which 39 % are measured, K = 5 factors:

    W ~ Normal(0, 1), labs by factors
    o_p ~ Normal(0, 1), labs
    x_pv ~ GammaE(max(x_pv-1, 0.2), 0.25) with x_p0 = 1, mean and variance
    l_pv ~ Normal(W x_pv + o_p, 0.3), a standard deviation

NumPy alone makes the data, so that programs of any library can read them.
"""

from typing import NamedTuple

import numpy as np

NUM_LABS, NUM_FACTORS = 17, 5
FLOOR, VARIANCE_X, SIGMA_L, OBSERVED = 0.2, 0.25, 0.3, 0.39


class Patients(NamedTuple):
    """One array for each patient: labs and what is observed (visits by labs), and the factors they came from."""

    labs: list[np.ndarray]
    observed: list[np.ndarray]
    factors: list[np.ndarray]

    def padded(self) -> dict[str, np.ndarray]:
        """Labs, what is observed and lengths, with all patients as long as the longest."""
        lengths = np.array([len(labs) for labs in self.labs])
        labs = np.zeros((len(lengths), lengths.max(), NUM_LABS), np.float32)
        observed = np.zeros(labs.shape, bool)
        for i, n in enumerate(lengths):
            labs[i, :n], observed[i, :n] = self.labs[i], self.observed[i]
        return {"labs": labs, "observed": observed, "length": lengths}


def simulate(num_patients: int = 803, *, longest: int = 120, seed: int = 0) -> Patients:
    """Patients drawn from the model; the same seed gives the same weights however many there are."""
    rng = np.random.default_rng(seed)
    weights = rng.normal(0, 1, (NUM_LABS, NUM_FACTORS))
    out = Patients([], [], [])
    for _ in range(num_patients):
        num_visits = int(np.clip(np.round(rng.lognormal(np.log(25), 0.75)), 5, longest))
        x, path = np.ones(NUM_FACTORS), np.empty((num_visits, NUM_FACTORS))
        for v in range(num_visits):
            mean = np.maximum(x, FLOOR)
            x = path[v] = rng.gamma(mean**2 / VARIANCE_X, VARIANCE_X / mean)
        offset = rng.normal(0, 1, NUM_LABS)
        labs = rng.normal(path @ weights.T + offset, SIGMA_L)
        out.labs.append(labs.astype(np.float32))
        out.observed.append(rng.random(labs.shape) < OBSERVED)
        out.factors.append(path)
    return out


def ours(patients: Patients):
    """The model as a user writes it, and the patients."""
    import jax.numpy as jnp
    import numpyro.distributions as dist

    import bbvi

    def log_local(beta, z, row):
        before = jnp.concatenate([jnp.ones((1, NUM_FACTORS)), z["x"][:-1]])
        drift = bbvi.GammaE(jnp.maximum(before, FLOOR), VARIANCE_X).log_prob(z["x"])
        kept = jnp.where(row["mask"]["visit"][:, None], drift, 0)
        return dist.Normal(0, 1).log_prob(z["o"]).sum() + kept.sum()

    def log_likelihood(beta, z, row):
        term = dist.Normal(z["x"] @ beta["W"].T + z["o"], SIGMA_L).log_prob(row["labs"])
        return jnp.where(row["observed"] & row["mask"]["visit"][:, None], term, 0).sum()

    model = bbvi.HierarchicalModel(
        joint=(),
        log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["W"]).sum(),
        log_local=log_local,
        log_likelihood=log_likelihood,
        globals={"W": bbvi.real(NUM_LABS, NUM_FACTORS)},
        locals={"o": bbvi.real(NUM_LABS), "x": bbvi.positive("visit", NUM_FACTORS)},
    )
    return model, bbvi.ragged(visit={"labs": patients.labs, "observed": patients.observed})
