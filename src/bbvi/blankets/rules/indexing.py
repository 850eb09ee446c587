"""Section 3.1 for look-ups: gather, scatter and dynamic slices, by indices that are known, latent, or in the data.

Known indices: the operation is run on the numbers of the sets. Latent or lost indices: all that they could touch is
read. Indices in the data of a group: what a look-up yields counts as a read of its own, to be traced to the
latents when the batch's indices are there.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sparse

from bbvi.blankets.jaxpr.primitives import SCATTERS, named
from bbvi.blankets.read_sets import (
    MOST_PAIRS,
    Reads,
    ReadSets,
    everything,
    matrix,
    merge,
    mix,
    moved,
    own,
    reduce,
    same_for_all,
    union,
)
from bbvi.blankets.rules import rule
from bbvi.blankets.rules.arrays import on_numbers


class LookUp(NamedTuple):
    """A look-up by indices in the data: `first` is the number of its first element among all that are read.

    `targets` tells for each leaf of the latents which of its elements each element of the operand reads, -1 if
    none. `rows` is true when whole rows of the operand are looked up, by one index for each.
    """

    eqn: Any
    first: int
    shape: tuple[int, ...]
    targets: dict[int, np.ndarray]
    rows: bool

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    def ids(self, indices: list[Any]) -> Any:
        """Which element of the operand each element of the result is; -1 if none."""
        shape = self.eqn.invars[0].aval.shape
        return _run(self.eqn, jnp.arange(int(np.prod(shape)), dtype=jnp.int32).reshape(shape), indices)


class LookUps:
    """The look-ups found so far, and how the columns of the sets are shared out."""

    def __init__(self, sizes: list[int]):
        self.sizes, self.width = sizes, sum(sizes)
        self.found: list[LookUp] = []

    def add(self, interpreter: Any, eqn: Any, operand: ReadSets) -> Reads:
        """A new look-up: each element of the result reads one column of its own, and what all elements share."""
        out = eqn.outvars[0].aval.shape
        reading = sparse.csc_array(matrix(operand, operand.ids.size, self.width))
        shared = np.diff(reading.indptr) == operand.ids.size
        targets: dict[int, np.ndarray] = {}
        for leaf, columns in enumerate(np.split(np.arange(sum(self.sizes)), np.cumsum(self.sizes)[:-1])):
            chosen = columns[~shared[columns]]
            part = sparse.csr_array(reading[:, chosen])
            counts = np.diff(part.indptr)
            if counts.max(initial=0) > 1:
                interpreter.lose(eqn, "each element that is looked up reads several elements of one latent")
                shared[columns] |= np.diff(reading[:, columns].indptr) > 0
            elif counts.any():
                target = np.full(operand.ids.size, -1)
                target[counts > 0] = chosen[part.indices] - columns[0]
                targets[leaf] = target
        # what an earlier look-up yielded is not followed through a second one
        shared[sum(self.sizes) :] |= np.diff(reading.indptr)[sum(self.sizes) :] > 0
        result: Reads = same_for_all(np.flatnonzero(shared), self.width, out) if shared.any() else None
        if targets:
            look_up = LookUp(eqn, self.width, out, targets, _whole_rows(eqn))
            self.found.append(look_up)
            self.width += look_up.size
            result = union([result, own(out, look_up.first, self.width)])
        return result


@rule(jax.lax.gather_p)
def _gather(interpreter: Any, eqn: Any, ins: list[Reads]) -> list[Reads]:
    operand, known = ins[0], interpreter.known(eqn.invars[1])
    shape = eqn.invars[1].aval.shape
    if known is None:
        known = np.zeros(shape, int), np.zeros(shape, bool)
        if ins[1] is None and operand is not None and interpreter.look_ups is not None:
            return [interpreter.look_ups.add(interpreter, eqn, operand)]
    values, trusted = known
    unknown = ~trusted.all(tuple(range(len(shape) - 1)))
    axes = [axis for axis, lost in zip(eqn.params["dimension_numbers"].start_index_map, unknown, strict=True) if lost]
    if axes and operand is not None:
        _say(interpreter, eqn, latent=ins[1] is not None)
    offsets = eqn.params["dimension_numbers"].offset_dims
    out = eqn.outvars[0].aval.shape
    inner = [1 if axis in offsets else size for axis, size in enumerate(out)]
    index = moved(reduce(ins[1], (len(shape) - 1,)), lambda ids: np.broadcast_to(ids.reshape(inner), out))
    return [union([_look_up(eqn, operand, axes, [np.where(unknown, 0, values)]), index])]


@rule(jax.lax.dynamic_slice_p)
def _dynamic_slice(interpreter: Any, eqn: Any, ins: list[Reads]) -> list[Reads]:
    operand, shape, sizes = ins[0], eqn.invars[0].aval.shape, eqn.params["slice_sizes"]
    # a slice of full length begins at 0, whatever it is asked for
    whole = [size == full for size, full in zip(sizes, shape, strict=True)]
    known = [0 if all_ else interpreter.value_of(atom) for atom, all_ in zip(eqn.invars[1:], whole, strict=True)]
    axes = [axis for axis, value in enumerate(known) if value is None]
    index = union([None if all_ else part for part, all_ in zip(ins[1:], whole, strict=True)])
    if axes and operand is not None:
        if index is None and interpreter.look_ups is not None:
            return [interpreter.look_ups.add(interpreter, eqn, operand)]
        _say(interpreter, eqn, latent=index is not None)
    return [union([_look_up(eqn, operand, axes, [0 if start is None else start for start in known]), index])]


def _say(interpreter: Any, eqn: Any, *, latent: bool) -> None:
    in_data = "an index in the data that is not followed here; look up outside of loops and branches"
    interpreter.lose(eqn, "a latent is the index: all that it could choose is read" if latent else in_data)


def _look_up(eqn: Any, operand: Any, lost: list[int], indices: list[Any]) -> Reads:
    """Run the look-up on the numbers of sets; along the axes whose index is lost, an element may be any that it could be."""
    if operand is None:
        return None
    for axis in lost:
        size, full = eqn.params["slice_sizes"][axis], eqn.invars[0].aval.shape[axis]
        if size * (full - size + 1) * (operand.ids.size // full) > MOST_PAIRS:
            return everything([operand], eqn.outvars[0].aval.shape)
        anywhere = np.arange(size)[:, None] + np.arange(full - size + 1)
        operand = reduce(ReadSets(np.take(operand.ids, anywhere, axis), operand.sets), (axis + 1,))
    found = np.asarray(_run(eqn, jnp.asarray(operand.ids, jnp.int32), indices))
    return mix(found >= 0, ReadSets(np.maximum(found, 0), operand.sets), None)


def _run(eqn: Any, numbers: Any, indices: list[Any]) -> Any:
    """The look-up itself, on numbers; -1 where an index is out of bounds."""
    params = {**eqn.params, "fill_value": -1} if "fill_value" in eqn.params else eqn.params
    like = [atom.aval.dtype for atom in eqn.invars[1:]]
    return eqn.primitive.bind(numbers, *[jnp.asarray(i, t) for i, t in zip(indices, like, strict=True)], **params)


def _whole_rows(eqn: Any) -> bool:
    """Whether the result is whole rows of the operand, the rows first and what is in them last."""
    operand, out = eqn.invars[0].aval, eqn.outvars[0].aval
    one_row = tuple(eqn.params["slice_sizes"]) == (1, *operand.shape[1:])
    if eqn.primitive.name == "dynamic_slice" or not one_row:
        return one_row
    numbers, last = eqn.params["dimension_numbers"], tuple(range(out.ndim - operand.ndim + 1, out.ndim))
    by_first = tuple(numbers.start_index_map) == tuple(numbers.collapsed_slice_dims) == (0,)
    return by_first and not numbers.operand_batching_dims and tuple(numbers.offset_dims) == last


@rule(jax.lax.dynamic_update_slice_p)
def _dynamic_update_slice(interpreter: Any, eqn: Any, ins: list[Reads]) -> list[Reads]:
    starts = [interpreter.value_of(atom) for atom in eqn.invars[2:]]
    if any(start is None for start in starts):
        return interpreter.everything(eqn, ins, "an update at a place that is not known")
    return on_numbers(eqn, ins[:2], starts)


@rule(*named(SCATTERS))
def _scatter(interpreter: Any, eqn: Any, ins: list[Reads]) -> list[Reads]:
    """Each element reads what stood there and all the updates that land on it."""
    operand, update = eqn.invars[0].aval, eqn.invars[2].aval
    indices = interpreter.value_of(eqn.invars[1])
    size = int(np.prod(operand.shape))
    if indices is None or size >= 2**24:
        return interpreter.everything(eqn, ins, "an update at places that are not known")
    keep = {k: eqn.params[k] for k in ("dimension_numbers", "indices_are_sorted", "unique_indices", "mode")}
    zeros, at = jnp.zeros(operand.shape, jnp.float32), jnp.asarray(indices)
    # the transpose of a sum into places looks these places up
    add = lambda u: jax.lax.scatter_add(zeros, at, u, **keep)  # noqa: E731
    _, look_up = jax.vjp(add, jnp.zeros(update.shape, jnp.float32))
    numbers = jnp.arange(1, size + 1, dtype=jnp.float32).reshape(operand.shape)
    place = np.asarray(look_up(numbers)[0]).astype(int).ravel() - 1
    landed, before = place >= 0, ins[0]
    # .at[].set overwrites; .at[].apply goes by the same name and reads what stood there
    if eqn.primitive.name == "scatter" and eqn.params.get("update_jaxpr") is None:
        written = np.isin(np.arange(size), place).reshape(operand.shape)
        before = mix(written, None, before)
    updates = merge(moved(ins[2], lambda ids: ids.ravel()[landed]), place[landed], operand.shape)
    return [union([before, updates])]
