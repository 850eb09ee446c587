"""Beta and Dirichlet, by their means and total concentrations."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from jax.nn import sigmoid, softplus
from jax.scipy.special import logsumexp
from jaxtyping import Array
from numpyro.distributions import constraints

from bbvi.counter import Address
from bbvi.families.abstract import AbstractFamily, Parameter, Params, constrain, log_smallest, smallest
from bbvi.samplers import log_gamma
from bbvi.special import lgamma


class Beta(AbstractFamily):
    """Beta by its mean and total concentration; draws are held as logits, where neither end underflows."""

    def event_shape(self):
        return ()

    def support(self):
        return constraints.unit_interval

    def is_discrete(self):
        return False

    def parameters(self):
        return {
            "concentration": Parameter((), constraints.positive, start=float(np.log(4.0))),
            "mean": Parameter((), constraints.unit_interval),
        }

    def _both(self, params: Params) -> tuple[Array, Array]:
        total = jnp.exp(params["concentration"])
        return total * sigmoid(params["mean"]), total * sigmoid(-params["mean"])

    def sample(self, params, address: Address):
        both = jnp.stack(self._both(params))
        draws = jax.vmap(lambda a, i: log_gamma(address, a, part=i))(both, jnp.arange(2, dtype=jnp.uint32))
        return draws[0] - draws[1]

    def value(self, coordinates):
        dtype = jnp.finfo(jnp.result_type(coordinates))
        return jnp.clip(sigmoid(coordinates), dtype.tiny, 1 - dtype.epsneg)

    def coordinates(self, value):
        return jnp.log(value) - jnp.log1p(-value)

    def floored(self, coordinates):
        z = sigmoid(coordinates)
        return (z < smallest(z)) | (z == 1)

    def log_prob(self, params, coordinates):
        a, b = self._both(params)
        normaliser = lgamma(a + b) - lgamma(a) - lgamma(b)
        return normaliser - (a - 1) * softplus(-coordinates) - (b - 1) * softplus(coordinates)

    def centred(self, value):
        return {"concentration": jnp.full_like(value, 4.0), "mean": value}

    def _frozen(self, params):
        a, b = self._both(params)
        return scipy.stats.beta(np.asarray(a, np.float64), np.asarray(b, np.float64))

    def moments(self, params):
        frozen = self._frozen(params)
        return frozen.mean(), frozen.std()

    def quantile(self, params, p):
        return self._frozen(params).ppf(p)


class Dirichlet(AbstractFamily):
    """Dirichlet over k categories by its mean and total concentration; draws are held as log z.

    One vector is one factor of q.
    """

    k: int

    def event_shape(self):
        return (self.k,)

    def support(self):
        return constraints.simplex

    def is_discrete(self):
        return False

    def parameters(self):
        return {
            "concentration": Parameter((), constraints.positive, start=float(np.log(2.0 * self.k))),
            "mean": Parameter((self.k,), constraints.simplex),
        }

    def _concentrations(self, params: Params) -> Array:
        values = constrain(self, params)
        return values["concentration"][..., None] * values["mean"]

    def sample(self, params, address: Address):
        a = self._concentrations(params)
        draws = jax.vmap(lambda a_i, i: log_gamma(address, a_i, part=i))(a, jnp.arange(self.k, dtype=jnp.uint32))
        return draws - logsumexp(draws)

    def value(self, coordinates):
        return jnp.maximum(jnp.exp(coordinates), smallest(coordinates))

    def log_value(self, coordinates):
        return coordinates

    def coordinates(self, value):
        return jnp.log(value)

    def floored(self, coordinates):
        return jnp.any(coordinates < log_smallest(coordinates), axis=-1)

    def log_prob(self, params, coordinates):
        a = self._concentrations(params)
        return ((a - 1) * coordinates - lgamma(a)).sum() + lgamma(a.sum())

    def centred(self, value):
        return {"concentration": jnp.full(value.shape[:-1], 2.0 * self.k), "mean": value}

    def moments(self, params):
        a = np.asarray(self._concentrations(params), np.float64)
        total = a.sum(-1, keepdims=True)
        return a / total, np.sqrt(a * (total - a) / (total**2 * (total + 1)))

    def quantile(self, params, p):
        a = np.asarray(self._concentrations(params), np.float64)
        return scipy.stats.beta(a, a.sum(-1, keepdims=True) - a).ppf(p)
