"""Start a fit from the lambda of an earlier one."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from bbvi.families.abstract import Lambda
from bbvi.model.model import AnyModel
from bbvi.posterior.posterior import Posterior
from bbvi.posterior.storage import check_same_model, describe


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
