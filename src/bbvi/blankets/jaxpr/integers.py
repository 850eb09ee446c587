"""Ranges of integers: where a sum of them neither wraps around nor holds a number that floating point would round."""

import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, Literal

from bbvi.blankets.jaxpr.intervals import UNIT, Interval, range_of
from bbvi.blankets.jaxpr.primitives import COPIES, JOINS, MOVES

_SAME = MOVES | JOINS | COPIES | {"convert_element_type"}


class Integers:
    """The ranges of the integers of a trace, from `known` ranges of its inputs; where arithmetic may wrap, all of its type."""

    def __init__(self, jaxpr: Jaxpr, known: Mapping[Any, Interval]):
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
        name, ins = eqn.primitive.name, [self._of(atom) for atom in eqn.invars]
        match name:
            case "add" | "add_any":
                return ins[0] + ins[1]
            case "sub":
                return ins[0] + -ins[1]
            case "neg":
                return -ins[0]
            case "mul":
                return ins[0] * ins[1]
            case "reduce_sum":
                return _times(ins[0], eqn.invars[0].aval.size / max(1, eqn.outvars[0].aval.size))
            case "dot_general":
                (contract, _), _ = eqn.params["dimension_numbers"]
                return _times(ins[0] * ins[1], math.prod(eqn.invars[0].aval.shape[axis] for axis in contract))
            case "select_n":
                return functools.reduce(Interval.union, ins[1:])
            case "max":
                return ins[0].larger_of(ins[1])
            case "min":
                return -(-ins[0]).larger_of(-ins[1])
            case "clamp":
                return -(-ins[0].larger_of(ins[1])).larger_of(-ins[2])
        return functools.reduce(Interval.union, ins) if name in _SAME else None


def is_whole(aval: Any) -> bool:
    """Tell whether a variable holds integers or truth values."""
    return aval.dtype.kind == "b" or bool(jnp.issubdtype(aval.dtype, jnp.integer))


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
