"""Order the numbers of a large block such that those that share terms of log p stand near each other (section 3.1; Tan and Nott 2018).

Numbers that many others share terms with come first, as the core; the rest by reverse Cuthill-McKee (1969), which makes chains bands of
width 1 and grids bands as wide as their shorter side. Where even that is too wide, the graph is cut into strips.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import scipy.sparse as sparse
from scipy.sparse.csgraph import breadth_first_order, connected_components, reverse_cuthill_mckee

from bbvi.model.joint import Block

#: of a sparse factor below its diagonal
MOST_ENTRIES = 1 << 18
_MOST_READ = 64  # a term that reads more numbers than these, beside the core, links none of them
_MOST_CORE = 128


class _Pattern(NamedTuple):
    """All numbers in an order, of which the first are the core, and the width of the others' blocks."""

    order: np.ndarray
    core: int
    width: int

    @property
    def entries(self) -> int:
        """How many entries below the diagonal may differ from 0, or a few more."""
        body = len(self.order) - self.core
        return self.core * len(self.order) + body * (3 * self.width - 1) // 2 * bool(self.width)


def find_sparse(
    names: Sequence[str], parents: int, sizes: Mapping[str, int], reads: Mapping[str, sparse.csr_array], core: int
) -> Block | None:
    """Choose the block of these latents with the fewest entries for the links that there are; None if there are none.

    `reads` tells which terms read which numbers. The first `parents` latents are in the core. Where terms read more numbers than a
    pattern can follow, the first `core` latents are, if any.
    """
    columns = [_columns(reads[name], sizes[name]) for name in names]
    matrix = sparse.csr_array(sparse.hstack(columns, format="csr", dtype=np.int32))
    first, size = sum(sizes[name] for name in names[:parents]), matrix.shape[1]
    if _lengths(matrix[:, first:]).max(initial=0) > _MOST_READ:
        parents, first = min(parents, core), sum(sizes[name] for name in names[:core])
        if not core:
            return None
    degrees = _degrees(matrix)
    degrees[:first] = size
    order = np.argsort(-degrees, kind="stable")
    cores = [core for core in _cores(degrees[order], first) if core * size <= MOST_ENTRIES]
    patterns = [_ordered(matrix, order, core) for core in cores]
    if not patterns:
        return None
    best = min(patterns, key=lambda own: own.entries)
    if best.entries > MOST_ENTRIES:
        best = _in_strips(matrix, order, first)
    if not (best.core or best.width):
        return None
    is_sorted = bool((np.diff(best.order) > 0).all())
    return Block(tuple(names), parents, best.core, best.width, () if is_sorted else tuple(best.order.tolist()))


def _columns(reads: sparse.csr_array, size: int) -> sparse.csr_array:
    """Give a vector that is one factor of q a column for each of its numbers."""
    return reads if reads.shape[1] == size else sparse.csr_array(sparse.hstack([reads] * size))


def _lengths(matrix: sparse.csr_array) -> np.ndarray:
    """Count the numbers that each term reads."""
    return np.diff(sparse.csr_array(matrix).indptr)


def _degrees(matrix: sparse.csr_array) -> np.ndarray:
    """Count the numbers that each shares terms with, those of several terms several times."""
    return np.minimum(matrix.T @ np.maximum(_lengths(matrix) - 1, 0), matrix.shape[1])


def _cores(degrees: np.ndarray, first: int) -> Iterator[int]:
    """Give the sizes that a core could have, where degrees fall off from the largest."""
    yield first
    usual = np.median(degrees)
    for core in range(first + 1, min(_MOST_CORE, len(degrees) - 1) + 1):
        falls = degrees[core - 1] > 1.5 * degrees[core]
        if falls or (core & (core - 1) == 0 and degrees[core - 1] > 2 * usual):
            yield core


def _ordered(matrix: sparse.csr_array, order: np.ndarray, core: int) -> _Pattern:
    """Order what is not in the core."""
    return _banded(_graph(matrix[:, np.sort(order[core:])]), order, core)


def _banded(graph: sparse.csr_array, order: np.ndarray, core: int) -> _Pattern:
    """Take the narrower of the order that there is and another."""
    body = np.sort(order[core:])
    width, _, own = min((_width(graph, own), number, own) for number, own in enumerate(_orders(graph)))
    return _Pattern(np.concatenate([order[:core], body[own]]), core, width)


def _in_strips(matrix: sparse.csr_array, order: np.ndarray, core: int) -> _Pattern:
    """Cut the graph into strips of levels, as thick as can be, and without any links if no strips are thin enough."""
    graph = _graph(matrix[:, np.sort(order[core:])])
    level, links = _levels(graph), sparse.coo_array(graph)
    for thickness in (64, 32, 16, 8, 4, 2, 1):
        kept = level[links.row] // thickness == level[links.col] // thickness
        strips = sparse.csr_array((links.data[kept], (links.row[kept], links.col[kept])), graph.shape)
        if (pattern := _banded(strips, order, core)).entries <= MOST_ENTRIES:
            return pattern
    return _banded(sparse.csr_array(graph.shape, dtype=np.int8), order, core)


def _graph(matrix: sparse.csr_array) -> sparse.csr_array:
    """Link the numbers that share a term; one that reads too many links none."""
    few = matrix[(lengths := _lengths(matrix)) * (lengths <= _MOST_READ) > 1].astype(np.int32)
    graph = sparse.coo_array(few.T @ few)
    apart = graph.row != graph.col
    return sparse.csr_array((np.ones(apart.sum(), np.int8), (graph.row[apart], graph.col[apart])), graph.shape)


def _orders(graph: sparse.csr_array) -> Iterator[np.ndarray]:
    yield np.arange(graph.shape[0])
    if graph.nnz:
        yield np.asarray(reverse_cuthill_mckee(sparse.csr_matrix(graph), symmetric_mode=True))


def _width(graph: sparse.csr_array, order: np.ndarray) -> int:
    """Find the smallest width of blocks such that links are within a block or between neighbours."""
    links = sparse.coo_array(graph)
    if not links.nnz:
        return 0
    place = np.argsort(order)
    one, other = place[links.row], place[links.col]
    farthest = int(np.abs(one - other).max())
    if farthest * len(order) > 2 * MOST_ENTRIES:  # too wide in any case, or nearly
        return farthest
    fits = (w for w in range(farthest // 2 + 1, farthest) if np.abs(one // w - other // w).max() <= 1)
    return next(fits, farthest)


def _levels(graph: sparse.csr_array) -> np.ndarray:
    """Count how far each number is from one at the edge of its part of the graph."""
    level = np.zeros(graph.shape[0], int)
    edge = np.asarray(reverse_cuthill_mckee(sparse.csr_matrix(graph), symmetric_mode=True))
    _, part = connected_components(graph, directed=False)
    for start in dict(zip(part[edge], edge, strict=True)).values():  # the last of each part
        order, before = breadth_first_order(graph, start, directed=False)
        for number in order[1:]:
            level[number] = level[before[number]] + 1
    return level
