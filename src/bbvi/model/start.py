"""Algorithm 1, "initialize lambda randomly": choose where a fit begins."""

from typing import Any

import jax
import jax.numpy as jnp

from bbvi.families.abstract import Lambda
from bbvi.model.latents import Latent
from bbvi.model.problem import Problem
from bbvi.numerics.address import Key, fold
from bbvi.numerics.xla import for_one_run


def starting_params(problem: Problem, key: Key) -> dict[str, Lambda]:
    """Draw the starting lambda at random, except for what `init=` fixes; a row depends on the number of its group."""

    def random(key: Key) -> dict[str, Lambda]:
        at = fold(key, "start")

        def rows(name: str, latent: Latent) -> Any:
            numbers = jnp.arange(problem.num_groups)
            return jax.vmap(lambda g: latent.random_start(name, problem.lengths, fold(at, g)))(numbers)

        return {
            "globals": {name: latent.random_start(name, {}, at) for name, latent in problem.globals.items()},
            "locals": {name: rows(name, latent) for name, latent in problem.locals.items()},
        }

    params = jax.jit(random, **for_one_run())(key)
    for name, start in (params["globals"] | params["locals"]).items():
        given = problem.latents[name].given_start(name, problem.lengths)
        start |= {p: jnp.broadcast_to(leaf, start[p].shape) for p, leaf in given.items()}
    return params
