"""A mark on a value that is worth storing: where a loop over draws is cut into stages."""

from typing import Any

from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array

_NAME = "bbvi stage"


def mark(value: Array) -> Array:
    """The same value, stored once instead of being computed again wherever it is used."""
    return checkpoint_name(value, _NAME)


def is_mark(eqn: Any) -> bool:
    """Whether this equation of a trace is a mark."""
    return eqn.primitive.name == "name" and eqn.params["name"] == _NAME
