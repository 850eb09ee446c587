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

    locals: np.ndarray | None = None

    def __repr__(self) -> str:
        return f"{float(self):.2f}"


def hierarchical_khat(ratios: Ratios, num: int, key: Key, centre: dict[str, Array]) -> Khat:
    """Compute k-hat of the globals, each group integrated out by inner draws, and of each group at central globals."""
    samples, params = jnp.arange(num, dtype=jnp.uint32), ratios.params
    beta, log_ratio = ratios.of_globals(key, samples)
    num_inner = _INNER_DRAWS if params["locals"] else 1
    inner = [ratios.of_groups(beta, fold(key, f"inner {m}"), samples) for m in range(num_inner)]
    marginal = np.logaddexp.reduce(inner, axis=0) - np.log(len(inner))
    khat = khat_of(np.asarray(log_ratio, np.float64) + marginal.sum(0)) if params["globals"] else Khat("nan")
    if not params["locals"]:
        return khat
    fixed = {name: jnp.broadcast_to(value[..., None], (*value.shape, num)) for name, value in centre.items()}
    local = ratios.of_groups(fixed, fold(key, "local"), samples)
    khat.locals = np.array([khat_of(row) for row in local])
    return khat


def khat_of(log_ratios: np.ndarray) -> Khat:
    """Compute k-hat of importance ratios; minus infinity where they are all the same."""
    log_ratios = np.asarray(log_ratios, np.float64)
    # where q is the posterior up to rounding, the ratios have no tail at all
    no_tail = np.ptp(log_ratios) < 1e-5 * max(1.0, float(np.abs(log_ratios).max()))
    return Khat("-inf" if no_tail else pareto_khat(log_ratios))
