"""Draws of q with importance weights, for a q that is near the posterior but not near enough (Vehtari et al. 2024)."""

from typing import Any

import numpy as np
from jaxtyping import Array

from bbvi.numerics.address import Key, fold
from bbvi.posterior.arviz import coords_of, dims_of, inference_data
from bbvi.posterior.pareto import Khat, smoothed
from bbvi.posterior.ratios import Ratios

_WORST, _FEWEST = 0.7, 100


class Reweighted:
    """Draws of q, `(n, ...)` by latent, whose weights make them draws of the posterior.

    Attributes:
        draws: the draws as q made them.
        weights: the weight of each, which add up to 1.
        khat: the Pareto shape of the weights' tail.
    """

    def __init__(self, model: Any, draws: dict[str, np.ndarray], weights: np.ndarray, khat: Khat):
        self.draws, self.weights, self.khat, self._model = draws, weights, khat, model

    def __repr__(self) -> str:
        return f"Reweighted({len(self.weights):,} draws worth {self.effective_draws:,.0f}, k-hat {self.khat!r})"

    @property
    def effective_draws(self) -> float:
        """How many draws of the posterior these are worth."""
        return float(1 / np.sum(self.weights**2))

    def mean(self) -> dict[str, np.ndarray]:
        """Return the posterior mean of each latent."""
        return {name: np.tensordot(self.weights, x, 1) for name, x in self.draws.items()}

    def sd(self) -> dict[str, np.ndarray]:
        """Return the posterior standard deviation of each latent."""
        mean = self.mean()
        return {name: np.sqrt(np.tensordot(self.weights, (x - mean[name]) ** 2, 1)) for name, x in self.draws.items()}

    def quantile(self, p: float) -> dict[str, np.ndarray]:
        """Return the marginal posterior quantile of each latent."""
        if not 0 <= p <= 1:
            raise ValueError(f"quantile: p must be a number between 0 and 1, got {p!r}")
        found = {}
        for name, x in self.draws.items():
            order = np.argsort(x, axis=0)
            below = np.cumsum(self.weights[order], axis=0)
            first = np.minimum((below < p).sum(0), len(x) - 1)[None]
            found[name] = np.take_along_axis(x, np.take_along_axis(order, first, 0), 0)[0]
        return found

    def sample(self, n: int, seed: int = 0) -> dict[str, np.ndarray]:
        """Draw n of the draws by their weights, evenly: one in each of n strata."""
        strata = (np.arange(n) + np.random.default_rng(seed).uniform(size=n)) / n
        chosen = np.minimum(np.searchsorted(np.cumsum(self.weights), strata), len(self.weights) - 1)
        return {name: x[np.random.default_rng(seed).permutation(chosen)] for name, x in self.draws.items()}

    def to_arviz(self, n: int = 1000, seed: int = 0) -> Any:
        """Give n draws, by their weights, to ArviZ."""
        return inference_data(
            {"posterior": {k: x[None] for k, x in self.sample(n, seed).items()}},
            dims_of(self._model),
            coords_of(self._model),
        )


def reweight(ratios: Ratios, n: int, key: Key) -> Reweighted:
    """Draw from q and weigh the draws; raise where weights cannot repair it."""
    if ratios.groups is not None:
        raise ValueError(
            "reweighted: the weights of many groups together would vary too much; look at posterior.khat().locals"
        )
    if n < _FEWEST:
        raise ValueError(f"reweighted needs n of {_FEWEST} or more to see the tail of the weights, got {n}")
    parts: list[dict[str, Any]] = []

    def piece(samples: Array) -> np.ndarray:
        values, log_ratio = ratios.of_globals(fold(key, "reweighted"), samples)
        first = {name: np.moveaxis(np.asarray(x), -1, 0) for name, x in values.items()}
        parts.append(ratios.problem.members(first))
        return np.asarray(log_ratio, np.float64)

    log_weights, khat = smoothed(ratios.in_pieces(piece, 0, n))
    if not khat <= _WORST:
        raise ValueError(
            f"reweighted: k-hat is {khat!r}, and above {_WORST} weights cannot repair q: their sums do not settle. Give q more "
            "structure (joint=, q=), or sample: bbvi.metropolis_within_gibbs"
        )
    weights = np.exp(log_weights - log_weights.max())
    draws = {name: np.concatenate([part[name] for part in parts])[:n] for name in ratios.problem.model.globals}
    return Reweighted(ratios.problem.model, draws, weights / weights.sum(), khat)
