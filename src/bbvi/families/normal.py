"""Normals, plain and pushed onto other supports."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpyro.distributions import constraints

from bbvi.families.abstract import AbstractFamily
from bbvi.families.charts import AbstractChart, Positive, Real
from bbvi.families.law import Parameter
from bbvi.numerics.address import Address
from bbvi.numerics.samplers import standard_normal

HALF_LOG_TWO_PI = 0.5 * np.log(2 * np.pi)


def location_and_scale(shape: tuple[int, ...] = ()) -> dict[str, Parameter]:
    """Describe a location and a scale, the latter fitted as its logarithm, for each entry of a factor."""
    each = {"loc": constraints.real, "scale": constraints.positive}
    return {p: Parameter(shape, constraints.independent(c, len(shape)) if shape else c) for p, c in each.items()}


def standard_normals(address: Address, shape: tuple[int, ...]) -> Array:
    """Draw the standard normals of one factor, each from a part of its address."""
    if not shape:
        return standard_normal(address)
    parts = jnp.arange(math.prod(shape), dtype=jnp.uint32)
    return jax.vmap(lambda part: standard_normal(address, part))(parts).reshape(shape)


class AbstractNormal(AbstractFamily):
    """A Normal for each coordinate of a chart."""

    def parameters(self):
        return location_and_scale(self.chart.coordinates_shape)

    def sample(self, params, address):
        return params["loc"] + jnp.exp(params["scale"]) * standard_normals(address, self.chart.coordinates_shape)

    def log_prob(self, params, coordinates):
        log_slope = self.chart.log_slope(coordinates)
        x = (coordinates - params["loc"]) * jnp.exp(-params["scale"])
        return (-0.5 * x**2 - params["scale"] - HALF_LOG_TWO_PI).sum() - jnp.sum(log_slope)

    def natural_gradient(self, params, gradient):
        # F is diagonal: exp(-2 scale) and 2
        return {"loc": jnp.exp(2 * params["scale"]) * gradient["loc"], "scale": gradient["scale"] / 2}

    def along(self, params, direction):
        # straight in loc / sd**2 and 1 / sd**2, without their cancellations
        ratio = 1 - 2 * direction["scale"]  # of the precisions
        return {"loc": params["loc"] + direction["loc"] / ratio, "scale": params["scale"] - 0.5 * jnp.log(ratio)}

    def centred(self, value):
        return {"loc": self.chart.coordinates(value), "scale": jnp.ones_like(value)}

    def marginals(self, params):
        return self.chart.of_normal(np.asarray(params["loc"]), np.asarray(params["scale"]))


class Normal(AbstractNormal):
    """Normal with its location and the logarithm of its scale."""

    chart = Real()


class LogNormal(AbstractNormal):
    """A positive latent whose logarithm, the coordinate, is Normal."""

    chart = Positive()

    def centred(self, value):
        return {"loc": jnp.log(value), "scale": jnp.full_like(value, 0.5)}


class TransformedNormal(AbstractNormal):
    """Normals pushed onto the support of any unconstrained chart: the default for intervals and ordered vectors.

    A vector is one factor of q.
    """

    chart: AbstractChart
