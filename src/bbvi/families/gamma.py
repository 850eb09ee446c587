"""Gammas by concentration and mean, and by mean and variance."""

import jax.numpy as jnp
import numpy as np
import scipy.special

from bbvi.families.abstract import AbstractFamily
from bbvi.families.charts import Positive, marginal, smallest
from bbvi.families.law import Params, always, positive_parameter
from bbvi.families.normal import HALF_LOG_TWO_PI
from bbvi.numerics.samplers import log_gamma_ratio
from bbvi.numerics.special import exp_excess, stirling_rest, trigamma_excess


class Gamma(AbstractFamily):
    """Gamma by concentration and mean, both on the log scale; draws are held as log z.

    In these two parameters the Fisher information is diagonal, so that a step in one does not undo a step
    in the other.
    """

    chart = Positive()
    parameters = always(concentration=positive_parameter(4.0), mean=positive_parameter())

    def sample(self, params, address):
        return params["mean"] + log_gamma_ratio(address, jnp.exp(params["concentration"]))

    def log_prob(self, params, coordinates):
        a = jnp.exp(params["concentration"])
        ratio = coordinates - params["mean"]  # log(z / mean), which is small where a is large: nothing may cancel
        return params["concentration"] / 2 - HALF_LOG_TWO_PI - stirling_rest(a) - a * exp_excess(ratio) - coordinates

    def information(self, params):
        a = jnp.maximum(jnp.exp(params["concentration"]), smallest(params["concentration"]))
        return {"concentration": a * trigamma_excess(a), "mean": a}

    def along(self, params, direction):
        # straight in concentration and rate: the logarithms of their ratios, new to old
        concentration = jnp.log1p(direction["concentration"])
        rate = jnp.log1p(direction["concentration"] - direction["mean"])
        return {"concentration": params["concentration"] + concentration, "mean": params["mean"] + concentration - rate}

    def centred(self, value):
        return {"concentration": jnp.full_like(value, 4.0), "mean": value}

    def frozen(self, values):
        a, mean = values["concentration"], values["mean"]
        return marginal(mean, mean / np.sqrt(a), lambda p: scipy.special.gammaincinv(a, p) * mean / a)


class GammaByVariance(AbstractFamily):
    """Gamma by mean and variance, the supplement's parameterisation, both on the log scale."""

    chart = Positive()
    parameters = always(mean=positive_parameter(), variance=positive_parameter(0.25))

    def sample(self, params, address):
        return Gamma().sample(_by_concentration(params), address)

    def log_prob(self, params, coordinates):
        return Gamma().log_prob(_by_concentration(params), coordinates)

    def natural_gradient(self, params, gradient):
        # the gradient in log concentration and log mean, and back
        there = {"concentration": -gradient["variance"], "mean": gradient["mean"] + 2 * gradient["variance"]}
        return _by_variance(Gamma().natural_gradient(_by_concentration(params), there))

    def along(self, params, direction):
        return _by_variance(Gamma().along(_by_concentration(params), _by_concentration(direction)))

    def centred(self, value):
        return {"mean": value, "variance": value**2 / 4}

    def marginals(self, params):
        return Gamma().marginals(_by_concentration(params))


def _by_concentration(params: Params) -> Params:
    return {"mean": params["mean"], "concentration": 2 * params["mean"] - params["variance"]}


def _by_variance(params: Params) -> Params:
    return {"mean": params["mean"], "variance": 2 * params["mean"] - params["concentration"]}
