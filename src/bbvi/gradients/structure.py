"""Read the structure of q off the function: latents that share terms of log p share a factor of q.

Where the path of a draw can be followed, a joint Normal costs little more than its entries by themselves, and its natural
steps do not creep along ridges. Latents of a few numbers that most numbers of larger latents share terms with, such as the mean
and the scale of random effects, come first in it, and set the scales of the others.
"""

import itertools
from collections.abc import Collection, Iterable

import numpy as np
import scipy.sparse as sparse
from scipy.sparse.csgraph import connected_components

from bbvi.blankets.analysis import Analysis
from bbvi.blankets.colouring import possible_reads
from bbvi.gradients.forests import find_forests
from bbvi.gradients.local_structure import find_locals, given_globals
from bbvi.gradients.pairs import find_pairs
from bbvi.gradients.slopes import smooth_latents
from bbvi.gradients.sparsity import find_sparse
from bbvi.model.joint import Block, num_coordinates, why_not

#: the numbers of a joint Normal without a core; its parameters are half as many as the square of this
MOST_NUMBERS = 128
_MOST_PARAMETERS = 1 << 15  # of what depends on a core
_MOST_PARENTS = 16
#: batches that the groups make, up to which q of locals depends on globals
_MOST_BATCHES = 16


def choose_structure(analysis: Analysis, share: float = 1.0) -> tuple[Block, ...]:
    """Choose which latents share a factor of q, from what shares terms with what and from sizes alone.

    Steps look at a `share` of the groups. Where that is small, regressions of locals on globals are noisy for so long that q of
    the globals is far too narrow, and stays where it is.
    """
    problem, smooth = analysis.problem, smooth_latents(analysis)
    found = [*find_pairs(analysis), *find_forests(analysis)]
    taken = {name for block in found for name in block.names}
    found += find_locals(analysis, [name for name in problem.locals if name in smooth - taken])
    names = [name for name, x in problem.globals.items() if name in smooth - taken and not why_not(x)]
    if not names:
        return tuple(found)
    sizes = {name: num_coordinates(problem.globals[name]) for name in names}
    factors = [int(np.prod(problem.shape(name))) for name in names]
    reads = dict(zip(names, _by_latent(possible_reads(problem, names, analysis.scopes), factors), strict=True))
    shares = [np.asarray(reads[name].sum(1) > 0).ravel() for name in names]
    linked = _read_with_locals(analysis)
    read = np.column_stack([np.array(shares, int), np.isin(names, linked)])
    _, component = connected_components(read @ read.T > 0)
    for number in range(max(component) + 1):
        own = sorted((n for n, c in zip(names, component, strict=True) if c == number), key=lambda n: sizes[n])
        # nothing is joined that does not share a term
        alone = len(own) == 1 and reads[own[0]].sum(1).max() <= 1
        if not alone and (block := _block(own, sizes, reads, set(linked))) is not None:
            has_bounds = any(problem.globals[name].support != "real" for name in block.names[block.parents :])
            found.append(block._replace(skewed=has_bounds and block.core is None))
    if smooth == set(problem.latents) and share * _MOST_BATCHES >= 1:
        return given_globals(analysis, found, [n for n in linked if n in names])
    return tuple(found)


def _block(
    names: list[str], sizes: dict[str, int], reads: dict[str, sparse.csr_array], linked: Collection[str]
) -> Block | None:
    """Join latents that interact, small ones first: all with all if they are few numbers, else those that share terms."""
    ends = np.cumsum([sizes[name] for name in names])
    parents = _num_parents(names, sizes, reads)
    if ends[-1] <= MOST_NUMBERS:
        return Block(tuple(names), parents) if ends[-1] > 1 else None
    core = int((ends <= min(MOST_NUMBERS, _MOST_PARAMETERS // ends[-1])).sum())
    # those that share terms with locals share one more
    more = {name: np.full((1, reads[name].shape[1]), int(name in linked)) for name in names}
    return find_sparse(names, parents, sizes, {n: sparse.vstack([reads[n], more[n]]) for n in names}, core)


def _read_with_locals(analysis: Analysis) -> list[str]:
    """Name the globals that share terms with locals of a group: through these they depend on each other."""
    group, problem = analysis.blankets.group, analysis.problem
    if group is None:
        return []
    terms = set(group.reading(problem.locals))
    return [name for name in problem.globals if terms.intersection(group.reading([name]))]


def _by_latent(reads: sparse.csr_array, sizes: Iterable[int]) -> list[sparse.csr_array]:
    ends = np.cumsum([0, *sizes])
    return [sparse.csr_array(reads[:, begin:end].astype(int)) for begin, end in itertools.pairwise(ends)]


def _num_parents(names: list[str], sizes: dict[str, int], reads: dict[str, sparse.csr_array]) -> int:
    """Count the small latents, which come first, that share terms with most numbers of a larger one."""
    parents = 0
    while sum(sizes[name] for name in names[: parents + 1]) <= _MOST_PARENTS and parents + 1 < len(names):
        name = names[parents]
        larger = [other for other in names[parents + 1 :] if sizes[other] >= 2 * sizes[name]]
        # of each of its numbers, the share of a larger latent's numbers that have a term in common with it
        shares = [(reads[name].T @ reads[other] > 0).mean(1) for other in larger]
        if not shares or np.max(shares, axis=0).min() <= 0.5:
            break
        parents += 1
    return parents
