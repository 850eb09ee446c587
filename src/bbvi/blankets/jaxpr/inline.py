"""The user's trace rewritten: calls inlined, and sums that hide in a loop or in a product brought to light.

A rewritten trace computes the same values; each operation keeps the line of the user's function it came from.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr

from bbvi.blankets.jaxpr.run import Special, called, run

Rewrite = Callable[[Any, list[Any]], list[Any]]


def retrace(closed: ClosedJaxpr, rewrites: dict[Any, Rewrite], keep: Special | None = None) -> ClosedJaxpr:
    """Rewrite a trace: replace the equations of these variables, and inline the functions it calls.

    `keep(equation, inputs, source)` may bind a call that is to be kept.
    """

    def special(eqn: Any, values: list[Any], source: Any) -> list[Any] | None:
        kept = None if keep is None else keep(eqn, values, source)
        if kept is not None:
            return kept
        rewrite, inner = rewrites.get(eqn.outvars[0]) if eqn.outvars else None, called(eqn)
        if rewrite is not None:
            return rewrite(eqn, values)
        return None if inner is None else run(inner, values, inner.jaxpr.outvars, special, source)

    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in closed.jaxpr.invars]
    return jax.make_jaxpr(lambda *arguments: run(closed, arguments, closed.jaxpr.outvars, special))(*avals)
