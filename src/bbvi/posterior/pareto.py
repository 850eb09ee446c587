"""The shape of the tail of importance ratios: Pareto k-hat, as Vehtari et al. (2024) estimate it.

Here rather than by ArviZ, whose `psislw` changed its place and the sign of its argument from one version to the next: a
wrong sign asks for the other tail, and gives a k-hat that looks good.
"""

import numpy as np
from jaxtyping import Float

_LEAST_TAIL = 5
_PRIOR_DRAWS, _PRIOR_SHAPE = 10, 0.5


def pareto_khat(log_ratios: Float[np.ndarray, " draws"]) -> float:
    """Shape of the generalized Pareto distribution of the largest ratios; infinite if too few differ.

    Examples:
        >>> import numpy as np
        >>> z = np.random.default_rng(0).exponential(size=100_000)  # exp(z / 2) has the tail t**-2
        >>> print(f"{pareto_khat(z / 2):.1f}")
        0.5
    """
    num = len(log_ratios)
    ordered = np.sort(log_ratios - np.max(log_ratios))
    num_tail = int(np.ceil(min(num / 5, 3 * np.sqrt(num))))
    cutoff = max(ordered[-num_tail - 1], np.log(np.finfo(float).tiny))
    tail = ordered[ordered > cutoff]
    if len(tail) < _LEAST_TAIL:
        return float("inf")
    shape = tail_shape(np.exp(tail) - np.exp(cutoff))
    # a weak prior at 1/2, worth ten draws
    return float((len(tail) * shape + _PRIOR_DRAWS * _PRIOR_SHAPE) / (len(tail) + _PRIOR_DRAWS))


def tail_shape(excesses: Float[np.ndarray, " draws"]) -> float:
    """Shape k of a generalized Pareto distribution from its draws in order: Zhang and Stephens (2009).

    The likelihood of theta = -k / sigma, at its best k, is averaged over a grid by their prior from the data.
    """
    num = len(excesses)
    num_points = 30 + int(np.sqrt(num))
    quartile = excesses[int(num / 4 + 0.5) - 1]
    points = np.arange(1, num_points + 1) - 0.5
    theta = 1 / excesses[-1] + (1 - np.sqrt(num_points / points)) / (3 * quartile)
    shape = np.log1p(-theta[:, None] * excesses).mean(1)
    log_profile = num * (np.log(-theta / shape) - shape - 1)
    weights = np.exp(log_profile - log_profile.max())
    mean = weights @ theta / weights.sum()
    return float(np.log1p(-mean * excesses).mean())
