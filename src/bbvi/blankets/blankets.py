"""Section 3.1: the terms of log p and, for each factor of q, those in its blanket.

log p_i of Eq. 6 is the sum of the terms that read z_i. Arrays here have samples on the last axis.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
import scipy.sparse as sparse
from jaxtyping import Array

from bbvi.blankets.jaxpr.run import all_consts
from bbvi.blankets.look_ups import AbstractLookedUp, Indices, looked_up
from bbvi.blankets.patterns import AbstractPattern, Reduction, recognise, whole
from bbvi.blankets.read_sets import MOST_PAIRS, everything, matrix, num_pairs
from bbvi.blankets.reads import Lost, reads
from bbvi.blankets.terms import SplitTerms
from bbvi.blankets.trace import AtSamples, Trace, is_array, trace_group, trace_prior
from bbvi.model.model import Values
from bbvi.model.opaque.host import CALL_SITE_WORDS
from bbvi.model.problem import Problem, Terms

Patterns = Mapping[str, Mapping[str, AbstractPattern]]
#: of each array of terms, its sums over some axes
Sums = dict[str, dict[tuple[int, ...], Array]]


class Part(NamedTuple):
    """One part of log p: its trace, its terms, and what was found about them."""

    trace: Trace
    terms: SplitTerms
    function: AtSamples
    patterns: dict[str, dict[str, AbstractPattern]]
    look_ups: dict[str, list[AbstractLookedUp]]
    indices: Callable[[Any], list[Array]]
    shapes: dict[str, tuple[int, ...]]
    lost: list[Lost]

    def traced(self) -> list[Any]:
        """The trace, as text, and the arrays in it."""
        closed = self.function.closed
        return [str(closed.jaxpr), self.function.fast_lgamma, *all_consts(closed)]


class Blankets:
    """The terms of log p, and for each latent the patterns by which it sums those that read it.

    `prior` is about the terms that no group owns, `group` about those of one group; `look_ups` about those of one
    group that read elements of a latent which the group's data choose.
    """

    def __init__(self, prior: Part, group: Part | None):
        assert not prior.look_ups, "the data that no group owns are known"
        self._prior, self._group = prior, group
        self.prior = prior.patterns
        self.group, self.look_ups = ({}, {}) if group is None else (group.patterns, group.look_ups)

    @property
    def parts(self) -> tuple[Part, ...]:
        """What was found in the function no group owns and in those of a group."""
        return (self._prior,) if self._group is None else (self._prior, self._group)

    @property
    def _of_group(self) -> Part:
        assert self._group is not None, "a flat model has no groups"
        return self._group

    @property
    def floats_per_draw(self) -> int:
        """The number of term elements in one group, or in the part that no group owns if these are more."""
        return max(sum(int(np.prod(shape)) for shape in part.shapes.values()) for part in self.parts)

    @property
    def prior_trace(self) -> Trace:
        """The part that no group owns, as the user wrote it."""
        return self._prior.trace

    @property
    def group_trace(self) -> Trace:
        """The part of one group, as the user wrote it."""
        return self._of_group.trace

    @property
    def fast_lgamma(self) -> bool:
        """Whether lgamma and digamma are replaced by faster ones."""
        return self._prior.function.fast_lgamma

    def prior_terms(self, beta: Values, data: Any, num: int, logs: Values | None = None) -> Terms:
        """Evaluate the terms that no group owns, for `num` samples on the last axis; `logs` are known logarithms."""
        return self._prior.function(beta, logs or {}, data, num)

    def group_terms(self, beta: Values, z: Values, row: Any, num: int, logs: Values | None = None) -> Terms:
        """Evaluate the terms of one group, for `num` samples on the last axis; `logs` are known logarithms."""
        return self._of_group.function({**beta, **z}, logs or {}, row, num)

    def terms_over_groups(self, beta: Values, z: Values, rows: Any, num: int, logs: Values) -> Terms:
        """Evaluate the terms of `num` groups, the last axis of `z` and `rows`, at one sample of the globals."""
        return self._of_group.function.over_groups(beta, z, logs, rows, num)

    def indices(self, row: Any) -> list[Array]:
        """Work out which elements each look-up by the data of a group yields."""
        return self._of_group.indices(row)

    def sums(self, part: Patterns, terms: Terms) -> Sums:
        """Sum the terms over the axes that any latent needs, each once, and over all."""
        wanted: dict[str, dict[tuple[int, ...], None]] = {name: {} for name in terms}
        for of_latent in part.values():
            for name, pattern in of_latent.items():
                if isinstance(pattern, Reduction):
                    wanted[name][pattern.summed] = None
        found: Sums = {}
        for name, term in terms.items():
            made = {axes: term.sum(axes) for axes in wanted[name] if axes}
            smallest = min(made.values(), key=lambda leaf: leaf.size, default=term)
            everything = tuple(range(term.ndim - 1))
            made[everything] = made.get(everything, smallest.sum(tuple(range(smallest.ndim - 1))))
            found[name] = made
        return found

    def log_p(self, part: Patterns, latent: str, terms: Terms, sums: Sums) -> Array | float:
        """Compute log p_i for every factor i of `latent`, from one part of the terms; 0 where none reads it.

        `sums` are those of `Blankets.sums`. An axis along which all factors have the same may have size 1.
        """
        total: Array | float = 0.0
        for name, pattern in part.get(latent, {}).items():
            if isinstance(pattern, Reduction) and pattern.summed:
                total = total + pattern.arranged(sums[name][pattern.summed])
            else:
                total = total + pattern.sum(terms[name])
        return total

    def looked_up(self, latent: str, terms: Terms, indices: list[Array]) -> list[Array]:
        """Sum the terms for the elements of `latent` that these groups' data choose; terms and indices have groups first."""
        return [item.sum(terms[item.term], indices) for item in self.look_ups.get(latent, [])]

    def log_p_looked_up(self, latent: str, sums: list[Array]) -> Array | float:
        """Compute the share of `looked_up` in log p_i."""
        total: Array | float = 0.0
        for item, value in zip(self.look_ups.get(latent, []), sums, strict=True):
            total = total + item.spread(value)
        return total


def find_blankets(
    problem: Problem, data: Any, row: Any, *, fast_lgamma: bool = True, like: Blankets | None = None
) -> Blankets:
    """Trace the model once and read off its blankets.

    With `fast_lgamma` the functions' lgamma and digamma are replaced by those of `special.py` in the fit. `like` are the
    blankets of the same model at other lengths of the groups: they have the same prior.
    """
    if like is None:
        prior = _part(problem, trace_prior(problem, data), data, known=True, fast_lgamma=fast_lgamma)
    else:
        prior = like.parts[0]
    group = None
    if problem.num_groups:
        group = _part(problem, trace_group(problem, row), row, known=False, fast_lgamma=fast_lgamma)
    blankets = Blankets(prior, group)
    unread = [n for n in problem.latents if n not in blankets.prior | blankets.group | blankets.look_ups]
    if unread:
        raise ValueError(
            f"the log joint never reads the latent {unread[0]!r}: its posterior would be arbitrary; "
            "use it in the function or remove its declaration"
        )
    return blankets


def _part(problem: Problem, trace: Trace, constant: Any, *, known: bool, fast_lgamma: bool) -> Part:
    """Take a trace apart into terms, and find for each latent the pattern by which it sums those that read it."""
    arrays = eqx.filter(constant, is_array)
    terms = SplitTerms(trace, jax.tree.leaves(arrays) if known else None)
    found = reads(lambda given, a: terms(*given, a), trace.latents, arrays, known=known)
    width = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(trace.latents))
    width += sum(look_up.size for look_up in found.look_ups)
    shapes = {term: leaf.shape for term, leaf in sorted(found.shapes.items())}
    lost = list(found.lost)
    patterns: dict[str, dict[str, AbstractPattern]] = {}
    look_ups: dict[str, list[AbstractLookedUp]] = {}
    for (term, shape), output in zip(shapes.items(), found.outputs, strict=True):
        if num_pairs(output) > MOST_PAIRS:
            output = everything([output], (1,))
            lost.append(Lost(terms.lines[term], "too many pairs of elements to keep apart"))
        crowded = output is not None and output.ids.shape != shape
        pairs = matrix(output, 1 if crowded else int(np.prod(shape)), width)
        offset = 0
        for leaf, name in enumerate(trace.names):
            if name not in problem.latents:  # where an opaque function's call stands: nothing to differentiate
                offset += CALL_SITE_WORDS
                continue
            event, factor_shape = int(np.prod(problem.latents[name].event)), problem.shape(name)
            first, offset = offset, offset + int(np.prod(factor_shape)) * event
            direct = _merged(sparse.csr_array(pairs[:, first:offset]), event)
            chosen = looked_up(term, shape, pairs, found.look_ups, leaf, factor_shape, event)
            if chosen and not direct.nnz and not crowded:
                look_ups.setdefault(name, []).extend(chosen)
            elif chosen or (direct.nnz and crowded):
                # read directly and by a look-up: no element may be counted twice, so each counts for all
                if chosen:
                    lost.append(Lost(terms.lines[term], f"{name!r} is read by an index in the data and otherwise too"))
                patterns.setdefault(name, {})[term] = whole(shape, factor_shape)
            elif direct.nnz:
                patterns.setdefault(name, {})[term] = recognise(direct, shape, factor_shape)
    function = AtSamples(found.closed, trace.names, list(shapes), fast_lgamma=fast_lgamma)
    shapes = {name: shapes[name] for name in terms.names}
    indices = Indices(found.closed, found.look_ups, len(trace.names))
    return Part(trace, terms, function, patterns, look_ups, indices, shapes, lost)


def _merged(block: sparse.csr_array, event: int) -> sparse.csr_array:
    """Merge the columns of one vector, such as a Dirichlet's: it is one factor of q."""
    if event == 1:
        return block
    merge = sparse.csr_array(sparse.kron(sparse.eye_array(block.shape[1] // event), np.ones((event, 1), np.int32)))
    return sparse.csr_array((block @ merge).astype(bool))
