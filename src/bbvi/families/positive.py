"""Families on the positive numbers, drawn in log space, where nothing underflows."""

import jax.numpy as jnp
import numpy as np
import scipy  # of which scipy.stats, slow to import, is imported when first used

from bbvi.families.abstract import AbstractFamily
from bbvi.families.charts import Positive
from bbvi.families.gamma import Gamma
from bbvi.families.law import always, positive_parameter
from bbvi.numerics.samplers import standard_exponential, standard_normal

_HALF_LOG_HALF_PI = 0.5 * np.log(np.pi / 2)


class HalfNormal(AbstractFamily):
    """The absolute value of a Normal around 0."""

    chart = Positive()
    parameters = always(scale=positive_parameter())

    def sample(self, params, address):
        return params["scale"] + jnp.log(jnp.abs(standard_normal(address)))

    def log_prob(self, params, coordinates):
        return -0.5 * jnp.exp(2 * (coordinates - params["scale"])) - params["scale"] - _HALF_LOG_HALF_PI

    def information(self, params):
        return {"scale": jnp.full_like(params["scale"], 2.0)}

    def centred(self, value):
        return {"scale": value}

    def frozen(self, values):
        return scipy.stats.halfnorm(scale=values["scale"])


class Exponential(AbstractFamily):
    """Exponential by its rate."""

    chart = Positive()
    parameters = always(rate=positive_parameter())

    def sample(self, params, address):
        return jnp.log(standard_exponential(address)) - params["rate"]

    def log_prob(self, params, coordinates):
        return params["rate"] - jnp.exp(coordinates + params["rate"])

    def information(self, params):
        return {"rate": jnp.ones_like(params["rate"])}

    def centred(self, value):
        return {"rate": 1 / value}

    def frozen(self, values):
        return scipy.stats.expon(scale=1 / values["rate"])


class Weibull(AbstractFamily):
    """Weibull, a power of an exponential, by scale and concentration."""

    chart = Positive()
    parameters = always(concentration=positive_parameter(2.0), scale=positive_parameter())

    def sample(self, params, address):
        return params["scale"] + jnp.exp(-params["concentration"]) * jnp.log(standard_exponential(address))

    def log_prob(self, params, coordinates):
        log_exponential = jnp.exp(params["concentration"]) * (coordinates - params["scale"])
        return params["concentration"] + log_exponential - jnp.exp(log_exponential) - coordinates

    def centred(self, value):
        return {"scale": value}

    def frozen(self, values):
        return scipy.stats.weibull_min(values["concentration"], scale=values["scale"])


class InverseGamma(AbstractFamily):
    """The inverse of a gamma, by concentration and harmonic mean, 1 / E[1/z] = rate / concentration.

    In these two the Fisher information is diagonal, as it is for `Gamma` in concentration and mean.
    """

    chart = Positive()
    parameters = always(concentration=positive_parameter(4.0), harmonic_mean=positive_parameter())

    def _of_inverse(self, params):
        return {"concentration": params["concentration"], "mean": -params["harmonic_mean"]}

    def sample(self, params, address):
        return -Gamma().sample(self._of_inverse(params), address)

    def log_prob(self, params, coordinates):
        return Gamma().log_prob(self._of_inverse(params), -coordinates) - 2 * coordinates

    def information(self, params):
        of_inverse = Gamma().information(self._of_inverse(params))
        return {"concentration": of_inverse["concentration"], "harmonic_mean": of_inverse["mean"]}

    def centred(self, value):
        return {"harmonic_mean": value}

    def frozen(self, values):
        a = values["concentration"]
        return scipy.stats.invgamma(a, scale=a * values["harmonic_mean"])
