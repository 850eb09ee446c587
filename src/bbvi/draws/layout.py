"""Algorithms 1 and 2: the factors of q of one step laid out as rows, and drawn."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bbvi.blankets.analysis import Analysis
from bbvi.draws.batch import Batch
from bbvi.draws.drawer import Drawer
from bbvi.draws.draws import latent_values
from bbvi.draws.rows import Packing, Rows, global_rows, is_packed, key_rows, local_rows, over_rows, pack, tile_size
from bbvi.families.abstract import Lambda
from bbvi.model.latents import Latent
from bbvi.model.problem import Problem
from bbvi.numerics.address import Key, fold_names
from bbvi.numerics.xla import materialise, run_time_true, stored, sum_over_samples


class Layout(NamedTuple):
    """What all chunks of samples of a step share: the factors of q as rows, how many go at a time, how they are packed."""

    latents: dict[str, Drawer]
    rows: dict[str, Rows]
    tiles: dict[str, int]
    packings: dict[str, Packing]


class Buffers(NamedTuple):
    """Room for the draws of a chunk and their log p_i, where these are too many to be held at once."""

    draws: dict[str, Array]
    log_p: dict[str, Array]


def lay_out(
    analysis: Analysis, latents: dict[str, Drawer], params: Lambda, batch: Batch | None, key: Key, num_samples: int
) -> Layout:
    """Lay out the factors of q of a step, for chunks of this many samples."""
    problem = analysis.problem
    keys = dict(zip(problem.globals, stored(run_time_true(key), fold_names(key, list(problem.globals))), strict=True))
    rows = {name: global_rows(latents[name], params[name], keys[name], num_samples) for name in problem.globals}
    packings: dict[str, Packing] = {}
    if batch is not None:
        for name, latent in problem.locals.items():
            axis = latent.shape[0] if batch.counts is not None and is_packed(latent) else None
            if isinstance(axis, str) and axis not in packings:
                packings[axis] = pack(batch.lengths[axis], problem.lengths[axis])
            rows[name] = local_rows(
                latents[name], batch.params[name], key_rows(key, batch.groups, name), batch.groups, problem.lengths,
                batch.lengths, packings.get(axis) if isinstance(axis, str) else None, num_samples,
            )  # fmt: skip
    tiles = {}
    for name, of_latent in rows.items():
        latent = problem.latents[name]
        packed = name in problem.locals and bool(packings) and is_packed(latent)
        inner = int(np.prod(problem.shape(name)[1:])) if packed else None
        tiles[name] = tile_size(len(of_latent.elements), num_samples, inner)
    return Layout(latents, rows, tiles, packings)


def packing_of(layout: Layout, latent: Latent) -> Packing | None:
    """How a latent's groups are packed, if they are."""
    return layout.packings.get(str(latent.shape[0])) if is_packed(latent) else None


def new_buffers(analysis: Analysis, layout: Layout, num_samples: int) -> Buffers:
    """Room for chunks of this many samples."""
    draws, log_p = {}, {}
    for name, rows in layout.rows.items():
        latent, num = analysis.problem.latents[name], len(rows.elements)
        if layout.tiles[name] < num:
            shape = layout.latents[name].coordinates_shape
            draws[name] = jnp.zeros((num, *shape.shape, num_samples), shape.dtype)
        packing = packing_of(layout, latent)
        if packing is not None:
            # a group's padding is written beyond the last place, or over places of groups that come later
            log_p[name] = jnp.zeros((len(packing.slots), *analysis.problem.shape(name)[1:], num_samples))
    return Buffers(draws, log_p)


def drawn(layout: Layout, name: str, on: Array, samples: Array, into: Array | None) -> Any:
    """Draws of a latent, `(rows, *event, samples)`, with their paths where its drawer keeps them."""
    rows = layout.rows[name]

    def tile(rows: Rows) -> tuple[tuple[()], Any]:
        where = (rows.keys, rows.groups, rows.elements)
        return (), layout.latents[name].coordinates(on, rows.prepared, *where, samples)

    return over_rows(tile, rows, layout.tiles[name], into=into)[1]


def total_log_q(layout: Layout, name: str, u: Array, on: Array) -> Float[Array, " samples"]:
    """The sum of log q_i over the factors of a latent."""
    rows = layout.rows[name]

    def tile(rows: Rows, u: Array) -> tuple[Array, tuple[()]]:
        return zero_padding(rows.real, layout.latents[name].density(on, rows.prepared, u)[0]).sum(0), ()

    return over_rows(tile, rows, layout.tiles[name], u)[0]


def model_values(
    latents: Mapping[str, Latent], u: dict[str, Array], on: Array
) -> tuple[dict[str, Array], dict[str, Array]]:
    """What the model sees of these draws, and the logarithms that q has."""
    values = {n: materialise(on, lambda x, latent=latents[n]: latent_values(latent, x), x) for n, x in u.items()}
    logs = {name: latents[name].family.log_value(x) for name, x in u.items()}
    return values, {name: log for name, log in logs.items() if log is not None}


def shaped(problem: Problem, name: str, u: Array) -> Array:
    """A global's rows in the shape of its factors."""
    shape = problem.shape(name)
    return u[: int(np.prod(shape))].reshape(*shape, *u.shape[1:])


def num_floored(latent: Latent, rows: Rows, u: Array, counts: Array | None) -> Int[Array, ""]:
    """How many draws had to be moved to stay inside the support."""
    moved = jax.vmap(jax.vmap(latent.family.floored, in_axes=-1, out_axes=-1))

    def summand(u: Array, counts: Array | None) -> Array:
        found = moved(u) if counts is None else moved(u) & counts
        return found.astype(jnp.float32)

    per_row = sum_over_samples(summand, u, counts)
    return zero_padding(rows.real, per_row).sum().astype(jnp.int32)


def zero_padding(keep: Array | None, leaf: Array) -> Array:
    """Zero where not kept; `keep` has the first axes of the array."""
    return leaf if keep is None else jnp.where(keep.reshape(keep.shape + (1,) * (leaf.ndim - keep.ndim)), leaf, 0)
