"""Beta and Dirichlet, by their means and total concentrations."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy  # of which scipy.stats, slow to import, is imported when first used
from jax.nn import log_sigmoid, sigmoid
from jax.scipy.special import logsumexp
from jaxtyping import Array
from numpyro.distributions import constraints

from bbvi.families.abstract import AbstractFamily
from bbvi.families.charts import Simplex, Unit, marginal, smallest
from bbvi.families.law import Parameter, Params, always, positive_parameter
from bbvi.families.normal import HALF_LOG_TWO_PI
from bbvi.numerics.address import Address
from bbvi.numerics.samplers import log_gamma_ratio
from bbvi.numerics.special import by_slopes, divergence, exp_excess, stirling_rest, trigamma_excess
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


def _gamma_ratios(address: Address, concentrations: Array) -> Array:
    """Draw for each concentration a the logarithm of a Gamma(a, 1) over a."""
    parts = jnp.arange(len(concentrations), dtype=jnp.uint32)
    return jax.vmap(lambda a, i: log_gamma_ratio(address, a, part=i))(concentrations, parts)


def draw_shares(address: Address, log_mean: Array, log_total: Array) -> Array:
    """Draw log z for z of a Dirichlet."""
    draws = mark(log_mean + _gamma_ratios(address, jnp.exp(log_total + log_mean)))
    return draws - logsumexp(draws)


def log_shares(log_mean: Array, log_total: Array, log_z: Array) -> Array:
    """Return the log density of a Dirichlet at z.

    The logarithms of z / mean are small where concentrations a are large, and sum a log(z / mean) cancels: as both z and
    the means add up to 1, it is the sum of -a (z / mean - 1 - log(z / mean)), of which no two have different signs.
    """
    return _normaliser(log_mean, log_total) - (_deviance(log_mean, log_total, log_z) + log_z).sum()


@by_slopes(
    lambda log_mean, log_total, log_z: jnp.exp(log_total + log_mean) * (log_mean - log_z),
    lambda log_mean, log_total, log_z: jnp.exp(log_total + log_mean) * exp_excess(log_z - log_mean),
    lambda log_mean, log_total, log_z: jnp.exp(log_total + log_mean) * jnp.expm1(log_z - log_mean),
)
def _deviance(log_mean: Array, log_total: Array, log_z: Array) -> Array:
    return jnp.exp(log_total + log_mean) * exp_excess(log_z - log_mean)


def _normaliser(log_mean: Array, log_total: Array) -> Array:
    """Return log Gamma(total) less the sum of log Gamma(a), and of what makes deviances of a log z."""
    log_a = log_total + jnp.append(log_mean, 0)
    parts = log_a / 2 - HALF_LOG_TWO_PI - stirling_rest(jnp.maximum(jnp.exp(log_a), smallest(log_a)))
    return parts[:-1].sum() - parts[-1]


class Beta(AbstractShares):
    """Beta by its mean and total concentration; draws are held as logits, where neither end underflows."""

    chart = Unit()
    parameters = always(concentration=positive_parameter(4.0), mean=Parameter((), constraints.unit_interval))

    def _both(self, params: Params) -> tuple[Array, Array]:
        total = jnp.exp(params["concentration"])
        return total * sigmoid(params["mean"]), total * sigmoid(-params["mean"])

    def sample(self, params, address):
        ratios = _gamma_ratios(address, jnp.stack(self._both(params)))
        return params["mean"] + ratios[0] - ratios[1]

    def log_prob(self, params, coordinates):
        log_mean = log_sigmoid(jnp.stack([params["mean"], -params["mean"]]))
        of_total = jnp.exp(params["concentration"]) * divergence(params["mean"], coordinates)
        size = jnp.abs(coordinates)  # log z + log(1 - z) is -size - 2 log(1 + exp(-size))
        return _normaliser(log_mean, params["concentration"]) - of_total + size + 2 * jnp.log1p(jnp.exp(-size))

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

    def sample(self, params, address):
        return draw_shares(address, self._log_mean(params), params["concentration"])

    def log_prob(self, params, coordinates):
        return log_shares(self._log_mean(params), params["concentration"], coordinates)

    def _log_concentrations(self, params):
        return params["concentration"][..., None] + self._log_mean(params)

    def _log_mean(self, params: Params) -> Array:
        # logits of the share that each category takes of what the ones before have left
        logits = jnp.asarray(params["mean"]) - self._left()
        ends = [(0, 0)] * (logits.ndim - 1)
        left = jnp.pad(jnp.cumsum(log_sigmoid(-logits), axis=-1), [*ends, (1, 0)])
        return left + jnp.pad(log_sigmoid(logits), [*ends, (0, 1)])

    def _from_log(self, log_concentrations):
        after = jax.lax.cumlogsumexp(log_concentrations, reverse=True)
        return {"concentration": after[0], "mean": log_concentrations[:-1] - after[1:] + self._left()}

    def _left(self) -> np.ndarray:
        return np.log(np.arange(self.chart.k - 1, 0, -1))

    def centred(self, value):
        return {"concentration": jnp.full(value.shape[:-1], 2.0 * self.chart.k), "mean": value}

    def marginals(self, params):
        a = np.asarray(jnp.exp(self._log_concentrations(params)), np.float64)
        total = a.sum(-1, keepdims=True)
        std = np.sqrt(a * (total - a) / (total**2 * (total + 1)))
        return marginal(a / total, std, lambda p: scipy.stats.beta(a, total - a).ppf(p))
