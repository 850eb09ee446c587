"""Draw normals, exponentials, gammas and Poissons by inversion from an address, for one factor of q and one sample."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bbvi.numerics.address import Address
from bbvi.numerics.quantiles import log_gamma_quantile, poisson_quantile
from bbvi.numerics.special import fitted, quick_log
from bbvi.numerics.xla import mark, once

_NORMAL_SCALE = 7.65


def standard_normal(address: Address, part: int | Array = 0) -> Float[Array, ""]:
    """Draw a standard normal."""
    return mark(inverse_normal(address.uniform(part)))


def standard_exponential(address: Address) -> Float[Array, ""]:
    """Draw a standard exponential, never 0."""
    return mark(-quick_log(address.uniform()))


def inverse_normal(u: Float[Array, ""]) -> Float[Array, ""]:
    """Return Phi^-1(u), in single precision for u no closer to 0 and 1 than 2**-24, where all our uniforms are.

    `erf_inv` squares 2u - 1, which costs it two digits in the tails; 4u(1 - u) loses none.
    """
    if u.dtype != jnp.float32:
        return np.sqrt(2) * jax.lax.erf_inv(2 * u - 1)
    t = -1 - quick_log(4 * u * (1 - u)) * np.float32(1 / _NORMAL_SCALE)
    return (2 * u - 1) * fitted("inverse_normal", t)


def log_gamma_ratio(address: Address, concentration: Float[Array, ""], part: int | Array = 0) -> Float[Array, ""]:
    """Draw log(z / a) for z of Gamma(a, 1), whose mean is a: finite at every concentration, with all digits where a is large.

    Below a = 1 it draws at a + 1 and multiplies by u**(1/a), in log space, where it cannot underflow. No draw is
    rejected, so that a draw is a differentiable function of the concentration (pathwise gradients).
    """
    small = concentration < 1
    u, w = address.uniforms(part)
    ratio = log_gamma_quantile(mark(inverse_normal(u)), jnp.where(small, concentration + 1, concentration))
    few = jnp.where(small, concentration, 1)
    return ratio + jnp.where(small, quick_log(w) / few + jnp.log1p(few) - jnp.log(few), 0)


def poisson(address: Address, log_rate: Float[Array, ""]) -> Int[Array, ""]:
    """Draw a Poisson count."""
    u = address.uniform()
    return poisson_quantile(u, mark(inverse_normal(u)), once(log_rate))
