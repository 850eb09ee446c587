"""Families of counts beside the Poisson."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy  # of which scipy.stats, slow to import, is imported when first used
from jax.nn import sigmoid, softplus
from jaxtyping import Array

from bbvi.families.abstract import AbstractFamily
from bbvi.families.charts import Counts, smallest
from bbvi.families.discrete import AbstractLogit, Poisson
from bbvi.families.law import always, positive_parameter
from bbvi.numerics.samplers import log_gamma, standard_exponential
from bbvi.numerics.special import lgamma, polynomial

_MANY = 10.0  # concentrations from which Stirling's series is exact
_STIRLING = (1 / 12, -1 / 360, 1 / 1260)


class Geometric(AbstractLogit):
    """The failures before the first success, whose probability is given by its logit: an exponential rounded down."""

    chart = Counts()

    def sample(self, params, address):
        return jnp.floor(standard_exponential(address) / softplus(params["logits"])).astype(int)

    def log_prob(self, params, coordinates):
        return -coordinates * softplus(params["logits"]) - softplus(-params["logits"])

    def information(self, params):
        failure = sigmoid(-params["logits"])
        return {"logits": jnp.maximum(failure, smallest(failure))}

    def centred(self, value):
        return {"logits": -jnp.log(jnp.maximum(value, 0.5))}

    def frozen(self, values):
        return scipy.stats.geom(1 / (1 + np.exp(-values["logits"])), loc=-1)


class NegativeBinomial(AbstractFamily):
    """Negative binomial by mean and concentration: a Poisson whose rate is a gamma of these.

    In these two the Fisher information is diagonal. At a large concentration it is a Poisson.
    """

    chart = Counts()
    parameters = always(concentration=positive_parameter(4.0), mean=positive_parameter())

    def sample(self, params, address):
        concentration = jnp.exp(params["concentration"])
        log_rate = log_gamma(address, concentration, part=1) - params["concentration"] + params["mean"]
        return Poisson().sample({"rate": log_rate}, address)

    def log_prob(self, params, coordinates):
        z, log_c, log_m = coordinates * 1.0, params["concentration"], params["mean"]
        c = jnp.exp(log_c)
        few = lgamma(z + jnp.minimum(c, _MANY)) - lgamma(jnp.minimum(c, _MANY)) - z * log_c
        found = jnp.where(c < _MANY, few, _log_rising(z, jnp.maximum(c, _MANY)))
        return found + z * log_m - (z + c) * softplus(log_m - log_c) - lgamma(z + 1)

    def centred(self, value):
        return {"mean": jnp.maximum(value, 0.5)}

    def frozen(self, values):
        c = values["concentration"]
        return scipy.stats.nbinom(c, c / (c + values["mean"]))


def _log_rising(z: Array, c: Array) -> Array:
    """Return log of Gamma(z + c) / Gamma(c) / c**z by Stirling's series: a difference of two lgamma would lose its digits."""
    rest = [polynomial(1 / x**2, _STIRLING) / x for x in (z + c, c)]
    return (z + c - 0.5) * jnp.log1p(z / c) - z + rest[0] - rest[1]


class Binomial(AbstractLogit):
    """Binomial of `chart.top` trials by its logit: drawn by inversion, from the sums of its probabilities."""

    chart: Any = eqx.field(converter=Counts)

    def sample(self, params, address):
        log_p = jax.vmap(lambda z: self.log_prob(params, z))(self.chart.values())
        cumulative = jnp.cumsum(jnp.exp(log_p))
        return (address.uniform() * cumulative[-1] >= cumulative[:-1]).sum().astype(int)

    def log_prob(self, params, coordinates):
        z, n = coordinates * 1.0, float(self.chart.top)
        choose = lgamma(jnp.asarray(n + 1)) - lgamma(z + 1) - lgamma(n - z + 1)
        return choose - z * softplus(-params["logits"]) - (n - z) * softplus(params["logits"])

    def centred(self, value):
        return {"logits": jnp.log(value + 0.5) - jnp.log(self.chart.top - value + 0.5)}

    def frozen(self, values):
        return scipy.stats.binom(self.chart.top, 1 / (1 + np.exp(-values["logits"])))
