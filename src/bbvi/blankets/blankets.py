"""Section 3.1: for each factor of q, the terms in its blanket."""

import functools
from typing import Any, NamedTuple

from bbvi.blankets.scope import Scope, find_scope
from bbvi.blankets.trace import Trace, trace_group, trace_prior
from bbvi.model.problem import Problem


class Blankets(NamedTuple):
    """The terms that no group owns and, if the model has groups, those of one group, with what each of them reads."""

    prior: Scope
    group: Scope | None

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """The one scope or both."""
        return (self.prior,) if self.group is None else (self.prior, self.group)

    @property
    def of_group(self) -> Scope:
        """The scope of one group, where there are groups."""
        assert self.group is not None, "a flat model has no groups"
        return self.group


def find_blankets(
    problem: Problem,
    data: Any,
    row: Any,
    *,
    fast_lgamma: bool = True,
    like: Blankets | None = None,
    known: tuple[Trace | None, Trace | None] = (None, None),
    extremes: Any = None,
) -> Blankets:
    """Trace the model once and read off its blankets.

    With `fast_lgamma` the functions' lgamma and digamma are replaced by those of `special.py` in the fit. `like` are the
    blankets of the same model at other lengths of the groups: they have the same prior. `known` are the traces of the prior and
    of a group for latents that are not in blocks, and `extremes` a row of the smallest and largest numbers of all groups.
    """
    find, group = functools.partial(find_scope, problem, fast_lgamma=fast_lgamma), None
    prior = find(trace_prior(problem, data, known[0]), data, of_groups=False) if like is None else like.prior
    if problem.num_groups:
        group = find(trace_group(problem, row, known[1], extremes), row, of_groups=True)
    found = Blankets(prior, group)
    for name in problem.latents:
        if not any(scope.reading([name]) for scope in found.scopes):
            raise ValueError(
                f"the log joint never reads the latent {name!r}: its posterior would be arbitrary; "
                "use it in the function or remove its declaration"
            )
    return found
