"""Section 3.1: the factors of log p and, for each factor of q, those in its blanket.

log p_i of Eq. 6 is the sum of the factors that read z_i. Arrays here have samples on the last axis.
"""

import itertools
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sparse
from jaxtyping import Array, Float

from bbvi.factors import Factors, is_array
from bbvi.host import PLACE_WORDS
from bbvi.model import Problem, Terms
from bbvi.reads import reads


class AbstractPattern(eqx.Module):
    """How the elements of one term array are summed for the factors of one latent array."""

    @abstractmethod
    def sum(self, term: Float[Array, "*term samples"]) -> Float[Array, "*factors samples"]:
        """For each factor of q, the sum of the term's elements that read it."""

    @abstractmethod
    def members(self, factor: int) -> np.ndarray:
        """Which elements of the term, flattened, read this factor of q."""


class Reduction(AbstractPattern):
    """Factor axis k is matched with term axis `matched[k]`, or with none; unmatched term axes are summed."""

    term_shape: tuple[int, ...] = eqx.field(static=True)
    factor_shape: tuple[int, ...] = eqx.field(static=True)
    matched: tuple[int | None, ...] = eqx.field(static=True)

    def sum(self, term):
        axes = [axis for axis in self.matched if axis is not None]
        rest = tuple(axis for axis in range(len(self.term_shape)) if axis not in axes)
        total = jnp.sum(term, axis=rest)
        total = jnp.transpose(total, [*np.argsort(np.argsort(axes)), len(axes)] if axes else None)
        shape = [1 if axis is None else self.term_shape[axis] for axis in self.matched]
        return jnp.broadcast_to(total.reshape([*shape, term.shape[-1]]), (*self.factor_shape, term.shape[-1]))

    def members(self, factor):
        position = np.unravel_index(factor, self.factor_shape) if self.factor_shape else ()
        keep = np.zeros(self.term_shape, bool)
        index: list[Any] = [slice(None)] * len(self.term_shape)
        for k, axis in enumerate(self.matched):
            if axis is not None:
                index[axis] = position[k]
        keep[tuple(index)] = True
        return keep.ravel()


class Listed(AbstractPattern):
    """An irregular pattern: for each factor of q the list of term elements, filled up with a zero element."""

    lists: np.ndarray
    term_size: int = eqx.field(static=True)
    factor_shape: tuple[int, ...] = eqx.field(static=True)

    def sum(self, term):
        flat = term.reshape(self.term_size, term.shape[-1])
        flat = jnp.concatenate([flat, jnp.zeros_like(flat[:1])])
        total = flat[self.lists[:, 0]]
        for column in range(1, self.lists.shape[1]):
            total = total + flat[self.lists[:, column]]
        return total.reshape(*self.factor_shape, term.shape[-1])

    def members(self, factor):
        keep = np.zeros(self.term_size + 1, bool)
        keep[self.lists[factor]] = True
        return keep[:-1]


class Scattered(AbstractPattern):
    """An irregular pattern with long lists: each (term element, factor) pair is added on its own."""

    rows: np.ndarray
    columns: np.ndarray
    term_size: int = eqx.field(static=True)
    factor_shape: tuple[int, ...] = eqx.field(static=True)

    def sum(self, term):
        flat = term.reshape(self.term_size, term.shape[-1])
        num = int(np.prod(self.factor_shape))
        total = jax.ops.segment_sum(flat[self.rows], self.columns, num_segments=num, indices_are_sorted=True)
        return total.reshape(*self.factor_shape, term.shape[-1])

    def members(self, factor):
        keep = np.zeros(self.term_size, bool)
        keep[self.rows[self.columns == factor]] = True
        return keep


_LONGEST_LIST = 8


def recognise(pairs: sparse.csr_array, term_shape: tuple[int, ...], factor_shape: tuple[int, ...]) -> AbstractPattern:
    """The cheapest pattern that is exactly these (term element, factor of q) pairs."""
    rows, columns = pairs.nonzero()
    order = np.lexsort((rows, columns))
    rows, columns = rows[order], columns[order]
    for matched in _candidates(term_shape, factor_shape):
        used = [axis for axis in matched if axis is not None]
        expected = int(np.prod(factor_shape)) * int(np.prod([s for a, s in enumerate(term_shape) if a not in used]))
        if expected == len(rows) and _agree(rows, columns, term_shape, factor_shape, matched):
            return Reduction(term_shape, factor_shape, matched)
    counts = np.bincount(columns, minlength=int(np.prod(factor_shape)))
    term_size = int(np.prod(term_shape))
    if counts.max() > _LONGEST_LIST:
        return Scattered(rows, columns, term_size, factor_shape)
    members = np.full((len(counts), counts.max()), term_size)
    slot = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    members[columns, slot] = rows
    return Listed(members, term_size, factor_shape)


def _candidates(term_shape, factor_shape):
    choices = [[None, *(a for a, t in enumerate(term_shape) if t == size)] for size in factor_shape]
    for matched in itertools.product(*choices):
        used = [axis for axis in matched if axis is not None]
        if len(set(used)) == len(used):
            yield matched


def _agree(rows, columns, term_shape, factor_shape, matched) -> bool:
    term = np.unravel_index(rows, term_shape) if term_shape else ()
    factor = np.unravel_index(columns, factor_shape) if factor_shape else ()
    return all(axis is None or bool((term[axis] == factor[k]).all()) for k, axis in enumerate(matched))


class Blankets:
    """The factors of log p, and for each latent the patterns by which it sums those that read it.

    `prior` is about the factors that no group owns, `group` about those of one group.
    """

    def __init__(
        self,
        prior: dict[str, dict[str, AbstractPattern]],
        group: dict[str, dict[str, AbstractPattern]],
        prior_factors: Factors,
        group_factors: Factors | None,
    ):
        self.prior, self.group = prior, group
        self._prior_factors, self._group_factors = prior_factors, group_factors

    def prior_factors(self, beta: dict[str, Array], data: Any, num: int) -> Terms:
        """The factors that no group owns, for `num` samples on the last axis."""
        at_sample = jax.vmap(lambda b: self._prior_factors(b, data), in_axes=-1, out_axes=-1, axis_size=num)
        return at_sample(beta)

    def group_factors(self, beta: dict[str, Array], z: dict[str, Array], row: Any, num: int) -> Terms:
        """The factors of one group, for `num` samples on the last axis."""
        assert self._group_factors is not None
        factors = self._group_factors
        return jax.vmap(lambda b, z: factors(b, z, row), in_axes=-1, out_axes=-1, axis_size=num)(beta, z)

    def log_p(self, part: Mapping[str, Mapping[str, AbstractPattern]], latent: str, terms: Terms) -> Array | float:
        """log p_i for every factor i of `latent`, from one part of the terms; 0 where none reads it."""
        total: Array | float = 0.0
        for name, pattern in part.get(latent, {}).items():
            total = total + pattern.sum(terms[name])
        return total


def find_blankets(problem: Problem, data: Any, row: Any) -> tuple[Blankets, int]:
    """Trace the model once and read off its blankets; also the number of term elements in one group."""
    dummy = {name: _dummy(problem, name) for name in problem.latents}
    place = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), problem.no_place())
    beta = {name: dummy[name] for name in problem.globals} | place
    z = {name: dummy[name] for name in problem.locals} | place
    prior_factors = Factors(problem.prior_terms, (beta,), data)
    prior, prior_size = _patterns(problem, prior_factors, (beta,), data, known=True)
    group_factors = None
    group: dict[str, dict[str, AbstractPattern]] = {}
    group_size = 0
    if problem.num_groups:
        group_factors = Factors(problem.group_terms, (beta, z), row)
        group, group_size = _patterns(problem, group_factors, (beta, z), row, known=False)
    unread = [name for name in problem.latents if name not in prior and name not in group]
    if unread:
        raise ValueError(
            f"the log joint never reads the latent {unread[0]!r}: its posterior would be arbitrary; "
            "use it in the function or remove its declaration"
        )
    return Blankets(prior, group, prior_factors, group_factors), max(prior_size, group_size)


def _dummy(problem: Problem, name: str) -> jax.ShapeDtypeStruct:
    latent = problem.latents[name]
    dtype = int if latent.family.is_discrete() else float
    return jax.ShapeDtypeStruct(problem.shape(name) + latent.event, jax.dtypes.canonicalize_dtype(dtype))


def _patterns(
    problem: Problem, function: Callable[..., Terms], latents: tuple[Any, ...], constant: Any, *, known: bool
) -> tuple[dict[str, dict[str, AbstractPattern]], int]:
    arrays, static = eqx.partition(constant, is_array)
    matrices, shapes = reads(lambda given, a: function(*given, eqx.combine(a, static)), latents, arrays, known=known)
    names = [name for part in latents for name in sorted(part)]
    found: dict[str, dict[str, AbstractPattern]] = {}
    size = 0
    for (term, shape), matrix in zip(sorted(shapes.items()), matrices, strict=True):
        size += matrix.shape[0]
        offset = 0
        for name in names:
            if name not in problem.latents:  # where an opaque function's call stands: nothing to differentiate
                offset += PLACE_WORDS
                continue
            event = int(np.prod(problem.latents[name].event))
            count = int(np.prod(problem.shape(name)))
            block = sparse.csr_array(matrix[:, offset : offset + count * event])
            offset += count * event
            if event > 1:
                merge = sparse.csr_array(sparse.kron(sparse.eye_array(count), np.ones((event, 1), np.int32)))
                block = sparse.csr_array((block @ merge).astype(bool))
            if block.nnz:
                found.setdefault(name, {})[term] = recognise(block, shape.shape, problem.shape(name))
    return found, size
