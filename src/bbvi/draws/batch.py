"""Section 4.2: draw the minibatch of groups of a step, uniformly without replacement, in time that does not grow with N."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from bbvi.families.abstract import Lambda
from bbvi.model.latents import Latent
from bbvi.numerics.address import Key, fold
from bbvi.numerics.mesh import ALONE, AXIS, Blocks, Peers


class Batch(eqx.Module):
    """The groups of one step: their numbers, rows of data, own lengths and rows of lambda.

    With `counts` the groups stand in the order of their buckets, that many in each. Where several devices share a batch these are
    one device's groups.
    """

    groups: Int[Array, " batch"]
    rows: Any
    lengths: dict[str, Array]
    params: Lambda
    counts: Int[Array, " buckets"] | None = None
    #: on one device of several: at which of its rows groups are, beyond the last for none, and how many there are if not all
    own_rows: Int[Array, " batch"] | None = None
    filled: Int[Array, ""] | None = None
    #: N, the number of all groups
    num_groups: int = eqx.field(static=True, kw_only=True)
    #: B, where devices share it
    size: int | None = eqx.field(static=True, kw_only=True, default=None)
    peers: Peers = eqx.field(static=True, kw_only=True, default=ALONE)

    @property
    def scale(self) -> float:
        """N/B, the number of groups of the data that each group of the batch stands for."""
        return self.num_groups / (self.size or len(self.groups))

    @property
    def at(self) -> Int[Array, " batch"]:
        """Where the groups' rows are among all that there are here."""
        return self.groups if self.own_rows is None else self.own_rows

    @property
    def is_group(self) -> Bool[Array, " batch"] | None:
        """Tell which places have a group; None if all do."""
        return None if self.filled is None else jnp.arange(len(self.groups)) < self.filled

    def only_groups(self, values: Array, otherwise: Any = 0) -> Array:
        """Put something else, zero by default, at places without a group; values have the places on their first axis."""
        if self.is_group is None:
            return values
        return jnp.where(self.is_group.reshape(-1, *[1] * (values.ndim - 1)), values, otherwise)

    def real(self, latent: Latent, lengths: Mapping[str, int]) -> Bool[Array, "batch *factors"]:
        """Tell which factors of a local latent, padded to these lengths, are not padding."""
        return jax.vmap(lambda own: latent.mask(dict(lengths), own))(self.lengths)


def draw_groups(key: Key, step: Array | int, num_groups: int, batch_size: int) -> Int[Array, " batch"]:
    """Draw the groups of a step so that every subset of this size is equally likely (Floyd's algorithm)."""
    if batch_size == num_groups:
        return jnp.arange(num_groups)
    step_key = jax.random.wrap_key_data(fold(key, "batch", step), impl="threefry2x32")
    tops = jnp.arange(num_groups - batch_size, num_groups)
    keys = jax.vmap(lambda i: jax.random.fold_in(step_key, i))(jnp.arange(batch_size))
    picks = jax.vmap(lambda k, top: jax.random.randint(k, (), 0, top + 1))(keys, tops)

    def choose(i, chosen):
        return chosen.at[i].set(jnp.where(jnp.any(chosen == picks[i]), tops[i], picks[i]))

    return jax.lax.fori_loop(0, batch_size, choose, jnp.full(batch_size, -1))


def by_bucket(groups: Int[Array, " batch"], bucket: Int[Array, " groups"], num: int) -> tuple[Array, Array]:
    """Sort a batch by its groups' buckets and count the groups in each; the batch's distribution stays the same."""
    return groups[jnp.argsort(bucket[groups])], jnp.bincount(bucket[groups], length=num)


class Share(NamedTuple):
    """What a device has of a batch: the numbers of its groups, their rows, how many in all if not at all places, and by bucket."""

    groups: Int[Array, " places"]
    own_rows: Int[Array, " places"]
    filled: Int[Array, ""] | None
    counts: Int[Array, " buckets"] | None


def share_of(
    groups: Int[Array, " batch"], blocks: Blocks, bucket: Int[Array, " rows"] | None = None, num_buckets: int = 0
) -> Share:
    """Find what this device has of a batch, first and in the order of their buckets."""
    first, size = blocks.first, blocks.size
    if is_whole := len(groups) == blocks.num:
        groups = first + jnp.arange(size)
    rows = groups - first
    owned = (rows >= 0) & (rows < size) & (groups < blocks.num)
    rows = jnp.where(owned, rows, size)
    filled = None if is_whole and blocks.num == size * blocks.mesh.shape[AXIS] else owned.sum()
    if is_whole and bucket is None:
        return Share(groups, rows, filled, None)
    if bucket is None:
        order, counts = jnp.argsort(~owned)[:size], None
    else:
        kind = jnp.where(owned, bucket[jnp.minimum(rows, size - 1)], num_buckets)
        order, counts = jnp.argsort(kind)[:size], jnp.bincount(kind, length=num_buckets)
    return Share(groups[order], rows[order], filled, counts)


def check_batch_size(batch_size: int | None, num_groups: int) -> int:
    """Check the batch size of a hierarchical fit; the default is all groups."""
    if batch_size is None:
        return num_groups
    if isinstance(batch_size, bool) or not isinstance(batch_size, (int, np.integer)) or batch_size < 1:
        raise ValueError(f"batch_size must be an integer of 1 or more, got {batch_size!r}")
    if batch_size > num_groups:
        raise ValueError(f"batch_size={batch_size} is larger than the number of groups, {num_groups}")
    return int(batch_size)
