"""Section 3.1 during a fit: do the terms of opaque functions still read only what they were found to read?

A fit goes where no random point of the start was. So at fixed steps, which keeps a run reproducible, one or two factors
of q are moved between two draws from the current q.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bbvi.draws.draws import draw_values
from bbvi.families.abstract import Lambda
from bbvi.model.groups import AbstractGroups
from bbvi.model.opaque.calls import OpaqueError
from bbvi.model.problem import Problem
from bbvi.numerics.address import Key, fold
from bbvi.numerics.xla import for_one_run, program

#: a re-check costs three calls of each opaque function, so it is rare beside the draws of this many steps
RECHECK_STEPS = 20


class Recheck:
    """Re-checks, for one fit, what the terms of its opaque functions read."""

    def __init__(self, problem: Problem, groups: AbstractGroups | None, key: Key):
        self._problem, self._groups, self._key = problem, groups, fold(key, "recheck")

        def draw(params: Lambda, key: Key, local: bool) -> list[dict[str, Array]]:
            latents, samples = problem.locals if local else problem.globals, jnp.arange(2, dtype=jnp.uint32)
            drawn, _ = draw_values(problem, latents, params, key=key, samples=samples)
            return [{name: value[..., i] for name, value in drawn.items()} for i in range(2)]

        self._draw = program(draw, **for_one_run())

    def __call__(self, params: dict[str, Lambda], step: int) -> None:
        """Raise if a term changes with a latent that it was not found to read."""
        hosts = [host for host in self._problem.opaque.values() if not host.known.all()]
        if not hosts:  # where every term reads everything there is nothing to breach
            return
        seed = int(fold(self._key, step)[0])
        beta = jax.device_get(self._draw(params["globals"], fold(self._key, step, 1), False))
        z: list[dict[str, Any]] = [{}, {}]
        row = None
        if self._groups is not None:
            group = np.random.default_rng(seed).integers(len(self._groups), size=1)
            row = _row(self._groups.take(group), 0)
            own = _row(params["locals"], int(group[0]))
            z = jax.device_get(self._draw(own, fold(self._key, step, 2), True))
        for host in hosts:
            if (found := host.recheck((beta[0], z[0]), (beta[1], z[1]), row, seed)) is not None:
                raise OpaqueError(
                    f"{host.label}: after {step} steps {found}, which it was not found to read before the fit, so that the "
                    "gradient may have been biased. If it is random, declare stochastic=True; if it reads more at some "
                    "values than at others, declare with reads= all that its terms can read"
                )


def _row(tree: Any, i: int) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf[i]), tree)
