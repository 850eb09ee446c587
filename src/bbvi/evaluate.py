"""One chunk of samples: draws, terms, log p_i, log q_i and scores, for the globals and a batch of groups.

Arrays have samples on the last axis. Groups go through in blocks that stay small in memory.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bbvi.blankets import Blankets
from bbvi.counter import Key, fold, fold_names
from bbvi.draws import (
    AbstractDraws,
    MonteCarlo,
    draw_latent,
    floored_values,
    latent_values,
    log_q,
    log_q_and_score,
)
from bbvi.families import Params
from bbvi.latents import Latent
from bbvi.model import Problem, Terms

Lambda = dict[str, Params]
Consume = Callable[[Any, Array, Params], Any]

_FLOATS_PER_BLOCK = 1 << 20


class Target(NamedTuple):
    """What is fitted: the problem, its blankets, its size, and whether the globals are fitted or held."""

    problem: Problem
    blankets: Blankets
    floats_per_draw: int
    fit_globals: bool


class Batch(NamedTuple):
    """The groups of one step: their numbers, rows of data, own lengths and rows of lambda."""

    groups: Int[Array, " batch"]
    rows: Any
    lengths: dict[str, Array]
    params: Lambda


class Drawn(NamedTuple):
    """Some latents' samples: what the model sees, log q_i, scores, and how many had to be floored."""

    values: dict[str, Array]
    log_q: dict[str, Array]
    score: dict[str, Params]
    floored: Int[Array, ""]


class Chunk(NamedTuple):
    """What a chunk leaves: a state for each latent, the ELBO's samples, the count of floored draws."""

    states: dict[str, dict[str, Any]]
    elbo: Float[Array, " samples"]
    floored: Int[Array, ""]


def evaluate(
    target: Target,
    params: Lambda,
    data: Any,
    batch: Batch | None,
    *,
    rao_blackwell: bool,
    draws: AbstractDraws,
    key: Key,
    samples: Array,
    counts: Array | None,
    states: dict[str, dict[str, Any]],
    consume: Consume,
) -> Chunk:
    """Hand `consume(state, log p_i - log q_i, score)` of each latent its share of these samples.

    `counts` tells which samples count, where the last chunk is not full.
    """
    problem, blankets = target.problem, target.blankets

    def masked(leaf: Array) -> Array:
        return leaf if counts is None else jnp.where(counts, leaf, 0)

    drawn = draw(problem, problem.globals, params, draws=draws, key=key, samples=samples, counts=counts)
    on = run_time_true(key)
    prior = materialise(on, lambda beta: blankets.prior_factors(beta, data, len(samples)), drawn.values)
    elbo = total(prior) - total(drawn.log_q)
    floored, group_terms, rows, scale = drawn.floored, {}, {}, 1.0
    if batch is not None:
        scale = problem.num_groups / len(batch.groups)
        blocks = _blocks(target, batch, len(samples), rao_blackwell)

        def block(item):
            part, part_states = item
            found, terms, ratios = _groups(target, drawn.values, part, draws, key, samples, counts)
            indices = jax.vmap(blankets.indices)(part.rows)
            local_elbo = ratios.sum(0)
            new_states = {}
            for name, latent in problem.locals.items():
                log_p = jax.vmap(lambda t, i, n=name: _local_log_p(blankets, n, t, i))(terms, indices)
                weight = log_p - found.log_q[name] if rao_blackwell else _like(elbo + local_elbo, found.log_q[name])
                keep = _keep(problem, latent, part.lengths)
                weight, score = _mask(keep, masked(weight), jax.tree.map(masked, found.score[name]))
                new_states[name] = consume(part_states[name], weight, score)
            summed = jax.tree.map(lambda leaf: leaf.sum(0), terms)
            chosen = {name: blankets.looked_up(name, terms, indices) for name in problem.globals}
            return (summed, chosen, local_elbo, found.floored.sum()), new_states

        (group_terms, chosen, local_elbo, local_floored), rows = _scan(block, blocks, batch, states["rows"])
        elbo, floored = elbo + scale * local_elbo, floored + local_floored
    fitted = {}
    for name in problem.globals if target.fit_globals else ():
        # N/B is applied here, once: to the groups' part of a global's log p_i
        log_p = blankets.log_p(blankets.prior, name, prior)
        if batch is not None:
            of_groups = blankets.log_p(blankets.group, name, group_terms) + blankets.log_p_looked_up(name, chosen[name])
            log_p = log_p + scale * of_groups
        log_q_i = drawn.log_q[name]
        weight = log_p - log_q_i if rao_blackwell else _like(elbo, log_q_i)
        fitted[name] = consume(states["globals"][name], masked(weight), jax.tree.map(masked, drawn.score[name]))
    return Chunk({"globals": fitted, "rows": rows}, masked(elbo), floored)


def _local_log_p(blankets: Blankets, latent: str, terms: Terms, indices: list[Array]) -> Array | float:
    """log p_i of one group's locals."""
    one = jax.tree.map(lambda leaf: leaf[None], (terms, indices))
    chosen = blankets.log_p_looked_up(latent, blankets.looked_up(latent, *one))
    return blankets.log_p(blankets.group, latent, terms) + chosen


def draw(
    problem: Problem,
    latents: dict[str, Latent],
    params: Lambda,
    *,
    draws: AbstractDraws,
    key: Key,
    samples: Array,
    group: Array | int = 0,
    own: dict[str, Array] | None = None,
    on: Array | None = None,
    counts: Array | None = None,
) -> Drawn:
    """Draw these latents (of one group, if they are local) and evaluate log q and its score.

    `own` has the group's lengths; `on` a condition for `materialise` that does not depend on the group; `counts`
    tells which samples count.
    """
    on = run_time_true(key) if on is None else on
    values, log_q_i, score, floored = {}, {}, {}, jnp.int32(0)
    keys = fold_names(key, list(latents))
    for name, latent in latents.items():

        def coordinates(p: Params, k: Key, name: str = name, latent: Latent = latent) -> Array:
            return draw_latent(draws, name, latent, p, key=k, group=group, samples=samples, lengths=problem.lengths)

        def density(p: Params, u: Array, latent: Latent = latent) -> tuple[Array, Params, Array]:
            return *log_q_and_score(latent, p, u), latent_values(latent, u)

        u = materialise(on, coordinates, params[name], keys[name])
        log_q_i[name], score[name], values[name] = materialise(on, density, params[name], u)
        moved = floored_values(latent, u)
        if own is not None and latent.ragged_axes:
            keep = latent.mask(problem.lengths, own)[..., None]
            log_q_i[name], moved = jnp.where(keep, log_q_i[name], 0), moved & keep
        floored = floored + (moved if counts is None else moved & counts).sum(dtype=jnp.int32)
    values |= problem.place(key, samples, group)
    return Drawn(values, log_q_i, score, floored)


def draw_values(
    problem: Problem,
    latents: dict[str, Latent],
    params: Lambda,
    *,
    key: Key,
    samples: Array,
    group: Array | int = 0,
    own: dict[str, Array] | None = None,
) -> tuple[dict[str, Array], Float[Array, " samples"] | float]:
    """Independent draws of these latents and the total of log q, without scores."""
    draws, keys = MonteCarlo(samples.shape[0]), fold_names(key, list(latents))
    values: dict[str, Array] = {}
    log_q_total: Any = 0.0
    for name, latent in latents.items():
        u = draw_latent(
            draws, name, latent, params[name], key=keys[name], group=0, samples=samples, lengths=problem.lengths
        )
        values[name], density = latent_values(latent, u), log_q(latent, params[name], u)
        if own is not None and latent.ragged_axes:
            density = jnp.where(latent.mask(problem.lengths, own)[..., None], density, 0)
        log_q_total = log_q_total + total({name: density})
    return values | problem.place(key, samples, group), log_q_total


def run_time_true(key: Key) -> Array:
    """True, which the compiler cannot know."""
    return (key[0] | np.uint32(1)) != 0


def materialise(on: Array, stage: Callable[..., Any], *arguments: Any) -> Any:
    """Run a stage so that its results are stored once.

    XLA on CPU would otherwise copy a cheap-looking producer, such as the random numbers, into every consumer:
    more to compile and more to compute. A condition that is always true, though the compiler cannot know, stops it.
    """
    shapes = jax.eval_shape(stage, *arguments)
    zeros = lambda *_: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)  # noqa: E731
    return jax.lax.cond(on, stage, zeros, *arguments)


def prior_terms(problem: Problem, beta: dict[str, Array], data: Any, num: int) -> Terms:
    """The terms that no group owns, for `num` samples on the last axis."""
    at_sample = jax.vmap(lambda b: problem.prior_terms(b, data), in_axes=-1, out_axes=-1, axis_size=num)
    return at_sample(beta)


def group_terms(problem: Problem, beta: dict[str, Array], z: dict[str, Array], row: Any, num: int) -> Terms:
    """The terms of one group, for `num` samples on the last axis."""
    at_sample = jax.vmap(lambda b, z: problem.group_terms(b, z, row), in_axes=-1, out_axes=-1, axis_size=num)
    return at_sample(beta, z)


def _groups(
    target: Target, beta: dict[str, Array], batch: Batch, draws: AbstractDraws, key: Key, samples: Array, counts: Any
):
    """Draw and evaluate a block of groups: draws, factors and log p - log q, groups first and samples last."""
    problem, blankets, on = target.problem, target.blankets, run_time_true(key)

    def one(group, row, own, params):
        local_key = fold(key, group)
        drawn = draw(
            problem, problem.locals, params,
            draws=draws, key=local_key, samples=samples, group=group, own=own, on=on, counts=counts,
        )  # fmt: skip

        def terms_at(b: dict[str, Array], z: dict[str, Array]) -> Terms:
            return blankets.group_factors(b, z, row, len(samples))

        terms = materialise(on, terms_at, beta, drawn.values)
        return drawn, terms, total(terms) - total(drawn.log_q)

    return jax.vmap(one)(batch.groups, batch.rows, batch.lengths, batch.params)


def group_log_ratios(
    problem: Problem, beta: dict[str, Array], batch: Batch, *, key: Key, samples: Array
) -> Float[Array, "batch samples"]:
    """log p(x_i, z_i | beta) - log q(z_i) of each group, at its draws and the given samples of the globals."""

    def one(group, row, own, params):
        z, log_q_total = draw_values(
            problem, problem.locals, params, key=fold(key, group), samples=samples, group=group, own=own
        )
        return total(group_terms(problem, beta, z, row, len(samples))) - log_q_total

    return jax.vmap(one)(batch.groups, batch.rows, batch.lengths, batch.params)


def total(arrays: Terms) -> Any:
    """Sum of everything, for each sample."""
    return sum((leaf.reshape(-1, leaf.shape[-1]).sum(0) for leaf in arrays.values()), 0.0)


def _like(weight: Array, array: Array) -> Array:
    return jnp.broadcast_to(weight, array.shape)


def _keep(problem: Problem, latent: Latent, lengths: dict[str, Array]) -> Array | None:
    if not latent.ragged_axes:
        return None
    return jax.vmap(lambda own: latent.mask(problem.lengths, own))(lengths)


def _mask(keep: Array | None, weight: Array, score: Params) -> tuple[Array, Params]:
    if keep is None:
        return weight, score

    def zero(leaf: Array) -> Array:
        return jnp.where(keep.reshape(keep.shape + (1,) * (leaf.ndim - keep.ndim)), leaf, 0)

    return zero(weight), jax.tree.map(zero, score)


def _blocks(target: Target, batch: Batch, num_samples: int, rao_blackwell: bool) -> int:
    """Into how many blocks the batch is cut; Eq. 3 needs the whole batch's total before any row."""
    size = len(batch.groups)
    if not rao_blackwell:
        return 1
    room = max(1, _FLOATS_PER_BLOCK // max(1, target.floats_per_draw * num_samples))
    return size // max(d for d in range(1, size + 1) if size % d == 0 and d <= room)


def _scan(block: Any, num_blocks: int, batch: Batch, states: Any) -> Any:
    """Run `block` over the blocks: its first result summed, its second put together again."""
    items = jax.tree.map(lambda leaf: leaf.reshape(num_blocks, -1, *leaf.shape[1:]), (batch, states))
    first = jax.tree.map(lambda leaf: leaf[0], items)
    if num_blocks == 1:
        return block(first)

    def body(carry, item):
        sums, out = block(item)
        return jax.tree.map(jnp.add, carry, sums), out

    sums, _ = jax.eval_shape(block, first)
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), sums)
    summed, out = jax.lax.scan(body, zero, items)
    return summed, jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), out)
