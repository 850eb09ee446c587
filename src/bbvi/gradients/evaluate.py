"""One chunk of samples: draws, factors, log p_i, log q_i and scores, for the globals and a batch of groups.

Arrays have samples on the last axis. Draws and sums over samples go row by row (`rows.py`); in between, the factors
of log p are evaluated in blocks of groups that stay small in memory, bucket by bucket.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bbvi.blankets.analysis import Analysis
from bbvi.draws.batch import Batch
from bbvi.draws.layout import Buffers, Layout, drawn, model_values, num_floored, shaped, total_log_q, zero_padding
from bbvi.draws.rows import Rows, at_least, over_rows
from bbvi.families import Params
from bbvi.gradients.group_blocks import GroupBlocks, GroupTerms, Shares, sum_of_all
from bbvi.model.problem import Terms
from bbvi.numerics.address import Key
from bbvi.numerics.xla import materialise, run_time_true

Consume = Callable[[Any, Array, Params], Any]


class Chunk(NamedTuple):
    """What a chunk leaves: a state for each latent, buffers for the next chunk, the ELBO's samples, draws floored."""

    states: dict[str, Any]
    buffers: Buffers
    elbo: Float[Array, " samples"]
    floored: Int[Array, ""]


def evaluate(
    analysis: Analysis,
    layout: Layout,
    data: Any,
    batch: Batch | None,
    *,
    rao_blackwell: bool,
    key: Key,
    samples: Array,
    counts: Array | None,
    states: dict[str, Any],
    buffers: Buffers,
    consume: Consume,
) -> Chunk:
    """Hand `consume(state, log p_i - log q_i, score)` of each latent its share of these samples, row by row.

    `counts` tells which samples count, where the last chunk is not full.
    """
    problem, blankets, on = analysis.problem, analysis.blankets, run_time_true(key)
    u = {name: drawn(layout, name, on, samples, buffers.draws.get(name)) for name in layout.rows}
    beta, logs = model_values(problem.globals, {n: shaped(problem, n, u[n]) for n in problem.globals}, on)
    beta |= problem.call_site(key, samples)

    def prior_at(beta: dict[str, Array], logs: dict[str, Array]) -> Terms:
        return blankets.prior_terms(beta, data, len(samples), logs)

    prior = materialise(on, prior_at, beta, logs)
    sums = materialise(on, lambda terms: blankets.sums(blankets.prior, terms), prior)
    elbo, scale = sum_of_all(sums), 1.0
    log_p: dict[str, Any] = {}
    shares: Shares | None = None
    places: dict[str, Array] = {}
    if batch is not None:
        scale = problem.num_groups / len(batch.groups)
        here = GroupTerms(analysis, beta, logs, key, samples)
        shares, places, log_p = here.sweep(GroupBlocks(analysis, layout, batch, u), buffers.log_p)
    for name in problem.globals:
        # N/B is applied here, once: to the groups' part of a global's log p_i
        of_globals = blankets.log_p(blankets.prior, name, prior, sums)
        if shares is not None:
            chosen = blankets.log_p_looked_up(name, shares.looked_up[name])
            of_globals = of_globals + scale * (shares.log_p[name] + chosen)
        log_p[name] = _as_rows(of_globals, problem.shape(name), layout.rows[name], len(samples))
    local_elbo = 0.0 if shares is None else shares.elbo
    fitted = analysis.fitted(batch is not None)
    if not rao_blackwell:
        # Eq. 3 needs the ELBO before any weight
        log_qs = {name: total_log_q(layout, name, u[name], on) for name in layout.rows}
        elbo = elbo - sum(log_qs[name] for name in problem.globals)
        local_elbo = local_elbo - sum((log_qs[name] for name in problem.locals if name in log_qs), 0.0)
        whole = {name: elbo + (scale if name in problem.globals else 1.0) * local_elbo for name in layout.rows}
        log_p = {
            name: jnp.broadcast_to(whole[name], (len(layout.rows[name].elements), len(samples))) for name in fitted
        }

    def sum_up(name: str) -> Callable[..., Any]:
        def tile(rows: Rows, u: Array, log_p: Array, state: Any) -> Any:
            log_q_i, score = layout.latents[name].density(on, rows.prepared, u)

            def weigh(log_p: Array, log_q_i: Array) -> Array:
                weight = log_p - log_q_i if rao_blackwell else log_p
                return weight if counts is None else jnp.where(counts, weight, 0)

            weight = materialise(on, weigh, log_p, log_q_i)
            score = score if counts is None else jax.tree.map(lambda leaf: jnp.where(counts, leaf, 0), score)
            # padding is taken out of the sums, which are small
            sums = jax.tree.map(lambda leaf: zero_padding(rows.real, leaf), consume(state, weight, score))
            moved = num_floored(layout.latents[name].latent, rows, u, counts)
            return (zero_padding(rows.real, log_q_i).sum(0), moved), sums

        return tile

    new_states, floored = {}, jnp.int32(0)
    for name in layout.rows:
        rows = layout.rows[name]
        if name in fitted:
            (log_q_total, moved), new_states[name] = over_rows(
                sum_up(name), rows, layout.tiles[name], u[name], log_p[name], states[name]
            )
            floored = floored + moved
        else:
            log_q_total = total_log_q(layout, name, u[name], on)
        if rao_blackwell:
            share = scale if name in problem.locals else 1.0
            elbo = elbo - share * log_q_total
    elbo = elbo + scale * local_elbo
    used = Buffers({name: u[name] for name in buffers.draws}, {name: places[name] for name in buffers.log_p})
    return Chunk(new_states, used, elbo if counts is None else jnp.where(counts, elbo, 0), floored)


def _as_rows(log_p: Any, shape: tuple[int, ...], rows: Rows, num: int) -> Float[Array, "rows samples"]:
    return at_least(jnp.broadcast_to(log_p, (*shape, num)).reshape(-1, num), len(rows.elements))
