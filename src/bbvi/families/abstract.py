"""Eq. 4: one factor q(z_i | lambda_i) of the mean-field family, written for one factor and one draw."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpyro.distributions import biject_to, constraints

from bbvi.counter import Address

Params = dict[str, Array]


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


def constrain(family: AbstractFamily, params: Params) -> dict[str, Array]:
    """The family's own parameters from unconstrained lambda."""
    return {name: entry.constrain(params[name]) for name, entry in family.parameters().items()}


def score(family: AbstractFamily, params: Params, coordinates: Array) -> tuple[Array, Params]:
    """log q_i and its gradient in lambda_i, the score function, for every family at once."""
    return jax.value_and_grad(family.log_prob)(params, coordinates)


def smallest(x: Array) -> Any:
    """The smallest positive number of x's type that is not denormal: values are floored there."""
    return jnp.finfo(jnp.result_type(x)).tiny


def log_smallest(x: Array) -> float:
    """Its logarithm."""
    return float(np.log(smallest(x)))
