"""Show that the two sides of a choice meet: `where(z > 0, z, 0)` is continuous, `where(z > 0, 1, 0)` is not.

A formula is what is known of how a value is computed, element by element, from variables and constants. Where two
formulas are compared, one variable is solved for, the others being random: the sides are equal there, and both choices are
evaluated. Two formulas made of analytic functions which agree at random points agree everywhere (Schwartz and Zippel's
argument), so that a few points do.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bbvi.blankets.jaxpr.intervals import REALS, Interval
from bbvi.blankets.jaxpr.primitives import COPIES
from bbvi.blankets.jaxpr.run import bind

_DEEPEST, _MOST_VARIABLES = 60, 6
_POINTS = 4
_CLOSE = 1e-5

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
    if any(not jnp.issubdtype(v.aval.dtype, jnp.floating) for v in variables):
        return False
    rng = np.random.default_rng(0)
    seen = 0
    for _ in range(_POINTS):
        random = {v: _random(v, rng) for v in variables}
        scale = max(float(np.max(np.abs(case.at(dict(random))))) for case in cases)
        for one, other in ((left, right), (right, left)):
            for unknown in one.variables - other.variables:
                for root in _solve(one, unknown, np.asarray(other.at(dict(random))), random):
                    point = {**random, unknown: np.asarray(root, unknown.aval.dtype)}
                    first, *others = (np.asarray(case.at(dict(point)), float) for case in cases)
                    seen += 1
                    if not all(_equal(first, value, scale) for value in others):
                        return False
    return seen >= _POINTS


def _random(variable: Formula, rng: np.random.Generator) -> np.ndarray:
    inside, raw = variable.range, rng.normal(size=variable.aval.shape)
    if not math.isinf(inside.high - inside.low):
        raw = inside.low + (inside.high - inside.low) * rng.uniform(0.05, 0.95, variable.aval.shape)
    elif not math.isinf(inside.low):
        raw = inside.low + 0.1 + np.abs(raw)
    elif not math.isinf(inside.high):
        raw = inside.high - 0.1 - np.abs(raw)
    return np.asarray(raw, variable.aval.dtype)


def _equal(one: np.ndarray, other: np.ndarray, scale: float) -> bool:
    return bool(np.all(np.isfinite(one)) and np.all(np.abs(one - other) <= _CLOSE * scale))


def _solve(formula: Formula, unknown: Formula, value: np.ndarray, random: Assignment) -> Iterator[np.ndarray]:
    """Solve formula = value for a variable that stands in it once, inside its range; nothing where that is not known."""
    if formula is unknown:
        value = np.broadcast_to(value, unknown.aval.shape)
        if np.all(value >= unknown.range.low) and np.all(value <= unknown.range.high):
            yield value
        return
    inside = [number for number, part in enumerate(formula.parts) if unknown in part.variables]
    if len(inside) != 1:
        return
    (number,) = inside
    others = [np.asarray(part.at(dict(random))) for k, part in enumerate(formula.parts) if k != number]
    for before in _inverse(formula.eqn, number, value, *others):
        yield from _solve(formula.parts[number], unknown, before, random)


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


def _inverse(eqn: Any, number: int, value: np.ndarray, *others: np.ndarray) -> list[np.ndarray]:
    """Return the arguments at this place that make an operation give this value."""
    name = "square" if eqn.params.get("y") == 2 else eqn.primitive.name
    if name not in _INVERSES:
        return []
    with np.errstate(all="ignore"):
        return [root for root in _INVERSES[name](number == 0, value, *others) if np.all(np.isfinite(root))]
