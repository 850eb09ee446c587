"""Algorithm 1, "initialize lambda randomly": choose where a fit begins."""

from collections.abc import Mapping

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

        def start(latents: Mapping[str, Latent], key: Key) -> Lambda:
            return {name: latent.random_start(name, problem.lengths, key) for name, latent in latents.items()}

        of_groups = jax.vmap(lambda group: start(problem.locals, fold(at, group)))
        return {"globals": start(problem.globals, at), "locals": of_groups(jnp.arange(problem.num_groups))}

    params = jax.jit(random, **for_one_run())(key)
    for name, start in (params["globals"] | params["locals"]).items():
        given = problem.latents[name].given_start(name, problem.lengths)
        start |= {p: jnp.broadcast_to(leaf, start[p].shape) for p, leaf in given.items()}
    return params
