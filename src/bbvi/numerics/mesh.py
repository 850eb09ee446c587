"""Several devices that share out the groups: who owns which, and how what they hold in parts is placed, added up and read."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int

#: the axis of a mesh along which groups are shared out
AXIS = "groups"
IN_BLOCKS, EVERYWHERE = PartitionSpec(AXIS), PartitionSpec()


class Peers(NamedTuple):
    """The devices that work on one step, as a compiled step sees them; `ALONE` is one device, for which nothing changes."""

    axis: str | None = None

    def total(self, tree: Any) -> Any:
        """Add up what each device has, leaf by leaf, in one message."""
        if self.axis is None or not jax.tree.leaves(tree):
            return tree
        flat, back = ravel_pytree(tree)
        return back(jax.lax.psum(flat, self.axis))

    def least(self, number: Array) -> Array:
        """Return the least number that a device has."""
        return number if self.axis is None else jax.lax.pmin(number, self.axis)

    def all(self, flag: Array) -> Array:
        """Tell whether it is true on every device."""
        return flag if self.axis is None else self.least(flag.astype(jnp.int32)) > 0


ALONE = Peers()


class Blocks(NamedTuple):
    """Groups in blocks of equal size, one for each device of a mesh; the last ones are filled up where they do not suffice."""

    mesh: Mesh
    #: how many groups there are
    num: int

    @classmethod
    def of(cls, mesh: Mesh, num: int) -> "Blocks":
        """Share out so many groups; shardings are no part of types, whatever the mesh says."""
        return cls(Mesh(mesh.devices, mesh.axis_names), num)

    @property
    def size(self) -> int:
        """The number of groups in a block."""
        return -(-self.num // self.mesh.shape[AXIS])

    @property
    def first(self) -> Int[Array, ""]:
        """The number of this device's first group, in a compiled step."""
        return self.size * jax.lax.axis_index(AXIS)

    def put(self, tree: Any) -> Any:
        """Put rows of all groups where their owners are."""
        rows, sharding = self.size * self.mesh.shape[AXIS], NamedSharding(self.mesh, IN_BLOCKS)

        def place(leaf: Any) -> Any:
            if isinstance(leaf, jax.Array) and leaf.sharding == sharding:
                return leaf
            host = np.asarray(leaf)
            at = np.minimum(np.arange(rows), len(host) - 1)
            cut = lambda where: host[at[where[0]]]  # noqa: E731
            return jax.make_array_from_callback((rows, *host.shape[1:]), sharding, cut)

        return jax.tree.map(place, tree)

    def agreed(self, seconds: float) -> float:
        """Return the first process's number, so that all decide the same by their clocks."""
        if jax.process_count() == 1:
            return seconds
        return float(multihost_utils.broadcast_one_to_all(np.int32(1000 * seconds))) / 1000

    def anywhere(self, flag: bool) -> bool:
        """Tell whether it is true in any process."""
        return flag if jax.process_count() == 1 else bool(multihost_utils.process_allgather(np.int32(flag)).any())

    def whole(self, tree: Any) -> Any:
        """Return rows of all groups as they are without devices to share them."""
        return jax.tree.map(lambda leaf: jnp.asarray(leaf[: self.num]), on_host(tree))


def on_host(tree: Any) -> Any:
    """Return arrays of NumPy, wherever the parts are."""

    def get(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable and not leaf.is_fully_replicated:
            return multihost_utils.process_allgather(leaf, tiled=True)
        return np.asarray(leaf)

    return jax.tree.map(get, tree)
