"""Computations of the tests as one program each: a program for every operation would cost 30 ms an operation."""

from collections.abc import Callable
from typing import Any

import jax

from bbvi.numerics.xla import for_one_run


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same function of arrays, compiled for a run or two, or as part of what calls it."""
    whole = jax.jit(lambda *arrays: function(*arrays), **for_one_run())

    def call(*arrays: Any) -> Any:
        is_traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(arrays))
        return (function if is_traced else whole)(*arrays)

    return call
