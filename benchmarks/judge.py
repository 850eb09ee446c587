"""One judge for every library: the ELBO and the held-out density of a mean-field q, in NumPy.

A library hands over its q as a dict of arrays, whatever it calls them itself: Normals "W_loc", "W_scale" (labs by factors)
and "o_loc", "o_scale" (patients by labs), and for x (patients by visits by factors) either Gammas "x_concentration", "x_mean"
or log-Normals "x_loc", "x_scale".
"""

from typing import NamedTuple

import numpy as np
from cohort import FLOOR, NUM_FACTORS, NUM_LABS, SIGMA_L, VARIANCE_X
from scipy.special import gammaln, logsumexp

Arrays = dict[str, np.ndarray]
HALF_LOG_TWO_PI = 0.5 * np.log(2 * np.pi)


class Estimate(NamedTuple):
    """A mean and its standard error."""

    mean: float
    error: float


def start(data: Arrays, seed: int = 0) -> Arrays:
    """A random lambda near the prior, from which every library starts."""
    rng = np.random.default_rng(seed)
    num_patients, num_visits = data["observed"].shape[:2]

    def around(centre: float, *shape: int) -> np.ndarray:
        return (centre + 0.3 * rng.normal(size=shape)).astype(np.float32)

    return {
        "W_loc": around(0, NUM_LABS, NUM_FACTORS),
        "W_scale": np.exp(around(0, NUM_LABS, NUM_FACTORS)),
        "o_loc": around(0, num_patients, NUM_LABS),
        "o_scale": np.exp(around(0, num_patients, NUM_LABS)),
        "x_concentration": np.exp(around(np.log(4), num_patients, num_visits, NUM_FACTORS)),
        "x_mean": np.exp(around(0, num_patients, num_visits, NUM_FACTORS)),
    }


def as_log_normal(q: Arrays, data: Arrays) -> Arrays:
    """A q with log-Normals in place of Gammas, of about the same location and spread, standard ones on padding."""
    rest = {name: q[name] for name in ("W_loc", "W_scale", "o_loc", "o_scale")}
    valid = visits(data)[..., None]
    loc, scale = np.log(q["x_mean"]), 1 / np.sqrt(q["x_concentration"])
    return {**rest, "x_loc": np.where(valid, loc, 0), "x_scale": np.where(valid, scale, 1)}


def hold_out(data: Arrays, share: float = 0.25, seed: int = 1) -> tuple[Arrays, np.ndarray]:
    """Data without a share of their measurements, and which those are."""
    out = data["observed"] & (np.random.default_rng(seed).random(data["observed"].shape) < share)
    return {**data, "observed": data["observed"] & ~out}, out


def draw(q: Arrays, num: int, rng: np.random.Generator, rows: np.ndarray) -> tuple[Arrays, np.ndarray]:
    """Draws of W, o and those rows of x, and log q of x, `(draws, rows, factors)`."""
    z = {name: rng.normal(q[f"{name}_loc"], q[f"{name}_scale"], (num, *q[f"{name}_loc"].shape)) for name in ("W", "o")}
    if "x_mean" in q:
        a, mean = (q[name][rows].astype(float) for name in ("x_concentration", "x_mean"))
        x = np.maximum(rng.gamma(a, mean / a, (num, *a.shape)), np.finfo(np.float32).tiny)
        log_q = a * np.log(a / mean) + (a - 1) * np.log(x) - a / mean * x - gammaln(a)
    else:
        loc, scale = (q[name][rows].astype(float) for name in ("x_loc", "x_scale"))
        log_x = rng.normal(loc, scale, (num, *loc.shape))
        x, log_q = np.exp(log_x), normal(log_x, loc, scale) - log_x
    return {**z, "x": x}, log_q


def normal(value: np.ndarray, loc: np.ndarray | float, scale: np.ndarray | float) -> np.ndarray:
    return -0.5 * ((value - loc) / scale) ** 2 - np.log(scale) - HALF_LOG_TWO_PI


def visits(data: Arrays) -> np.ndarray:
    """Which patients have which visits."""
    return np.arange(data["observed"].shape[1]) < data["length"][:, None]


def elbo(q: Arrays, data: Arrays, *, draws: int = 2000, seed: int = 0) -> Estimate:
    """The mean of log p(l, z) - log q(z)."""
    rows = visits(data)
    patient, visit = np.nonzero(rows)
    z, log_q_x = draw(q, draws, np.random.default_rng(seed), rows)
    total = -log_q_x.sum((1, 2))
    for name in ("W", "o"):
        ratio = normal(z[name], 0, 1) - normal(z[name], q[f"{name}_loc"], q[f"{name}_scale"])
        total += ratio.sum((1, 2))
    before = np.where((visit > 0)[:, None], np.roll(z["x"], 1, axis=1), 1)
    mean = np.maximum(before, FLOOR)
    a, rate = mean**2 / VARIANCE_X, mean / VARIANCE_X
    total += (a * np.log(rate) + (a - 1) * np.log(z["x"]) - rate * z["x"] - gammaln(a)).sum((1, 2))
    loc = z["x"] @ np.swapaxes(z["W"], 1, 2) + z["o"][:, patient]
    total += (normal(data["labs"][rows], loc, SIGMA_L) * data["observed"][rows]).sum((1, 2))
    return Estimate(float(total.mean()), float(total.std() / np.sqrt(draws)))


def held_out_density(q: Arrays, data: Arrays, out: np.ndarray, *, draws: int = 100, seed: int = 0) -> Estimate:
    """Mean log predictive density of the measurements left out, its error over patients."""
    rng = np.random.default_rng(seed)
    total, count = np.zeros(len(out)), out.sum((1, 2))
    for block in np.array_split(np.arange(len(out)), max(1, len(out) // 50)):
        rows = visits(data) & np.isin(np.arange(len(out)), block)[:, None]
        patient, _ = np.nonzero(rows)
        z, _ = draw(q, draws, rng, rows)
        loc = z["x"] @ np.swapaxes(z["W"], 1, 2) + z["o"][:, patient]
        density = logsumexp(normal(data["labs"][rows], loc, SIGMA_L), axis=0) - np.log(draws)
        total += np.bincount(patient, (density * out[rows]).sum(1), minlength=len(out))
    mean = total.sum() / count.sum()
    return Estimate(float(mean), float(np.sqrt(((total - mean * count) ** 2).sum()) / count.sum()))
