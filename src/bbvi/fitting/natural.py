"""Steps along the natural gradient (Amari 1998), straight in the natural parameters of each factor of q.

For an exponential family with natural parameters eta the step eta + rho I(eta)^-1 grad L of size rho = 1 ends, where
the model is conjugate, on the exact coordinate update (Hoffman et al. 2013; Khan and Lin 2017). As
I(eta)^-1 grad L = (d eta / d lambda) F^-1 g, with F the Fisher information of lambda and g the gradient in it, a family
says what F^-1 g is, and where the straight line that leaves lambda in that direction goes. The size of a factor's steps
falls with the lengths of its gradients, as in AdaGrad-Norm (Streeter and McMahan 2010; Ward, Wu and Bottou 2019), and how far
a step may reach grows while the steps before it were too short, as in a trust region (Conn, Gould and Toint 2000).
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int

from bbvi.families import AbstractFamily, Params, alike, by_factors
from bbvi.families.abstract import Lambda
from bbvi.fitting.optimizers import check_positive

_HALVINGS = 30
# a longer gradient tells how far the optimum is, not how noisy the gradient
_LONGEST = 5.0
# the first doublings of a factor's reach are not used: noise has one of two signs, and agrees with itself by chance
_UNUSED = 4.0
# parameters that say where a factor is, and not how wide
_PLACES = ("loc", "tilt")


class NaturalState(NamedTuple):
    """What each factor's next step depends on, and how many times a factor's step was shortened."""

    #: of each factor the sum of squared lengths of its gradients, its reach, and how steep its last step was, on the last axis
    memory: dict[str, Array]
    #: the last change of lambda
    moves: Lambda
    shortened: Int[Array, ""]


def natural(eta: float = 5.0, *, reach: float = 0.5) -> optax.GradientTransformationExtraArgs:
    """Natural gradient steps of size rho_t = min(1, eta / sqrt(1 + sum over s < t of l_s^2)), for each factor of q by itself.

    l = sqrt(g^T F^-1 g), at most 5 in this sum, is the length of the gradient: that of the step in standard deviations
    of q, if only the location of a Normal moves. While noise is small, rho stays 1, the step that ends on the coordinate update.

    Args:
        reach: how far a step may move a factor, in the same units. A longer step is shortened to it, and one that leaves
            the domain of the natural parameters is halved until it is inside. While the ELBO still rises at the end of a shortened
            step more than half as steeply along it as at its beginning, a factor's reach doubles, from the third such step
            on; it is `reach` again after a step whose end is lower along it. That of discrete latents does not grow.

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
        # repeated for all entries of a factor's first parameter: how many these are, a family knows
        sizes = {name: jnp.size(entries[min(entries)]) for name, entries in params.items()}
        memory = {name: jnp.tile(jnp.array([0.0, reach, 0.0]), (size, 1)) for name, size in sizes.items()}
        return NaturalState(memory, jax.tree.map(jnp.zeros_like, params), jnp.int32(0))

    def update(updates, state, params=None, *, families, **extra_args):
        moves, memory, shortened = {}, {}, state.shortened
        for names in alike({name: families[name] for name in updates}, {}):
            # all factors of one family make their steps together
            family, first = families[names[0]], min(params[names[0]])
            trees = [[by_factors(family, part[name]) for part in (params, updates, state.moves)] for name in names]
            counts = [len(tree[0][first]) for tree in trees]
            kept = [
                state.memory[name][:: len(state.memory[name]) // num] for name, num in zip(names, counts, strict=True)
            ]
            rows = [(*tree, own) for tree, own in zip(trees, kept, strict=True)]
            all_rows = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *rows)
            found, after, short = jax.vmap(functools.partial(_step, family, eta, reach))(*all_rows)
            shortened, begin = shortened + short.sum(dtype=jnp.int32), 0
            for name, num in zip(names, counts, strict=True):
                own, begin = slice(begin, begin + num), begin + num
                moves[name] = jax.tree.map(
                    lambda leaf, like, own=own: leaf[own].reshape(like.shape), found, params[name]
                )
                memory[name] = _repeat(after[own], len(state.memory[name]) // num)
        return moves, NaturalState(memory, moves, shortened)

    return optax.GradientTransformationExtraArgs(init, update)


def _step(
    family: AbstractFamily, eta: float, reach: float, params: Params, descent: Params, moved: Params, memory: Array
) -> tuple[Params, Array, Array]:
    """Step one factor: what to add to its parameters, what its next step depends on, and whether the step was shortened."""
    gradient = jax.tree.map(jnp.negative, descent)
    before, raw, slope = memory
    # where the step before was shortened, how steep the ELBO still is along it; a slope of 0 stands for a whole step
    now = _dot(gradient, moved)
    too_short, too_long = now > slope / 2, now <= 0
    if not family.chart.is_discrete:
        raw = jnp.where((slope > 0) & too_short, 2 * raw, jnp.where(too_long, reach, raw))
    direction = family.natural_gradient(params, gradient)
    length = _length(gradient, direction)
    whole = jnp.minimum(1.0, eta / jnp.sqrt(1 + before))
    longest = jnp.maximum(raw / _UNUSED, reach)
    size = jnp.where(whole * length > longest, longest / length, whole)
    # what grows is how far a location may move: no scale is known from so far away
    of_shape = {name: gradient[name] for name in gradient if name not in _PLACES}
    spread = _length(of_shape, direction)
    share = jnp.where(("loc" in gradient) & (size * spread > reach), reach / (size * spread), 1.0)
    direction = {name: leaf * (1 if name in _PLACES else share) for name, leaf in direction.items()}

    def end(size: Array) -> Params:
        return family.along(params, jax.tree.map(lambda leaf: size * leaf, direction))

    def outside(carry: tuple[Array, Array]) -> Array:
        size, halvings = carry
        inside = jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(end(size))])
        return ~jnp.all(inside) & (halvings < _HALVINGS)

    # halved until it ends inside the domain
    size, _ = jax.lax.while_loop(outside, lambda carry: (carry[0] / 2, carry[1] + 1), (size, jnp.int32(0)))
    moves = jax.tree.map(jnp.subtract, end(size), params)
    # steps of a growing reach are long because the optimum is far, whatever the noise
    squared = jnp.where(longest > reach, 0, jnp.minimum(length, _LONGEST) ** 2)
    slope = jnp.where(size < whole, _dot(gradient, moves), 0)
    return moves, jnp.stack([before + squared, raw, slope]), size < whole


def _repeat(rows: Array, times: int) -> Array:
    return jnp.repeat(rows, times, 0) if times > 1 else rows


def _length(gradient: Params, direction: Params) -> Array:
    """Return sqrt(g^T F^-1 g), whose square a float may not hold."""
    largest = functools.reduce(
        jnp.maximum, [jnp.max(jnp.abs(direction[name]), initial=0) for name in gradient], jnp.zeros(())
    )
    unit = {name: direction[name] / jnp.where(largest > 0, largest, 1) for name in gradient}
    return jnp.sqrt(largest) * jnp.sqrt(jnp.maximum(_dot(gradient, unit), 0))


def _dot(one: Params, other: Params) -> Array:
    return sum((jnp.vdot(one[name], other[name]) for name in one), jnp.zeros(()))
