"""Section 5.3 on the structure of section 3.1: which latent elements can move together.

Elements that share no term of log p are independent given all the others, so that one vector move of all of them is
the same as one move after another. A colouring splits the elements into such sets.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.sparse as sparse

from bbvi.blankets.blankets import Blankets
from bbvi.blankets.patterns import AbstractPattern, Reduction
from bbvi.blankets.scope import Patterns, Scope
from bbvi.model.problem import Problem

Colours = dict[str, np.ndarray]


class Move(NamedTuple):
    """Colours in which the same latents have elements, to be moved one after the other."""

    names: tuple[str, ...]
    colours: tuple[int, ...]


def colour(reads: sparse.csr_array) -> np.ndarray:
    """Choose a colour for each column such that no row has two columns of one colour.

    The better of two greedy rules, first fit and next fit. Next fit goes on from the colour before, which is what a
    grid needs: there first fit can take one colour too many.
    """
    first, following = first_fit(reads), _greedy(reads, cyclic=True)
    return first if first.max(initial=0) <= following.max(initial=0) else following


def first_fit(reads: sparse.csr_array) -> np.ndarray:
    """Choose colours by first fit: those of the first columns do not change when others follow."""
    return _greedy(reads, cyclic=False)


def _greedy(reads: sparse.csr_array, *, cyclic: bool) -> np.ndarray:
    columns = sparse.csc_array(reads)
    members = np.split(columns.indices, columns.indptr[1:-1])
    used = [0] * reads.shape[0]  # for each row the set of its colours, as bits
    found, last, num = np.zeros(len(members), int), -1, 0
    for element, rows in enumerate(members):
        taken = 0
        for row in rows:
            taken |= used[row]
        free = ~taken & ((1 << num) - 1)
        ahead = free >> (last + 1) << (last + 1) if cyclic else free
        chosen = ahead or free
        last = (chosen & -chosen).bit_length() - 1 if chosen else num
        num = max(num, last + 1)
        found[element] = last
        for row in rows:
            used[row] |= 1 << last
    return found


def is_valid(reads: sparse.csr_array, colours: np.ndarray) -> bool:
    """Tell whether no row has two columns of one colour."""
    classes = sparse.csr_array((np.ones(len(colours), int), (np.arange(len(colours)), colours)))
    return bool((reads.astype(int) @ classes).max() <= 1) if reads.nnz else True


def moves(colours: Colours) -> list[Move]:
    """List the colours by the latents that have elements in them."""
    number = 1 + max((int(c.max()) for c in colours.values() if c.size), default=-1)
    by_names: dict[tuple[str, ...], list[int]] = {}
    for c in range(number):
        names = tuple(name for name, of_latent in colours.items() if (of_latent == c).any())
        by_names.setdefault(names, []).append(c)
    return [Move(names, tuple(numbers)) for names, numbers in by_names.items()]


def global_reads(problem: Problem, blankets: Blankets, rows: Any) -> sparse.csr_array:
    """Find the matrix of terms by elements of the globals; `rows` are all groups, first, for look-ups by their data."""
    blocks = [block for scope in blankets.scopes for block in _blocks(problem, problem.globals, scope.patterns)]
    if blankets.group is not None and any(name in blankets.group.look_ups for name in problem.globals):
        for group in range(problem.num_groups):
            row = jax.tree.map(lambda leaf, g=group: leaf[g], rows)
            blocks += _looked_up(problem, problem.globals, blankets.group, row)
    return _distinct(blocks, _width(problem, problem.globals))


def possible_reads(problem: Problem, names: Mapping[str, Any], scopes: Iterable[Scope]) -> sparse.csr_array:
    """Find the matrix of terms by elements of these latents; a look-up by a group's data may read any."""
    blocks: list[sparse.csr_array] = []
    for scope in scopes:
        blocks += _blocks(problem, names, scope.patterns)
        for term in dict.fromkeys(item.term for name in names for item in scope.look_ups.get(name, [])):
            row = []
            for name in names:
                direct = scope.patterns.get(name, {}).get(term)
                chosen = any(item.term == term for item in scope.look_ups.get(name, []))
                read = np.full(int(np.prod(problem.shape(name))), chosen)
                row.append(read if direct is None else read | (np.asarray(direct.pairs().sum(0)).ravel() > 0))
            blocks.append(sparse.csr_array(np.concatenate(row)[None]))
    return _distinct(blocks, _width(problem, names))


def local_reads(scope: Scope) -> sparse.csr_array:
    """Find the matrix of one group's terms by elements of its locals."""
    problem = scope.problem
    for name in problem.locals:
        if name in scope.look_ups:
            raise ValueError(
                f"Gibbs: which elements of the local latent {name!r} a term reads depends on the group's data, so that "
                "no colouring is common to all groups; write the look-up as a product with an indicator matrix"
            )
    return _distinct(_blocks(problem, problem.locals, scope.patterns), _width(problem, problem.locals))


def by_latent(problem: Problem, names: Iterable[str], colours: np.ndarray) -> Colours:
    """Split the colours by latent, each in the shape of its factors of q."""
    out, offset = {}, 0
    for name in names:
        shape = problem.shape(name)
        size = int(np.prod(shape))
        out[name] = colours[offset : offset + size].reshape(shape)
        offset += size
    return out


def cut(colours: Colours, scope: Scope) -> Colours:
    """Take the colours of longer groups for shorter ones, which then move in the same order; others if these are not valid."""
    problem, reads = scope.problem, local_reads(scope)
    corner = {n: c[tuple(slice(size) for size in problem.shape(n))] for n, c in colours.items()}
    flat = np.concatenate([c.ravel() for c in corner.values()])
    return corner if is_valid(reads, flat) else by_latent(problem, problem.locals, colour(reads))


def _width(problem: Problem, names: Iterable[str]) -> int:
    return sum(int(np.prod(problem.shape(name))) for name in names)


def _blocks(problem: Problem, names: Mapping[str, Any], part: Patterns) -> Iterable[sparse.csr_array]:
    """For each array of terms that reads any of these latents, its elements by theirs."""
    terms = dict.fromkeys(term for name in names for term in part.get(name, {}))
    for term in terms:
        yield _joined(problem, {name: part.get(name, {}).get(term) for name in names})


def _joined(problem: Problem, patterns: Mapping[str, AbstractPattern | None]) -> sparse.csr_array:
    present = {name: pattern for name, pattern in patterns.items() if pattern is not None}
    reductions = [pattern for pattern in present.values() if isinstance(pattern, Reduction)]
    pairs = {}
    if len(reductions) == len(present):
        # along an axis that all of them sum over, all elements read the same
        kept = {axis for pattern in reductions for axis in pattern.matched}
        shape = tuple(size if axis in kept else 1 for axis, size in enumerate(reductions[0].term_shape))
        for name, pattern in zip(present, reductions, strict=True):
            pairs[name] = Reduction(shape, pattern.factor_shape, pattern.matched).pairs()
    else:
        pairs = {name: pattern.pairs() for name, pattern in present.items()}
    num = next(iter(pairs.values())).shape[0]
    empty = {name: sparse.csr_array((num, int(np.prod(problem.shape(name)))), dtype=bool) for name in patterns}
    return sparse.csr_array(sparse.hstack(list((empty | pairs).values()), format="csr"))


def _looked_up(problem: Problem, names: Mapping[str, Any], scope: Scope, row: Any) -> Iterable[sparse.csr_array]:
    """One group's terms by the elements that its data choose, with those that it reads in any case."""
    indices = scope.indices(row)
    terms = dict.fromkeys(item.term for name in names for item in scope.look_ups.get(name, []))
    for term in terms:
        parts = []
        for name in names:
            chosen = [item.pairs(indices) for item in scope.look_ups.get(name, []) if item.term == term]
            direct = scope.patterns.get(name, {}).get(term)
            parts.append([*chosen, *([] if direct is None else [direct.pairs()])])
        num = next(pairs for found in parts for pairs in found).shape[0]
        columns = [
            sum(found[1:], found[0])
            if found
            else sparse.csr_array((num, int(np.prod(problem.shape(name)))), dtype=bool)
            for name, found in zip(names, parts, strict=True)
        ]
        yield sparse.csr_array(sparse.hstack(columns, format="csr"))


def _distinct(blocks: Iterable[sparse.csr_array], width: int) -> sparse.csr_array:
    """Stack all blocks, with equal rows once: they ask for the same."""
    kept: dict[bytes, np.ndarray] = {}
    for block in blocks:
        block.sort_indices()
        for begin, end in zip(block.indptr[:-1], block.indptr[1:], strict=True):
            if end > begin:
                row = block.indices[begin:end]
                kept.setdefault(row.tobytes(), row)
    indptr = np.cumsum([0, *(len(row) for row in kept.values())])
    indices = np.concatenate(list(kept.values())) if kept else np.zeros(0, np.int32)
    return sparse.csr_array((np.ones(len(indices), bool), indices, indptr), (len(kept), width))
