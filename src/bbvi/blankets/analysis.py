"""What is fitted: the problem and its blankets, for all groups and for each bucket of groups of similar length."""

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

from bbvi.blankets.blankets import Blankets, find_blankets
from bbvi.blankets.scope import Scope
from bbvi.blankets.trace import Trace
from bbvi.model.groups import AbstractGroups, Cohort, row_shapes
from bbvi.model.problem import Problem


class Analysis(NamedTuple):
    """What is fitted, and whether the globals are fitted or held.

    `buckets` are the scopes of groups of similar length in a ragged cohort, the longest last, and `axes` the ragged axis of
    each of its fields.
    """

    problem: Problem
    blankets: Blankets
    fit_globals: bool
    buckets: tuple[Scope, ...] = ()
    axes: Mapping[str, str] = {}
    #: the latents whose gradient is wanted, None for all
    wanted: frozenset[str] | None = None

    def fitted(self, with_groups: bool) -> list[str]:
        """List the latents whose gradient a step estimates, with a batch of groups or without."""
        names = [*(self.problem.globals if self.fit_globals else ()), *(self.problem.locals if with_groups else ())]
        return [name for name in names if self.wanted is None or name in self.wanted]

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """The scope of what no group owns, and those of the groups: of each bucket, or of all as long as the longest."""
        return (self.blankets.prior, *self.buckets) if self.buckets else self.blankets.scopes

    @property
    def floats_per_draw(self) -> int:
        """The number of term elements in one group, or in the part that no group owns if these are more."""
        return max(scope.size for scope in self.blankets.scopes)


def analyse(
    problem: Problem,
    data: Any,
    groups: AbstractGroups | None,
    *,
    fit_globals: bool = True,
    fast_lgamma: bool = True,
    apart: Analysis | None = None,
) -> Analysis:
    """Read off the blankets of a problem, for each bucket of its groups.

    `apart` is the analysis of the same problem with latents that are not in blocks: the functions are not traced again.
    """
    row = None if groups is None else row_shapes(groups)
    traces: list[Trace | None] = [None] if apart is None else [scope.trace for scope in apart.scopes]
    known = (traces[0], traces[-1] if groups is not None and apart is not None else None)
    extremes = None if groups is None else groups.extremes()
    blankets = find_blankets(problem, data, row, fast_lgamma=fast_lgamma, known=known, extremes=extremes)
    analysis = Analysis(problem, blankets, fit_globals)
    # what an opaque function reads was learnt at the full length
    if not isinstance(groups, Cohort) or len(groups.buckets) == 1 or problem.opaque:
        return analysis
    shorter = [(problem.at(lengths), data, row_shapes(groups, lengths)) for lengths in groups.buckets[:-1]]
    buckets = [
        find_blankets(*short, fast_lgamma=fast_lgamma, like=blankets, known=(None, trace), extremes=extremes).of_group
        for short, trace in itertools.zip_longest(shorter, traces[1:-1])
    ]
    return analysis._replace(buckets=(*buckets, blankets.of_group), axes=groups.axes)
