"""Read off the function which locals of a group share a factor of q, and along which of their axes factors stay apart."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import scipy.sparse as sparse
from scipy.sparse.csgraph import connected_components

from bbvi.blankets.analysis import Analysis
from bbvi.blankets.colouring import possible_reads
from bbvi.model.joint import Block, num_coordinates, why_not, within_factor
from bbvi.model.latents import Latent

#: the numbers of a factor, of which each group has one with half as many parameters as the square of this
_MOST_NUMBERS = 64
#: the numbers of locals times those of globals that they depend on
_MOST_TILT = 512


def find_locals(analysis: Analysis, names: Collection[str]) -> Iterator[Block]:
    """Find the blocks of a group's locals, of which `names` can be joined: the numbers that share terms.

    Along axes that no term links, each entry has a factor of its own. Ragged latents stay apart: a joint factor for each of
    many entries makes a step several times longer, for little where the entries depend on each other, too.
    """
    problem = analysis.problem
    latents = {name: problem.locals[name] for name in names if not problem.locals[name].ragged_axes}
    if latents:
        shapes = {name: problem.shape(name) for name in latents}
        links = possible_reads(problem, list(latents), [analysis.blankets.of_group]).astype(int)
        yield from _linked(latents, shapes, links)


def given_globals(analysis: Analysis, structure: Sequence[Block], linked: Sequence[str]) -> tuple[Block, ...]:
    """Let factors of locals depend on the block of globals that share terms with them, `linked`, where it has one and that is small.

    Real locals that stand alone get blocks of their own; ragged ones leave all as it is.
    """
    problem, group = analysis.problem, analysis.blankets.group
    leading = next((block for block in structure if set(linked) & set(block.names)), None)
    if leading is None and len(linked) == 1 and problem.globals[linked[0]].support == "real":
        leading = None if why_not(problem.globals[linked[0]]) else Block(tuple(linked))
    ragged = any(latent.ragged_axes for latent in problem.locals.values())
    if leading is None or leading.core is not None or leading.forest is not None or ragged or group is None:
        return tuple(structure)
    joined = {name for block in structure for name in block.names}
    apart = [
        Block((name,), axes=len(latent.shape))
        for name, latent in problem.locals.items()
        if name not in joined and latent.support == "real" and not why_not(latent)
    ]
    terms = set(group.reading(leading.names))
    blocks = [*structure, *([leading] if leading not in structure else []), *apart]
    following = [b for b in blocks if b.names[0] in problem.locals and terms & set(group.reading(b.names))]
    features = sum(num_coordinates(problem.globals[name]) for name in leading.names)
    numbers = sum(num_coordinates(problem.locals[name]) for block in following for name in block.names)
    if not following or numbers * features > _MOST_TILT:
        return tuple(structure)
    kept = [block for block in blocks if block in structure or block is leading or block in following]
    return tuple(block._replace(given=leading.names) if block in following else block for block in kept)


def _linked(
    latents: Mapping[str, Latent], shapes: Mapping[str, tuple[int, ...]], links: sparse.csr_array
) -> Iterator[Block]:
    at = {name: np.indices(shape).reshape(len(shape), math.prod(shape)) for name, shape in shapes.items()}
    _, part = connected_components(links.T @ links)
    owner = np.repeat(np.arange(len(at)), [own.shape[1] for own in at.values()])
    in_part = sparse.csr_array((np.ones(len(owner), int), (part, owner)))
    _, together = connected_components(in_part.T @ in_part)
    for number in range(max(together) + 1):
        names = [name for name, own in zip(at, together, strict=True) if own == number]
        mine = {name: part[owner == list(at).index(name)] for name in names}
        most = _common_axes([shapes[name] for name in names])
        # as many axes as no part spans several entries along
        shared = next(k for k in range(most, -1, -1) if _is_apart(mine, at, shapes, k))
        members = within_factor({name: latents[name] for name in names}, shared)
        members = {name: latent for name, latent in members.items() if not why_not(latent)}
        size = sum(num_coordinates(latent) for latent in members.values())
        is_linked = links[:, np.isin(owner, [list(at).index(name) for name in members])].sum(1).max(initial=0) > 1
        if is_linked and 1 < size <= _MOST_NUMBERS:
            yield Block(tuple(members), axes=shared)


def _entries(at: np.ndarray, shape: tuple[int, ...], axes: int) -> np.ndarray:
    """Number the entries along the first axes that the elements of an array are in."""
    return np.asarray(np.ravel_multi_index(tuple(at[:axes]), shape[:axes]))


def _common_axes(shapes: list[tuple[int, ...]]) -> int:
    """Count the first axes that arrays of these shapes have in common."""
    return next(k for k in range(len(shapes[0]), -1, -1) if len({shape[:k] for shape in shapes}) == 1)


def _is_apart(
    parts: Mapping[str, np.ndarray], at: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]], axes: int
) -> bool:
    """Tell whether no part has elements in several entries along the first axes."""
    if axes == 0:
        return True
    entries = np.concatenate([_entries(at[name], shapes[name], axes) for name in parts])
    numbers = np.concatenate(list(parts.values()))
    return len(np.unique(np.stack([numbers, entries]), axis=1).T) == len(np.unique(numbers))
