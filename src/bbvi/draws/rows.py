"""Line up the factors of q that a step looks at as rows, so that drawing and summing need not know about groups.

A latent whose first axis is ragged is packed, so that there are no rows of padding between groups.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from bbvi.draws.batch import Batch
from bbvi.draws.drawer import Drawer, Rows
from bbvi.families import Params, by_factors
from bbvi.model.latents import Latent
from bbvi.numerics.loops import accumulate

_FLOATS_PER_TILE = 1 << 14
# places of a packed axis come in multiples of this, and so do those in a tile, up to it
_PLACES = 64


class Packing(NamedTuple):
    """Where the groups of a batch stand along a packed axis: slot and position of each place, and where each begins."""

    slots: Int[Array, " places"]
    positions: Int[Array, " places"]
    first: Int[Array, " batch"]
    used: Int[Array, ""]


def pack(lengths: Int[Array, " batch"], longest: int) -> Packing:
    """Place groups of these lengths one after the other, with space for the padding of the last one."""
    ends = jnp.cumsum(lengths)
    places = jnp.arange(-(-(len(lengths) + 1) * longest // _PLACES) * _PLACES)
    slots = jnp.minimum(jnp.searchsorted(ends, places, side="right"), len(lengths) - 1)
    first = ends - lengths
    return Packing(slots, jnp.clip(places - first[slots], 0, longest - 1), first, ends[-1])


def is_packed(latent: Latent) -> bool:
    """Tell whether a latent is packed: it has one ragged axis, the first."""
    return bool(latent.shape) and latent.ragged_axes == latent.shape[:1]


def line_up(
    latent: Latent, params: Params, keys: Array, lengths: dict[str, int], batch: Batch | None, packing: Packing | None
) -> Rows:
    """Line up the factors of a global latent, or of a local one in all groups of a batch; `keys` are its own in each."""
    elements, real, used = jnp.asarray(latent.elements(lengths)), None, None
    groups = jnp.zeros(1, jnp.uint32) if batch is None else batch.groups.astype(jnp.uint32)
    if packing is None:
        slots, number = jnp.repeat(jnp.arange(len(groups)), elements.size), jnp.tile(elements.reshape(-1), len(groups))
        if batch is not None and latent.ragged_axes:
            real = batch.real(latent, lengths).reshape(-1)
    else:
        inner = int(np.prod(elements.shape[1:]))
        params = jax.tree.map(lambda leaf: leaf[packing.slots, packing.positions], params)
        slots, used = jnp.repeat(packing.slots, inner), packing.used * inner
        number, real = elements[packing.positions].reshape(-1), jnp.arange(len(slots)) < used
    return Rows(by_factors(latent.family, params), keys[slots], groups[slots], number, real, used)


def prepared(rows: Rows, drawer: Drawer, tile: int, inner: int | None) -> Rows:
    """Prepare rows of which only lambda is known, filled up to whole tiles; packed ones, which are, by `inner` to a place."""
    if inner is not None:
        return rows._replace(prepared=over_rows(lambda r: ((), drawer.prepare(r.prepared)), rows, _PLACES * inner)[1])
    num = len(rows.elements)
    fill = -num % tile
    if fill:
        rows = jax.tree.map(lambda leaf: jnp.concatenate([leaf, jnp.repeat(leaf[:1], fill, axis=0)]), rows)
        new = jnp.arange(num + fill) >= num
        rows = rows._replace(real=~new if rows.real is None else rows.real & ~new)
    return rows._replace(prepared=drawer.prepare(rows.prepared))


def in_shape(flat: Array, shape: tuple[int, ...]) -> Array:
    """Give rows the shape of their factors, and leave those out that fill up a tile."""
    return flat[: int(np.prod(shape))].reshape(*shape, *flat.shape[1:])


def unpack(flat: Array, shape: tuple[int, ...], packing: Packing, real: Array) -> Array:
    """Turn packed rows back into an array with groups first, zero where it has padding."""
    places = flat.reshape(-1, *shape[1:], *flat.shape[1:])
    at = packing.first[:, None] + jnp.arange(shape[0])
    return zero_padding(real, places[jnp.minimum(at, len(places) - 1)])


def zero_padding(keep: Array | None, leaf: Array) -> Array:
    """Put zeros where nothing is kept; `keep` has the first axes of the array."""
    return leaf if keep is None else jnp.where(keep.reshape(keep.shape + (1,) * (leaf.ndim - keep.ndim)), leaf, 0)


def tile_size(num: int, num_samples: int, inner: int | None = None) -> int:
    """Choose how many rows are processed at a time: all if there are few; whole places of `inner` rows if packed."""
    tile = max(1, _FLOATS_PER_TILE // num_samples)
    if num <= 2 * tile:
        return num
    if inner is None:
        return tile
    most = max(1, min(_PLACES, tile // inner))
    return inner << (most.bit_length() - 1)  # a power of two of places


def over_rows(
    function: Callable[..., tuple[Any, Any]], rows: Rows, tile: int, *others: Any, into: Any = None
) -> tuple[Any, Any]:
    """Apply `function(rows, *others) -> (totals, arrays)` to one tile of rows at a time; add the totals, join the arrays.

    All arrays, in and out, have rows first; `into` are arrays to put the results into, where there is more than a tile.
    """
    num = len(rows.elements)
    inputs = (rows._replace(used=None), *others)
    if tile >= num:
        return function(*inputs)
    function = jax.jit(function)  # traced once

    def part(at: Array) -> Any:
        return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, at, tile), inputs)

    if into is None:
        _, shapes = jax.eval_shape(lambda: function(*part(jnp.int32(0))))
        into = jax.tree.map(lambda leaf: jnp.zeros((num, *leaf.shape[1:]), leaf.dtype), shapes)

    def one(number: Array, arrays: Any) -> tuple[Any, Any]:
        at = number * tile
        totals, new = function(*part(at))
        joined = jax.tree.map(lambda all_, leaf: jax.lax.dynamic_update_slice_in_dim(all_, leaf, at, 0), arrays, new)
        return totals, joined

    return accumulate(one, num // tile if rows.used is None else -(-rows.used // tile), into)


def as_rows(leaf: Array, num: int, row: tuple[int, ...] | None = None) -> Array:
    """Turn an array into this many rows, of samples or values if no other shape is given: what is missing is zero."""
    flat = leaf.reshape(-1, *(leaf.shape[-1:] if row is None else row))
    return flat[:num] if len(flat) >= num else jnp.pad(flat, [(0, num - len(flat)), *[(0, 0)] * (flat.ndim - 1)])
