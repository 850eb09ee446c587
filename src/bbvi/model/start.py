"""Algorithm 1, "initialize lambda randomly": choose where a fit begins."""

import jax
import jax.numpy as jnp
import numpy as np

from bbvi.families.abstract import Lambda
from bbvi.model.latents import random_starts
from bbvi.model.problem import Problem
from bbvi.numerics.address import Key, fold


def starting_params(problem: Problem, key: Key) -> dict[str, Lambda]:
    """Draw the starting lambda at random, except for what `init=` fixes; a row depends on the number of its group."""
    at = fold(key, "start")
    rows = fold(at, np.arange(problem.num_groups))[..., None]
    start = random_starts(problem.globals, {}, at), random_starts(problem.locals, problem.lengths, rows)
    params = dict(zip(("globals", "locals"), jax.device_put(start), strict=True))
    for name, start in (params["globals"] | params["locals"]).items():
        given = problem.latents[name].given_start(name, problem.lengths)
        start |= {p: jnp.broadcast_to(leaf, start[p].shape) for p, leaf in given.items()}
    return params
