"""Line up the factors of q that a step looks at as rows of tables, one for each family.

What is done to a factor of q, such as drawing and summing, need not know about groups, nor which latent it belongs to. A
latent whose first axis is ragged is packed, so that there are no rows of padding between groups.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from bbvi.draws.batch import Batch
from bbvi.draws.drawer import Drawer, Rows
from bbvi.families import by_factors
from bbvi.families.abstract import Lambda
from bbvi.model.latents import Latent
from bbvi.numerics.loops import accumulate

Arrays = dict[str, Array]
Latents = Mapping[str, Latent]
_FLOATS_PER_TILE = 1 << 14
# places of a packed axis come in multiples of this, and so do those in a tile, up to it
_PLACES = 64


class Packing(NamedTuple):
    """Where the groups of a batch stand along a packed axis: slot and position of each place, and where each begins.

    `real` tells which positions of each group are not padding.
    """

    axis: str
    slots: Int[Array, " places"]
    positions: Int[Array, " places"]
    first: Int[Array, " batch"]
    used: Int[Array, ""]
    real: Bool[Array, "batch longest"]


def pack(axis: str, lengths: Int[Array, " batch"], longest: int) -> Packing:
    """Place groups of these lengths one after the other, with space for the padding of the last one."""
    ends = jnp.cumsum(lengths)
    places = jnp.arange(-(-(len(lengths) + 1) * longest // _PLACES) * _PLACES)
    slots = jnp.minimum(jnp.searchsorted(ends, places, side="right"), len(lengths) - 1)
    first = ends - lengths
    positions, real = jnp.clip(places - first[slots], 0, longest - 1), jnp.arange(longest) < lengths[:, None]
    return Packing(axis, slots, positions, first, ends[-1], real)


def is_packed(latent: Latent) -> bool:
    """Tell whether a latent is packed: it has one ragged axis, the first."""
    return bool(latent.shape) and latent.ragged_axes == latent.shape[:1]


class Columns(NamedTuple):
    """Latents of one family side by side in each place: the shapes of their factors there.

    There is one place for the globals, and one for each group of the batch or, if packed, for each position of all groups.
    """

    shapes: dict[str, tuple[int, ...]]
    num_places: int
    packing: Packing | None

    @property
    def sizes(self) -> list[int]:
        """The number of columns of each latent."""
        return [math.prod(shape) for shape in self.shapes.values()]

    @property
    def num(self) -> int:
        """The number of columns."""
        return sum(self.sizes)

    @property
    def num_axes(self) -> int:
        """The number of axes that stand before the columns in an array of one group."""
        return 0 if self.packing is None else 1

    def split(self, whole: Array, axis: int) -> Arrays:
        """Cut an array with columns on this axis into one for each latent, in its shape."""
        before, after = whole.shape[:axis], whole.shape[axis + 1 :]
        parts = zip(self.shapes.items(), jax.lax.split(whole, self.sizes, axis=axis), strict=True)
        return {name: own.reshape(*before, *shape, *after) for (name, shape), own in parts}

    def join(self, parts: Mapping[str, Array], axis: int) -> Array:
        """Put arrays of the latents side by side on this axis; what is missing of their shapes is zero."""

        def columns(part: Array, shape: tuple[int, ...]) -> Array:
            before, own, after = np.split(part.shape, [axis, axis + len(shape)])
            if tuple(own) != shape:
                missing = [(0, int(full - size)) for full, size in zip(shape, own, strict=True)]
                part = jnp.pad(part, [*[(0, 0)] * len(before), *missing, *[(0, 0)] * len(after)])
            return part.reshape(*before, math.prod(shape), *after)

        return jnp.concatenate([columns(parts[name], shape) for name, shape in self.shapes.items()], axis)


class Table(NamedTuple):
    """The factors of q of one family that a step draws, as rows, place by place; `tile` rows are processed at a time."""

    columns: Columns
    drawer: Drawer
    rows: Rows
    tile: int
    is_local: bool
    is_fitted: bool

    def places(self, flat: Array) -> Array:
        """Turn rows into an array with columns on its second axis, and leave those out that fill up a tile."""
        shape = self.columns.num_places, self.columns.num
        return flat[: math.prod(shape)].reshape(*shape, *flat.shape[1:])

    def as_rows(self, places: Array) -> Array:
        """Turn an array with columns on its second axis into rows; what is missing is zero."""
        flat, num = places.reshape(-1, *places.shape[2:]), len(self.rows.elements)
        return flat[:num] if len(flat) >= num else jnp.pad(flat, [(0, num - len(flat)), *[(0, 0)] * (flat.ndim - 1)])

    def in_shape(self, flat: Array) -> Arrays:
        """Turn rows into one array for each latent, with the batch's groups first if it is local."""
        places, packing = self.places(flat), self.columns.packing
        if packing is not None:
            return self.columns.split(unpack(places, packing), 2)
        return self.columns.split(places, 1) if self.is_local else self.columns.split(places[0], 0)


def line_up(
    latents: Latents, columns: Columns, params: Lambda, keys: Array, lengths: dict[str, int], batch: Batch | None
) -> Rows:
    """Line up the factors of globals, or of locals in all groups of a batch; `keys` are those of each column in each."""
    packing, num_axes = columns.packing, columns.num_axes + (batch is not None)
    some = next(iter(latents.values())).family
    groups = jnp.zeros(1, jnp.uint32) if batch is None else batch.groups.astype(jnp.uint32)
    own = [latent.elements(lengths) for latent in latents.values()]
    numbers = np.concatenate([n.reshape(*n.shape[: columns.num_axes], -1) for n in own], -1)
    lambdas = {p: columns.join({name: params[name][p] for name in latents}, num_axes) for p in some.parameters()}
    elements, real, used = jnp.tile(jnp.asarray(numbers), (len(groups), 1)), None, None
    if packing is not None:
        lambdas = jax.tree.map(lambda leaf: leaf[packing.slots, packing.positions], lambdas)
        groups, keys, elements = groups[packing.slots], keys[packing.slots], jnp.asarray(numbers)[packing.positions]
        used = packing.used * columns.num
        real = jnp.arange(elements.size) < used
    elif batch is not None and any(latent.ragged_axes for latent in latents.values()):
        real = columns.join({n: batch.real(latent, lengths) for n, latent in latents.items()}, 1).reshape(-1)
    if packing is None and batch is not None and batch.filled is not None:
        used = batch.filled * columns.num
        filled = jnp.arange(elements.size) < used
        real = filled if real is None else real & filled
    at = jnp.repeat(groups, columns.num)
    return Rows(by_factors(some, lambdas), keys.reshape(-1, 2), at, elements.reshape(-1), real, used)


def prepared(rows: Rows, drawer: Drawer, tile: int, columns: Columns) -> Rows:
    """Prepare rows of which only lambda is known, filled up to whole tiles; packed ones are, with the padding of the last group."""
    if columns.packing is not None and rows.used is not None:
        behind = columns.packing.real.shape[1] * columns.num
        ahead = rows._replace(used=rows.used + behind)
        made = over_rows(lambda r: ((), drawer.prepare(r.prepared)), ahead, _PLACES * columns.num)[1]
        return rows._replace(prepared=made)
    num, used = len(rows.elements), rows.used
    rows = rows._replace(used=None)
    if fill := -num % tile:
        rows = jax.tree.map(lambda leaf: jnp.concatenate([leaf, jnp.repeat(leaf[:1], fill, axis=0)]), rows)
        new = jnp.arange(num + fill) >= num
        rows = rows._replace(real=~new if rows.real is None else rows.real & ~new)
    return rows._replace(prepared=drawer.prepare(rows.prepared), used=used)


def unpack(places: Array, packing: Packing) -> Array:
    """Turn packed places back into an array with groups first, zero where it has padding."""
    at = packing.first[:, None] + jnp.arange(packing.real.shape[1])
    return zero_padding(packing.real, places[jnp.minimum(at, len(places) - 1)])


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
