"""One chunk of samples in three stages: draw, evaluate the terms that give log p_i, weigh the scores.

Arrays have samples on the last axis. Draws and sums over samples go row by row (`draws/rows.py`); in between, the terms
of log p are evaluated in blocks of groups that stay small in memory, bucket by bucket.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bbvi.draws.drawer import Rows
from bbvi.draws.draws import Cut, only_counted
from bbvi.draws.layout import Arrays, Buffers, Layout, zero_padding
from bbvi.draws.rows import over_rows
from bbvi.families import Params
from bbvi.gradients.group_blocks import GroupBlocks, group_terms, sum_of_all
from bbvi.numerics.loops import accumulate
from bbvi.numerics.xla import materialise

Consume = Callable[[Any, Array, Params], Any]


def evaluate(
    layout: Layout,
    data: Any,
    samples: Array,
    counts: Array | None,
    states: dict[str, Any],
    buffers: Buffers,
    consume: Consume,
    *,
    rao_blackwell: bool,
) -> tuple[dict[str, Any], Buffers, Float[Array, " samples"], Int[Array, ""]]:
    """Hand `consume(state, log p_i - log q_i, score)` of each table its share of these samples, row by row.

    `counts` tells which samples count, where the last chunk is not full. Return what was consumed, by table, buffers for
    the next chunk, the ELBO's samples, and the number of draws floored.
    """
    u = {name: layout.drawn(name, samples, buffers.draws.get(name)) for name in layout.tables}
    elbo, of_groups, log_p, places = _log_p(layout, data, samples, u, buffers.log_p)
    if not rao_blackwell:
        # Eq. 3 needs the ELBO before any weight
        log_qs = {name: layout.total_log_q(name, u[name]) for name in layout.tables}
        elbo = elbo - sum((log_qs[name] for name in layout.globals), 0.0)
        of_groups = of_groups - sum((layout.of_all(name, log_qs[name]) for name in layout.locals), 0.0)
        for name, table in layout.fitted.items():
            whole = elbo + (1.0 if table.is_local else layout.scale) * of_groups
            log_p[name] = jnp.broadcast_to(whole, (len(table.rows.elements), len(samples)))

    def weigh(log_p: Array, log_q_i: Array) -> Array:
        return only_counted(counts, log_p - log_q_i if rao_blackwell else log_p)

    def tile(name: str, rows: Rows, u: Array, log_p: Array, state: Any) -> tuple[Array, Any]:
        log_q_i, score = layout.tables[name].drawer.density(layout.on, rows.prepared, u)
        weight = materialise(layout.on, weigh, log_p, log_q_i)
        return log_q_i, consume(state, weight, jax.tree.map(lambda h: only_counted(counts, h), score))

    inputs = {name: (log_p[name], states[name]) for name in layout.fitted}
    new_states, log_qs, floored = over_tables(layout, u, counts, tile, inputs)
    if rao_blackwell:
        elbo = layout.less_log_q(elbo, log_qs)
    used = Buffers({name: u[name] for name in buffers.draws}, {name: places[name] for name in buffers.log_p})
    return new_states, used, elbo + layout.scale * of_groups, floored


def _log_p(layout: Layout, data: Any, samples: Array, u: Arrays, into: Arrays) -> tuple[Array, Any, Arrays, Arrays]:
    """Evaluate the terms at these draws, and sum those in the blanket of each factor of q (Eq. 6).

    Return samples of the part of log p that no group owns and of the batch's groups, log p_i by table as rows, and the locals' by places.
    """
    problem, scope = layout.problem, layout.analysis.blankets.prior
    beta, logs = layout.global_values(u, samples)
    prior = materialise(layout.on, lambda beta, logs: scope.at_samples(beta, data, len(samples), logs), beta, logs)
    sums = materialise(layout.on, scope.sums, prior)
    found: tuple[Arrays, Any, Arrays, Arrays] = ({}, 0.0, {}, {})
    if layout.batch is not None:
        found = group_terms(GroupBlocks(layout, u), beta, logs, samples, into)
    of_globals, of_groups, places, rows = found
    factors: Arrays = {}
    for name in problem.globals:
        own = scope.log_p_i(name, prior, sums)
        if name in of_globals:
            # N/B is applied here, once: to the groups' part of a global's log p_i
            own = own + layout.scale * of_globals[name]
        factors[name] = jnp.broadcast_to(own, (*problem.shape(name), len(samples)))
    for name, table in layout.globals.items():
        rows[name] = table.as_rows(table.columns.join(factors, 0)[None])
    return sum_of_all(sums), of_groups, rows, places


def over_tables(
    layout: Layout, u: Arrays, counts: Array | None, function: Callable[..., tuple[Array, Any]], inputs: dict[str, Any]
) -> tuple[dict[str, Any], Arrays, Int[Array, ""]]:
    """Apply `function(name, rows, u, *inputs) -> (log q_i, sums)` to each fitted table, tile by tile.

    Return the sums by rows, log q of all tables that are drawn, and the number of draws floored.
    """
    found, log_q, floored = {}, {}, jnp.int32(0)
    for name, table in layout.tables.items():
        if not table.is_fitted:
            log_q[name] = layout.total_log_q(name, u[name])
            continue

        def tile(rows: Rows, u: Array, *inputs: Any, name: str = name) -> tuple[Any, Any]:
            # padding is taken out of the sums, which are small
            made = function(name, rows, u, *inputs)
            log_q_i, sums = jax.tree.map(lambda leaf: zero_padding(rows.real, leaf), made)
            return (log_q_i.sum(0), layout.num_floored(name, rows, u, counts)), sums

        (log_q[name], moved), found[name] = over_rows(tile, table.rows, table.tile, u[name], *inputs[name])
        floored = floored + layout.of_all(name, moved)
    return found, log_q, floored


def sum_chunks(cut: Cut, visit: Callable[..., tuple[Any, Array]]) -> tuple[Any, Array, Array]:
    """Sum over all chunks in the memory of one; also give the ELBO and its standard error.

    `visit(samples, counts)` are the sums over one chunk, and its samples of the ELBO.
    """

    def see(chunk: int | Array, shift: Array) -> tuple[tuple[Any, Array], Array]:
        samples, counts = cut.samples(chunk)
        sums, elbo = visit(samples, counts)
        shift = jnp.where(chunk == 0, elbo[0], shift)
        centred = only_counted(counts, elbo - shift)
        return (sums, jnp.stack([centred.sum(), (centred**2).sum()])), shift

    (sums, of_elbo), shift = accumulate(see, cut.num_chunks, jnp.zeros(()))
    mean, square = of_elbo / cut.num
    return sums, shift + mean, jnp.sqrt(jnp.maximum(square - mean**2, 0) / max(1, cut.num - 1))
