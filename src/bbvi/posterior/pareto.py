"""The shape of the tail of importance ratios: Pareto k-hat, as Vehtari et al. (2024) estimate it.

Here rather than by ArviZ, whose `psislw` changed its place and the sign of its argument from one version to the next: a
wrong sign asks for the other tail, and gives a k-hat that looks good.
"""

from typing import Any

import numpy as np
from jaxtyping import Float

_LEAST_TAIL = 5
_PRIOR_DRAWS, _PRIOR_SHAPE = 10, 0.5
# logarithms of ratios that differ by less, relative to the largest, differ by rounding
_ROUNDING = 1e-5
_SMALL = 0.05


class Khat(float):
    """k-hat of the globals (or of a flat model): a float with a `.standard_error`; `.locals` has one for each group."""

    standard_error: float
    locals: np.ndarray | None

    def __new__(cls, value: float, standard_error: float = float("nan"), locals: Any = None) -> "Khat":
        self = float.__new__(cls, value)
        self.standard_error, self.locals = standard_error, None if locals is None else np.asarray(locals, float)
        return self

    def __repr__(self) -> str:
        return f"{float(self):.2f}" + (f" ± {self.standard_error:.2f}" if np.isfinite(self) else "")

    def as_dict(self) -> dict[str, Any]:
        """Return the arguments that make another one like this."""
        own = None if self.locals is None else self.locals.tolist()
        return {"value": float(self), "standard_error": self.standard_error, "locals": own}


def pareto_khat(log_ratios: Float[np.ndarray, " draws"]) -> Khat:
    """Estimate the shape of the generalized Pareto distribution of the largest ratios, from their logarithms.

    Where the largest take few values, as those of discrete latents may, they have no tail: minus infinity if there are enough
    of them to know what they add up to, infinity if not.

    Examples:
        >>> import numpy as np
        >>> z = np.random.default_rng(0).exponential(size=100_000)  # exp(z / 2) has the tail t**-2
        >>> pareto_khat(z / 2)
        0.52 ± 0.05
    """
    return smoothed(log_ratios)[1]


def smoothed(log_ratios: Float[np.ndarray, " draws"]) -> tuple[Float[np.ndarray, " draws"], Khat]:
    """Return the logarithms of importance weights, the largest replaced by quantiles of their Pareto distribution, and k-hat."""
    log_ratios = np.asarray(log_ratios, np.float64)
    num, top = len(log_ratios), float(np.max(log_ratios))
    if not np.isfinite(top):
        return log_ratios, Khat(np.inf)
    order = np.argsort(log_ratios)
    ordered = log_ratios[order] - top
    num_tail = int(np.ceil(min(num / 5, 3 * np.sqrt(num))))
    cutoff = max(ordered[-num_tail - 1], np.log(np.finfo(float).tiny))
    tail = ordered[ordered > cutoff]
    if np.sum(np.diff(tail, prepend=cutoff) > _ROUNDING * max(1.0, abs(top))) < _LEAST_TAIL:
        share = np.exp(tail).sum() / np.exp(ordered).sum()
        return log_ratios, Khat(-np.inf) if share <= _SMALL * np.sqrt(len(tail)) else Khat(np.inf)
    shape, scale = _tail(np.exp(tail) - np.exp(cutoff))
    # a weak prior at 1/2, worth ten draws
    weight = len(tail) / (len(tail) + _PRIOR_DRAWS)
    # of the most likely k: below -1/2 the largest ratio is known much better than k, which is a mean of logarithms then
    error = max(1 + shape, -shape) / np.sqrt(len(tail))
    khat = Khat(weight * shape + (1 - weight) * _PRIOR_SHAPE, weight * error)
    above = 1 - (np.arange(len(tail)) + 0.5) / len(tail)
    excess = scale * (np.expm1(-khat * np.log(above)) / khat if khat else -np.log(above))
    out = log_ratios.copy()
    out[order[-len(tail) :]] = top + np.minimum(np.log(np.exp(cutoff) + excess), 0)
    return out, khat


def tail_shape(excesses: Float[np.ndarray, " draws"]) -> float:
    """Shape k of a generalized Pareto distribution from its draws in order: Zhang and Stephens (2009)."""
    return _tail(excesses)[0]


def _tail(excesses: Float[np.ndarray, " draws"]) -> tuple[float, float]:
    """Shape and scale of a generalized Pareto distribution from its draws in order.

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
    found = float(np.log1p(-mean * excesses).mean())
    return found, -found / float(mean)
