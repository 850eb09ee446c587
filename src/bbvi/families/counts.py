"""Families of counts beside the Poisson."""

from collections.abc import Callable
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
from bbvi.families.normal import HALF_LOG_TWO_PI
from bbvi.numerics.samplers import log_gamma_ratio, standard_exponential
from bbvi.numerics.special import exp_excess, lgamma, stirling_rest


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
        ratio = log_gamma_ratio(address, jnp.exp(params["concentration"]), part=1)
        return Poisson().sample({"rate": params["mean"] + ratio}, address)

    def log_prob(self, params, coordinates):
        # Loader's (2000) form of it, as a binomial of c among z + c: Stirling's formula, and deviances in logarithms of
        # ratios, from differences where they are next to 1
        z, log_c, log_m = jnp.maximum(coordinates, 1) * 1.0, params["concentration"], params["mean"]
        c, m, odds = jnp.exp(log_c), jnp.exp(log_m), jnp.exp(log_m - log_c)
        beyond = (z - m) / (1 + odds)
        of_c = _log_one_plus(beyond / c, lambda: jnp.log((z + c) / (m + c)))
        of_z = _log_one_plus(-beyond / z, lambda: log_m - jnp.log(z) + jnp.log1p(z / c) - jnp.log1p(odds))
        rests = stirling_rest(z + c) - stirling_rest(c) - stirling_rest(z) - (jnp.log1p(z / c) + jnp.log(z)) / 2
        some = rests - HALF_LOG_TWO_PI - c * exp_excess(of_c) - z * exp_excess(of_z)
        small = jnp.where(odds < 0.5, odds, 0)
        none = jnp.where(odds < 0.5, c * exp_excess(jnp.log1p(small)) - m, -c * softplus(log_m - log_c))
        return jnp.where(coordinates == 0, none, some)

    def centred(self, value):
        return {"mean": jnp.maximum(value, 0.5)}

    def frozen(self, values):
        c = values["concentration"]
        return scipy.stats.nbinom(c, c / (c + values["mean"]))


def _log_one_plus(x: Array, otherwise: Callable[[], Array]) -> Array:
    """Return log(1 + x), from what is computed otherwise where x is next to -1."""
    near = x > -0.5
    return jnp.where(near, jnp.log1p(jnp.where(near, x, 0)), otherwise())


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
