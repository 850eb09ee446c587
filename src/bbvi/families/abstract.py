"""Eq. 4: one factor q(z_i | lambda_i) of the mean-field family, written for one factor and one draw."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float
from numpyro.distributions import biject_to, constraints

from bbvi.numerics.address import Address

Params = dict[str, Array]

_FISHER_DRAWS = 256
_RIDGE = 1e-3  # of correlations: parameters that say the same, or more of them than draws


class Parameter(eqx.Module):
    """One entry of lambda_i: its shape in one factor, its constraint, where a random start is centred and how wide."""

    shape: tuple[int, ...]
    constraint: constraints.Constraint = eqx.field(static=True)
    start: float = 0.0
    spread: float = 1.0

    def constrain(self, raw: Array) -> Array:
        return biject_to(self.constraint)(raw)

    def unconstrain(self, value: Array) -> Array:
        return biject_to(self.constraint).inv(value)

    def raw_shape(self) -> tuple[int, ...]:
        return biject_to(self.constraint).inverse_shape(self.shape)


class AbstractFamily(eqx.Module):
    """A variational family for one factor.

    A draw is held as *coordinates*, in which nothing underflows (log z for a gamma); `value` gives the z
    that the model sees, and `log_prob` is the density of z evaluated at coordinates.
    """

    @abstractmethod
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one value."""

    @abstractmethod
    def support(self) -> constraints.Constraint:
        """Where the values live."""

    @abstractmethod
    def is_discrete(self) -> bool:
        """Whether the values are integers."""

    def support_values(self) -> np.ndarray | None:
        """Coordinates of all values, `(values, *event)`, where these are few enough to be listed."""
        return None

    @abstractmethod
    def parameters(self) -> dict[str, Parameter]:
        """The entries of lambda_i."""

    @abstractmethod
    def sample(self, params: Params, address: Address) -> Array:
        """Coordinates of one draw."""

    @abstractmethod
    def value(self, coordinates: Array) -> Array:
        """The z of these coordinates."""

    def log_value(self, coordinates: Array) -> Array | None:
        """log z where these coordinates have it, so that a model that asks for it need not lose it by underflow."""
        return None

    @abstractmethod
    def coordinates(self, value: Array) -> Array:
        """The coordinates of this z."""

    @abstractmethod
    def floored(self, coordinates: Array) -> Array:
        """Whether `value` had to move z to stay inside the support in floating point."""

    @abstractmethod
    def log_prob(self, params: Params, coordinates: Array) -> Float[Array, ""]:
        """log q_i(z_i | lambda_i)."""

    @abstractmethod
    def centred(self, value: Array) -> Params | None:
        """Parameters (constrained) whose distribution sits around `value`; None if there is no such rule."""

    @abstractmethod
    def moments(self, params: Params) -> tuple[np.ndarray, np.ndarray] | None:
        """Mean and standard deviation for any number of factors at once; None where only draws can tell."""

    @abstractmethod
    def quantile(self, params: Params, p: float) -> np.ndarray | None:
        """Marginal quantile, as `moments`."""

    def natural_gradient(self, params: Params, gradient: Params) -> Params:
        """F^-1 gradient, F the Fisher information of lambda_i: of a family that does not know it, from scores at fixed draws."""
        return _by_scores(self, params, gradient)

    def along(self, params: Params, direction: Params) -> Params:
        """Where a step that leaves lambda_i in this direction ends, straight in the natural parameters of q_i.

        Not finite where they have left their domain. Without natural parameters other than lambda_i the sum of both.
        """
        return {name: params[name] + direction[name] for name in params}


def constrain(family: AbstractFamily, params: Params) -> dict[str, Array]:
    """The family's own parameters from unconstrained lambda."""
    return {name: entry.constrain(params[name]) for name, entry in family.parameters().items()}


def score(family: AbstractFamily, params: Params, coordinates: Array) -> tuple[Array, Params]:
    """log q_i and its gradient in lambda_i, the score function, for every family at once."""
    return jax.value_and_grad(family.log_prob)(params, coordinates)


def _by_scores(family: AbstractFamily, params: Params, gradient: Params) -> Params:
    flat, shaped = ravel_pytree(gradient)

    def one(sample: Array) -> Array:
        address = Address(jnp.zeros(2, jnp.uint32), jnp.uint32(0), jnp.uint32(0), sample)
        return ravel_pytree(score(family, params, family.sample(params, address))[1])[0]

    num = max(_FISHER_DRAWS, 4 * flat.size)
    scores = jax.vmap(one)(jnp.arange(num, dtype=jnp.uint32))
    size = jnp.sqrt((scores**2).mean(0))
    size = jnp.where(size > 0, size, 1)
    correlation = (scores / size).T @ (scores / size) / num
    return shaped(jnp.linalg.solve(correlation + _RIDGE * jnp.eye(flat.size), flat / size) / size)


def smallest(x: Array) -> Any:
    """The smallest positive number of x's type that is not denormal: values are floored there."""
    return jnp.finfo(jnp.result_type(x)).tiny


def log_smallest(x: Array) -> float:
    """Its logarithm."""
    return float(np.log(smallest(x)))


Lambda = dict[str, Params]
