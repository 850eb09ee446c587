"""Section 5.3: the data and masks that each part of log p needs to be evaluated at the state of a chain.

A scope is the terms that no group owns, or those of a bucket of groups, which stand on the last axis ("lanes").
What the model sees of a state is a `Point`; scope 0 is the globals', the others are buckets'.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bbvi.blankets.analysis import Analysis
from bbvi.blankets.scope import Lanes
from bbvi.model.groups import AbstractGroups, Cohort, cut_rows
from bbvi.model.problem import Problem


def all_lanes(analysis: Analysis, data: Any, groups: AbstractGroups | None) -> list[Lanes]:
    """Collect the arrays of each scope."""
    found = [Lanes(data, jnp.zeros(1, jnp.uint32), _real(analysis.problem, analysis.problem.globals, {}, 1))]
    if groups is None:
        return found
    everyone = np.arange(len(groups))
    rows, own = jax.tree.map(np.asarray, groups.take(everyone)), groups.lengths(everyone)
    real = jax.tree.map(np.asarray, _real(analysis.problem, analysis.problem.locals, own, len(groups)))
    members = [everyone]
    if isinstance(groups, Cohort) and analysis.buckets:
        of_group = np.asarray(groups.bucket)
        members = [np.flatnonzero(of_group == b) for b in range(len(analysis.buckets))]
    for numbers, bucket in zip(members, analysis.scopes[1:], strict=True):
        some = jax.tree.map(lambda leaf, n=numbers: leaf[n], rows)
        if analysis.buckets:
            some = cut_rows(some, analysis.axes, bucket.problem.lengths)
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
