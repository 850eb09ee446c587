"""Sums over an index in one loop of the compiled program."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array


def accumulate(fn: Callable[..., tuple[Any, Any]], num: int | Array, carry: Any = None) -> tuple[Any, Any]:
    """Sum `fn(i, carry) -> (terms, carry)` over i < num, leaf by leaf; return the sums and the last carry.

    `fn` is traced once. A single term needs no loop: `fn(0, carry)` is called as it is. `num` may be known at run time only.

    Examples:
        >>> import jax.numpy as jnp
        >>> sums, _ = accumulate(lambda i, carry: ({"sum": i * jnp.ones(2)}, carry), 4)
        >>> print(sums["sum"])
        [6. 6.]
    """
    if isinstance(num, int) and num == 1:
        return fn(0, carry)
    traced = jax.jit(fn)
    first = 0 if isinstance(num, int) else jnp.zeros_like(num)  # of the type that the loop counts in
    zeros = jax.tree.map(jnp.zeros_like, jax.eval_shape(traced, first, carry)[0])

    def body(i: Array, state: tuple[Any, Any]) -> tuple[Any, Any]:
        terms, carry = traced(i, state[1])
        return jax.tree.map(jnp.add, state[0], terms), carry

    return jax.lax.fori_loop(first, num, body, (zeros, carry))
