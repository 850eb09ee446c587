"""Line up the factors of q that a step looks at as rows, so that drawing and summing need not know about groups.

A latent whose first axis is ragged is packed, so that there are no rows of padding between groups.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, UInt32

from bbvi.draws.batch import Batch
from bbvi.draws.drawer import Drawer
from bbvi.families import Params
from bbvi.model.latents import Latent
from bbvi.numerics.address import Key, fold

_FLOATS_PER_TILE = 1 << 14
# places of a packed axis come in multiples of this, and so do those in a tile, up to it
_PLACES = 64


class Rows(NamedTuple):
    """One latent's factors of q: lambda, prepared, and where each factor's random numbers are.

    `real` tells which are not padding, and those from `used` on need not be looked at.
    """

    prepared: Any
    keys: UInt32[Array, "rows 2"]
    groups: Int[Array, " rows"]
    elements: UInt32[Array, " rows"]
    real: Bool[Array, " rows"] | None
    used: Int[Array, ""] | None


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


def global_rows(drawer: Drawer, params: Params, key: Key, num_samples: int) -> Rows:
    """Line up the factors of a global latent; `key` is that of the latent."""
    elements = jnp.asarray(drawer.latent.elements({})).reshape(-1)
    keys = jnp.broadcast_to(key, (len(elements), 2))
    groups = jnp.zeros(len(elements), jnp.uint32)
    return _filled(Rows(_flat(drawer.latent, params), keys, groups, elements, None, None), drawer, num_samples)


def local_rows(
    drawer: Drawer,
    name: str,
    batch: Batch,
    key: Key,
    lengths: Mapping[str, int],
    packing: Packing | None,
    num_samples: int,
) -> Rows:
    """Line up the factors of the local latent `name` of all groups of a batch."""
    latent, params = drawer.latent, batch.params[name]
    elements = jnp.asarray(latent.elements(dict(lengths)))
    keys = jax.vmap(lambda group: fold(fold(key, group), name))(batch.groups)
    if packing is not None:
        inner = int(np.prod(elements.shape[1:]))
        flat = _flat(latent, jax.tree.map(lambda leaf: leaf[packing.slots, packing.positions], params))
        slots, used = jnp.repeat(packing.slots, inner), packing.used * inner
        number, real = elements[packing.positions].reshape(-1), jnp.arange(len(slots)) < used
        rows = Rows(flat, keys[slots], batch.groups[slots], number, real, used)
        _, prepared = over_rows(lambda part: ((), drawer.prepare(part.prepared)), rows, _PLACES * inner)
        return rows._replace(prepared=prepared)
    slots = jnp.repeat(jnp.arange(len(batch.groups)), int(np.prod(elements.shape)))
    number = jnp.tile(elements.reshape(-1), len(batch.groups))
    everywhere = batch.real(latent, lengths).reshape(-1) if latent.ragged_axes else None
    rows = Rows(_flat(latent, params), keys[slots], batch.groups[slots], number, everywhere, None)
    return _filled(rows, drawer, num_samples)


def _flat(latent: Latent, params: Params) -> Params:
    """Flatten all axes that stand before a factor's own parameters into one axis of factors."""
    entries = latent.family.parameters()
    return {name: jnp.reshape(leaf, (-1, *entries[name].raw_shape())) for name, leaf in params.items()}


def _filled(rows: Rows, drawer: Drawer, num_samples: int) -> Rows:
    """Prepare rows of which only lambda is known, and fill them up to whole tiles."""
    num = len(rows.elements)
    fill = -num % tile_size(num, num_samples)
    if fill:
        real = jnp.ones(num, bool) if rows.real is None else rows.real
        rows = jax.tree.map(
            lambda leaf: jnp.concatenate([leaf, jnp.repeat(leaf[:1], fill, axis=0)]), rows._replace(real=None)
        )._replace(real=jnp.concatenate([real, jnp.zeros(fill, bool)]))
    return rows._replace(prepared=drawer.prepare(rows.prepared))


def unpack(flat: Any, batch: int, shape: tuple[int, ...], packing: Packing | None, real: Array | None) -> Any:
    """Turn rows back into arrays with groups first, zero where packed ones have padding."""

    def one(leaf: Array) -> Array:
        if packing is None or real is None:
            return leaf[: batch * int(np.prod(shape))].reshape(batch, *shape, *leaf.shape[1:])
        places = leaf.reshape(-1, *shape[1:], *leaf.shape[1:])
        at = packing.first[:, None] + jnp.arange(shape[0])
        found = places[jnp.minimum(at, len(places) - 1)]
        return jnp.where(real.reshape(*real.shape, *[1] * (found.ndim - real.ndim)), found, 0)

    return jax.tree.map(one, flat)


def tile_size(num: int, num_samples: int, inner: int | None = None) -> int:
    """Choose how many rows are processed at a time: all if there are few; whole places of `inner` rows if packed."""
    tile = max(1, _FLOATS_PER_TILE // num_samples)
    if num <= 2 * tile:
        return num
    if inner is None:
        return tile
    places = 1
    while 2 * places * inner <= tile and places < _PLACES:
        places *= 2
    return places * inner


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
    traced = jax.jit(function)

    def part(at: Array) -> Any:
        return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, at, tile), inputs)

    shapes = jax.eval_shape(lambda at: traced(*part(at)), jnp.int32(0))
    totals = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes[0])
    if into is None:
        into = jax.tree.map(lambda leaf: jnp.zeros((num, *leaf.shape[1:]), leaf.dtype), shapes[1])

    def body(number: Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        totals, arrays = carry
        at = number * tile
        more, new = traced(*part(at))
        joined = jax.tree.map(lambda all_, leaf: jax.lax.dynamic_update_slice_in_dim(all_, leaf, at, 0), arrays, new)
        return jax.tree.map(jnp.add, totals, more), joined

    last = num // tile if rows.used is None else -(-rows.used // tile)
    return jax.lax.fori_loop(0, last, body, (totals, into))


def at_least(flat: Array, num: int) -> Array:
    """Pad with zeros to at least this many rows."""
    return flat if len(flat) >= num else jnp.pad(flat, ((0, num - len(flat)), (0, 0)))
