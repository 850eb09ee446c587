"""Ranges of integers: where a sum of them neither wraps around nor holds a number that floating point would round."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, Literal

from bbvi.blankets.jaxpr.intervals import UNIT, Interval, range_of
from bbvi.blankets.jaxpr.primitives import COPIES, JOINS, MOVES, num_summed

#: those of integers, as far as they are known
Ranges = Mapping[Any, Interval]


class Integers:
    """The ranges of the integers of a trace, from `known` ranges of its inputs; where arithmetic may wrap, all of its type."""

    def __init__(self, jaxpr: Jaxpr, known: Ranges):
        self._ranges = dict(known)
        for eqn in jaxpr.eqns:
            avals: list[Any] = [atom.aval for atom in (*eqn.outvars[:1], *eqn.invars)]
            found = self._found(eqn) if eqn.outvars and all(map(is_whole, avals)) else None
            if found is not None and _inside(found, _of_type(avals[0].dtype)):
                self._ranges[eqn.outvars[0]] = found

    def _of(self, atom: Any) -> Interval:
        if isinstance(atom, Literal):
            return range_of(np.asarray(atom.val))
        return self._ranges.get(atom, _of_type(atom.aval.dtype))

    def is_exact(self, eqn: Any) -> bool:
        """Tell whether the results of an equation are the exact ones, and floating point holds them as they are."""
        found, whole = self._found(eqn), 2.0 ** (jnp.finfo(jnp.result_type(float)).nmant + 1)
        bounds = (_of_type(eqn.outvars[0].aval.dtype), Interval(-whole, whole))
        return found is not None and all(_inside(found, bound) for bound in bounds)

    def _found(self, eqn: Any) -> Interval | None:
        """The range of an equation's results as if nothing wrapped around; None if there is no rule for it."""
        rule = _RULES.get(eqn.primitive.name)
        return None if rule is None else rule(eqn, *map(self._of, eqn.invars))


def is_whole(aval: Any) -> bool:
    """Tell whether a variable holds integers or truth values."""
    return bool(jnp.issubdtype(aval.dtype, jnp.integer) or jnp.issubdtype(aval.dtype, jnp.bool_))


def constant_range(array: Any) -> Interval | None:
    """Return the range of an array of integers; None if it is another, or its values are not there."""
    is_known = not isinstance(array, (jax.core.Tracer, jax.ShapeDtypeStruct))
    return range_of(np.asarray(array)) if is_known and is_whole(jax.typeof(array)) else None


def _of_type(dtype: Any) -> Interval:
    return UNIT if dtype.kind == "b" else Interval(float(jnp.iinfo(dtype).min), float(jnp.iinfo(dtype).max))


def _inside(one: Interval, other: Interval) -> bool:
    return other.low <= one.low and one.high <= other.high


def _times(range_: Interval, number: float) -> Interval:
    return Interval(number, number) * range_


#: the range of a result, as if nothing wrapped around, from an equation and the ranges of its arguments
_RULES: dict[str, Callable[..., Interval]] = {
    **dict.fromkeys(
        MOVES | JOINS | COPIES | {"convert_element_type"}, lambda eqn, *ins: functools.reduce(Interval.union, ins)
    ),
    **dict.fromkeys(["add", "add_any"], lambda eqn, one, other: one + other),
    "sub": lambda eqn, one, other: one + -other,
    "neg": lambda eqn, one: -one,
    "mul": lambda eqn, one, other: one * other,
    "reduce_sum": lambda eqn, one: _times(one, eqn.invars[0].aval.size / max(1, eqn.outvars[0].aval.size)),
    "dot_general": lambda eqn, one, other: _times(one * other, num_summed(eqn)),
    "select_n": lambda eqn, which, *cases: functools.reduce(Interval.union, cases),
    "max": lambda eqn, one, other: one.larger_of(other),
    "min": lambda eqn, one, other: one.smaller_of(other),
    "clamp": lambda eqn, low, one, high: one.larger_of(low).smaller_of(high),
}
