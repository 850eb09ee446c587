"""Sum one part of log p over all values of latents that have few: one element at a time, or all together.

No term of log p reads two elements of one colour (`colouring.py`). So elements of one colour move at the same time, and one
evaluation of the terms serves them all. Arrays have samples on the last axis.

- `one_by_one` (Titsias and Lazaro-Gredilla 2015): log p_i at all values of z_i, the other latents as drawn. Elements of one colour
  with K values take K - 1 evaluations beside the one at the draws.
- `jointly`: the expectation of each term over all these latents that it reads, by the values of all colours. C colours
  take K ** C evaluations, and no draw of these latents.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bbvi.blankets.colouring import Colours, Move, moves
from bbvi.draws.draws import only_counted
from bbvi.model.problem import Terms, total

Draws = dict[str, Array]
#: a number for each value of each factor of q, or several
Totals = dict[str, Float[Array, "*factors values"]]


class Plan(NamedTuple):
    """What moves together in one part of log p, how many values each latent has, and how these are summed over.

    `joint` tells whether jointly or one by one, `alone` whether the part reads no other latents.
    """

    colours: Colours
    sizes: Mapping[str, int]
    joint: bool = False
    alone: bool = False

    @property
    def exact(self) -> bool:
        """Whether no draw enters, so that one sample is as good as all."""
        return self.joint and self.alone

    def steps(self, move: Move) -> Int[np.ndarray, "steps 2"]:
        """List each colour with each number of another value: the n-th of those that were not drawn."""
        others = max(self.sizes[name] for name in move.names) - 1
        return np.array(list(itertools.product(move.colours, range(others))))

    @property
    def of_colours(self) -> list[int]:
        """The most values that elements of each colour have."""
        num = 1 + max((int(c.max()) for c in self.colours.values()), default=-1)
        return [max(size for name, size in self.sizes.items() if (self.colours[name] == c).any()) for c in range(num)]

    @property
    def num_one_by_one(self) -> int:
        """The number of evaluations that `one_by_one` takes."""
        return 1 + sum(size - 1 for size in self.of_colours)

    @property
    def num_jointly(self) -> int:
        """The number of evaluations that `jointly` takes."""
        return math.prod(self.of_colours)


class Part(NamedTuple):
    """A part of log p at some draws.

    `terms(moved, names)` evaluates these arrays of terms, or all, with some coordinates in place of those drawn; `log_p` sums
    arrays of terms for all elements of some latents, each over those that read it; `reading` names the arrays that read any of
    these latents. `slopes(moved)` is the derivative in each of these coordinates.
    """

    terms: Callable[[Draws, Sequence[str] | None], Terms]
    log_p: Callable[[Sequence[str], Terms], dict[str, Array]]
    reading: Callable[[Sequence[str]], list[str]]
    slopes: Callable[[Draws], Draws]


class Choices(NamedTuple):
    """The values that each factor of a latent chooses between: what was drawn, its number, and `at(n)`, the n-th.

    With `noise`, (*factors, parts, samples), a choice has a path for each part; `event` counts the axes of one value.
    """

    drawn: Array
    number: Int[Array, "*factors samples"]
    at: Callable[[Array], Array]
    event: int
    noise: Array | None = None

    def made(self, change: Array, slope: Array | None) -> Array:
        """Return what a value adds to the sums: a change of log p_i, the slopes along each path, and these times its noise."""
        if self.noise is None or slope is None:
            return change
        along = slope[..., 1:, :]
        return jnp.concatenate([change[..., None, :], along, along * self.noise], -2)

    def none(self, num: int) -> Array:
        """Make the sums before anything is added, for so many values."""
        shape = (*self.number.shape[:-1], num)
        return jnp.zeros(shape if self.noise is None else (*shape, 1 + 2 * self.noise.shape[-2]))

    def add(self, sums: Array, n: Array | int, made: Array) -> Array:
        """Add what was made of the n-th value."""
        return sums.at[..., n].add(made) if self.noise is None else sums.at[..., n, :].add(made)

    def at_draws(self, sums: Array, slope: Array, counts: Array | None) -> Array:
        """Add the slopes at the values that were drawn."""
        made = self.made(jnp.zeros(self.number.shape), slope)
        for n in range(sums.shape[-2]):
            here = (self.number == n) if counts is None else (self.number == n) & counts
            sums = self.add(sums, n, jnp.where(here[..., None, :], made, 0).sum(-1))
        return sums


def of_values(values: Array, u: Array) -> Choices:
    """Return the choices of a discrete latent."""
    return Choices(u, _index(values, u), lambda n: values[n][..., None], values.ndim - 1)


def one_by_one(
    part: Part, plan: Plan, choices: Mapping[str, Choices], counts: Array | None
) -> tuple[Float[Array, " samples"], Totals]:
    """Sum, for each value, log p_i there less log p_i at the draw, over samples; also give this part's samples.

    Where values have paths, slopes of log p_i along these follow it on a last axis (`Choices.made`).
    """
    terms = part.terms({}, None)
    totals = {name: choices[name].none(size) for name, size in plan.sizes.items()}
    follows = any(choices[name].noise is not None for name in plan.sizes)
    if follows:
        here = part.slopes({name: choices[name].drawn for name in plan.sizes})
        totals = {name: choices[name].at_draws(leaf, here[name], counts) for name, leaf in totals.items()}

    def after(move: Move, totals: Totals) -> Totals:
        reading = part.reading(move.names)

        def step(sums: Totals, at: Array) -> tuple[Totals, None]:
            moving, number, below, moved = {}, {}, {}, {}
            for name in move.names:
                choice = choices[name]
                n = number[name] = jnp.minimum(at[1], plan.sizes[name] - 2)
                moving[name] = ((plan.colours[name] == at[0]) & (at[1] == n))[..., None]
                # the n-th of the other values: the n-th of all, or the next if the drawn one stands before it
                below[name] = n < choice.number
                other = jnp.where(_for_event(below[name], choice.event), choice.at(n), choice.at(n + 1))
                moved[name] = jnp.where(_for_event(moving[name], choice.event), other, choice.drawn)
            terms_there = part.terms(moved, reading)
            # differences before sums: these are small where log p is not
            changes = part.log_p(move.names, {term: terms_there[term] - terms[term] for term in reading})
            slopes = part.slopes(moved) if follows else {}
            new = {}
            for name in move.names:
                n, keep = number[name], moving[name] if counts is None else moving[name] & counts
                made = choices[name].made(changes[name], slopes.get(name))
                wide = int(follows)
                at_n = jnp.where(_for_event(keep & below[name], wide), made, 0).sum(-1)
                at_next = jnp.where(_for_event(keep & ~below[name], wide), made, 0).sum(-1)
                new[name] = choices[name].add(choices[name].add(sums[name], n, at_n), n + 1, at_next)
            return new, None

        start = {name: totals[name] for name in move.names}
        return totals | jax.lax.scan(step, start, jnp.asarray(plan.steps(move)))[0]

    for move in moves(plan.colours):
        totals = after(move, totals)
    return total(terms), totals


def jointly(
    part: Part, plan: Plan, supports: Mapping[str, Array], log_q: Totals, num: int, counts: Array | None
) -> tuple[Float[Array, " samples"], Totals]:
    """Average this part over these latents, for each sample; also give q_i(k) times the sum of E[log p_i | z_i = k].

    The second up to a constant times q_i(k). `log_q` has the values of each element last; there are `num` samples.
    """
    if not plan.sizes:
        return total(part.terms({}, None)), {}
    of_colours = np.array(plan.of_colours)
    all_values = np.array(list(itertools.product(*map(range, of_colours))), np.int32)
    names = list(plan.sizes)
    reading = part.reading(names)

    def terms_at(which: Mapping[str, Array], names: Sequence[str] | None) -> Terms:
        moved = {}
        for name, values in supports.items():
            chosen = values[jnp.minimum(which[name], len(values) - 1)][..., None]
            moved[name] = jnp.broadcast_to(chosen, (*log_q[name].shape[:-1], *values.shape[1:], num))
        return part.terms(moved, names)

    def numbers(at: Array) -> dict[str, Array]:
        return {name: at[plan.colours[name]] for name in names}

    start = terms_at(numbers(jnp.asarray(all_values[0])), None)
    shapes = {term: jax.ShapeDtypeStruct((*start[term].shape[:-1], 1), start[term].dtype) for term in reading}

    reference = start | {term: jnp.where(jnp.isneginf(start[term]), 0, start[term]) for term in reading}

    def log_p(terms: Terms) -> dict[str, Array]:
        zeros = {name: jnp.zeros((*log_q[name].shape[:-1], 1)) for name in names}
        return {name: zeros[name] + leaf for name, leaf in part.log_p(names, terms).items()}

    to_terms = jax.linear_transpose(log_p, shapes)

    def mass(which: Mapping[str, Array]) -> Terms:
        """Give for each term the probability that the latents it reads have these values; uniform over colours it does not read."""
        (logs,) = to_terms(_log_mass(plan, log_q, which))
        return {term: jnp.exp(leaf - np.log(of_colours).sum()) for term, leaf in logs.items()}

    def step(carry: tuple[Array, Totals], at: Array) -> tuple[tuple[Array, Totals], None]:
        samples, totals = carry
        which = numbers(at)
        made, weight = terms_at(which, reading), mass(which)
        # of a term's expectation, a constant does not matter: its value at the start. What q leaves out may be impossible
        shares = {t: jnp.where(weight[t] > 0, weight[t] * (made[t] - reference[t]), 0) for t in reading}
        summed = {term: only_counted(counts, share).sum(-1, keepdims=True) for term, share in shares.items()}
        new = {}
        for name, leaf in log_p(summed).items():
            here = jnp.arange(plan.sizes[name]) == which[name][..., None]
            new[name] = totals[name] + jnp.where(here, leaf, 0)
        return (samples + total(shares), new), None

    weight = mass(numbers(jnp.asarray(all_values[0])))
    broken = {t: jnp.where((weight[t] > 0) & jnp.isneginf(start[t]), -jnp.inf, jnp.zeros(num)) for t in reading}
    begin = total(broken), {name: jnp.zeros_like(log_q[name]) for name in names}
    (samples, totals), _ = jax.lax.scan(step, begin, jnp.asarray(all_values[1:]))
    return samples + total(reference), totals


def _log_mass(plan: Plan, log_q: Totals, which: Mapping[str, Array]) -> dict[str, Array]:
    """Give log q_i of these values, over the uniform distribution on the values of each element's colour."""
    found = {}
    for name, size in plan.sizes.items():
        sizes = jnp.asarray(np.log(np.array(plan.of_colours))[plan.colours[name]])
        at = jnp.broadcast_to(jnp.minimum(which[name], size - 1), log_q[name].shape[:-1])[..., None]
        own = jnp.take_along_axis(log_q[name], at, -1)[..., 0] + sizes
        found[name] = jnp.where(which[name] < size, own, -jnp.inf)[..., None]
    return found


def _for_event(array: Array, num: int) -> Array:
    """Insert axes for the entries of one value before the samples."""
    return jnp.expand_dims(array, tuple(range(-1 - num, -1)))


def _index(values: Array, u: Array) -> Int[Array, "*factors samples"]:
    """Find which of the values these coordinates are."""
    events = tuple(range(-values.ndim, -1))
    found = jnp.zeros((*u.shape[: -values.ndim], u.shape[-1]), jnp.int32)
    for n in range(1, len(values)):
        found = jnp.where((u == values[n][..., None]).all(events), n, found)
    return found
