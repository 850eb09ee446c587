"""Steps along the natural gradient (Amari 1998), straight in the natural parameters of each factor of q.

For an exponential family with natural parameters eta the step eta + rho I(eta)^-1 grad L of size rho = 1 ends, where
the model is conjugate, on the exact coordinate update (Hoffman et al. 2013; Khan and Lin 2017). As
I(eta)^-1 grad L = (d eta / d lambda) F^-1 g, with F the Fisher information of lambda and g the gradient in it, a family
says what F^-1 g is, and where the straight line that leaves lambda in that direction goes.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from bbvi.families import AbstractFamily, Params
from bbvi.optimizers import check_positive, check_sequence

_HALVINGS = 30


class NaturalState(NamedTuple):
    """Steps made, and over all of them how many times the step of a factor was shortened."""

    count: Int[Array, ""]
    shortened: Int[Array, ""]


def natural(
    eta: float = 1.0, *, power: float = 0.75, delay: float = 1.0, reach: float = 0.5
) -> optax.GradientTransformationExtraArgs:
    """Natural gradient steps of size rho_t = eta (t + delay)^-power for t = 0, 1, ...

    Args:
        reach: how far a step may move a factor of q, as sqrt(g^T F^-1 g) measures it: standard deviations of q for
            the location of a Normal. A longer step is shortened to it, and one that leaves the domain of the natural
            parameters is halved until it is inside.

    Examples:
        >>> import bbvi, numpyro.distributions as dist, jax.numpy as jnp
        >>> def log_joint(z, y):
        ...     return dist.Normal(0, 10).log_prob(z["mu"]) + dist.Normal(z["mu"], 1).log_prob(y).sum()
        >>> model = bbvi.Model(log_joint, mu=bbvi.real())
        >>> posterior = bbvi.fit(model, jnp.array([1.0, 2.0, 3.0]), optimizer=bbvi.natural())
        >>> print(round(float(posterior.mean()["mu"]), 2), round(float(posterior.sd()["mu"]), 2))
        1.99 0.58
    """
    check_sequence("natural", eta, power, delay)
    check_positive("natural", "reach", reach)
    return _natural(float(eta), float(power), float(delay), float(reach))


@functools.cache  # the same transformation each time: a compiled step is known by it
def _natural(eta: float, power: float, delay: float, reach: float) -> optax.GradientTransformationExtraArgs:
    def init(params):
        return NaturalState(jnp.int32(0), jnp.int32(0))

    def update(updates, state, params=None, *, families, **extra_args):
        size = eta * (state.count + delay) ** -power
        changes, shortened = {}, state.shortened
        for name, descent in updates.items():
            gradient = jax.tree.map(jnp.negative, descent)
            changes[name], factors = _change(families[name], params[name], gradient, size, reach)
            shortened = shortened + factors
        return changes, NaturalState(state.count + 1, shortened)

    return optax.GradientTransformationExtraArgs(init, update)


def _change(
    family: AbstractFamily, params: Params, gradient: Params, size: Float[Array, ""], reach: float
) -> tuple[Params, Int[Array, ""]]:
    """What to add to the parameters of an array of factors, and how many of them could not go all the way."""
    name, entry = next(iter(family.parameters().items()))

    def one(params: Params, gradient: Params) -> tuple[Params, Array]:
        direction = family.natural_gradient(params, gradient)
        length = jnp.sqrt(sum(jnp.vdot(gradient[p], direction[p]) for p in params))
        whole = jnp.minimum(size, reach / jnp.where(length > 0, length, 1e-30))
        part = _inside(family, params, direction, whole)
        new = family.along(params, jax.tree.map(lambda leaf: part * leaf, direction))
        return jax.tree.map(jnp.subtract, new, params), part < size

    for _ in range(jnp.ndim(params[name]) - len(entry.raw_shape())):
        one = jax.vmap(one)
    change, shortened = one(params, gradient)
    return change, shortened.sum(dtype=jnp.int32)


def _inside(family: AbstractFamily, params: Params, direction: Params, size: Array) -> Array:
    """The size of the step, halved until it ends inside the domain."""

    def outside(carry: tuple[Array, Array]) -> Array:
        size, halvings = carry
        end = family.along(params, jax.tree.map(lambda leaf: size * leaf, direction))
        inside = jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(end)])
        return ~jnp.all(inside) & (halvings < _HALVINGS)

    def halve(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        return carry[0] / 2, carry[1] + 1

    return jax.lax.while_loop(outside, halve, (size, jnp.int32(0)))[0]
