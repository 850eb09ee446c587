"""Section 3.1: a part of log p, the prior or a bucket of groups, and the latents that its terms read."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, UInt32

from bbvi.blankets.analysis import Analysis
from bbvi.blankets.blankets import Blankets
from bbvi.model.problem import Problem, Terms

Arrays = dict[str, Array]


class Lanes(NamedTuple):
    """The arrays of a scope: its data, the numbers of its groups, and which latent elements are not padding."""

    data: Any
    groups: UInt32[Array, " lanes"]
    real: dict[str, Bool[Array, "*factors lanes"]]


class Point(NamedTuple):
    """Values of a scope's latents and the logarithms that are known, lanes last."""

    values: Arrays
    logs: Arrays


class Scope:
    """Terms with lanes on the last axis, and the latents whose blankets they are in."""

    def __init__(self, problem: Problem, blankets: Blankets, *, of_groups: bool):
        self.problem, self.of_groups, self._blankets = problem, of_groups, blankets
        self.latents = problem.locals if of_groups else problem.globals
        self._part = blankets.group if of_groups else blankets.prior
        self._look_ups = blankets.look_ups if of_groups else {}

    def terms(self, beta: Point, z: Point, lanes: Lanes) -> Terms:
        """Evaluate all arrays of terms."""
        if not self.of_groups:
            return self._blankets.prior_terms(beta.values, lanes.data, 1, beta.logs)
        one = {name: value[..., 0] for name, value in beta.values.items()}
        return self._blankets.terms_over_groups(one, z.values, lanes.data, len(lanes.groups), z.logs)

    def reading(self, names: Iterable[str]) -> list[str]:
        """Name the arrays of terms that read any of these latents."""
        found: dict[str, None] = {}
        for name in names:
            found |= dict.fromkeys(self._part.get(name, {}))
            found |= dict.fromkeys(item.term for item in self._look_ups.get(name, []))
        return list(found)

    def log_p(self, names: Sequence[str], terms: Terms, lanes: Lanes) -> Arrays:
        """Sum, for each factor i of these latents, the terms that read it: linear in the terms.

        A global's are summed over the groups, too: one lane is left.
        """
        return {name: self._log_p(name, terms, lanes) for name in names}

    def _log_p(self, name: str, terms: Terms, lanes: Lanes) -> Array:
        over_lanes = self.of_groups and name in self.problem.globals
        num = len(lanes.groups) if self.of_groups and not over_lanes else 1
        total: Any = jnp.zeros((*self.problem.shape(name), num))
        for term, pattern in self._part.get(name, {}).items():
            total = total + pattern.sum(terms[term].sum(-1, keepdims=True) if over_lanes else terms[term])
        chosen = self._look_ups.get(name, [])
        if chosen:
            indices = jax.vmap(self._blankets.indices, in_axes=-1)(lanes.data)
            for item in chosen:
                total = total + item.spread(item.sum(jnp.moveaxis(terms[item.term], -1, 0)[..., None], indices))
        return total

    def changed(self, names: Sequence[str], accepted: Arrays, terms: Terms, lanes: Lanes) -> dict[str, Array]:
        """Tell which terms read an accepted element: the sums of `log_p` the other way round."""
        shapes = {term: jax.ShapeDtypeStruct(terms[term].shape, terms[term].dtype) for term in self.reading(names)}
        kind = next(iter(shapes.values())).dtype
        back = jax.linear_transpose(lambda terms: self.log_p(names, terms, lanes), shapes)
        (counts,) = back({name: accepted[name].astype(kind) for name in names})
        return {term: count > 0.5 for term, count in counts.items()}


def scopes(analysis: Analysis) -> list[Scope]:
    """List the globals' scope and those of the buckets of groups."""
    found = [Scope(analysis.problem, analysis.blankets, of_groups=False)]
    if analysis.problem.num_groups:
        buckets = analysis.buckets or (analysis.whole,)
        found += [Scope(bucket.problem, bucket.blankets, of_groups=True) for bucket in buckets]
    return found
