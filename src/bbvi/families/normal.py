"""Normals, plain and pushed onto other supports."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jaxtyping import Array
from numpyro.distributions import biject_to, constraints

from bbvi.families.abstract import AbstractFamily, Parameter, Params, log_smallest, smallest
from bbvi.numerics.address import Address
from bbvi.numerics.samplers import standard_normal

_HALF_LOG_TWO_PI = 0.5 * np.log(2 * np.pi)


def _normal_parameters(shape: tuple[int, ...] = ()) -> dict[str, Parameter]:
    scale = constraints.independent(constraints.positive, len(shape)) if shape else constraints.positive
    loc = constraints.independent(constraints.real, len(shape)) if shape else constraints.real
    return {"loc": Parameter(shape, loc), "scale": Parameter(shape, scale)}


def _normal_log_prob(params: Params, u: Array) -> Array:
    return -0.5 * ((u - params["loc"]) * jnp.exp(-params["scale"])) ** 2 - params["scale"] - _HALF_LOG_TWO_PI


def _normal_natural_gradient(params: Params, gradient: Params) -> Params:
    # F is diagonal: exp(-2 scale) and 2
    return {"loc": jnp.exp(2 * params["scale"]) * gradient["loc"], "scale": gradient["scale"] / 2}


def _normal_along(params: Params, direction: Params) -> Params:
    # straight in loc / sd**2 and 1 / sd**2, without their cancellations
    ratio = 1 - 2 * direction["scale"]  # of the precisions
    return {"loc": params["loc"] + direction["loc"] / ratio, "scale": params["scale"] - 0.5 * jnp.log(ratio)}


class Normal(AbstractFamily):
    """Normal with its location and the logarithm of its scale."""

    def event_shape(self):
        return ()

    def support(self):
        return constraints.real

    def is_discrete(self):
        return False

    def parameters(self):
        return _normal_parameters()

    def sample(self, params, address: Address):
        return params["loc"] + jnp.exp(params["scale"]) * standard_normal(address)

    def value(self, coordinates):
        return coordinates

    def coordinates(self, value):
        return value

    def floored(self, coordinates):
        return jnp.zeros(jnp.shape(coordinates), bool)

    def log_prob(self, params, coordinates):
        return _normal_log_prob(params, coordinates)

    def natural_gradient(self, params, gradient):
        return _normal_natural_gradient(params, gradient)

    def along(self, params, direction):
        return _normal_along(params, direction)

    def centred(self, value):
        return {"loc": value, "scale": jnp.ones_like(value)}

    def moments(self, params):
        return np.asarray(params["loc"]), np.exp(np.asarray(params["scale"]))

    def quantile(self, params, p):
        mean, sd = self.moments(params)
        return mean + sd * scipy.special.ndtri(p)


class TransformedNormal(AbstractFamily):
    """Normals pushed onto a support by its bijection: the default for intervals and ordered vectors.

    Over a vector support the whole vector is one factor of q.
    """

    target: constraints.Constraint
    shape: tuple[int, ...] = ()

    def event_shape(self):
        return self.shape

    def support(self):
        return self.target

    def is_discrete(self):
        return False

    def parameters(self):
        return _normal_parameters(self.shape)

    def sample(self, params, address: Address):
        parts = jnp.arange(int(np.prod(self.shape)), dtype=jnp.uint32)
        noise = jax.vmap(lambda part: standard_normal(address, part))(parts)
        return params["loc"] + jnp.exp(params["scale"]) * noise.reshape(self.shape)

    def value(self, coordinates):
        return biject_to(self.target)(coordinates)

    def coordinates(self, value):
        return biject_to(self.target).inv(value)

    def floored(self, coordinates):
        return jnp.zeros(jnp.shape(coordinates)[: jnp.ndim(coordinates) - len(self.shape)], bool)

    def log_prob(self, params, coordinates):
        transform = biject_to(self.target)
        jacobian = transform.log_abs_det_jacobian(coordinates, transform(coordinates))
        return _normal_log_prob(params, coordinates).sum() - jnp.sum(jacobian)

    def natural_gradient(self, params, gradient):
        return _normal_natural_gradient(params, gradient)

    def along(self, params, direction):
        return _normal_along(params, direction)

    def centred(self, value):
        return {"loc": self.coordinates(value), "scale": jnp.ones_like(value)}

    def moments(self, params):
        if self.shape:
            return None
        nodes, weights = np.polynomial.hermite_e.hermegauss(64)
        weights = weights / weights.sum()
        loc, scale = np.asarray(params["loc"]), np.exp(np.asarray(params["scale"]))
        values = np.asarray(self.value(jnp.asarray(loc[..., None] + scale[..., None] * nodes)))
        mean = (values * weights).sum(-1)
        return mean, np.sqrt((weights * (values - mean[..., None]) ** 2).sum(-1))

    def quantile(self, params, p):
        if self.shape:
            return None
        z = np.asarray(params["loc"]) + np.exp(np.asarray(params["scale"])) * scipy.special.ndtri(p)
        return np.asarray(self.value(jnp.asarray(z)))


class LogNormal(AbstractFamily):
    """A positive latent whose logarithm, the coordinate, is Normal."""

    def event_shape(self):
        return ()

    def support(self):
        return constraints.positive

    def is_discrete(self):
        return False

    def parameters(self):
        return _normal_parameters()

    def sample(self, params, address: Address):
        return params["loc"] + jnp.exp(params["scale"]) * standard_normal(address)

    def value(self, coordinates):
        return jnp.maximum(jnp.exp(coordinates), smallest(coordinates))

    def log_value(self, coordinates):
        return coordinates

    def coordinates(self, value):
        return jnp.log(value)

    def floored(self, coordinates):
        return coordinates < log_smallest(coordinates)

    def log_prob(self, params, coordinates):
        return _normal_log_prob(params, coordinates) - coordinates

    def natural_gradient(self, params, gradient):
        return _normal_natural_gradient(params, gradient)

    def along(self, params, direction):
        return _normal_along(params, direction)

    def centred(self, value):
        return {"loc": jnp.log(value), "scale": jnp.full_like(value, 0.5)}

    def moments(self, params):
        loc, variance = np.asarray(params["loc"]), np.exp(2 * np.asarray(params["scale"]))
        mean = np.exp(loc + variance / 2)
        return mean, mean * np.sqrt(np.expm1(variance))

    def quantile(self, params, p):
        return np.exp(np.asarray(params["loc"]) + np.exp(np.asarray(params["scale"])) * scipy.special.ndtri(p))
