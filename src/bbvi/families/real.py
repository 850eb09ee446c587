"""Families on the real line by location and scale, in which the Fisher information of a symmetric law is diagonal."""

import jax.numpy as jnp
import numpy as np
import scipy  # of which scipy.stats, slow to import, is imported when first used
from jax.nn import softplus
from jaxtyping import Array

from bbvi.families.abstract import AbstractFamily
from bbvi.families.charts import Real
from bbvi.families.law import Params, always, positive_parameter
from bbvi.families.normal import HALF_LOG_TWO_PI, location_and_scale
from bbvi.numerics.samplers import log_gamma_ratio, standard_normal
from bbvi.numerics.special import exp_excess, lgamma, quick_log

_MANY = 10.0  # degrees of freedom from which a series is exact
_SMALL = 0.25


def _standardised(params: Params, z: Array) -> Array:
    return (z - params["loc"]) * jnp.exp(-params["scale"])


class AbstractLocationScale(AbstractFamily):
    """A law on the real line that a location moves and a scale stretches."""

    chart = Real()
    parameters = always(**location_and_scale())

    def centred(self, value):
        return {"loc": value}


class Laplace(AbstractLocationScale):
    """Laplace: tails exp(-|x|), and a kink at the location."""

    def sample(self, params, address):
        u = address.uniform()
        tail = quick_log(2 * jnp.minimum(u, 1 - u))
        return params["loc"] + jnp.exp(params["scale"]) * jnp.where(u < 0.5, tail, -tail)

    def log_prob(self, params, coordinates):
        return -jnp.abs(_standardised(params, coordinates)) - params["scale"] - np.log(2.0)

    def information(self, params):
        return {"loc": jnp.exp(-2 * params["scale"]), "scale": jnp.ones_like(params["scale"])}

    def frozen(self, values):
        return scipy.stats.laplace(values["loc"], values["scale"])


class Logistic(AbstractLocationScale):
    """Logistic: tails exp(-|x|), smooth."""

    def sample(self, params, address):
        u = address.uniform()
        return params["loc"] + jnp.exp(params["scale"]) * (quick_log(u) - quick_log(1 - u))

    def log_prob(self, params, coordinates):
        x = _standardised(params, coordinates)
        return -x - 2 * softplus(-x) - params["scale"]

    def information(self, params):
        return {"loc": jnp.exp(-2 * params["scale"]) / 3, "scale": jnp.full_like(params["scale"], (3 + np.pi**2) / 9)}

    def frozen(self, values):
        return scipy.stats.logistic(values["loc"], values["scale"])


class StudentT(AbstractLocationScale):
    """Student's t, a Normal of random precision: drawn from a Normal and a gamma, both by inversion.

    It starts at 10 degrees of freedom: at 2 and below, the ELBO of a target with Normal tails is not finite.
    """

    parameters = always(df=positive_parameter(10.0), **location_and_scale())

    def sample(self, params, address):
        log_precision = log_gamma_ratio(address, jnp.exp(params["df"]) / 2, part=1)
        return params["loc"] + jnp.exp(params["scale"] - log_precision / 2) * standard_normal(address)

    def log_prob(self, params, coordinates):
        df, x = jnp.exp(params["df"]), _standardised(params, coordinates)
        y = x**2 / df
        kernel = (df + 1) / 2 * jnp.log1p(y)
        # at many degrees of freedom nearly x**2 / 2, which df is not to read: log(1 + y) is y less the excess
        few = jnp.where(y < _SMALL, y, 0)
        normal = (x**2 + few - (df + 1) * exp_excess(jnp.log1p(few))) / 2
        kernel = jnp.where(y < _SMALL, normal, kernel)
        return _log_ratio(df) - HALF_LOG_TWO_PI - kernel - params["scale"]

    def frozen(self, values):
        return scipy.stats.t(values["df"], values["loc"], values["scale"])


def _log_ratio(df: Array) -> Array:
    """Return log of Gamma((df + 1) / 2) / Gamma(df / 2) / sqrt(df / 2), which goes to 0: a difference would not."""
    few, many = jnp.minimum(df, _MANY), jnp.maximum(df, _MANY)
    series = -1 / (4 * many) + 1 / (24 * many**3) - 1 / (20 * many**5)
    difference = lgamma((few + 1) / 2) - lgamma(few / 2) - jnp.log(few / 2) / 2
    return jnp.where(df < _MANY, difference, series)
