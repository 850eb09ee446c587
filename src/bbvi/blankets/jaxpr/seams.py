"""Show that the two sides of a choice meet: `where(z > 0, z, 0)` is continuous, `where(z > 0, 1, 0)` is not.

A formula is what is known of how a value is computed, element by element, from variables and constants. Where two
formulas are compared, one variable is solved for, the others being random: the sides are equal there, and both choices are
evaluated. Two formulas made of analytic functions which agree at random points agree everywhere (Schwartz and Zippel's
argument), so that a few points do.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bbvi.blankets.jaxpr.intervals import REALS, Interval
from bbvi.blankets.jaxpr.primitives import COPIES
from bbvi.blankets.jaxpr.run import bind

_DEEPEST, _MOST_VARIABLES = 60, 6
#: of the random points: a kink far out must not be missed
_SIZES = (1.0, 1.0, 30.0, 1e3, 1e5)
_CLOSE, _ROUNDING = 1e-5, 2e-6

Assignment = dict["Formula", np.ndarray]


class Formula:
    """A variable, a constant with its `value`, or the result of an equation with formulas for its inputs."""

    def __init__(
        self, aval: Any, eqn: Any = None, parts: tuple["Formula", ...] = (), value: Any = None, range_: Interval = REALS
    ):
        self.aval, self.eqn, self.parts, self.value, self.range = aval, eqn, parts, value, range_
        self.depth: int = 1 + max((part.depth for part in parts), default=0)
        own = [self] if eqn is None and value is None else []
        self.variables: frozenset[Formula] = frozenset(own).union(*(part.variables for part in parts))

    def at(self, assignment: Assignment) -> Any:
        """Evaluate it, with what was evaluated before kept in the assignment."""
        if self.value is not None:
            return self.value
        if self not in assignment:
            with jax.ensure_compile_time_eval():  # a step may be being traced
                made = bind(self.eqn, [jnp.asarray(part.at(assignment)) for part in self.parts])[0]
            assignment[self] = np.asarray(made)
        return assignment[self]


def formula_of(eqn: Any, parts: list[Formula]) -> Formula | None:
    """Return the formula of an equation's result; None if it is too long to be followed."""
    found = Formula(eqn.outvars[0].aval, eqn, tuple(parts))
    return found if found.depth <= _DEEPEST and len(found.variables) <= _MOST_VARIABLES else None


def meet(comparison: Formula, cases: list[Formula]) -> bool:
    """Tell whether all cases are equal wherever the two sides of a comparison are."""
    left, right = comparison.parts
    variables = frozenset().union(left.variables, right.variables, *(case.variables for case in cases))
    if left.variables & right.variables or any(not jnp.issubdtype(v.aval.dtype, jnp.floating) for v in variables):
        return False
    rng, seen = np.random.default_rng(0), 0
    for size in _SIZES:
        random = {v: _random(v, size, rng) for v in variables}
        for one, other in ((left, right), (right, left)):
            for unknown in one.variables:
                if (roots := _solve(one, unknown, np.asarray(other.at(dict(random))), random)) is None:
                    return False
                for root in roots:
                    point = {**random, unknown: np.asarray(root, unknown.aval.dtype)}
                    values = [np.asarray(case.at(point), float) for case in cases]
                    if not all(np.isfinite(value).all() for value in values):
                        continue  # far out, where exp overflows
                    seen += 1
                    largest = max(float(np.max(np.abs(value), initial=0)) for value in point.values())
                    close = _CLOSE * np.abs(values[0]) + _ROUNDING * largest
                    if not all((np.abs(value - values[0]) <= close).all() for value in values):
                        return False
    return seen >= len(_SIZES)


def _random(variable: Formula, size: float, rng: np.random.Generator) -> np.ndarray:
    inside, raw = variable.range, size * rng.normal(size=variable.aval.shape)
    if not math.isinf(inside.high - inside.low):
        raw = inside.low + (inside.high - inside.low) * rng.uniform(0.05, 0.95, variable.aval.shape)
    elif not math.isinf(inside.low):
        raw = inside.low + 0.1 + np.abs(raw)
    elif not math.isinf(inside.high):
        raw = inside.high - 0.1 - np.abs(raw)
    return np.asarray(raw, variable.aval.dtype)


def _solve(formula: Formula, unknown: Formula, value: np.ndarray, random: Assignment) -> list[np.ndarray] | None:
    """Find all solutions of formula = value for a variable, inside its range; None where that is not known."""
    if formula is unknown:
        if np.broadcast_shapes(value.shape, unknown.aval.shape) != unknown.aval.shape:
            return None  # one number that would have to be several
        value = np.broadcast_to(value, unknown.aval.shape)
        return [value] if np.all(value >= unknown.range.low) and np.all(value <= unknown.range.high) else []
    inside = [number for number, part in enumerate(formula.parts) if unknown in part.variables]
    others = [np.asarray(part.at(dict(random))) for part in formula.parts if unknown not in part.variables]
    before = _inverse(formula.eqn, inside[0], value, *others) if len(inside) == 1 else None
    found = [_solve(formula.parts[inside[0]], unknown, one, random) for one in before or []]
    if before is None or any(roots is None for roots in found):
        return None
    return [root for roots in found for root in roots or []]


#: the arguments that make an operation give this value: the first ones or the second ones, with the other one known
_INVERSES: dict[str, Callable[..., list[Any]]] = {
    "neg": lambda first, value: [-value],
    "add": lambda first, value, other: [value - other],
    "add_any": lambda first, value, other: [value - other],
    "sub": lambda first, value, other: [value + other if first else other - value],
    "mul": lambda first, value, other: [value / other],
    "div": lambda first, value, other: [value * other if first else other / value],
    "abs": lambda first, value: [value, -value] if np.all(value >= 0) else [],
    "square": lambda first, value: [np.sqrt(value), -np.sqrt(value)],
    "exp": lambda first, value: [np.log(value)],
    "log": lambda first, value: [np.exp(value)],
    **dict.fromkeys(["convert_element_type", *COPIES], lambda first, value: [value]),
}


def _inverse(eqn: Any, number: int, value: np.ndarray, *others: np.ndarray) -> list[np.ndarray] | None:
    """Return the arguments at this place that make an operation give this value; None if that is not known."""
    name = "square" if eqn.params.get("y") == 2 else eqn.primitive.name
    if name not in _INVERSES:
        return None
    with np.errstate(all="ignore"):
        return [root for root in _INVERSES[name](number == 0, value, *others) if np.all(np.isfinite(root))]
