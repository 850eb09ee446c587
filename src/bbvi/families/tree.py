"""Eq. 4 with larger factors: a Markov tree over numbers with few values (structured mean field, Saul and Jordan 1996).

Each number is drawn given its parent, so that draws are ancestral, and marginals and entropy are sums along the tree: for a
chain they are those of forward-backward. The logits of a number given its parent are lambda, and a step of them that is straight
in the natural parameters, the potentials of pairs, ends after one pass from the leaves to the roots (Pearl 1988).
"""

import functools
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import log_softmax, softmax
from jaxtyping import Array, Float, Int
from numpyro.distributions import constraints

from bbvi.families.abstract import AbstractFamily
from bbvi.families.charts import AbstractChart, marginal, smallest
from bbvi.families.law import Parameter

#: stands for -inf in lambda, which is finite: exp() of it is 0 exactly
NEVER = -1e30
#: what else q gives up keeps this much, in logarithms: where a probability underflows, its gradient does, and it never comes back
_LEAST = -40.0


class MarkovTree(eqx.Module):
    """A Markov chain, or tree, over the last axis of a binary or categorical latent: `bbvi.binary(9, q=bbvi.MarkovTree())`.

    Args:
        parents: of each number the position of its parent, -1 for a root; by default the number before it, a chain.

    Examples:
        >>> import bbvi
        >>> bbvi.categorical(3, 100, q=bbvi.MarkovTree())
        categorical() ~ MarkovTree
        >>> bbvi.binary(4, q=bbvi.MarkovTree([-1, 0, 0, 1])).event
        (4,)
    """

    parents: tuple[int, ...] | None = eqx.field(static=True, default=None)

    def __init__(self, parents: Sequence[int] | None = None):
        self.parents = None if parents is None else tuple(int(parent) for parent in np.ravel(parents))

    def over(self, length: int) -> tuple[int, ...]:
        """Return the parents of so many numbers."""
        parents = tuple(range(-1, length - 1)) if self.parents is None else self.parents
        if len(parents) != length:
            raise ValueError(f"MarkovTree: {len(parents)} parents were given for {length} numbers; give one for each")
        if wrong := [parent for parent in parents if not -1 <= parent < length]:
            raise ValueError(f"MarkovTree: a parent is a number's position, 0 to {length - 1}, or -1; got {wrong[0]}")
        in_order(parents)
        return parents


@functools.lru_cache(maxsize=64)
def in_order(parents: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Order the numbers so that parents come first; also give how far each is from its root."""
    above, depth = np.array(parents), np.zeros(len(parents), int)
    while (above >= 0).any():
        depth += above >= 0
        if depth.max() >= len(parents):
            raise ValueError("MarkovTree: following the parents of some number never ends; a tree has no cycle")
        above = np.where(above >= 0, np.array(parents)[above], -1)
    return np.argsort(depth, kind="stable"), depth


class _Codes(constraints.Constraint):
    """Vectors of the integers 0 to `upper_bound`."""

    is_discrete = True
    event_dim = 1

    def __init__(self, upper_bound: int):
        self.upper_bound = upper_bound

    def __call__(self, x):
        return jnp.all((x >= 0) & (x <= self.upper_bound) & (x == jnp.floor(x)), axis=-1)

    def __repr__(self):
        return f"vectors of integers 0 to {self.upper_bound}"

    def eq(self, other, static=False):
        return isinstance(other, _Codes) and self.upper_bound == other.upper_bound

    def tree_flatten(self):
        # numpyro before 0.22 asks every constraint for it
        return (), ((), {"upper_bound": self.upper_bound})


class CodeVectors(AbstractChart):
    """Vectors of numbers with few values each: 0 to `num_values` - 1."""

    num_values: int
    length: int

    @property
    def support(self):
        return _Codes(self.num_values - 1)

    @property
    def shape(self):
        return (self.length,)

    def some_values(self, shape, generator):
        return generator.integers(0, self.num_values, (*shape, self.length)).astype(np.int32)


class Tree(AbstractFamily):
    """A Markov tree over the numbers of a vector, which is one factor of q; those of roots take row 0 of their logits alone."""

    chart: CodeVectors
    parents: tuple[int, ...] = eqx.field(static=True)

    @property
    def name(self):
        return "MarkovTree"

    def settings(self):
        is_chain = self.parents == tuple(range(-1, len(self.parents) - 1))
        return {} if is_chain else {"parents": self.parents}

    def parameters(self):
        k = self.chart.num_values
        return {"logits": Parameter((len(self.parents), k, k), constraints.real)}

    def sample(self, params, address):
        parts = jnp.arange(len(self.parents), dtype=jnp.uint32)
        uniforms = jax.vmap(address.uniform)(parts)
        cumulative = jnp.cumsum(softmax(params["logits"]), -1)
        # by division, lest rounding reach a value without probability
        ends = cumulative[..., :-1] / cumulative[..., -1:]
        given_parent = (uniforms[:, None, None] >= ends).sum(-1)

        def follow(own: Array, parent: Array) -> Array:
            return own[parent]

        return self._downwards(follow, given_parent, jnp.zeros((), given_parent.dtype)).astype(int)

    def log_prob(self, params, coordinates):
        parents, numbers = np.array(self.parents), np.arange(len(self.parents))
        of_parents = jnp.where(parents >= 0, coordinates[np.maximum(parents, 0)], 0)
        found = log_softmax(params["logits"])[numbers, of_parents, coordinates]
        return jnp.where(found < NEVER / 2, -jnp.inf, found).sum()

    def centred(self, value):
        value = jnp.broadcast_to(value, (*np.shape(value)[:-1], len(self.parents)))
        k = self.chart.num_values
        logits = jnp.where(jnp.arange(k) == value[..., None], 2.0, 0.0)
        return {"logits": jnp.broadcast_to(logits[..., None, :], (*value.shape, k, k))}

    def natural_gradient(self, params, gradient):
        mass = self.pairs(params["logits"])
        # F is that of each number's logits given its parent, times the probability of that: of different rows it is 0
        return {"logits": gradient["logits"] / jnp.maximum(mass, smallest(mass))}

    def along(self, params, direction):
        return {"logits": self.normalised(log_softmax(params["logits"]) + direction["logits"])}

    def normalised(self, potentials: Float[Array, "numbers k k"]) -> Float[Array, "numbers k k"]:
        """Turn potentials of numbers with their parents into the logarithms of probabilities given these."""

        def pass_up(own: Array, below: Array) -> tuple[Array, Array]:
            own = own + below
            message = jax.nn.logsumexp(own, -1)
            # only differences matter, and sums stay small without what is common; where nothing is possible, that goes on
            common = jnp.max(message)
            return own - message[:, None], message - jnp.where(common < NEVER / 2, 0, common)

        logits = self._upwards(pass_up, potentials)
        return jnp.where(logits < NEVER / 2, NEVER, jnp.maximum(logits, _LEAST))

    def without(self, logits: Array, never: Array) -> Array:
        """Rule these values given their parents out, of any number of factors, and with them what leads to nothing else."""
        potentials = jnp.where(never, NEVER, log_softmax(logits))
        flat = jax.jit(jax.vmap(self.normalised))(potentials.reshape(-1, *potentials.shape[-3:]))
        return flat.reshape(potentials.shape)

    def marginals(self, params):
        if self.chart.num_values > 2:
            raise NotImplementedError("codes of categories have no moments")
        p = self.probabilities(params)[..., 1]
        return marginal(p, np.sqrt(p * (1 - p)), lambda level: p > 1 - level)

    def probabilities(self, params: Any) -> np.ndarray:
        """Return the probability of each value of each number, for any number of factors."""
        logits = jnp.asarray(params["logits"])
        flat = jax.jit(jax.vmap(self.pairs))(logits.reshape(-1, *logits.shape[-3:])).sum(-2)
        return np.asarray(flat).reshape(*logits.shape[:-2], -1)

    def pairs(self, logits: Float[Array, "numbers k k"]) -> Float[Array, "numbers k k"]:
        """Return the joint probability of each number and its parent; that of roots is in row 0."""
        p = softmax(logits)
        first = jnp.zeros(p.shape[-1], p.dtype).at[0].set(1)
        above = self._downwards(lambda own, parent: parent @ own, p, first)
        parents = np.array(self.parents)
        of_parents = jnp.where((parents >= 0)[:, None], above[np.maximum(parents, 0)], first)
        return of_parents[..., None] * p

    def advantage(self, logits: Array, mass: Array, reward: Float[Array, "numbers k k"]) -> Float[Array, "numbers k k"]:
        """Return by how much each value, given its parent's, raises the sum of expected rewards: their own and those below."""
        p = softmax(logits)
        # what is the same for all values counts for nothing, and sums stay small without it
        reward = jnp.where(mass > 0, reward, 0)
        reward = reward - (mass * reward).sum((-2, -1), keepdims=True)

        def pass_up(own: Array, below: Array) -> tuple[Array, Array]:
            given, own = own
            own = own + below
            expected = (given * own).sum(-1)
            return own - expected[:, None], expected

        return self._upwards(pass_up, (p, reward))

    def _downwards(self, function: Any, own: Array, root: Array) -> Array:
        """Compute `function(own, parent's)` of all numbers, parents first; `root` stands for the parent of a root."""
        order, position, above = self._schedule
        if self._is_chain:
            return jax.lax.scan(lambda last, x: (function(x, last),) * 2, root, own)[1]

        def step(found: Array, x: Any) -> tuple[Array, None]:
            at, own, above = x
            return found.at[at].set(function(own, jnp.where(above >= 0, found[above], root))), None

        begin = jnp.zeros((len(order), *root.shape), root.dtype)
        found, _ = jax.lax.scan(step, begin, (jnp.arange(len(order)), own[order], above))
        return found[position]

    def _upwards(self, function: Any, own: Any) -> Array:
        """Compute `result, message = function(own, the sum of the children's messages)` of all numbers, children first."""
        order, position, above = self._schedule
        k = self.chart.num_values
        none = jnp.zeros(k, jnp.result_type(*jax.tree.leaves(own)))
        if self._is_chain:
            return jax.lax.scan(lambda last, x: function(x, last)[::-1], none, own, reverse=True)[1]

        def step(below: Array, x: Any) -> tuple[Array, Array]:
            at, own, above = x
            result, message = function(own, below[at])
            # the last row takes what goes to the parents of roots
            return below.at[above].add(message), result

        begin = jnp.zeros((len(order) + 1, k), none.dtype)
        ordered = jax.tree.map(lambda leaf: leaf[order], own)
        _, found = jax.lax.scan(step, begin, (jnp.arange(len(order)), ordered, above), reverse=True)
        return found[position]

    @property
    def _is_chain(self) -> bool:
        return self.parents == tuple(range(-1, len(self.parents) - 1))

    @property
    def _schedule(self) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
        """The numbers, parents first; where each stands in this order; and where its parent does."""
        order, _ = in_order(self.parents)
        position = np.argsort(order)
        parents = np.array(self.parents)[order]
        return order, position, np.where(parents >= 0, position[np.maximum(parents, 0)], -1)
