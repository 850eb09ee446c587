"""Algorithms 1 and 2: what the next step needs, and what is recorded of each."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from bbvi.families.abstract import Lambda


class State(NamedTuple):
    """All that the next step needs. Random numbers are a function of the step's number, so no key is here."""

    params: dict[str, Lambda]
    optimizer: dict[str, Any]
    stops: tuple[Any, ...]
    #: what the number of draws is decided by
    draws: Any
    step: Array
    #: which stopping rule fired, or -1
    fired: Array
    #: which latent's gradient was not finite, or -1; one beyond the last if the ELBO was not
    broken: Array
    #: how many steps verifications took of those that they may take together
    looked: Array
    #: lambda before the last good step, as one vector: of the globals, and of the rows of these groups
    previous: tuple[Array, Array]
    #: what share of their steps latents take: less than 1 after setbacks, of which there were so many in a row
    share: Array
    setbacks: Array
    #: whether discrete latents wait for the others: they stay where they are, and no rule fires
    waits: Array


class Record(NamedTuple):
    """What a human wants to see of each step."""

    elbo: Array
    elbo_error: Array
    change: Array
    floored: Array
    draws: Array
    setbacks: Array


def own_copy(tree: Any) -> Any:
    """Copy a tree of arrays, so that no leaf shares its buffer with anything, nor with another leaf."""
    return _copied(tree)


@jax.jit  # one program for all leaves
def _copied(tree: Any) -> Any:
    return jax.tree.map(jnp.copy, tree)
