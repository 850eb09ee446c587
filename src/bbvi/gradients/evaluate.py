"""One chunk of samples in three stages: draw, evaluate the terms that give log p_i, weigh the scores.

Arrays have samples on the last axis. Draws and sums over samples go row by row (`draws/rows.py`); in between, the terms
of log p are evaluated in blocks of groups that stay small in memory, bucket by bucket.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bbvi.draws.draws import Cut
from bbvi.draws.layout import Arrays, Buffers, Layout, zero_padding
from bbvi.draws.rows import Rows, at_least, over_rows
from bbvi.families import Params
from bbvi.gradients.group_blocks import GroupBlocks, GroupTerms, Shares, sum_of_all
from bbvi.model.problem import Terms
from bbvi.numerics.loops import accumulate
from bbvi.numerics.xla import materialise

Consume = Callable[[Any, Array, Params], Any]


class Chunk(NamedTuple):
    """What a chunk leaves: a state for each latent, buffers for the next chunk, the ELBO's samples, draws floored."""

    states: dict[str, Any]
    buffers: Buffers
    elbo: Float[Array, " samples"]
    floored: Int[Array, ""]


class LogP(NamedTuple):
    """log p_i by rows, samples of the part of log p that no group owns and of the batch's groups; locals' log p_i by places."""

    rows: dict[str, Float[Array, "rows samples"]]
    prior: Float[Array, " samples"]
    groups: Float[Array, " samples"] | float
    places: Arrays


def evaluate(
    layout: Layout,
    data: Any,
    samples: Array,
    counts: Array | None,
    *,
    rao_blackwell: bool,
    states: dict[str, Any],
    buffers: Buffers,
    consume: Consume,
) -> Chunk:
    """Hand `consume(state, log p_i - log q_i, score)` of each latent its share of these samples, row by row.

    `counts` tells which samples count, where the last chunk is not full.
    """
    u = {name: layout.drawn(name, samples, buffers.draws.get(name)) for name in layout.rows}
    log_p = _log_p(layout, data, samples, u, buffers.log_p)
    elbo, of_groups, rows = log_p.prior, log_p.groups, log_p.rows
    if not rao_blackwell:
        # Eq. 3 needs the ELBO before any weight
        log_qs = {name: layout.total_log_q(name, u[name]) for name in layout.rows}
        elbo = elbo - sum(log_qs[name] for name in layout.problem.globals)
        of_groups = of_groups - sum((log_qs[name] for name in layout.problem.locals if name in log_qs), 0.0)
        for name in layout.fitted:
            whole = elbo + (layout.scale if name in layout.problem.globals else 1.0) * of_groups
            rows[name] = jnp.broadcast_to(whole, (len(layout.rows[name].elements), len(samples)))
    new_states, floored = {}, jnp.int32(0)
    for name in layout.rows:
        if name in layout.fitted:
            tile = _weigh(layout, name, counts, rao_blackwell, consume)
            (log_q, moved), new_states[name] = over_rows(
                tile, layout.rows[name], layout.tiles[name], u[name], rows[name], states[name]
            )
            floored = floored + moved
        else:
            log_q = layout.total_log_q(name, u[name])
        if rao_blackwell:
            elbo = elbo - layout.share(name) * log_q
    elbo = elbo + layout.scale * of_groups
    used = Buffers({name: u[name] for name in buffers.draws}, {name: log_p.places[name] for name in buffers.log_p})
    return Chunk(new_states, used, elbo, floored)


def _log_p(layout: Layout, data: Any, samples: Array, u: Arrays, into: Arrays) -> LogP:
    """Evaluate the terms at these draws, and sum those in the blanket of each factor of q (Eq. 6)."""
    problem, scope = layout.problem, layout.analysis.blankets.prior
    beta, logs = layout.global_values(u, samples)

    def prior_at(beta: Arrays, logs: Arrays) -> Terms:
        return scope.at_samples(beta, data, len(samples), logs)

    prior = materialise(layout.on, prior_at, beta, logs)
    sums = materialise(layout.on, scope.sums, prior)
    rows: dict[str, Any] = {}
    places: Arrays = {}
    shares: Shares | None = None
    groups = layout.analysis.blankets.group
    if layout.batch is not None:
        here = GroupTerms(layout, beta, logs, samples)
        shares, places, rows = here.sweep(GroupBlocks(layout, u), into)
    for name in problem.globals:
        of_globals = scope.log_p_i(name, prior, sums)
        if shares is not None and groups is not None:
            # N/B is applied here, once: to the groups' part of a global's log p_i
            of_globals = of_globals + layout.scale * (shares.log_p[name] + groups.spread(name, shares.looked_up[name]))
        flat = jnp.broadcast_to(of_globals, (*problem.shape(name), len(samples))).reshape(-1, len(samples))
        rows[name] = at_least(flat, len(layout.rows[name].elements))
    return LogP(rows, sum_of_all(sums), 0.0 if shares is None else shares.elbo, places)


def _weigh(
    layout: Layout, name: str, counts: Array | None, rao_blackwell: bool, consume: Consume
) -> Callable[..., tuple[Any, Any]]:
    """Make the function of a tile of rows that consumes weights and scores, and returns totals of log q and floored draws."""

    def weigh(log_p: Array, log_q_i: Array) -> Array:
        weight = log_p - log_q_i if rao_blackwell else log_p
        return weight if counts is None else jnp.where(counts, weight, 0)

    def tile(rows: Rows, u: Array, log_p: Array, state: Any) -> Any:
        log_q_i, score = layout.latents[name].density(layout.on, rows.prepared, u)
        weight = materialise(layout.on, weigh, log_p, log_q_i)
        score = score if counts is None else jax.tree.map(lambda leaf: jnp.where(counts, leaf, 0), score)
        # padding is taken out of the sums, which are small
        sums = jax.tree.map(lambda leaf: zero_padding(rows.real, leaf), consume(state, weight, score))
        return (zero_padding(rows.real, log_q_i).sum(0), layout.num_floored(name, rows, u, counts)), sums

    return tile


def sum_chunks(cut: Cut, visit: Callable[[Array], tuple[Any, Array, Array | None]]) -> tuple[Any, Array, Array]:
    """Sum over all chunks in the memory of one; also give the ELBO and its standard error.

    `visit(chunk)` are the sums over one, its samples of the ELBO, and which of them count.
    """

    def see(chunk: int | Array, shift: Array) -> tuple[tuple[Any, Array], Array]:
        sums, elbo, counts = visit(jnp.asarray(chunk, jnp.uint32))
        shift = jnp.where(chunk == 0, elbo[0], shift)
        centred = elbo - shift if counts is None else jnp.where(counts, elbo - shift, 0)
        return (sums, jnp.stack([centred.sum(), (centred**2).sum()])), shift

    (sums, of_elbo), shift = accumulate(see, cut.num_chunks, jnp.zeros(()))
    mean, square = of_elbo / cut.num
    return sums, shift + mean, jnp.sqrt(jnp.maximum(square - mean**2, 0) / max(1, cut.num - 1))
