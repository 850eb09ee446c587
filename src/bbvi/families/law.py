"""Eq. 4: the distribution of one draw's coordinates: its parameters lambda_i, its draws, its density and its score."""

import math
from abc import abstractmethod
from collections.abc import Callable
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


def positive_parameter(start: float = 1.0) -> Parameter:
    """Describe a positive number, fitted as its logarithm; a random start is around `start`."""
    return Parameter((), constraints.positive, start=float(np.log(start)))


def always(**entries: Parameter) -> Callable[[Any], dict[str, Parameter]]:
    """Make the method `parameters` of a law whose entries of lambda_i do not depend on the law's fields."""
    return lambda self: dict(entries)


class AbstractLaw(eqx.Module):
    """The distribution of the coordinates of one draw, for one factor; three methods make one, the others refine it."""

    @abstractmethod
    def parameters(self) -> dict[str, Parameter]:
        """Describe the entries of lambda_i."""

    @abstractmethod
    def sample(self, params: Params, address: Address) -> Array:
        """Draw coordinates: a function of the address's uniforms, smooth in lambda where z is continuous."""

    @abstractmethod
    def log_prob(self, params: Params, coordinates: Array) -> Float[Array, ""]:
        """Return log q_i(z_i | lambda_i), the density of z, at coordinates."""

    def centred(self, value: Array) -> Params | None:
        """Return parameters (constrained) that put q_i around `value`, not necessarily all; None without such a rule."""
        return None

    def frozen(self, values: dict[str, np.ndarray]) -> Any:
        """Return an object with `mean()`, `std()` and `ppf(p)` at these parameters (constrained), as scipy.stats has them.

        NotImplementedError, where there is none: then posteriors answer by draws.
        """
        raise NotImplementedError

    def information(self, params: Params) -> Params | None:
        """Return the Fisher information of each entry of lambda_i, if it is known and that of different entries is 0."""
        return None

    def natural_gradient(self, params: Params, gradient: Params) -> Params:
        """Return F^-1 gradient; F, the Fisher information of lambda_i, comes from scores at fixed draws if it is not known."""
        information = self.information(params)
        if information is None:
            return _by_scores(self, params, gradient)
        return {name: g / information[name] for name, g in gradient.items()}

    def along(self, params: Params, direction: Params) -> Params:
        """Return where a step that leaves lambda_i in this direction ends, straight in the natural parameters of q_i.

        Not finite where they have left their domain. Without natural parameters other than lambda_i the sum of both.
        """
        return {name: params[name] + direction[name] for name in params}


def constrain(law: AbstractLaw, params: Params) -> dict[str, Array]:
    """Return the law's own parameters from unconstrained lambda."""
    return {name: entry.constrain(params[name]) for name, entry in law.parameters().items()}


def by_factors(law: AbstractLaw, params: Params) -> Params:
    """Flatten all axes that stand before a factor's own parameters into one axis of factors."""
    shapes = {name: entry.raw_shape() for name, entry in law.parameters().items()}
    flat = {}
    for name, leaf in params.items():
        before = np.shape(leaf)[: np.ndim(leaf) - len(shapes[name])]
        flat[name] = jnp.reshape(leaf, (math.prod(before), *shapes[name]))
    return flat


def score(law: AbstractLaw, params: Params, coordinates: Array) -> tuple[Array, Params]:
    """Return log q_i and its gradient in lambda_i, the score function, for every family at once."""
    return jax.value_and_grad(law.log_prob)(params, coordinates)


def _by_scores(law: AbstractLaw, params: Params, gradient: Params) -> Params:
    flat, shaped = ravel_pytree(gradient)

    def one(sample: Array) -> Array:
        address = Address(jnp.zeros(2, jnp.uint32), jnp.uint32(0), jnp.uint32(0), sample)
        return ravel_pytree(score(law, params, law.sample(params, address))[1])[0]

    num = max(_FISHER_DRAWS, 4 * flat.size)
    scores = jax.vmap(one)(jnp.arange(num, dtype=jnp.uint32))
    size = jnp.sqrt((scores**2).mean(0))
    size = jnp.where(size > 0, size, 1)
    correlation = (scores / size).T @ (scores / size) / num
    return shaped(jnp.linalg.solve(correlation + _RIDGE * jnp.eye(flat.size), flat / size) / size)
