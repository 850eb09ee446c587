"""The numbers that a trace holds: arrays and single numbers that the user's function took from elsewhere than its arguments."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from bbvi.blankets.jaxpr.lines import line_of
from bbvi.blankets.jaxpr.primitives import closed_trace


class Held(NamedTuple):
    """An array in a trace as the device would have it, and the line where it enters."""

    value: np.ndarray
    line: str


def held(closed: ClosedJaxpr) -> list[Held]:
    """List the arrays of numbers that a trace holds, those of loops and branches in it too."""
    return list(_held(closed))


def _held(closed: ClosedJaxpr) -> Iterator[Held]:
    jaxpr, lines = closed.jaxpr, {}
    for eqn in reversed(jaxpr.eqns):
        lines.update({atom: line_of(eqn.source_info) for atom in eqn.invars if not isinstance(atom, Literal)})
    for variable, value in zip(jaxpr.constvars, closed.consts, strict=True):
        yield from _numbers(value, variable.aval, lines.get(variable, ""))
    for eqn in jaxpr.eqns:
        for atom in eqn.invars:
            if isinstance(atom, Literal):
                yield from _numbers(atom.val, atom.aval, line_of(eqn.source_info))
        for value in eqn.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                if (trace := closed_trace(inner)) is not None:
                    yield from _held(trace)


def _numbers(value: Any, aval: Any, line: str) -> Iterator[Held]:
    # a dtype of JAX's own, such as that of keys, is no class of NumPy's
    if isinstance(getattr(aval, "dtype", None), np.dtype) and aval.dtype.kind in "iuf":
        with np.errstate(all="ignore"):
            yield Held(np.asarray(value).astype(aval.dtype), line)
