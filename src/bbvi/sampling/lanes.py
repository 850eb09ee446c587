"""Section 5.3 on section 3.1: the factors of log p at a state of a chain, and how a move changes each log p_i.

A scope is the factors that no group owns, or those of a bucket of groups, which stand on the last axis ("lanes").
What the model sees of a state is a `Point`; scope 0 is the globals', the others are buckets'.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, UInt32

from bbvi.blankets.analysis import Target
from bbvi.blankets.blankets import Blankets
from bbvi.model.groups import AbstractGroups, Cohort, cut_rows
from bbvi.model.model import Problem, Terms

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
    """Factors with lanes on the last axis, and the latents whose blankets they are in."""

    def __init__(self, problem: Problem, blankets: Blankets, *, of_groups: bool):
        self.problem, self.of_groups, self._blankets = problem, of_groups, blankets
        self.latents = problem.locals if of_groups else problem.globals
        self._part = blankets.group if of_groups else blankets.prior
        self._look_ups = blankets.look_ups if of_groups else {}

    def terms(self, beta: Point, z: Point, lanes: Lanes) -> Terms:
        """All arrays of factors."""
        if not self.of_groups:
            return self._blankets.prior_factors(beta.values, lanes.data, 1, beta.logs)
        one = {name: value[..., 0] for name, value in beta.values.items()}
        return self._blankets.factors_over_groups(one, z.values, lanes.data, len(lanes.groups), z.logs)

    def reading(self, names: Iterable[str]) -> list[str]:
        """The arrays of factors that read any of these latents."""
        found: dict[str, None] = {}
        for name in names:
            found |= dict.fromkeys(self._part.get(name, {}))
            found |= dict.fromkeys(item.term for item in self._look_ups.get(name, []))
        return list(found)

    def log_p(self, names: Sequence[str], terms: Terms, lanes: Lanes) -> Arrays:
        """Of each factor i of these latents, the sum of the terms that read it: linear in the terms.

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
        """Which factors read an accepted element: the sums of `log_p` the other way round."""
        shapes = {term: jax.ShapeDtypeStruct(terms[term].shape, terms[term].dtype) for term in self.reading(names)}
        kind = next(iter(shapes.values())).dtype
        back = jax.linear_transpose(lambda terms: self.log_p(names, terms, lanes), shapes)
        (counts,) = back({name: accepted[name].astype(kind) for name in names})
        return {term: count > 0.5 for term, count in counts.items()}


def scopes(target: Target) -> list[Scope]:
    """The globals' scope and those of the buckets of groups."""
    found = [Scope(target.problem, target.blankets, of_groups=False)]
    if target.problem.num_groups:
        buckets = target.buckets or (target.whole,)
        found += [Scope(bucket.problem, bucket.blankets, of_groups=True) for bucket in buckets]
    return found


def all_lanes(target: Target, data: Any, groups: AbstractGroups | None) -> list[Lanes]:
    """The arrays of each scope."""
    found = [Lanes(data, jnp.zeros(1, jnp.uint32), _real(target.problem, target.problem.globals, {}, 1))]
    if groups is None:
        return found
    everyone = np.arange(len(groups))
    rows, own = jax.tree.map(np.asarray, groups.take(everyone)), groups.lengths(everyone)
    real = jax.tree.map(np.asarray, _real(target.problem, target.problem.locals, own, len(groups)))
    members = [everyone]
    if isinstance(groups, Cohort) and target.buckets:
        of_group = np.asarray(groups.bucket)
        members = [np.flatnonzero(of_group == b) for b in range(len(target.buckets))]
    for numbers, bucket in zip(members, target.buckets or (target.whole,), strict=True):
        some = jax.tree.map(lambda leaf, n=numbers: leaf[n], rows)
        if target.buckets:
            some = cut_rows(some, target.axes, bucket.problem.lengths)
        last = jax.tree.map(lambda leaf: jnp.asarray(np.ascontiguousarray(np.moveaxis(leaf, 0, -1))), some)
        corner = {name: tuple(map(slice, bucket.problem.shape(name))) for name in real}
        shown = {name: jnp.asarray(leaf[corner[name]][..., numbers]) for name, leaf in real.items()}
        found.append(Lanes(last, jnp.asarray(numbers, jnp.uint32), shown))
    return found


def _real(problem: Problem, names: Iterable[str], own: Mapping[str, Array], num: int) -> dict[str, Array]:
    found = {}
    for name in names:
        latent, lengths = problem.latents[name], problem.lengths
        if latent.ragged_axes:
            found[name] = jax.vmap(lambda o, n=latent, at=lengths: n.mask(at, o), out_axes=-1)(dict(own))
        else:
            found[name] = jnp.ones((*problem.shape(name), num), bool)
    return found
