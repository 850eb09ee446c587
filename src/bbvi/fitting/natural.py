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

from bbvi.families import AbstractFamily, Params, alike, by_factors
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
        # one number for each factor, repeated for all entries of its first parameter: how many these are, a family knows
        squares = {name: jnp.zeros_like(jnp.ravel(entries[min(entries)])) for name, entries in params.items()}
        return NaturalState(squares, jnp.int32(0))

    def update(updates, state, params=None, *, families, **extra_args):
        changes, squares, shortened = {}, {}, state.shortened
        for names in alike({name: families[name] for name in updates}, {}):
            # all factors of one family make their steps together
            family, first = families[names[0]], min(params[names[0]])
            trees = [(params[name], updates[name], {first: state.squares[name]}) for name in names]
            rows = [[by_factors(family, part) for part in tree] for tree in trees]
            all_rows = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *rows)
            moved, sums, short = jax.vmap(functools.partial(_step, family, eta, reach))(*all_rows)
            shortened, begin = shortened + short.sum(dtype=jnp.int32), 0
            for name, row in zip(names, rows, strict=True):
                own, begin = slice(begin, begin + len(row[0][first])), begin + len(row[0][first])
                like = params[name], {first: state.squares[name]}
                cut = jax.tree.map(lambda leaf, like, own=own: leaf[own].reshape(jnp.shape(like)), (moved, sums), like)
                changes[name], squares[name] = cut[0], cut[1][first]
        return changes, NaturalState(squares, shortened)

    return optax.GradientTransformationExtraArgs(init, update)


def _step(
    family: AbstractFamily, eta: float, reach: float, params: Params, descent: Params, sums: Params
) -> tuple[Params, Params, Array]:
    """Step one factor: what to add to its parameters, its sum of squares, and whether the step was shortened."""
    gradient = jax.tree.map(jnp.negative, descent)
    squares = jax.tree.leaves(sums)[0].reshape(-1)[0]
    direction = family.natural_gradient(params, gradient)
    length = jnp.sqrt(jnp.maximum(sum(jnp.vdot(gradient[p], direction[p]) for p in params), 0))
    whole = jnp.minimum(1.0, eta / jnp.sqrt(1 + squares))
    size = jnp.where(whole * length > reach, reach / length, whole)

    def end(size: Array) -> Params:
        return family.along(params, jax.tree.map(lambda leaf: size * leaf, direction))

    def outside(carry: tuple[Array, Array]) -> Array:
        size, halvings = carry
        inside = jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(end(size))])
        return ~jnp.all(inside) & (halvings < _HALVINGS)

    # halved until it ends inside the domain
    size, _ = jax.lax.while_loop(outside, lambda carry: (carry[0] / 2, carry[1] + 1), (size, jnp.int32(0)))
    sums = jax.tree.map(lambda leaf: leaf + jnp.minimum(length, _LONGEST) ** 2, sums)
    return jax.tree.map(jnp.subtract, end(size), params), sums, size < whole
