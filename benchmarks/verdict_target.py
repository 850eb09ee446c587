"""Part of verdicts.py: what a target is, and the search for its best q.

Data that a model holds are single precision. Exact ELBOs take the same rounded numbers in double precision, so that
rounding is no part of a gap.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jax.flatten_util import ravel_pytree
from jax.nn import sigmoid
from jax.scipy.special import digamma, gammaln

import bbvi

Lambda = dict[str, dict[str, Any]]
#: the largest gap, in nat, of a fit that may say it has converged
FLAT, MINIBATCH = 0.05, 0.5


@dataclasses.dataclass(frozen=True)
class Case:
    """A model with its data, the ELBO at lambda without Monte Carlo, and the best lambda of its family."""

    model: Any
    data: Any
    elbo: Callable[[Lambda], Any]
    optimum: Lambda

    @functools.cached_property
    def _compiled(self) -> Any:
        return jax.jit(self.elbo)

    def value(self, params: Any) -> float:
        """Compute the ELBO at lambda in double precision."""
        with jax.enable_x64(True):
            return float(self._compiled(doubles(params)))

    def exact_elbo(self, posterior: bbvi.Posterior) -> float:
        return self.value(posterior.params)

    @functools.cached_property
    def best(self) -> float:
        return self.value(self.optimum)

    def newton_gain(self) -> float:
        """Compute what a Newton step from the optimum would gain, in every direction, a ridge's too: about nothing."""
        with jax.enable_x64(True):
            flat, unravel = ravel_pytree(doubles(self.optimum))
            slope_of = jax.grad(lambda x: -self.elbo(unravel(x)))
            slope, curvature = map(np.asarray, jax.jit(lambda x: (slope_of(x), jax.jacfwd(slope_of)(x)))(flat))
        size = np.sqrt(np.maximum(np.diag(curvature), 1e-12))
        values, vectors = np.linalg.eigh(curvature / np.outer(size, size))
        along = vectors.T @ (slope / size)
        known = values > 1e-9  # a shift of all logits of a category changes nothing
        if values.min() < -1e-6:
            return np.inf  # a saddle
        return float(0.5 * np.sum(along[known] ** 2 / values[known]))


@dataclasses.dataclass(frozen=True)
class Target:
    """A case to be built when its turn comes, and how it is fitted.

    Of those that are well-conditioned most fits must end with a claim; of the others none need to.
    """

    name: str
    kind: str
    build: Callable[[], Case]
    well_conditioned: bool = False
    batch_size: int | None = None

    @property
    def tolerance(self) -> float:
        return FLAT if self.batch_size is None else MINIBATCH

    @property
    def keywords(self) -> dict[str, Any]:
        return {} if self.batch_size is None else {"batch_size": self.batch_size}


def doubles(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)


def rounded(values: Any) -> tuple[np.ndarray, np.ndarray]:
    """Round to single precision; return the numbers for the model, and the same in double precision."""
    single = np.asarray(values, np.float32)
    return single, single.astype(np.float64)


def normal_at(loc: Any, sd: Any) -> dict[str, np.ndarray]:
    """Write a Normal factor's lambda."""
    loc, sd = np.broadcast_arrays(np.asarray(loc, float), np.asarray(sd, float))
    return {"loc": loc, "scale": np.log(sd)}


def gamma_at(concentration: Any, mean: Any) -> dict[str, np.ndarray]:
    """Write a Gamma factor's lambda."""
    return {"concentration": np.log(concentration), "mean": np.log(mean)}


class Beta:
    """The moments of Beta factors of q, by total concentration and mean."""

    def __init__(self, params):
        total = jnp.exp(params["concentration"])
        a, b = total * sigmoid(params["mean"]), total * sigmoid(-params["mean"])
        self.log, self.log_of_rest = digamma(a) - digamma(total), digamma(b) - digamma(total)
        normaliser = gammaln(a) + gammaln(b) - gammaln(total)
        self.entropy = (normaliser - (a - 1) * self.log - (b - 1) * self.log_of_rest).sum()


class Bernoulli:
    """The moments of Bernoulli factors of q."""

    def __init__(self, params):
        logits = params["logits"]
        self.mean = sigmoid(logits)
        self.entropy = (jax.nn.softplus(logits) - self.mean * logits).sum()


def best_lambda(
    elbo: Callable[[Lambda], Any],
    near: Lambda,
    spreads: tuple[float, ...] = (0.0, 0.3, 1.0),
    *,
    complete: Callable[[Lambda], Lambda] = lambda params: params,
) -> Lambda:
    """Search for the best lambda by L-BFGS in double precision, from a lambda nearby and from others around it.

    `complete` adds the latents whose best lambda given the others is known.
    """
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        flat, unravel = ravel_pytree(doubles(near))
        descent = jax.jit(jax.value_and_grad(lambda x: -elbo(complete(unravel(x)))))
        starts = [np.asarray(flat) + spread * rng.normal(size=flat.shape) for spread in spreads]
        ends = [_descend(descent, start) for start in starts]
        return doubles(complete(unravel(jnp.asarray(min(ends, key=lambda end: end[0])[1]))))


def _descend(descent: Any, start: np.ndarray) -> tuple[float, np.ndarray]:
    """Descend, and begin anew until that brings no more."""

    def value(x: np.ndarray) -> tuple[float, np.ndarray]:
        loss, slope = descent(x)
        if not np.isfinite(loss):  # a wall for the line search
            return 1e10, np.zeros_like(x)
        return float(loss), np.asarray(slope)

    x, lowest = start, np.inf
    options = {"maxiter": 5_000, "maxfun": 20_000, "maxcor": 20, "ftol": 1e-14, "gtol": 1e-8}
    for _ in range(20):
        found = scipy.optimize.minimize(value, x, jac=True, method="L-BFGS-B", options=options)
        gained = lowest - found.fun
        if found.fun <= lowest:
            x, lowest = found.x, found.fun
        if gained < 1e-7:
            break
    return lowest, x
