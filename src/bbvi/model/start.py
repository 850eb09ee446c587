"""Algorithm 1, "initialize lambda randomly": where a fit begins."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from bbvi.gradients.evaluate import Lambda
from bbvi.model.latents import Latent
from bbvi.model.model import AnyModel, Problem
from bbvi.numerics.address import Key, fold
from bbvi.numerics.xla import for_one_run
from bbvi.posterior.posterior import Posterior
from bbvi.posterior.storage import check_same_model, describe


def starting_params(problem: Problem, key: Key) -> dict[str, Lambda]:
    """Algorithm 1, "initialize lambda randomly", but for what `init=` fixes; rows by the number of their group."""

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
    for name, latent in problem.globals.items():
        params["globals"][name] |= latent.given_start(name, {})
    for name, latent in problem.locals.items():
        given = latent.given_start(name, problem.lengths)
        params["locals"][name] |= jax.tree.map(lambda leaf: jnp.repeat(leaf[None], problem.num_groups, 0), given)
    return params


def warm_start(
    model: AnyModel, params: dict[str, Lambda], other: Posterior, what: str, parts: Sequence[str]
) -> dict[str, Lambda]:
    """Take over these parts of another posterior's lambda; locals only if it has the same groups."""
    if not isinstance(other, Posterior):
        raise TypeError(f"{what}= takes a Posterior, got {type(other).__name__}")
    check_same_model(f"{what}=", describe(other.model), model, parts)
    out = dict(params)
    for part in parts:
        mine, its = params[part], other._params[part]
        if part == "locals" and jax.tree.map(jnp.shape, mine) != jax.tree.map(jnp.shape, its):
            continue  # other groups: their locals start afresh
        out[part] = jax.tree.map(jnp.asarray, its)
    return out
