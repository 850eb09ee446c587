"""Steps along the natural gradient (Amari 1998), straight in the natural parameters of each factor of q.

For an exponential family with natural parameters eta the step eta + rho I(eta)^-1 grad L of size rho = 1 ends, where
the model is conjugate, on the exact coordinate update (Hoffman et al. 2013; Khan and Lin 2017). As
I(eta)^-1 grad L = (d eta / d lambda) F^-1 g, with F the Fisher information of lambda and g the gradient in it, a family
says what F^-1 g is, and where the straight line that leaves lambda in that direction goes. The size of a factor's steps
falls with the lengths of its gradients, as in AdaGrad-Norm (Streeter and McMahan 2010; Ward, Wu and Bottou 2019).
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int

from bbvi.families import AbstractFamily, Params
from bbvi.fitting.optimizers import check_positive

_HALVINGS = 30
# a longer gradient tells how far the optimum is, not how noisy the gradient
_LONGEST = 5.0


class NaturalState(NamedTuple):
    """The sum of squared lengths of each factor's gradients, and how many times a factor's step was shortened."""

    squares: dict[str, Array]
    shortened: Int[Array, ""]


def natural(eta: float = 5.0, *, reach: float = 0.5) -> optax.GradientTransformationExtraArgs:
    """Natural gradient steps of size rho_t = min(1, eta / sqrt(1 + sum over s < t of l_s^2)), for each factor of q by itself.

    l = sqrt(g^T F^-1 g), at most 5 in this sum, is the length of the gradient: that of the step in standard deviations
    of q, if only the location of a Normal moves. While noise is small, rho stays 1, the step that ends on the coordinate update.

    Args:
        reach: how far a step may move a factor, in the same units. A longer step is shortened to it, and one that leaves
            the domain of the natural parameters is halved until it is inside.

    Examples:
        >>> import bbvi, numpyro.distributions as dist, jax.numpy as jnp
        >>> def log_joint(z, y):
        ...     return dist.Normal(0, 10).log_prob(z["mu"]) + dist.Normal(z["mu"], 1).log_prob(y).sum()
        >>> model = bbvi.Model(log_joint, mu=bbvi.real())
        >>> posterior = bbvi.fit(model, jnp.array([1.0, 2.0, 3.0]), optimizer=bbvi.natural())
        >>> print(round(float(posterior.mean()["mu"]), 2), round(float(posterior.sd()["mu"]), 2))
        1.99 0.58
    """
    check_positive("natural", "eta", eta)
    check_positive("natural", "reach", reach)
    return _natural(float(eta), float(reach))


@functools.cache  # the same transformation each time: a compiled step is known by it
def _natural(eta: float, reach: float) -> optax.GradientTransformationExtraArgs:
    def init(params):
        # one number for each factor, in the shape of its first parameter: how many axes are factors, a family knows
        squares = {name: jnp.zeros_like(entries[min(entries)]) for name, entries in params.items()}
        return NaturalState(squares, jnp.int32(0))

    def update(updates, state, params=None, *, families, **extra_args):
        changes, squares, shortened = {}, {}, state.shortened
        for name, descent in updates.items():
            first, entry = next(iter(families[name].parameters().items()))
            step = functools.partial(_step, families[name], eta, reach)
            for _ in range(jnp.ndim(params[name][first]) - len(entry.raw_shape())):
                step = jax.vmap(step)
            gradient = jax.tree.map(jnp.negative, descent)
            changes[name], squares[name], short = step(params[name], gradient, state.squares[name])
            shortened = shortened + short.sum(dtype=jnp.int32)
        return changes, NaturalState(squares, shortened)

    return optax.GradientTransformationExtraArgs(init, update)


def _step(
    family: AbstractFamily, eta: float, reach: float, params: Params, gradient: Params, squares: Array
) -> tuple[Params, Array, Array]:
    """Step one factor: what to add to its parameters, its sum of squares, and whether the step was shortened."""
    direction = family.natural_gradient(params, gradient)
    length = jnp.sqrt(jnp.maximum(sum(jnp.vdot(gradient[p], direction[p]) for p in params), 0))
    whole = jnp.minimum(1.0, eta / jnp.sqrt(1 + squares.reshape(-1)[0]))
    size = jnp.where(whole * length > reach, reach / length, whole)

    def end(size: Array) -> Params:
        return family.along(params, jax.tree.map(lambda leaf: size * leaf, direction))

    def outside(carry: tuple[Array, Array]) -> Array:
        size, halvings = carry
        inside = jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(end(size))])
        return ~jnp.all(inside) & (halvings < _HALVINGS)

    # halved until it ends inside the domain
    size, _ = jax.lax.while_loop(outside, lambda carry: (carry[0] / 2, carry[1] + 1), (size, jnp.int32(0)))
    squares = squares + jnp.minimum(length, _LONGEST) ** 2
    return jax.tree.map(jnp.subtract, end(size), params), squares, size < whole
