"""Read off the function which locals of a group share a factor of q, and along which of their axes factors stay apart."""

import math
from collections.abc import Collection, Iterator, Mapping

import numpy as np
import scipy.sparse as sparse
from scipy.sparse.csgraph import connected_components

from bbvi.blankets.analysis import Analysis
from bbvi.blankets.colouring import possible_reads
from bbvi.model.joint import Block, num_coordinates, why_not, within_factor
from bbvi.model.latents import Latent, Shape

#: the numbers of a factor, of which each group has one with half as many parameters as the square of this
_MOST_NUMBERS = 64


def find_locals(analysis: Analysis, names: Collection[str]) -> Iterator[Block]:
    """Find the blocks of a group's locals, of which `names` can be joined: the numbers that share terms.

    Along ragged axes, and along others that no term links, each entry has a factor of its own.
    """
    problem = analysis.problem
    kinds: dict[Shape, list[str]] = {}
    for name in names:
        latent = problem.locals[name]
        axes = max((k + 1 for k, size in enumerate(latent.shape) if isinstance(size, str)), default=0)
        kinds.setdefault(latent.shape[:axes], []).append(name)
    for lead, own in kinds.items():
        reads = possible_reads(problem, own, [analysis.blankets.of_group])
        shapes = {name: problem.shape(name) for name in own}
        yield from _of_one_kind({name: problem.locals[name] for name in own}, shapes, reads, len(lead))


def _of_one_kind(
    latents: Mapping[str, Latent], shapes: Mapping[str, tuple[int, ...]], reads: sparse.csr_array, axes: int
) -> Iterator[Block]:
    """Find the blocks of latents between whose entries along their first axes no links count."""
    at = {name: np.indices(shape).reshape(len(shape), math.prod(shape)) for name, shape in shapes.items()}
    apart = np.concatenate([_entries(at[name], shape, axes) for name, shape in shapes.items()])
    terms, numbers = reads.nonzero()
    _, rows = np.unique(terms * (1 + apart.max()) + apart[numbers], return_inverse=True)
    links = sparse.csr_array((np.ones(len(rows), int), (rows, numbers)), (rows.max(initial=-1) + 1, reads.shape[1]))
    _, part = connected_components(links.T @ links)
    owner = np.repeat(np.arange(len(at)), [own.shape[1] for own in at.values()])
    in_part = sparse.csr_array((np.ones(len(owner), int), (part, owner)))
    _, together = connected_components(in_part.T @ in_part)
    for number in range(max(together) + 1):
        names = [name for name, own in zip(at, together, strict=True) if own == number]
        mine = {name: part[owner == list(at).index(name)] for name in names}
        most = _common_axes([shapes[name] for name in names])
        # as many axes as no part spans several entries along
        shared = next(k for k in range(most, axes - 1, -1) if k == axes or _is_apart(mine, at, shapes, k))
        members = within_factor({name: latents[name] for name in names}, shared)
        members = {name: latent for name, latent in members.items() if not why_not(latent)}
        size = sum(num_coordinates(latent) for latent in members.values())
        is_linked = links[:, np.isin(owner, [list(at).index(name) for name in members])].sum(1).max(initial=0) > 1
        if is_linked and 1 < size <= _MOST_NUMBERS:
            yield Block(tuple(members), axes=shared)


def _entries(at: np.ndarray, shape: tuple[int, ...], axes: int) -> np.ndarray:
    """Number the entries along the first axes that the elements of an array are in."""
    return np.asarray(np.ravel_multi_index(tuple(at[:axes]), shape[:axes]) if axes else np.zeros(at.shape[1], int))


def _common_axes(shapes: list[tuple[int, ...]]) -> int:
    """Count the first axes that arrays of these shapes have in common."""
    return next(k for k in range(len(shapes[0]), -1, -1) if len({shape[:k] for shape in shapes}) == 1)


def _is_apart(
    parts: Mapping[str, np.ndarray], at: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]], axes: int
) -> bool:
    """Tell whether no part has elements in several entries along the first axes."""
    entries = np.concatenate([_entries(at[name], shapes[name], axes) for name in parts])
    numbers = np.concatenate(list(parts.values()))
    return len(np.unique(np.stack([numbers, entries]), axis=1).T) == len(np.unique(numbers))
