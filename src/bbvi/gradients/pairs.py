"""Read off the function which discrete latent switches or scales which continuous ones, element by element.

`X @ (g * b)`, `where(g, b, 0)` and `Normal(0, scales[g]).log_prob(b)` have an operation whose element i takes element i of both, and is
no sum of the two: these share factors q(g_i) q(b_i | g_i). Any choice is right; another one has a q that is further from the posterior.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import scipy.sparse as sparse

from bbvi.blankets.analysis import Analysis
from bbvi.blankets.colouring import first_fit, possible_reads
from bbvi.blankets.jaxpr.primitives import ADDITIONS, ELEMENTWISE, dot_axes
from bbvi.blankets.jaxpr.propagate import propagate
from bbvi.blankets.scope import Scope
from bbvi.blankets.walk import axes_before
from bbvi.gradients.auto import MOST_EVALUATIONS
from bbvi.gradients.slopes import smooth_latents
from bbvi.model.joint import Block
from bbvi.model.paired import why_not_paired

_FOLLOWED = frozenset("reduce_sum transpose broadcast_in_dim reshape squeeze expand_dims".split())
Pair = tuple[str, str]


class _Cell(NamedTuple):
    """Latents that an array reads: in order along axes of it, those that are longer than 1, or otherwise."""

    aligned: frozenset[tuple[str, tuple[int, ...]]] = frozenset()
    others: frozenset[str] = frozenset()

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.aligned)


def find_pairs(analysis: Analysis) -> tuple[Block, ...]:
    """Find the blocks of a discrete latent and the continuous ones of its shape that it switches or scales."""
    problem = analysis.problem
    able = {name for name, latent in problem.latents.items() if not why_not_paired(latent)}
    discrete = [name for name in problem.latents if name in able and problem.latents[name].family.chart.is_discrete]
    if not discrete:
        return ()
    smooth = smooth_latents(analysis) & able
    met = [pair for scope in analysis.scopes for pair in _meet(scope)]
    found: dict[str, list[str]] = {name: [] for name in discrete}
    taken: set[str] = set()
    for g, b in met:
        if g not in found or b not in smooth - taken or (g in problem.globals) != (b in problem.globals):
            continue
        if problem.latents[g].shape == problem.latents[b].shape:
            found[g].append(b)
            taken.add(b)
    blocks = [Block((g, *others)) for g, others in found.items() if others]
    # with too many values it would be the score of a whole factor, where paths are less noisy
    return tuple(block for block in blocks if _num_moves(analysis, block) <= MOST_EVALUATIONS)


def _num_moves(analysis: Analysis, block: Block) -> int:
    """Count the evaluations of log p that set each element to each of its values, those that share no term together."""
    values, num = analysis.problem.latents[block.names[0]].family.chart.values(), 0
    for scope in analysis.scopes:
        reads = [possible_reads(scope.problem, [name], [scope]) for name in block.names]
        num = max(num, 1 + int(first_fit(sparse.csr_array(sparse.vstack(reads))).max(initial=-1)))
    return 1 + (len(values) - 1) * num if values is not None else 0


def _meet(scope: Scope) -> list[Pair]:
    """List latents whose elements meet one by one in an operation that is no sum: one of them alone on its side, and another."""
    jaxpr, names, met = scope.trace.inlined.jaxpr, scope.trace.names, []

    def rule(eqn: Any, cells: list[_Cell]) -> list[_Cell]:
        name = eqn.primitive.name
        if name in ELEMENTWISE and name not in ADDITIONS:
            met.extend(_pairs([cell.aligned for cell in cells]))
        elif name == "dot_general":
            sides = zip(cells, dot_axes(eqn), strict=True)
            met.extend(_pairs([_along(cell, [*shared, *summed]) for cell, (shared, _, summed) in sides]))
        return [_made(eqn, cells)] * len(eqn.outvars)

    inputs: dict[Any, _Cell] = dict.fromkeys([*jaxpr.constvars, *jaxpr.invars], _Cell())
    for name, variable in zip(names, jaxpr.invars, strict=False):
        axes = tuple(axis for axis, size in enumerate(variable.aval.shape) if size != 1)
        inputs[variable] = _Cell(frozenset([(name, axes)]))
    propagate(jaxpr, inputs, lambda value: _Cell(), rule)
    return met


def _made(eqn: Any, cells: Sequence[_Cell]) -> _Cell:
    """Follow what is aligned through operations element by element, moves, and tables that an index looks up."""
    name, read = eqn.primitive.name, frozenset().union(*(cell.names | cell.others for cell in cells))
    found: frozenset[tuple[str, tuple[int, ...]]] = frozenset()
    if name in ELEMENTWISE:
        found = frozenset().union(*(cell.aligned for cell in cells))
    elif name == "dot_general":
        found = frozenset().union(*(_along(cell, axes[0]) for cell, axes in zip(cells, dot_axes(eqn), strict=True)))
    elif name == "gather":
        numbers, offsets = eqn.params["dimension_numbers"], eqn.params["dimension_numbers"].offset_dims
        if cells[0] == _Cell() and not offsets and not getattr(numbers, "operand_batching_dims", ()):
            last = eqn.invars[1].aval.ndim - 1
            found = frozenset(entry for entry in cells[1].aligned if last not in entry[1])
    elif name in _FOLLOWED and (before := axes_before(eqn)) is not None:
        after = {axis: out for out, axis in before.items()}
        kept = [(latent, axes) for latent, axes in cells[0].aligned if set(axes) <= set(after)]
        found = frozenset((latent, tuple(after[a] for a in axes)) for latent, axes in kept)
    twice = {latent for latent, count in Counter(latent for latent, _ in found).items() if count > 1}
    lost = twice.union(*(cell.others for cell in cells))
    found = frozenset(entry for entry in found if entry[0] not in lost)
    return _Cell(found, read - {latent for latent, _ in found})


def _along(cell: _Cell, some: Sequence[int]) -> frozenset[tuple[str, tuple[int, ...]]]:
    """Keep the latents along these axes, numbered by where they stand here."""
    return frozenset((name, tuple(map(some.index, axes))) for name, axes in cell.aligned if set(axes) <= set(some))


def _pairs(operands: Sequence[frozenset[tuple[str, tuple[int, ...]]]]) -> list[Pair]:
    """Pair a latent that is alone along its axes in an operand with those of the other operands along the same axes."""
    found = []
    for one, other in itertools.permutations(operands, 2):
        counts = Counter(axes for _, axes in one)
        alone = [(g, axes) for g, axes in sorted(one) if counts[axes] == 1]
        found += [(g, b) for g, axes in alone for b, along in sorted(other) if along == axes and b != g]
    return found
