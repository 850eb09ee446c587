"""Section 5.3: the data and masks that each part of log p needs to be evaluated at the state of a chain.

A scope is the terms that no group owns, or those of a bucket of groups, which stand on the last axis ("lanes").
What the model sees of a state is a `Point`; scope 0 is the globals', the others are buckets'.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bbvi.blankets.analysis import Analysis
from bbvi.blankets.scope import Lanes
from bbvi.model.groups import AbstractGroups, Cohort, cut_rows
from bbvi.model.latents import Latent
from bbvi.model.problem import Problem


def all_lanes(analysis: Analysis, data: Any, groups: AbstractGroups | None) -> list[Lanes]:
    """Collect the arrays of each scope."""
    found = [Lanes(data, jnp.zeros(1, jnp.uint32), _real(analysis.problem, analysis.problem.globals, {}, 1))]
    if groups is None:
        return found
    members = [np.arange(len(groups))]
    if isinstance(groups, Cohort) and analysis.buckets:
        members = [np.flatnonzero(np.asarray(groups.bucket) == b) for b in range(len(analysis.buckets))]
    for numbers, scope in zip(members, analysis.scopes[1:], strict=True):
        rows = groups.take(numbers)
        if analysis.buckets:
            rows = cut_rows(rows, analysis.axes, scope.problem.lengths)
        last = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, -1), rows)
        real = _real(scope.problem, scope.problem.locals, groups.lengths(numbers), len(numbers))
        found.append(Lanes(last, jnp.asarray(numbers, jnp.uint32), real))
    return found


def _real(problem: Problem, latents: dict[str, Latent], own: dict[str, Array], num: int) -> dict[str, Array]:
    """Tell which elements of these latents are not padding, lanes last."""

    def of_lane(own: dict[str, Array]) -> dict[str, Array]:
        return {name: latent.mask(problem.lengths, own) for name, latent in latents.items()}

    return jax.vmap(of_lane, out_axes=-1, axis_size=num)(own)
