"""Section 3.1: sets of latent elements, one for each element of an array, equal ones stored once.

An array of the trace is an array of numbers of sets, of its own shape, and a boolean sparse matrix with a row for
each set. A move of data is then that move on the numbers. None stands for an array that reads no latent.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy.sparse as sparse

# sets that would grow beyond this many (element, latent) pairs are replaced by their union: that is sound
MOST_PAIRS = 20_000_000


class ReadSets(NamedTuple):
    """Which set each element reads, and the sets by latent elements."""

    ids: np.ndarray
    sets: sparse.csr_array


Reads: TypeAlias = ReadSets | None


def own(shape: tuple[int, ...], offset: int, total: int) -> ReadSets:
    """Let each element read one latent element: itself, counted from `offset`."""
    size = int(np.prod(shape))
    sets = sparse.csr_array(sparse.eye_array(size, total, k=offset, dtype=bool))
    return ReadSets(np.arange(size).reshape(shape), sets)


def union(parts: Sequence[Reads]) -> Reads:
    """Unite reads element by element; parts of shape () go with every element."""
    present = [p for p in parts if p is not None]
    return functools.reduce(_pair, present) if present else None


def moved(part: Reads, move: Callable[[np.ndarray], np.ndarray]) -> Reads:
    """Move the elements of an array, and their sets with them."""
    return None if part is None else ReadSets(move(part.ids), part.sets)


def spread(part: Reads, shape: tuple[int, ...]) -> Reads:
    """Repeat the sets over a larger shape."""
    return moved(part, lambda ids: np.broadcast_to(ids, shape))


def same_for_all(columns: np.ndarray, width: int, shape: tuple[int, ...]) -> ReadSets:
    """Let every element read the same latent elements."""
    sets = sparse.csr_array((np.ones(len(columns), bool), columns, np.array([0, len(columns)])), (1, width))
    return ReadSets(np.zeros(shape, np.int64), sets)


def merge(part: Reads, rows: np.ndarray, shape: tuple[int, ...]) -> Reads:
    """Unite all elements with the same entry in `rows`, which has the shape of `part`."""
    if part is None:
        return None
    used, compact = np.unique(part.ids, return_inverse=True)
    sets = sparse.csr_array(part.sets[used])
    pairs = np.unique(np.asarray(rows, np.int64).ravel() * max(1, len(used)) + compact.ravel())
    row, number = pairs // max(1, len(used)), pairs % max(1, len(used))
    members = sparse.csr_array((np.ones(len(pairs), np.int32), (row, number)), (int(np.prod(shape)), len(used)))
    first, ids = distinct(members)
    chosen = sparse.csr_array(members[first])
    if (chosen @ np.diff(sets.indptr)).sum() > MOST_PAIRS:
        return everything([part], shape)
    return ReadSets(ids.reshape(shape), sparse.csr_array((chosen @ sets.astype(np.int32)).astype(bool)))


def reduce(part: Reads, axes: Sequence[int]) -> Reads:
    """Unite over these axes, which go."""
    if part is None or not axes:
        return part
    shape = part.ids.shape
    narrow = [1 if axis in axes else size for axis, size in enumerate(shape)]
    rows = np.broadcast_to(np.arange(int(np.prod(narrow))).reshape(narrow), shape)
    return merge(part, rows, tuple(size for axis, size in enumerate(shape) if axis not in axes))


def accumulate(part: Reads, axis: int, *, reverse: bool = False) -> Reads:
    """Unite each element with all that stands before it along an axis, or behind if reversed."""
    if part is None or part.ids.size == 0:
        return part
    length, shape = part.ids.shape[axis], part.ids.shape
    if part.ids.size * length > 2 * MOST_PAIRS:
        return everything([part], shape)
    first, last = np.tril_indices(length)
    earlier, later = (first, last) if reverse else (last, first)
    lines = np.moveaxis(np.arange(part.ids.size).reshape(shape), axis, -1).reshape(-1, length)
    numbers = np.moveaxis(part.ids, axis, -1).reshape(-1, length)
    return merge(ReadSets(numbers[:, earlier], part.sets), lines[:, later], shape)


def everything(parts: Sequence[Reads], shape: tuple[int, ...]) -> Reads:
    """Let every element read all that any of the parts reads."""
    if not (present := [p for p in parts if p is not None and p.ids.size]):
        return None
    columns = np.unique(np.concatenate([p.sets[np.unique(p.ids)].indices for p in present]))
    return same_for_all(columns, max(p.sets.shape[1] for p in present), shape)


def stack(parts: Sequence[Reads], shapes: Sequence[tuple[int, ...]]) -> tuple[list[np.ndarray], sparse.csr_array]:
    """Number the sets of several arrays in one table, in which set 0 is empty, for a move of data among them."""
    width = max((p.sets.shape[1] for p in parts if p is not None), default=0)
    offsets = np.cumsum([1, *(0 if p is None else p.sets.shape[0] for p in parts)])
    items = zip(parts, shapes, offsets, strict=False)
    ids = [np.zeros(shape, np.int64) if part is None else part.ids + at for part, shape, at in items]
    tables = [sparse.csr_array((1, width), dtype=bool), *(widen(p.sets, width) for p in parts if p is not None)]
    return ids, sparse.csr_array(sparse.vstack(tables, format="csr"))


def mix(mask: np.ndarray, one: Reads, other: Reads) -> Reads:
    """Take `one` where the mask is true, `other` elsewhere."""
    if one is None and other is None:
        return None
    (left, right), sets = stack([one, other], [np.shape(mask)] * 2)
    return ReadSets(np.where(mask, left, right), sets)


def _counts(part: Reads) -> np.ndarray:
    """Count what each element reads."""
    return np.zeros((), int) if part is None else np.diff(part.sets.indptr)[part.ids]


def empty(part: Reads) -> np.ndarray:
    """Mark the elements that read nothing."""
    return np.asarray(_counts(part) == 0)


def covers(part: Reads, other: Reads) -> bool:
    """Tell whether each element of `part` reads at least what that of `other` does."""
    if other is None or other.ids.size == 0:
        return True
    return bool(np.all(_counts(union([part, other])) == _counts(part)))


def matrix(part: Reads, size: int, width: int) -> sparse.csr_array:
    """Write reads as a matrix of elements by latent elements."""
    if part is None:
        return sparse.csr_array((size, width), dtype=bool)
    return sparse.csr_array(widen(part.sets, width)[part.ids.ravel()])


def num_pairs(part: Reads) -> int:
    """Count the (element, latent) pairs."""
    return int(_counts(part).sum())


def widen(sets: sparse.csr_array, width: int) -> sparse.csr_array:
    """Write the same sets among more latent elements."""
    if sets.shape[1] == width:
        return sets
    return sparse.csr_array((sets.data, sets.indices, sets.indptr), (sets.shape[0], width))


def _pair(a: Any, b: Any) -> Any:
    if a.sets is b.sets and (a.ids is b.ids or np.array_equal(a.ids, b.ids)):
        return a
    left, right = np.broadcast_arrays(a.ids, b.ids)
    width = max(a.sets.shape[1], b.sets.shape[1])
    one, other = widen(a.sets, width), widen(b.sets, width)
    distinct, ids = np.unique(left.astype(np.int64) * b.sets.shape[0] + right, return_inverse=True)
    first, second = distinct // b.sets.shape[0], distinct % b.sets.shape[0]
    size = np.diff(one.indptr)[first].sum() + np.diff(other.indptr)[second].sum()
    if size > MOST_PAIRS:
        return everything([a, b], left.shape)
    return ReadSets(ids.reshape(left.shape), sparse.csr_array(one[first] + other[second]))


def distinct(members: sparse.csr_array) -> tuple[np.ndarray, np.ndarray]:
    """The first of each kind of row, and for each row its kind: equal rows have equal sums of random 64-bit words."""
    words = np.random.default_rng(0).integers(0, 2**64, size=(2, members.shape[1]), dtype=np.uint64)
    entries = [np.append(w[members.indices], np.uint64(0)) for w in words]
    one, other = (np.add.reduceat(own, members.indptr[:-1], dtype=np.uint64) for own in entries)
    nothing = np.diff(members.indptr) == 0  # reduceat gives an empty row its neighbour's entry
    one, other = np.where(nothing, np.uint64(0), one), np.where(nothing, np.uint64(0), other)
    _, first, kind = np.unique(one, return_index=True, return_inverse=True)
    if not np.array_equal(other[first][kind], other):
        return np.arange(len(one)), np.arange(len(one))
    return first, kind.ravel()
