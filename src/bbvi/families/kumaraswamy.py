"""The law of Kumaraswamy (1980) on the unit interval, like a Beta but with a closed quantile function."""

import jax.numpy as jnp
import numpy as np
import scipy.special
from jax.nn import softplus
from jaxtyping import Array

from bbvi.families.abstract import AbstractFamily
from bbvi.families.charts import Unit, marginal
from bbvi.families.law import always, positive_parameter
from bbvi.numerics.samplers import standard_exponential

_SMALL, _LARGE = -8.0, 15.0


class Kumaraswamy(AbstractFamily):
    """P(Z < z) = 1 - (1 - z**a)**b, with a = `concentration1` and b = `concentration0`; draws are held as logits."""

    chart = Unit()
    parameters = always(concentration0=positive_parameter(), concentration1=positive_parameter())

    def sample(self, params, address):
        log_t = jnp.log(standard_exponential(address)) - params["concentration0"]  # z**a = 1 - exp(-t)
        log_s = _log_other(log_t) - params["concentration1"]  # z = exp(-s)
        return _other(log_s) - jnp.exp(log_s)

    def log_prob(self, params, coordinates):
        near_one = coordinates > _LARGE
        s = softplus(-coordinates)
        log_s = jnp.where(near_one, -coordinates, jnp.log(softplus(-jnp.where(near_one, 0, coordinates))))
        log_a, log_b = params["concentration1"], params["concentration0"]
        return log_a + log_b - jnp.expm1(log_a) * s - jnp.expm1(log_b) * _other(log_a + log_s)

    def centred(self, value):
        b = jnp.full_like(value, 2.0)
        return {"concentration0": b, "concentration1": jnp.log(-jnp.expm1(-np.log(2) / b)) / jnp.log(value)}

    def frozen(self, values):
        a, b = values["concentration1"], values["concentration0"]
        mean, mean_of_square = (b * scipy.special.beta(1 + n / a, b) for n in (1, 2))
        std = np.sqrt(mean_of_square - mean**2)
        return marginal(mean, std, lambda p: (-np.expm1(np.log1p(-p) / b)) ** (1 / a))


def _other(log_s: Array) -> Array:
    """Return -log(1 - exp(-s))."""
    small = log_s < _SMALL
    s, inside = jnp.exp(log_s), jnp.exp(jnp.where(small, 0, log_s))
    return jnp.where(small, s / 2 - s**2 / 24 - log_s, -jnp.log(-jnp.expm1(-inside)))


def _log_other(log_s: Array) -> Array:
    """Return the logarithm of `_other`."""
    s = jnp.exp(log_s)
    return jnp.where(s > _LARGE, jnp.exp(-s) / 2 - s, jnp.log(_other(jnp.where(s > _LARGE, 0, log_s))))
