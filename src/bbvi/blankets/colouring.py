"""Section 5.3 on the structure of section 3.1: which latent elements can move together.

Elements that share no term of log p are independent given all the others, so that one vector move of all of them is
the same as one move after another. A colouring splits the elements into such sets.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.sparse as sparse

from bbvi.blankets.blankets import Blankets
from bbvi.blankets.patterns import Reduction
from bbvi.blankets.read_sets import distinct
from bbvi.blankets.scope import Pairs, Scope, by_name
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
    first, following = first_fit(reads), first_fit(reads, cyclic=True)
    return first if first.max(initial=0) <= following.max(initial=0) else following


def first_fit(reads: sparse.csr_array, *, cyclic: bool = False) -> np.ndarray:
    """Choose colours by first fit: those of the first columns do not change when others follow. If cyclic, by next fit."""
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
    found = [pairs for scope in blankets.scopes for pairs in _direct(problem.globals, scope)]
    group = blankets.group
    if group is not None and any(name in group.look_ups for name in problem.globals):
        for number in range(problem.num_groups):
            indices = group.indices(jax.tree.map(lambda leaf, g=number: leaf[g], rows))
            found += [group.pairs(term, problem.globals, indices) for term in _looked_up(problem.globals, group)]
    return _distinct(problem, problem.globals, found)


def possible_reads(problem: Problem, names: Collection[str], scopes: Iterable[Scope]) -> sparse.csr_array:
    """Find the matrix of terms by elements of these latents; a look-up by a group's data may read any."""
    found: list[Pairs] = []
    for scope in scopes:
        found += _direct(names, scope)
        for term in _looked_up(names, scope):
            direct = {name: item.pairs().sum(0) > 0 for name, item in by_name(scope.patterns, term, names).items()}
            chosen = {name: np.ones(problem.shape(name), bool) for name in by_name(scope.look_ups, term, names)}
            found.append({name: sparse.csr_array(read.reshape(1, -1)) for name, read in (direct | chosen).items()})
    return _distinct(problem, names, found)


def local_reads(scope: Scope) -> sparse.csr_array:
    """Find the matrix of one group's terms by elements of its locals."""
    problem = scope.problem
    for name in problem.locals:
        if name in scope.look_ups:
            raise ValueError(
                f"Gibbs: which elements of the local latent {name!r} a term reads depends on the group's data, so that "
                "no colouring is common to all groups; write the look-up as a product with an indicator matrix"
            )
    return _distinct(problem, problem.locals, _direct(problem.locals, scope))


def by_latent(problem: Problem, names: Iterable[str], colours: np.ndarray) -> Colours:
    """Split the colours by latent, each in the shape of its factors of q."""
    shapes = {name: problem.shape(name) for name in names}
    parts = np.split(colours, np.cumsum([int(np.prod(shape)) for shape in shapes.values()]))
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=False)}


def cut(colours: Colours, scope: Scope) -> Colours:
    """Take the colours of longer groups for shorter ones, which then move in the same order; others if these are not valid."""
    problem, reads = scope.problem, local_reads(scope)
    corner = {n: c[tuple(slice(size) for size in problem.shape(n))] for n, c in colours.items()}
    flat = np.concatenate([c.ravel() for c in corner.values()])
    return corner if is_valid(reads, flat) else by_latent(problem, problem.locals, colour(reads))


def _looked_up(names: Iterable[str], scope: Scope) -> list[str]:
    """Name the arrays of terms that read elements of these latents which the data choose."""
    return list(dict.fromkeys(term for name in names for term in scope.look_ups.get(name, {})))


def _direct(names: Iterable[str], scope: Scope) -> Iterator[Pairs]:
    """For each array of terms that reads any of these latents in any case, its elements by theirs."""
    for term in dict.fromkeys(term for name in names for term in scope.patterns.get(name, {})):
        patterns = by_name(scope.patterns, term, names)
        reductions = [pattern for pattern in patterns.values() if isinstance(pattern, Reduction)]
        if len(reductions) == len(patterns):
            # along an axis that all of them sum over, all elements read the same
            kept = {axis for pattern in reductions for axis in pattern.matched}
            shape = tuple(size if axis in kept else 1 for axis, size in enumerate(reductions[0].term_shape))
            shorter = (Reduction(shape, pattern.factor_shape, pattern.matched) for pattern in reductions)
            patterns = dict(zip(patterns, shorter, strict=True))
        yield {name: pattern.pairs() for name, pattern in patterns.items()}


def _distinct(problem: Problem, names: Iterable[str], found: Iterable[Pairs]) -> sparse.csr_array:
    """Stack the pairs of all terms, latents side by side, with equal rows once: they ask for the same."""
    none = {name: sparse.csr_array((0, int(np.prod(problem.shape(name)))), dtype=bool) for name in names}
    if not none:
        return sparse.csr_array((0, 0), dtype=bool)
    blocks = [[pairs.get(name) for name in names] for pairs in (none, *found)]
    reads = sparse.csr_array(sparse.block_array(blocks, format="csr"))
    return sparse.csr_array(reads[distinct(reads)[0]])
