"""Algorithm 1, "initialize lambda randomly": choose where a fit begins."""

import jax
import jax.numpy as jnp

from bbvi.families.abstract import Lambda
from bbvi.model.latents import random_starts
from bbvi.model.problem import Problem
from bbvi.numerics.address import Key, fold
from bbvi.numerics.xla import for_one_run


def starting_params(problem: Problem, key: Key) -> dict[str, Lambda]:
    """Draw the starting lambda at random, except for what `init=` fixes; a row depends on the number of its group."""

    def random(key: Key) -> dict[str, Lambda]:
        at, numbers = fold(key, "start"), jnp.arange(problem.num_groups)
        rows = jax.vmap(lambda group: random_starts(problem.locals, problem.lengths, fold(at, group)))(numbers)
        return {"globals": random_starts(problem.globals, {}, at), "locals": rows}

    params = jax.jit(random, **for_one_run())(key)
    for name, start in (params["globals"] | params["locals"]).items():
        given = problem.latents[name].given_start(name, problem.lengths)
        start |= {p: jnp.broadcast_to(leaf, start[p].shape) for p, leaf in given.items()}
    return params
