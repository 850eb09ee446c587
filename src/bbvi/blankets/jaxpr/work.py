"""What a trace costs, counted: how many numbers are computed in it, whatever the machine."""

import math
from typing import Any

from jax.extend.core import Jaxpr

from bbvi.blankets.jaxpr.primitives import CALLBACKS, closed_trace, num_summed, words

#: of a matrix, each number of whose result takes about as many operations as it has columns
_OF_MATRICES = words("cholesky triangular_solve eigh svd eig lu qr geqrf householder_product")


def work_of(jaxpr: Jaxpr) -> float:
    """Count the numbers that a trace computes, products under a sum and steps of a loop among them.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> work_of(jax.make_jaxpr(lambda x: (x @ x).sum() + 1)(jnp.ones((3, 3))).jaxpr)
        29.0
    """
    return float(sum(map(_work, jaxpr.eqns)))


def _work(eqn: Any) -> float:
    name = eqn.primitive.name
    if name == "while" or name in CALLBACKS:
        return math.inf
    values = [part for value in eqn.params.values() for part in (value if isinstance(value, tuple) else (value,))]
    inner = sum(work_of(trace.jaxpr) for trace in map(closed_trace, values) if trace is not None)
    if inner and not name.startswith("scatter"):
        return float(eqn.params.get("length", 1) * inner)
    numbers = sum(math.prod(v.aval.shape) for v in eqn.outvars)
    if name == "dot_general":
        return numbers * num_summed(eqn)
    return numbers * (eqn.invars[0].aval.shape[-1] if name in _OF_MATRICES else 1)
