"""Beta and Dirichlet, by their means and total concentrations."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy  # of which scipy.stats, slow to import, is imported when first used
from jax.nn import log_sigmoid, sigmoid, softplus
from jax.scipy.special import logsumexp
from jaxtyping import Array
from numpyro.distributions import constraints

from bbvi.families.abstract import AbstractFamily
from bbvi.families.charts import Simplex, Unit, marginal, smallest
from bbvi.families.law import Parameter, Params, always, positive_parameter
from bbvi.numerics.samplers import log_gamma
from bbvi.numerics.special import lgamma, trigamma_excess
from bbvi.numerics.xla import mark


class AbstractShares(AbstractFamily):
    """Shares of 1 by their means and total concentration; natural parameters are the concentrations a, held as log a."""

    @abstractmethod
    def _log_concentrations(self, params: Params) -> Array:
        """Return log a."""

    @abstractmethod
    def _from_log(self, log_concentrations: Array) -> Params:
        """Return the parameters that have this log a."""

    def natural_gradient(self, params, gradient):
        """Return F^-1 gradient: in log a, F is diag(a**2 trigamma(a)) - trigamma(s) a a^T, s the total of a."""
        log_concentrations = self._log_concentrations(params)
        _, to_log = jax.vjp(self._from_log, log_concentrations)
        (slope,) = to_log(gradient)
        a = jnp.maximum(jnp.exp(log_concentrations), smallest(log_concentrations))
        total = a.sum()
        excess, excess_of_total = trigamma_excess(a), trigamma_excess(total)
        # Sherman and Morrison's formula, with differences of large numbers taken beforehand
        share = a / total / (1 + excess)
        left = (share * (excess - excess_of_total)).sum()
        along = gradient["concentration"] - (slope * (excess / (1 + excess))).sum()
        relative = (slope / a + along * (1 + excess_of_total) / total / left) / (1 + excess)
        return jax.jvp(self._from_log, (log_concentrations,), (relative,))[1]

    def along(self, params, direction):
        log_concentrations, relative = jax.jvp(self._log_concentrations, (params,), (direction,))
        return self._from_log(log_concentrations + jnp.log1p(relative))


class Beta(AbstractShares):
    """Beta by its mean and total concentration; draws are held as logits, where neither end underflows."""

    chart = Unit()
    parameters = always(concentration=positive_parameter(4.0), mean=Parameter((), constraints.unit_interval))

    def _both(self, params: Params) -> tuple[Array, Array]:
        total = jnp.exp(params["concentration"])
        return total * sigmoid(params["mean"]), total * sigmoid(-params["mean"])

    def sample(self, params, address):
        both = jnp.stack(self._both(params))
        draws = jax.vmap(lambda a, i: log_gamma(address, a, part=i))(both, jnp.arange(2, dtype=jnp.uint32))
        return draws[0] - draws[1]

    def log_prob(self, params, coordinates):
        a, b = self._both(params)
        normaliser = lgamma(a + b) - lgamma(a) - lgamma(b)
        return normaliser - (a - 1) * softplus(-coordinates) - (b - 1) * softplus(coordinates)

    def _log_concentrations(self, params):
        return params["concentration"] + log_sigmoid(jnp.stack([params["mean"], -params["mean"]]))

    def _from_log(self, log_concentrations):
        return {"concentration": logsumexp(log_concentrations), "mean": log_concentrations[0] - log_concentrations[1]}

    def centred(self, value):
        return {"concentration": jnp.full_like(value, 4.0), "mean": value}

    def marginals(self, params):
        a, b = self._both(params)
        return scipy.stats.beta(np.asarray(a, np.float64), np.asarray(b, np.float64))


class Dirichlet(AbstractShares):
    """Dirichlet over k categories by its mean and total concentration; draws are held as log z.

    One vector is one factor of q.
    """

    chart: Any = eqx.field(converter=Simplex)

    def parameters(self):
        mean = Parameter(self.chart.shape, constraints.simplex)
        return {"concentration": positive_parameter(2.0 * self.chart.k), "mean": mean}

    def _concentrations(self, params: Params) -> Array:
        return jnp.exp(self._log_concentrations(params))

    def sample(self, params, address):
        a = self._concentrations(params)
        draws = mark(jax.vmap(lambda a_i, i: log_gamma(address, a_i, part=i))(a, jnp.arange(len(a), dtype=jnp.uint32)))
        return draws - logsumexp(draws)

    def log_prob(self, params, coordinates):
        a = self._concentrations(params)
        return ((a - 1) * coordinates - lgamma(a)).sum() + lgamma(a.sum())

    def _log_concentrations(self, params):
        # logits of the share that each category takes of what the ones before have left
        logits = jnp.asarray(params["mean"]) - self._left()
        ends = [(0, 0)] * (logits.ndim - 1)
        left = jnp.pad(jnp.cumsum(log_sigmoid(-logits), axis=-1), [*ends, (1, 0)])
        return params["concentration"][..., None] + left + jnp.pad(log_sigmoid(logits), [*ends, (0, 1)])

    def _from_log(self, log_concentrations):
        after = jax.lax.cumlogsumexp(log_concentrations, reverse=True)
        return {"concentration": after[0], "mean": log_concentrations[:-1] - after[1:] + self._left()}

    def _left(self) -> np.ndarray:
        return np.log(np.arange(self.chart.k - 1, 0, -1))

    def centred(self, value):
        return {"concentration": jnp.full(value.shape[:-1], 2.0 * self.chart.k), "mean": value}

    def marginals(self, params):
        a = np.asarray(self._concentrations(params), np.float64)
        total = a.sum(-1, keepdims=True)
        std = np.sqrt(a * (total - a) / (total**2 * (total + 1)))
        return marginal(a / total, std, lambda p: scipy.stats.beta(a, total - a).ppf(p))
