"""Read forests off the function: discrete latents of which each term of log p reads one number, or two that are neighbours."""

import math

import numpy as np
import scipy.sparse as sparse
from scipy.sparse.csgraph import breadth_first_order, connected_components

from bbvi.blankets.analysis import Analysis
from bbvi.blankets.colouring import possible_reads
from bbvi.families.charts import Binary, Categories
from bbvi.gradients.auto import MOST_EVALUATIONS
from bbvi.gradients.tree_sums import plan_of
from bbvi.model.joint import Block
from bbvi.model.latents import Latent


def find_forests(analysis: Analysis) -> list[Block]:
    """Find the latents whose numbers interact in pairs that form chains or trees: each has a Markov tree as q."""
    problem, (prior, *groups) = analysis.problem, analysis.scopes
    found = []
    for name, latent in problem.globals.items():
        if problem.opaque or not _has_few(latent) or any(scope.reading([name]) for scope in groups):
            continue
        reads = possible_reads(problem, [name], [prior])
        if (forest := _forest(reads)) is None:
            continue
        plan = plan_of(forest, {name: reads})
        if plan is not None and plan.num_turns * _num_values(latent) ** 2 <= MOST_EVALUATIONS:
            found.append(Block((name,), forest=forest))
    return found


def _num_values(latent: Latent) -> int:
    values = latent.chart.values()
    return 0 if values is None else len(values)


def _has_few(latent: Latent) -> bool:
    """Tell whether a latent is an array of binary or categorical numbers whose q and start are left to the library."""
    plain = latent.q is None and not isinstance(latent.init, dict) and not latent.ragged_axes
    return plain and isinstance(latent.family.chart, (Binary, Categories)) and math.prod(latent.padded({})) > 1


def _forest(reads: sparse.csr_array) -> tuple[int, ...] | None:
    """Return the parent of each number, if the pairs that terms read have no cycle; None if they have, or if there are none."""
    if reads.shape[0] == 0 or reads.sum(1).max() != 2:
        return None
    both = reads.astype(int)
    links = sparse.csr_array(both.T @ both)
    links.setdiag(0)
    links.eliminate_zeros()
    num, tree = connected_components(links, directed=False)
    if links.nnz // 2 != len(tree) - num:
        return None
    parents = np.full(len(tree), -1)
    for root in np.unique(tree, return_index=True)[1]:
        order, before = breadth_first_order(links, root, directed=False)
        parents[order[1:]] = before[order[1:]]
    return tuple(parents.tolist())
