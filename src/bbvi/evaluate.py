"""One chunk of samples: draws, terms, log p_i, log q_i and scores, for the globals and a batch of groups.

Arrays have samples on the last axis. Groups go through in blocks that stay small in memory, bucket by bucket.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bbvi.blankets import Blankets, Sums
from bbvi.counter import Key, fold, fold_names
from bbvi.draws import (
    AbstractDraws,
    Drawer,
    MonteCarlo,
    Prepared,
    draw_latent,
    floored_values,
    latent_values,
    log_q,
)
from bbvi.families import Params
from bbvi.groups import cut_rows
from bbvi.latents import Latent
from bbvi.model import Problem, Terms
from bbvi.stages import materialise, run_time_true
from bbvi.target import Bucket, Target

Lambda = dict[str, Params]
Consume = Callable[[Any, Array, Params], Any]

_FLOATS_PER_BLOCK = 1 << 17


class Batch(NamedTuple):
    """The groups of one step: their numbers, rows of data, own lengths and rows of lambda, perhaps prepared.

    With `counts` the groups stand in the order of their buckets, that many in each.
    """

    groups: Int[Array, " batch"]
    rows: Any
    lengths: dict[str, Array]
    params: Any
    counts: Int[Array, " buckets"] | None = None


class Drawn(NamedTuple):
    """Some latents' samples: what the model sees, its logarithm where q has it, log q_i, scores, draws floored."""

    values: dict[str, Array]
    logs: dict[str, Array]
    log_q: dict[str, Array]
    score: dict[str, Params]
    floored: Int[Array, ""]


class Chunk(NamedTuple):
    """What a chunk leaves: a state for each latent, the ELBO's samples, the count of floored draws."""

    states: dict[str, dict[str, Any]]
    elbo: Float[Array, " samples"]
    floored: Int[Array, ""]


class Shares(NamedTuple):
    """What some groups add to the whole: to each global's log p_i, in two parts, to the ELBO, to the floored draws."""

    log_p: dict[str, Array | float]
    looked_up: dict[str, list[Array]]
    elbo: Float[Array, " samples"]
    floored: Int[Array, ""]


def evaluate(
    target: Target,
    prepared: Mapping[str, Prepared],
    data: Any,
    batch: Batch | None,
    *,
    rao_blackwell: bool,
    latents: Mapping[str, Drawer],
    key: Key,
    samples: Array,
    counts: Array | None,
    states: dict[str, dict[str, Any]],
    consume: Consume,
) -> Chunk:
    """Hand `consume(state, log p_i - log q_i, score)` of each latent its share of these samples.

    `prepared` and `batch.params` are lambda, prepared by the drawers of the `latents`.
    `counts` tells which samples count, where the last chunk is not full.
    """
    problem, blankets = target.problem, target.blankets

    def masked(leaf: Array) -> Array:
        return leaf if counts is None else jnp.where(counts, leaf, 0)

    on = run_time_true(key)
    of_globals = {name: latents[name] for name in problem.globals}
    of_locals = {name: latents[name] for name in problem.locals}
    drawn = draw(problem, of_globals, prepared, key=key, samples=samples, on=on, counts=counts)

    def prior_at(beta: dict[str, Array], logs: dict[str, Array]) -> Terms:
        return blankets.prior_factors(beta, data, len(samples), logs)

    prior = materialise(on, prior_at, drawn.values, drawn.logs)
    sums = materialise(on, lambda terms: blankets.sums(blankets.prior, terms), prior)
    elbo = _everything(sums) - total(drawn.log_q)
    floored, shares, rows, scale = drawn.floored, None, {}, 1.0
    if batch is not None:
        scale = problem.num_groups / len(batch.groups)

        def block(bucket: Bucket, part: Batch, real: Array | None, part_states: Any) -> tuple[Shares, Any]:
            found, terms, sums = _groups(bucket, drawn, part, of_locals, key, samples, counts)
            patterns = bucket.blankets
            indices = jax.vmap(patterns.indices)(part.rows)
            ratios = jax.vmap(lambda s, log_q: _everything(s) - total(log_q))(sums, found.log_q)
            ratios = ratios if real is None else jnp.where(real[:, None], ratios, 0)
            local_elbo = ratios.sum(0)
            new_states = {}
            for name, latent in problem.locals.items():
                keep = _keep(bucket.problem, latent, part.lengths)

                def weigh(terms: Terms, sums: Sums, log_q_i: Array, name: str = name, keep: Any = keep) -> Array:
                    if not rao_blackwell:
                        return masked(_mask(keep, _like(elbo + local_elbo, log_q_i)))
                    log_p = jax.vmap(lambda *one: _local_log_p(patterns, name, *one))(terms, sums, indices)
                    return masked(_mask(keep, log_p - log_q_i))

                weight = materialise(on, weigh, terms, sums, found.log_q[name])
                new_states[name] = consume(part_states[name], weight, jax.tree.map(masked, found.score[name]))
            terms, sums = (terms, sums) if real is None else jax.tree.map(lambda x: _mask(real, x), (terms, sums))
            looked_up = {name: patterns.looked_up(name, terms, indices) for name in problem.globals}
            terms, sums = jax.tree.map(lambda leaf: leaf.sum(0), (terms, sums))
            log_p = {name: patterns.log_p(patterns.group, name, terms, sums) for name in problem.globals}
            count = found.floored if real is None else jnp.where(real, found.floored, 0)
            return Shares(log_p, looked_up, local_elbo, count.sum()), new_states

        shares, rows = _sweep(target, block, batch, states["rows"], len(samples), rao_blackwell)
        elbo, floored = elbo + scale * shares.elbo, floored + shares.floored
    fitted = {}
    for name in problem.globals if target.fit_globals else ():
        # N/B is applied here, once: to the groups' part of a global's log p_i
        log_p = blankets.log_p(blankets.prior, name, prior, sums)
        if shares is not None:
            log_p = log_p + scale * (shares.log_p[name] + blankets.log_p_looked_up(name, shares.looked_up[name]))
        log_q_i = drawn.log_q[name]
        weight = log_p - log_q_i if rao_blackwell else _like(elbo, log_q_i)
        weight = materialise(on, masked, weight)
        fitted[name] = consume(states["globals"][name], weight, jax.tree.map(masked, drawn.score[name]))
    return Chunk({"globals": fitted, "rows": rows}, masked(elbo), floored)


def _local_log_p(blankets: Blankets, latent: str, terms: Terms, sums: Sums, indices: list[Array]) -> Array | float:
    """log p_i of one group's locals."""
    one = jax.tree.map(lambda leaf: leaf[None], (terms, indices))
    chosen = blankets.log_p_looked_up(latent, blankets.looked_up(latent, *one))
    return blankets.log_p(blankets.group, latent, terms, sums) + chosen


def _everything(sums: Sums) -> Any:
    """The sum of all factors, for each sample."""
    return sum((max(made.items(), key=lambda item: len(item[0]))[1] for made in sums.values()), 0.0)


def draw(
    problem: Problem,
    latents: Mapping[str, Drawer],
    prepared: Mapping[str, Prepared],
    *,
    key: Key,
    samples: Array,
    group: Array | int = 0,
    own: dict[str, Array] | None = None,
    on: Array,
    counts: Array | None = None,
) -> Drawn:
    """Draw these latents (of one group, if they are local) and evaluate log q and its score.

    `own` has the group's lengths; `on` a condition for `materialise` that does not depend on the group; `counts`
    tells which samples count.
    """
    values, logs, log_q_i, score, floored = {}, {}, {}, {}, jnp.int32(0)
    keys = fold_names(key, list(latents))
    for name, drawer in latents.items():
        latent = drawer.latent
        keep = latent.mask(problem.lengths, own) if own is not None and latent.ragged_axes else None

        def masked(found: Any, keep: Array | None = keep) -> Any:
            return jax.tree.map(lambda leaf: _mask(keep, leaf), found)

        u = drawer.coordinates(on, prepared[name], keys[name], group, samples, problem.lengths)
        log_q_i[name], score[name] = drawer.density(on, prepared[name], u, masked)
        values[name] = materialise(on, lambda u, latent=latent: latent_values(latent, u), u)
        log = latent.family.log_value(u)
        if log is not None:
            logs[name] = log
        moved = floored_values(latent, u)
        moved = moved if keep is None else moved & keep[..., None]
        floored = floored + (moved if counts is None else moved & counts).sum(dtype=jnp.int32)
    values |= problem.place(key, samples, group)
    return Drawn(values, logs, log_q_i, score, floored)


def draw_values(
    problem: Problem,
    latents: dict[str, Latent],
    params: Lambda,
    *,
    key: Key,
    samples: Array,
    group: Array | int = 0,
    own: dict[str, Array] | None = None,
    draws: AbstractDraws | None = None,
) -> tuple[dict[str, Array], Float[Array, " samples"] | float]:
    """Draws of these latents, independent ones by default, and the total of log q, without scores."""
    draws, keys = draws or MonteCarlo(samples.shape[0]), fold_names(key, list(latents))
    values: dict[str, Array] = {}
    log_q_total: Any = 0.0
    for name, latent in latents.items():
        u = draw_latent(
            draws, name, latent, params[name], key=keys[name], group=group, samples=samples, lengths=problem.lengths
        )
        values[name], density = latent_values(latent, u), log_q(latent, params[name], u)
        if own is not None and latent.ragged_axes:
            density = jnp.where(latent.mask(problem.lengths, own)[..., None], density, 0)
        log_q_total = log_q_total + total({name: density})
    return values | problem.place(key, samples, group), log_q_total


def prior_terms(problem: Problem, beta: dict[str, Array], data: Any, num: int) -> Terms:
    """The terms that no group owns, for `num` samples on the last axis."""
    at_sample = jax.vmap(lambda b: problem.prior_terms(b, data), in_axes=-1, out_axes=-1, axis_size=num)
    return at_sample(beta)


def group_terms(problem: Problem, beta: dict[str, Array], z: dict[str, Array], row: Any, num: int) -> Terms:
    """The terms of one group, for `num` samples on the last axis."""
    at_sample = jax.vmap(lambda b, z: problem.group_terms(b, z, row), in_axes=-1, out_axes=-1, axis_size=num)
    return at_sample(beta, z)


def _groups(
    bucket: Bucket, beta: Drawn, batch: Batch, latents: Mapping[str, Drawer], key: Key, samples: Array, counts: Any
) -> tuple[Drawn, Terms, Sums]:
    """Draw and evaluate a block of groups: draws, factors and their sums over axes, groups first and samples last."""
    problem, blankets, on = bucket.problem, bucket.blankets, run_time_true(key)

    def one(group, row, own, prepared):
        local_key = fold(key, group)
        drawn = draw(
            problem, latents, prepared,
            key=local_key, samples=samples, group=group, own=own, on=on, counts=counts,
        )  # fmt: skip

        def terms_at(b: dict[str, Array], z: dict[str, Array], logs: dict[str, Array]) -> Terms:
            return blankets.group_factors(b, z, row, len(samples), logs)

        terms = materialise(on, terms_at, beta.values, drawn.values, {**beta.logs, **drawn.logs})
        sums = materialise(on, lambda terms: blankets.sums(blankets.group, terms), terms)
        return drawn, terms, sums

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


def _mask(keep: Array | None, leaf: Array) -> Array:
    """Zero where not kept; `keep` has the first axes of the array."""
    return leaf if keep is None else jnp.where(keep.reshape(keep.shape + (1,) * (leaf.ndim - keep.ndim)), leaf, 0)


def _sweep(
    target: Target, block: Any, batch: Batch, states: dict[str, Any], num_samples: int, rao_blackwell: bool
) -> tuple[Shares, dict[str, Any]]:
    """Run `block` over the batch in blocks: the shares summed, the states of all groups.

    Eq. 3 needs the whole batch's total before any row, so it gets all groups in one block.
    """
    num = len(batch.groups)
    if not rao_blackwell:
        return block(target.whole, batch, None, states)
    sizes = [_block_size(bucket, num, num_samples, batch.counts is None) for bucket in _buckets(target, batch)]
    # a block may reach beyond its bucket, into the next one or beyond the batch: what it finds there does not count
    beyond = max(sizes) - 1 if batch.counts is not None else 0
    padded, states = jax.tree.map(lambda leaf: _extended(leaf, beyond), (batch._replace(counts=None), states))
    first, everything = jnp.int32(0), None
    for number, (bucket, size) in enumerate(zip(_buckets(target, batch), sizes, strict=True)):
        count = num if batch.counts is None else batch.counts[number]
        shares, states = _loop(target, bucket, block, padded, states, first, count, size)
        everything = shares if everything is None else jax.tree.map(jnp.add, everything, shares)
        first = first + count
    assert everything is not None
    return everything, jax.tree.map(lambda leaf: leaf[:num], states)


def _loop(
    target: Target, bucket: Bucket, block: Any, batch: Batch, states: Any, first: Array, count: Any, size: int
) -> tuple[Shares, Any]:
    """The groups of one bucket, from the position `first` on."""
    exact = isinstance(count, int) and count % size == 0
    if exact and count == size:
        return block(bucket, batch, None, states)

    # traced once, for its shapes and for the loop
    traced = jax.jit(lambda part, real, old: block(bucket, part, real, old))

    def some(at: Any) -> Array | None:
        return None if exact or size == 1 else at + jnp.arange(size) < first + count

    def body(number: Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        sums, states = carry
        at = first + number * size
        part = _cut(target, bucket, jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, at, size), batch))
        old = _cut_latents(
            bucket.problem, jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, at, size), states)
        )
        real = some(at)
        shares, new = traced(part, real, old)
        new = (
            new if real is None else jax.tree.map(lambda n, o: jnp.where(_mask(real, jnp.ones_like(n)), n, o), new, old)
        )
        states = jax.tree.map(
            lambda leaf, n: jax.lax.dynamic_update_slice(leaf, n, (at, *[0] * (leaf.ndim - 1))), states, new
        )
        return jax.tree.map(jnp.add, sums, shares), states

    part, old = jax.tree.map(lambda leaf: leaf[:size], (batch, states))
    shares, _ = jax.eval_shape(traced, _cut(target, bucket, part), some(0), _cut_latents(bucket.problem, old))
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shares)
    return jax.lax.fori_loop(0, -(-count // size), body, (zero, states))


def _buckets(target: Target, batch: Batch) -> tuple[Bucket, ...]:
    return (target.whole,) if batch.counts is None else target.buckets


def _block_size(bucket: Bucket, num: int, num_samples: int, exact: bool) -> int:
    """How many groups go through at once; with `exact` a divisor of their number."""
    room = max(1, _FLOATS_PER_BLOCK // max(1, bucket.floats_per_draw * num_samples))
    if exact:
        return max(d for d in range(1, num + 1) if num % d == 0 and d <= room)
    return min(room, max(1, num // 8))


def _extended(leaf: Array, by: int) -> Array:
    return leaf if by == 0 else jnp.concatenate([leaf, jnp.repeat(leaf[:1], by, axis=0)])


def _cut(target: Target, bucket: Bucket, batch: Batch) -> Batch:
    """Some groups at the lengths of their bucket."""
    if not bucket.problem.lengths or bucket.problem.lengths == target.problem.lengths:
        return batch
    rows = cut_rows(batch.rows, target.axes, bucket.problem.lengths)
    return batch._replace(rows=rows, params=_cut_latents(bucket.problem, batch.params))


def _cut_latents(problem: Problem, of_latents: dict[str, Any]) -> dict[str, Any]:
    """For each latent arrays with groups first and its own axes then, these cut to the problem's lengths."""

    def cut(name: str, leaf: Array) -> Array:
        for axis, size in enumerate(problem.shape(name), start=1):
            leaf = jax.lax.slice_in_dim(leaf, 0, size, axis=axis)
        return leaf

    return {name: jax.tree.map(lambda leaf, n=name: cut(n, leaf), tree) for name, tree in of_latents.items()}
