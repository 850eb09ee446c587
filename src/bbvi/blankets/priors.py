"""Find latents that no prior term reads: their prior is flat, which is seldom meant.

A prior reads latents and no data, a likelihood reads both. Of a sum that reads both, the parts are looked at one by one, down
to a library's density or to what is no sum; masks and weights do not count as data. A prior whose own numbers come as data
looks like a likelihood, so that nothing is said of a latent that two such parts read, or one with no more elements than it has
itself. In a loop or a branch nothing is told apart, and a flat prior on a bounded support is a prior.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from bbvi.blankets.blankets import Blankets
from bbvi.blankets.jaxpr.lines import is_library
from bbvi.blankets.jaxpr.primitives import ADDITIONS, ELEMENTWISE, JOINS, MOVES, REARRANGED
from bbvi.blankets.jaxpr.run import reached
from bbvi.blankets.scope import Scope
from bbvi.blankets.walk import Walk
from bbvi.families.charts import Counts, Positive, Real

_THROUGH = ADDITIONS | REARRANGED | MOVES | JOINS | {"reduce_sum"}
#: of these all that goes in is known to be read; a loop, for one, may hold a prior and a likelihood
_UNITS = ELEMENTWISE | {"dot_general", "reduce_max", "reduce_sum", "gather"}
_EXAMPLES = {Real: "Normal(0, 1)", Positive: "Gamma(2, 1)", Counts: "Poisson(1)"}


def without_prior(blankets: Blankets) -> list[str]:
    """Describe what is missing, for each latent that no prior term reads."""
    problem, found = blankets.prior.problem, []
    if problem.opaque:
        return []  # what such a function reads of the data is not known
    parts = [part for scope in blankets.scopes for part in _parts(scope)]
    for name, latent in problem.latents.items():
        reading = [part for part in parts if name in part.latents]
        example = _EXAMPLES.get(type(latent.chart))
        if example is None or getattr(latent.chart, "top", None) is not None or len(reading) != 1:
            continue
        (part,) = reading
        is_few = part.size <= math.prod(problem.shape(name) + latent.event)
        may_be_prior = is_few and part.of_groups == (name in problem.locals)
        if may_be_prior or not part.has_data:
            continue
        call = f'dist.{example}.log_prob(z["{name}"])' + (".sum()" if math.prod(problem.shape(name)) > 1 else "")
        found.append(
            f"no prior term reads {name!r}: the one term that does reads data too, so that its prior is flat. Add one, such as "
            f"{call}; if a flat prior is meant, ignore this"
        )
    return found


class _Part(NamedTuple):
    """A part of the sums that lead to log p: the latents it reads, whether it reads data, its size, and whether each group has it."""

    latents: set[str]
    has_data: bool
    size: int
    of_groups: bool


def _parts(scope: Scope) -> Iterator[_Part]:
    jaxpr = scope.trace.inlined.jaxpr
    latents = dict(zip(jaxpr.invars, scope.trace.names, strict=False))
    walk, data = Walk(jaxpr, list(latents)), reached(jaxpr, jaxpr.invars[len(latents) :])
    open_, seen = list(filter(walk.is_read, jaxpr.outvars)), set()
    while open_:
        atom = open_.pop()
        if atom in seen:
            continue
        seen.add(atom)
        eqn = walk.maker(atom)
        inside = [] if eqn is None or is_library(eqn) else _summands(eqn, walk)
        open_ += inside
        if not inside:
            is_known = eqn is not None and (eqn.primitive.name in _UNITS or is_library(eqn))
            own = {latents[v] for v in walk.leaves[atom]}
            yield _Part(own, is_known and atom in data, math.prod(atom.aval.shape), scope.of_groups)


def _summands(eqn: Any, walk: Walk) -> list[Any]:
    """Give what an equation adds up, masks and weights left aside; nothing if it is no sum."""
    name, entered = eqn.primitive.name, list(filter(walk.is_read, eqn.invars))
    if name in _THROUGH:
        return entered
    if name == "select_n":
        return [v for v in entered if v is not eqn.invars[0]]
    is_scaled = name == "mul" or (name == "div" and eqn.invars[1] not in entered)
    return entered if is_scaled and len(entered) == 1 else []
