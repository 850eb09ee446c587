"""Constants of the user's function that hold NaN, and whether a result is not finite because of them."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from bbvi.blankets.jaxpr.lines import line_of
from bbvi.blankets.jaxpr.run import bind, run


def blamed_constant(closed: ClosedJaxpr, inputs: Sequence[Any], output: Any, *, always: bool) -> str | None:
    """Describe the first constant on the way to an output that holds NaN, if that is why the output is not finite.

    That is so if it is finite with zeros in the place of all NaN, or, where constants were compared before the trace, if it
    is `always` not finite.
    """
    consts = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    found: list[str] = []

    def nans(eqn: Any) -> list[np.ndarray]:
        return [_nans(atom.val if isinstance(atom, Literal) else consts.get(atom)) for atom in eqn.invars]

    def special(eqn: Any, values: list[Any], source: Any) -> list[Any] | None:
        held = nans(eqn)
        first = next((nan for nan in held if nan.any()), None)
        if first is None:
            return None
        at = f" at {[int(i) for i in np.argwhere(first)[0]]} of {first.shape}" if first.shape else ""
        found.append(f"{line_of(source) or 'the function'} uses a constant that is NaN{at}")
        return bind(eqn, [jnp.where(nan, 0, v) if nan.any() else v for nan, v in zip(held, values, strict=True)])

    if not any(nan.any() for eqn in closed.jaxpr.eqns for nan in nans(eqn)):
        return None
    (value,) = run(closed, inputs, [output], special)
    return found[0] if found and (always or np.isfinite(value).all()) else None


def _nans(value: Any) -> np.ndarray:
    """Mark where a constant is NaN; nowhere if it is None or no array of numbers."""
    is_float = value is not None and jnp.issubdtype(jnp.result_type(value), jnp.floating)
    return np.isnan(np.asarray(value, float)) if is_float else np.zeros((), bool)
