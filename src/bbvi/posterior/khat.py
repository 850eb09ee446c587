"""How good is q: the Pareto shape k-hat of importance ratios (Yao et al. 2018; Vehtari et al. 2024)."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bbvi.numerics.address import Key, fold
from bbvi.posterior.pareto import pareto_khat
from bbvi.posterior.ratios import Ratios

_INNER_DRAWS = 10


class Khat(float):
    """k-hat of the globals (or of a flat model), a float; `.locals` has one for each group."""

    locals: np.ndarray | None

    def __new__(cls, value: float, locals_: np.ndarray | None = None) -> "Khat":
        self = float.__new__(cls, value)
        self.locals = locals_
        return self

    def __repr__(self) -> str:
        return f"{float(self):.2f}"


def flat_khat(ratios: Ratios, num: int, key: Key) -> Khat:
    """Compute k-hat of all latents jointly."""
    return Khat(_khat(ratios.of_all(num, key)))


def hierarchical_khat(ratios: Ratios, num: int, key: Key, centre: dict[str, Array]) -> Khat:
    """Compute k-hat of the globals, each group integrated out by inner draws, and of each group at central globals."""
    samples, params = jnp.arange(num, dtype=jnp.uint32), ratios.params
    beta, log_ratio = ratios.of_globals(key, samples)
    num_inner = _INNER_DRAWS if params["locals"] else 1
    inner = [ratios.of_groups(beta, fold(key, f"inner {m}"), samples) for m in range(num_inner)]
    marginal = np.logaddexp.reduce(inner, axis=0) - np.log(len(inner))
    of_globals = _khat(np.asarray(log_ratio, np.float64) + marginal.sum(0)) if params["globals"] else float("nan")
    if not params["locals"]:
        return Khat(of_globals)
    fixed = {name: jnp.broadcast_to(value[..., None], (*value.shape, num)) for name, value in centre.items()}
    local = ratios.of_groups(fixed, fold(key, "local"), samples)
    return Khat(of_globals, np.array([_khat(row) for row in local]))


def _khat(log_ratios: np.ndarray) -> float:
    log_ratios = np.asarray(log_ratios, np.float64)
    if np.ptp(log_ratios) < 1e-5 * max(1.0, float(np.abs(log_ratios).max())):
        # q is the posterior up to rounding: the ratios have no tail at all
        return float("-inf")
    return pareto_khat(log_ratios)
