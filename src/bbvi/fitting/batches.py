"""Section 4.2: which groups are in the batch of a step, and where their rows come from."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bbvi.draws.batch import Batch, by_bucket, draw_groups, share_of
from bbvi.families.abstract import Lambda
from bbvi.model.groups import AbstractGroups, Cohort, Stream
from bbvi.numerics.address import Key
from bbvi.numerics.mesh import ALONE, AXIS, Blocks, Peers
from bbvi.numerics.xla import for_many_runs

_STEPS_DRAWN = 128  # at the most at once, of a stream, whose batches are drawn before the steps


class Prefetched(eqx.Module):
    """The batches of a few coming steps, whose rows were fetched from a source that the device cannot index."""

    groups: Any
    rows: Any


class Batches:
    """The batches of a fit, of which a call of the loop takes as many as its capacity at the most."""

    def __init__(self, num_groups: int, size: int, *, num_buckets: int, capacity: int, blocks: Blocks | None = None):
        self.num_groups, self.size, self._num_buckets, self._capacity = num_groups, size, num_buckets, capacity
        #: which groups are whose, where several devices share them, and the groups that were put there last
        self.blocks, self.peers = blocks, ALONE if blocks is None else Peers(AXIS)
        self._placed: tuple[Any, Any] = (None, None)
        #: how many groups of a batch a device has at the most
        self.places = size if blocks is None else min(size, blocks.size)
        # one after another: the draw of a batch is a loop of its own
        self._groups_of_steps = jax.jit(
            lambda key, steps: jax.lax.map(lambda step: draw_groups(key, step, num_groups, size), steps),
            **for_many_runs(),
        )
        #: the groups of blocks of steps that were drawn last
        self._drawn: dict[tuple[bytes, int], np.ndarray] = {}

    def groups(self, key: Key, step: int | Array) -> Array:
        """Draw the groups of a step's batch."""
        return draw_groups(key, step, self.num_groups, self.size)

    def rows(self, key: Key, step: int | Array) -> Array:
        """Return where the rows of a step's groups are; beyond the last for groups of other devices."""
        groups = self.groups(key, step)
        return groups if self.blocks is None else share_of(groups, self.blocks).own_rows

    def on_one_device(self) -> "Batches":
        """Return the same batches with all their groups on one device."""
        return Batches(self.num_groups, self.size, num_buckets=self._num_buckets, capacity=self._capacity)

    def source(self, groups: AbstractGroups | None, key: Key, step: int, steps: int) -> Any:
        """Return what `gather` takes rows from: the groups, or the rows of the next steps that were fetched from a stream.

        These are filled up to the capacity so that shapes do not change.
        """
        if self.blocks is not None:
            if self._placed[0] is not groups:
                self._placed = (groups, self.blocks.put(groups))
            return self._placed[1]
        if not isinstance(groups, Stream):
            return groups
        # as one program: a loop outside of one is compiled each time it is met
        chosen = self._chosen(key, step, 2 * steps)
        # the next call, which most often makes as many steps, finds its rows read
        rows = groups.steps(chosen[:steps], chosen[steps : 2 * steps])
        last = self._capacity - steps
        batches = Prefetched(chosen[:steps], rows)
        if last:
            batches = jax.tree.map(lambda leaf: np.concatenate([leaf, np.repeat(leaf[-1:], last, 0)]), batches)
        return jax.tree.map(jnp.asarray, batches)

    def _chosen(self, key: Key, step: int, num: int) -> np.ndarray:
        """Draw the groups of so many steps, block by block."""
        size = min(_STEPS_DRAWN, self._capacity)
        blocks, found = range(step // size, (step + num - 1) // size + 1), []
        for block in blocks:
            at = (np.asarray(key).tobytes(), block)
            if at not in self._drawn:
                steps = np.arange(size * block, size * (block + 1), dtype=np.int32)
                self._drawn[at] = np.asarray(self._groups_of_steps(key, steps))
            found.append(self._drawn[at])
        for at in list(self._drawn)[: -len(blocks)]:
            del self._drawn[at]
        first = step - size * blocks[0]
        return np.concatenate(found)[first : first + num]

    def gather(self, params: dict[str, Lambda], key: Key, step: Array, source: Any, i: Array) -> Batch | None:
        """Gather a step's groups with their rows of data and of lambda; None for a flat model."""
        if source is None:
            return None
        if self.blocks is not None:
            return self._share(params, key, step, source)
        if isinstance(source, Prefetched):
            (groups, rows), counts, lengths = jax.tree.map(lambda leaf: leaf[i], (source.groups, source.rows)), None, {}
        else:
            groups, counts = self.groups(key, step), None
            if isinstance(source, Cohort) and self._num_buckets:
                groups, counts = by_bucket(groups, source.bucket, self._num_buckets)
            rows, lengths = source.take(groups), source.lengths(groups)
        local = jax.tree.map(lambda leaf: leaf[groups], params["locals"])
        return Batch(groups, rows, lengths, local, counts, num_groups=self.num_groups)

    def _share(self, params: dict[str, Lambda], key: Key, step: Array, source: AbstractGroups) -> Batch:
        """Gather what this device has of a step's batch; at places without a group stands its last one."""
        assert self.blocks is not None
        bucket = source.bucket if isinstance(source, Cohort) and self._num_buckets else None
        share = share_of(self.groups(key, step), self.blocks, bucket, self._num_buckets)
        at = jnp.minimum(share.own_rows, self.blocks.size - 1)
        local = jax.tree.map(lambda leaf: leaf[at], params["locals"])
        lengths = {axis: jnp.where(share.own_rows == at, own, 0) for axis, own in source.lengths(at).items()}
        return Batch(
            share.groups, source.take(at), lengths, local, share.counts, share.own_rows, share.filled,
            num_groups=self.num_groups, size=self.size, peers=self.peers,
        )  # fmt: skip
