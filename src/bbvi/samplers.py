"""Draws of the continuous building blocks from an address, for one factor and one sample."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bbvi.counter import Address


def standard_normal(address: Address) -> Float[Array, ""]:
    """A standard normal by inversion."""
    return _inverse_normal(address.uniforms()[0])


def _inverse_normal(u: Float[Array, ""]) -> Float[Array, ""]:
    return np.sqrt(2).astype(u.dtype) * jax.lax.erf_inv(2 * u - 1)


def log_gamma(address: Address, concentration: Float[Array, ""], part: int | Array = 0) -> Float[Array, ""]:
    """The logarithm of a Gamma(concentration, 1) draw, finite at every concentration.

    Marsaglia and Tsang (2000): with d = a - 1/3 and v = (1 + x / sqrt(9 d))**3, x standard normal, d v is
    accepted with probability min(1, exp(x**2 / 2 + d - d v + d log v)). Below a = 1 it draws at a + 1 and
    multiplies by u**(1/a), in log space, where it cannot underflow.
    """
    small = concentration < 1
    d = jnp.where(small, concentration + 1, concentration) - 1 / 3
    c = 1 / jnp.sqrt(9 * d)

    def propose(state):
        round_, _, log_v = state
        u, w = address.uniforms(_part(part, round_))
        x = _inverse_normal(u)
        positive = c * x > -1
        log_v_new = 3 * jnp.log1p(jnp.where(positive, c * x, 0))
        accept = positive & (jnp.log(w) < 0.5 * x**2 + d - d * jnp.exp(log_v_new) + d * log_v_new)
        return round_ + 1, accept, jnp.where(accept, log_v_new, log_v)

    start = (jnp.uint32(1), jnp.bool_(False), jnp.zeros_like(d))
    _, _, log_v = jax.lax.while_loop(lambda state: ~state[1], propose, start)
    boost = jnp.log(address.uniforms(_part(part, 0))[0]) / jnp.where(small, concentration, 1)
    return jnp.log(d) + log_v + jnp.where(small, boost, 0)


def _part(part: int | Array, round_: int | Array) -> Array:
    return jnp.asarray(part, jnp.uint32) * jnp.uint32(1 << 16) + jnp.asarray(round_, jnp.uint32)
