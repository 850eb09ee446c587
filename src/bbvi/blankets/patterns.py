"""Section 3.1: how a blanket's terms are summed: by a reduction over axes where that is what it is.

Arrays here have samples on the last axis.
"""

import functools
import itertools
import math
from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sparse
from jaxtyping import Array, Float

Shape = tuple[int, ...]


def pairs_of(rows: np.ndarray, columns: np.ndarray, term_shape: Shape, factor_shape: Shape) -> sparse.csr_array:
    """Write pairs of a term element and a factor of q as a boolean matrix."""
    shape = math.prod(term_shape), math.prod(factor_shape)
    return sparse.csr_array((np.ones(len(rows), bool), (rows, columns)), shape)


class AbstractPattern(eqx.Module):
    """How the elements of one term array are summed for the factors of one latent array."""

    @abstractmethod
    def sum(self, term: Float[Array, "*term samples"]) -> Float[Array, "*narrow samples"]:
        """Sum, for each factor of q, the term's elements that read it; 1 for axes on which all have the same."""

    @abstractmethod
    def pairs(self) -> sparse.csr_array:
        """List which elements of the term read which factors of q, as a boolean matrix."""


class Reduction(AbstractPattern):
    """Factor axis k is matched with term axis `matched[k]`, or with none; unmatched term axes are summed."""

    term_shape: Shape = eqx.field(static=True)
    factor_shape: Shape = eqx.field(static=True)
    matched: tuple[int | None, ...] = eqx.field(static=True)

    @property
    def summed(self) -> tuple[int, ...]:
        """The axes of the term that are summed."""
        return tuple(axis for axis in range(len(self.term_shape)) if axis not in self.matched)

    def sum(self, term):
        return self.arranged(jnp.sum(term, axis=self.summed))

    def arranged(self, total: Float[Array, "*rest samples"]) -> Float[Array, "*narrow samples"]:
        """Arrange the sums over `summed` in the order of the axes of the factors of q."""
        axes = [axis for axis in self.matched if axis is not None]
        total = jnp.transpose(total, [*np.argsort(np.argsort(axes)), len(axes)] if axes else None)
        shape = [1 if axis is None else self.term_shape[axis] for axis in self.matched]
        return total.reshape([*shape, total.shape[-1]])

    def pairs(self):
        numbers = self.by_term(np.arange(math.prod(self.factor_shape)))
        read = np.broadcast_to(numbers, (*self.term_shape, numbers.shape[-1])).ravel()
        elements = np.repeat(np.arange(math.prod(self.term_shape)), numbers.shape[-1])
        return pairs_of(elements, read, self.term_shape, self.factor_shape)

    def by_term(self, of_factors: np.ndarray) -> np.ndarray:
        """Arrange what is given for each factor of q by the term's axes, 1 long where it is summed; unmatched axes last."""
        order = sorted(range(len(self.matched)), key=lambda k: (self.matched[k] is None, self.matched[k] or 0))
        shape = [size if axis in self.matched else 1 for axis, size in enumerate(self.term_shape)]
        free = [size for size, axis in zip(self.factor_shape, self.matched, strict=True) if axis is None]
        return of_factors.reshape(self.factor_shape).transpose(order).reshape(*shape, int(np.prod(free)))


class Shifted(AbstractPattern):
    """Neighbours along axes, as in a chain: factor f has the term elements f + shift, for each of the `shifts`.

    Factor axis k goes with term axis `matched[k]`; other term axes are summed.
    """

    term_shape: Shape = eqx.field(static=True)
    factor_shape: Shape = eqx.field(static=True)
    matched: Shape = eqx.field(static=True)
    shifts: tuple[tuple[int, ...], ...] = eqx.field(static=True)

    def sum(self, term):
        aligned = Reduction(self.term_shape, self.factor_shape, self.matched).sum(term)
        total: Array | float = 0.0
        for shift in self.shifts:
            # the element at f + shift is moved to f; what falls outside is cut off, what is missing is 0
            ends = zip(shift, self.factor_shape, aligned.shape, strict=False)
            config = [(-by, size - length + by, 0) for by, size, length in ends]
            total = total + jax.lax.pad(aligned, jnp.zeros((), term.dtype), [*config, (0, 0, 0)])
        return total

    def pairs(self):
        term = np.indices(self.term_shape).reshape(len(self.term_shape), -1)
        rows, columns = [], []
        for shift in self.shifts:
            at = [term[axis] - by for axis, by in zip(self.matched, shift, strict=True)]
            inside = np.all([(a >= 0) & (a < size) for a, size in zip(at, self.factor_shape, strict=True)], axis=0)
            rows.append(np.flatnonzero(inside))
            columns.append(np.ravel_multi_index([a[inside] for a in at], self.factor_shape))
        return pairs_of(np.concatenate(rows), np.concatenate(columns), self.term_shape, self.factor_shape)


class Scattered(AbstractPattern):
    """An irregular pattern: pairs of a term element and a factor of q, in the order of the factors.

    Where each factor has few, `lists` has its term elements, filled up with one that is zero: they are added list by list.
    """

    rows: np.ndarray
    columns: np.ndarray
    term_size: int = eqx.field(static=True)
    factor_shape: Shape = eqx.field(static=True)
    lists: np.ndarray | None = None

    def sum(self, term):
        flat, num = term.reshape(self.term_size, term.shape[-1]), math.prod(self.factor_shape)
        if self.lists is None:
            total = jax.ops.segment_sum(flat[self.rows], self.columns, num_segments=num, indices_are_sorted=True)
        else:
            if self.lists.max() == self.term_size:
                flat = jnp.concatenate([flat, jnp.zeros_like(flat[:1])])
            # neighbours, such as one element alone, are a slice, which is less to compile
            runs = [slice(c[0], c[-1] + 1) if np.all(np.diff(c) == 1) else c for c in self.lists.T]
            total = functools.reduce(jnp.add, [flat[run] for run in runs])
        return total.reshape(*self.factor_shape, term.shape[-1])

    def pairs(self):
        return pairs_of(self.rows, self.columns, (self.term_size,), self.factor_shape)


def readers(pattern: AbstractPattern, chosen: np.ndarray) -> np.ndarray:
    """Mark the elements of the term, flattened, that read any of the chosen factors of q, a mask over all of them."""
    if isinstance(pattern, Reduction):  # without all the pairs
        return np.broadcast_to(pattern.by_term(chosen).any(-1), pattern.term_shape).ravel()
    return pattern.pairs()[:, chosen.ravel()].sum(1) > 0


_LONGEST_LIST = 8
_FARTHEST = 64


def recognise(pairs: sparse.csr_array, term_shape: Shape, factor_shape: Shape) -> AbstractPattern:
    """Choose the cheapest pattern that is exactly these (term element, factor of q) pairs."""
    rows, columns = pairs.nonzero()
    order = np.lexsort((rows, columns))
    rows, columns = rows[order], columns[order]
    term = np.unravel_index(rows, term_shape) if term_shape else ()
    factor = np.unravel_index(columns, factor_shape) if factor_shape else ()
    for matched in _candidates(term_shape, factor_shape):
        reduction = Reduction(term_shape, factor_shape, matched)
        expected = int(np.prod(factor_shape)) * int(np.prod([term_shape[axis] for axis in reduction.summed]))
        agree = (axis is None or np.array_equal(term[axis], factor[k]) for k, axis in enumerate(matched))
        if expected == len(rows) and all(agree):
            return reduction
    if (shifted := _shifted(term, factor, term_shape, factor_shape)) is not None:
        return shifted
    counts = np.bincount(columns, minlength=int(np.prod(factor_shape)))
    term_size = int(np.prod(term_shape))
    if counts.max() > _LONGEST_LIST:
        return Scattered(rows, columns, term_size, factor_shape)
    members = np.full((len(counts), counts.max()), term_size)
    slot = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    members[columns, slot] = rows
    return Scattered(rows, columns, term_size, factor_shape, members)


def _candidates(term_shape, factor_shape):
    choices = [[None, *(a for a, t in enumerate(term_shape) if t == size)] for size in factor_shape]
    for matched in itertools.product(*choices):
        used = [axis for axis in matched if axis is not None]
        if len(set(used)) == len(used):
            yield matched


def _shifted(term, factor, term_shape, factor_shape) -> Shifted | None:
    """Find the pattern of neighbours that these pairs are, None if they are not one."""
    if not factor_shape or len(term_shape) < len(factor_shape):
        return None
    for matched in itertools.permutations(range(len(term_shape)), len(factor_shape)):
        by = np.stack([term[axis] - factor[k] for k, axis in enumerate(matched)])
        if np.abs(by).max() > _FARTHEST:
            continue
        shifts = tuple(tuple(int(i) for i in shift) for shift in np.unique(by, axis=1).T)
        pattern = Shifted(term_shape, factor_shape, matched, shifts)
        if len(shifts) <= _LONGEST_LIST and pattern.pairs().nnz == by.shape[1]:
            return pattern
    return None
