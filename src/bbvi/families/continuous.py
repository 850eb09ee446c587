"""Families for real, positive and bounded latents."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
import scipy.stats
from jax.nn import sigmoid, softplus
from jax.scipy.special import gammaln, logsumexp
from jaxtyping import Array
from numpyro.distributions import biject_to, constraints

from bbvi.counter import Address
from bbvi.families.abstract import AbstractFamily, Parameter, Params, constrain
from bbvi.samplers import log_gamma, standard_normal

_HALF_LOG_TWO_PI = 0.5 * np.log(2 * np.pi)


def _tiny(x: Array) -> Any:
    return jnp.finfo(jnp.result_type(x)).tiny


def _log_tiny(x: Array) -> float:
    return float(np.log(jnp.finfo(jnp.result_type(x)).tiny))


def _normal_parameters(shape: tuple[int, ...] = ()) -> dict[str, Parameter]:
    scale = constraints.independent(constraints.positive, len(shape)) if shape else constraints.positive
    loc = constraints.independent(constraints.real, len(shape)) if shape else constraints.real
    return {"loc": Parameter(shape, loc), "scale": Parameter(shape, scale)}


def _normal_log_prob(params: Params, u: Array) -> Array:
    return -0.5 * ((u - params["loc"]) * jnp.exp(-params["scale"])) ** 2 - params["scale"] - _HALF_LOG_TWO_PI


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
        size = int(np.prod(self.shape))
        elements = address.element * jnp.uint32(size) + jnp.arange(size, dtype=jnp.uint32)
        noise = jax.vmap(lambda e: standard_normal(Address(address.key, address.group, e, address.sample)))(elements)
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
        return jnp.maximum(jnp.exp(coordinates), _tiny(coordinates))

    def coordinates(self, value):
        return jnp.log(value)

    def floored(self, coordinates):
        return coordinates < _log_tiny(coordinates)

    def log_prob(self, params, coordinates):
        return _normal_log_prob(params, coordinates) - coordinates

    def centred(self, value):
        return {"loc": jnp.log(value), "scale": jnp.full_like(value, 0.5)}

    def moments(self, params):
        loc, variance = np.asarray(params["loc"]), np.exp(2 * np.asarray(params["scale"]))
        mean = np.exp(loc + variance / 2)
        return mean, mean * np.sqrt(np.expm1(variance))

    def quantile(self, params, p):
        return np.exp(np.asarray(params["loc"]) + np.exp(np.asarray(params["scale"])) * scipy.special.ndtri(p))


def _gamma_log_prob(log_concentration: Array, log_mean: Array, log_z: Array) -> Array:
    a = jnp.exp(log_concentration)
    shifted = log_z - log_mean  # log(z / mean): the density of z / mean has no other scale in it
    return a * (log_concentration + shifted - jnp.exp(shifted)) - log_z - gammaln(a)


class Gamma(AbstractFamily):
    """Gamma by concentration and mean, both on the log scale; draws are held as log z.

    In these two parameters the Fisher information is diagonal, so that a step in one does not undo a step
    in the other.
    """

    def event_shape(self):
        return ()

    def support(self):
        return constraints.positive

    def is_discrete(self):
        return False

    def parameters(self):
        return {
            "concentration": Parameter((), constraints.positive, start=float(np.log(4.0))),
            "mean": Parameter((), constraints.positive),
        }

    def sample(self, params, address: Address):
        concentration = jnp.exp(params["concentration"])
        return log_gamma(address, concentration) - params["concentration"] + params["mean"]

    def value(self, coordinates):
        return jnp.maximum(jnp.exp(coordinates), _tiny(coordinates))

    def coordinates(self, value):
        return jnp.log(value)

    def floored(self, coordinates):
        return coordinates < _log_tiny(coordinates)

    def log_prob(self, params, coordinates):
        return _gamma_log_prob(params["concentration"], params["mean"], coordinates)

    def centred(self, value):
        return {"concentration": jnp.full_like(value, 4.0), "mean": value}

    def moments(self, params):
        values = {k: np.asarray(v, np.float64) for k, v in constrain(self, params).items()}
        return values["mean"], values["mean"] / np.sqrt(values["concentration"])

    def quantile(self, params, p):
        a, mean = (np.asarray(constrain(self, params)[k], np.float64) for k in ("concentration", "mean"))
        return scipy.special.gammaincinv(a, p) * mean / a


class GammaByVariance(AbstractFamily):
    """Gamma by mean and variance, the supplement's parameterisation, both on the log scale."""

    def event_shape(self):
        return ()

    def support(self):
        return constraints.positive

    def is_discrete(self):
        return False

    def parameters(self):
        return {
            "mean": Parameter((), constraints.positive),
            "variance": Parameter((), constraints.positive, start=float(np.log(0.25))),
        }

    def sample(self, params, address: Address):
        return Gamma().sample(_by_concentration(params), address)

    def value(self, coordinates):
        return Gamma().value(coordinates)

    def coordinates(self, value):
        return jnp.log(value)

    def floored(self, coordinates):
        return Gamma().floored(coordinates)

    def log_prob(self, params, coordinates):
        return Gamma().log_prob(_by_concentration(params), coordinates)

    def centred(self, value):
        return {"mean": value, "variance": value**2 / 4}

    def moments(self, params):
        return Gamma().moments(_by_concentration(params))

    def quantile(self, params, p):
        return Gamma().quantile(_by_concentration(params), p)


def _by_concentration(params: Params) -> Params:
    return {"mean": params["mean"], "concentration": 2 * params["mean"] - params["variance"]}


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
        return (z < _tiny(z)) | (z == 1)

    def log_prob(self, params, coordinates):
        a, b = self._both(params)
        normaliser = gammaln(a + b) - gammaln(a) - gammaln(b)
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
        return jnp.maximum(jnp.exp(coordinates), _tiny(coordinates))

    def coordinates(self, value):
        return jnp.log(value)

    def floored(self, coordinates):
        return jnp.any(coordinates < _log_tiny(coordinates), axis=-1)

    def log_prob(self, params, coordinates):
        a = self._concentrations(params)
        return ((a - 1) * coordinates - gammaln(a)).sum() + gammaln(a.sum())

    def centred(self, value):
        return {"concentration": jnp.full(value.shape[:-1], 2.0 * self.k), "mean": value}

    def moments(self, params):
        a = np.asarray(self._concentrations(params), np.float64)
        total = a.sum(-1, keepdims=True)
        return a / total, np.sqrt(a * (total - a) / (total**2 * (total + 1)))

    def quantile(self, params, p):
        a = np.asarray(self._concentrations(params), np.float64)
        return scipy.stats.beta(a, a.sum(-1, keepdims=True) - a).ppf(p)
