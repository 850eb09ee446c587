"""What a Markov tree over discrete numbers needs of log p: expected terms at all values of single numbers and of pairs.

Every tree has two colours, those of even and of odd numbers of steps from the root, and a pair of neighbours has one number of
each. So the terms of all pairs are known after one evaluation for each value of either colour, however long a chain is. Trees
of which one term reads several are moved one after the other, with draws of the others.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import scipy.sparse as sparse
from scipy.sparse.csgraph import connected_components

from bbvi.blankets.colouring import colour
from bbvi.blankets.patterns import pairs_of
from bbvi.families.tree import in_order


class Cliques(NamedTuple):
    """Of each element of an array of terms the number that it reads, -1 if none, and whether it reads that one's parent too."""

    child: np.ndarray
    with_parent: np.ndarray


class Plan(NamedTuple):
    """Which numbers move together, by turns, how far they are from their roots, and by array what its elements read in each turn."""

    turns: np.ndarray
    depth: np.ndarray
    cliques: Mapping[str, tuple[Cliques, ...]]

    @property
    def num_turns(self) -> int:
        """The number of turns."""
        return int(self.turns.max()) + 1

    def counted(self, term: str, turn: int) -> np.ndarray:
        """Tell which elements of an array count in this turn: those in their first, and those that read nothing in the array's."""
        in_turn = np.stack([cliques.child >= 0 for cliques in self.cliques[term]])
        first = np.where(in_turn.any(0), in_turn.argmax(0), in_turn.any(1).argmax())
        return first == turn


def plan_of(parents: tuple[int, ...], reads: Mapping[str, sparse.csr_array | None]) -> Plan | None:
    """Plan the evaluations for these numbers, which terms read as told; None if a term reads two of a tree that are no neighbours."""
    _, depth = in_order(parents)
    above, numbers = np.array(parents), np.arange(len(parents))
    inner = numbers[above >= 0]
    links = sparse.csr_array((np.ones(len(inner)), (inner, above[inner])), (len(numbers),) * 2)
    _, tree = connected_components(links, directed=False)
    pairs: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
    trees_read, sizes = [], {}
    for term, read in reads.items():
        if read is None:
            return None
        rows, columns = read.nonzero()
        # what a term reads of one tree, side by side, and of two the one farther from the root last
        by_tree = np.lexsort((depth[columns], tree[columns], rows))
        rows, columns = rows[by_tree], columns[by_tree]
        same = (rows[1:] == rows[:-1]) & (tree[columns[1:]] == tree[columns[:-1]])
        if np.any(above[columns[1:][same]] != columns[:-1][same]):
            return None  # nor, of three, can all be neighbours
        last, second = np.append(~same, True)[: len(rows)], np.insert(same, 0, False)[: len(rows)]
        sizes[term] = read.shape[0]
        pairs[term] = rows[last], columns[last], second[last]
        trees_read.append(pairs_of(rows[last], tree[columns[last]], read.shape[:1], (int(tree.max()) + 1,)))
    of_trees = colour(sparse.csr_array(sparse.vstack(trees_read, format="csr")))
    turns = of_trees[tree]
    cliques = {}
    for term, (rows, columns, second) in pairs.items():
        own, size = [], sizes[term]
        for turn in range(int(turns.max()) + 1):
            mine = turns[columns] == turn
            child, with_parent = np.full(size, -1), np.zeros(size, bool)
            child[rows[mine]], with_parent[rows[mine]] = columns[mine], second[mine]
            own.append(Cliques(child, with_parent))
        cliques[term] = tuple(own)
    return Plan(turns, depth, cliques)
