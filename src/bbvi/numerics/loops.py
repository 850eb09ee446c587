"""Sums over an index in one loop of the compiled program."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array


def accumulate(fn: Callable[[int | Array], Any], num: int | Array) -> Any:
    """Return the sum of `fn(i)` over i < num, leaf by leaf of the trees that `fn` returns.

    `fn` is traced once. A single term needs no loop: `fn(0)` is called as it is. `num` may be known at run time only.

    Examples:
        >>> import jax.numpy as jnp
        >>> print(accumulate(lambda i: {"sum": i * jnp.ones(2)}, 4)["sum"])
        [6. 6.]
    """
    if isinstance(num, int) and num == 1:
        return fn(0)
    traced = jax.jit(fn)
    first = 0 if isinstance(num, int) else jnp.zeros_like(num)  # of the type that the loop counts in
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(traced, first))
    return jax.lax.fori_loop(first, num, lambda i, total: jax.tree.map(jnp.add, total, traced(i)), zeros)
