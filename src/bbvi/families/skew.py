"""A standard Normal with a skew, still of mean 0 and variance 1: what an entry of a joint Normal may have beside a location and a scale.

x = (sinh(arcsinh(e) + a) - mean) / sd with a standard Normal e (Jones and Pewsey 2009, "Sinh-arcsinh distributions"): e^a times as
wide on the right as without a, and e^-a times on the left, before it is brought back to mean 0 and variance 1.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(32)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
_MEAN = float(_WEIGHTS @ np.sqrt(1 + _NODES**2))  # of sqrt(1 + e^2)


def skewed(a: Float[Array, " n"], noise: Array) -> Array:
    """Return x of standard normals, whose last axis is that of a."""
    return (jnp.sinh(jnp.arcsinh(noise) + a) - _MEAN * jnp.sinh(a)) / _sd(a)


def unskewed(a: Float[Array, " n"], x: Array) -> tuple[Array, Array]:
    """Return the standard normals of x, and log |de/dx|."""
    y = x * _sd(a) + _MEAN * jnp.sinh(a)
    noise = jnp.sinh(jnp.arcsinh(y) - a)
    return noise, jnp.log(_sd(a)) + 0.5 * (jnp.log1p(noise**2) - jnp.log1p(y**2))


def fisher(a: Float[Array, " n"]) -> Float[Array, "n 3 3"]:
    """Return the Fisher information of a location, the logarithm of a scale, and the skew of each x."""

    def log_density(a: Array, location: Array, log_scale: Array, x: Array) -> Array:
        noise, log_slope = unskewed(a, (x - location) * jnp.exp(-log_scale))
        return (-0.5 * noise**2 + log_slope - log_scale).sum()

    def scores(node: Array) -> Array:
        none = jnp.zeros_like(a)
        of_a, *others = jax.grad(log_density, (0, 1, 2))(a, none, none, jax.lax.stop_gradient(skewed(a, node)))
        return jnp.stack([*others, of_a])

    found = jax.vmap(scores)(jnp.asarray(_NODES, a.dtype))
    return jnp.einsum("kin,kjn,k->nij", found, found, jnp.asarray(_WEIGHTS, a.dtype))


def solved(matrix: Float[Array, "n k k"], right: Float[Array, "n k"]) -> Float[Array, "n k"]:
    """Solve small positive definite systems, by elimination: a library would be called for each."""
    rows = [jnp.concatenate([matrix[:, i], right[:, i, None]], -1) for i in range(right.shape[1])]
    for i in range(len(rows)):
        rows[i] = rows[i] / rows[i][:, i, None]
        rows = [row if j == i else row - row[:, i, None] * rows[i] for j, row in enumerate(rows)]
    return jnp.stack([row[:, -1] for row in rows], -1)


def _sd(a: Array) -> Array:
    return jnp.sqrt(jnp.cosh(a) ** 2 + (2 - _MEAN**2) * jnp.sinh(a) ** 2)
