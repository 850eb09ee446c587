"""Families for binary, categorical and count latents."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy  # of which scipy.stats, slow to import, is imported when first used
from jax.nn import log_softmax, sigmoid, softmax, softplus
from jaxtyping import Array
from numpyro.distributions import constraints

from bbvi.families.abstract import AbstractFamily
from bbvi.families.charts import Binary, Categories, Counts, OneHotVectors, marginal, smallest
from bbvi.families.law import Parameter, always, positive_parameter
from bbvi.families.normal import HALF_LOG_TWO_PI
from bbvi.numerics.samplers import poisson
from bbvi.numerics.special import by_slopes, exp_excess, stirling_rest


def _indicator(p: np.ndarray) -> Any:
    """Return the marginals of what is 1 with probability p, and 0 otherwise."""
    return marginal(p, np.sqrt(p * (1 - p)), lambda level: p > 1 - level)


class AbstractLogit(AbstractFamily):
    """A family given by the logit of one probability."""

    parameters = always(logits=Parameter((), constraints.real))

    def information(self, params):
        variance = sigmoid(params["logits"]) * sigmoid(-params["logits"])
        return {"logits": self.chart.top * jnp.maximum(variance, smallest(variance))}  # type: ignore[attr-defined]


class Bernoulli(AbstractLogit):
    """Bernoulli by its logit."""

    chart = Binary()

    def sample(self, params, address):
        return (address.uniform() < sigmoid(params["logits"])).astype(int)

    def log_prob(self, params, coordinates):
        return -softplus(jnp.where(coordinates == 1, -1, 1) * params["logits"])

    def centred(self, value):
        return {"logits": jnp.where(value == 1, 2.0, -2.0)}

    def marginals(self, params):
        return _indicator(np.asarray(sigmoid(params["logits"])))


class AbstractCategories(AbstractFamily):
    """k categories by k logits."""

    def parameters(self):
        return {"logits": Parameter((self.chart.num_categories,), constraints.real_vector)}

    def natural_gradient(self, params, gradient):
        p = softmax(params["logits"])
        direction = gradient["logits"] / jnp.maximum(p, smallest(p))
        # F is blind to a shift of all logits: their mean stays
        return {"logits": direction - direction.mean()}


class Categorical(AbstractCategories):
    """Categorical over 0 .. k-1; category codes have no moments."""

    chart: Any = eqx.field(converter=Categories)

    def sample(self, params, address):
        cumulative = jnp.cumsum(softmax(params["logits"]))
        return (address.uniform() * cumulative[-1] >= cumulative[:-1]).sum().astype(int)

    def log_prob(self, params, coordinates):
        return jnp.where(jnp.arange(self.chart.k) == coordinates, log_softmax(params["logits"]), 0).sum()

    def centred(self, value):
        return {"logits": jnp.where(jnp.arange(self.chart.k) == value[..., None], 2.0, 0.0)}


class OneHot(AbstractCategories):
    """Categorical over k values; a value is a vector of k integers, and one factor of q."""

    chart: Any = eqx.field(converter=OneHotVectors)

    def sample(self, params, address):
        return jax.nn.one_hot(Categorical(self.chart.k).sample(params, address), self.chart.k, dtype=int)

    def log_prob(self, params, coordinates):
        return jnp.where(coordinates == 1, log_softmax(params["logits"]), 0).sum()

    def centred(self, value):
        return {"logits": jnp.where(value == 1, 2.0, 0.0)}

    def marginals(self, params):
        return _indicator(np.asarray(softmax(params["logits"])))


@by_slopes(lambda log_rate, k: jnp.exp(log_rate) - k, lambda log_rate, k: jnp.log(k) - log_rate)
def _deviance(log_rate: Array, k: Array) -> Array:
    """Return k log(k / rate) - (k - rate), by Stirling's formula the -log of a Poisson: next to a large rate nothing may cancel."""
    rate, some = jnp.exp(log_rate), jnp.maximum(k, 1)
    near = jnp.abs(some - rate) < rate / 2
    log_ratio = jnp.where(near, -jnp.log1p(jnp.where(near, (some - rate) / rate, 0)), log_rate - jnp.log(some))
    return jnp.where(k == 0, rate, some * exp_excess(log_ratio))


class Poisson(AbstractFamily):
    """Poisson by the logarithm of its rate."""

    chart = Counts()
    parameters = always(rate=positive_parameter())

    def sample(self, params, address):
        return poisson(address, params["rate"])

    def log_prob(self, params, coordinates):
        k = coordinates * 1.0
        some = jnp.maximum(k, 1)
        rest = jnp.log(some) / 2 + HALF_LOG_TWO_PI + stirling_rest(some)
        return -_deviance(params["rate"], k) - jnp.where(k == 0, 0, rest)

    def natural_gradient(self, params, gradient):
        return {"rate": gradient["rate"] * jnp.exp(-params["rate"])}

    def centred(self, value):
        return {"rate": jnp.maximum(value, 0.5)}

    def frozen(self, values):
        return scipy.stats.poisson(values["rate"])
