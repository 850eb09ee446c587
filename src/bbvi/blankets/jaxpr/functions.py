"""Which functions of numbers are continuous, at what ranges of their arguments, and what they make of infinities."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special

from bbvi.blankets.jaxpr.continuity import (
    ALL,
    NONE,
    RULES,
    Cell,
    Found,
    Rule,
    absorbs,
    any_infinite,
    is_real,
    primitive_name,
    rule,
)
from bbvi.blankets.jaxpr.intervals import REALS, UNIT, Interval


def rule_of(eqn: Any) -> Rule | None:
    """Look up the rule for an equation, None if there is none."""
    return RULES.get(eqn.primitive.name)


# ---- quotients and powers ---------------------------------------------------------------------------------------------


@rule("div")
def _div(eqn: Any, cells: list[Cell]) -> Found:
    one, other = cells
    if other.infinite:
        return absorbs(eqn)
    zero = other.range.has_zero or not is_real(eqn.invars[1])
    if other.inputs and zero:
        return Found(why=f"{primitive_name(eqn)} by what may be 0")
    return Found(REALS if zero else one.range * other.range.reciprocal(), any_infinite(cells))


@rule("integer_pow square")
def _integer_pow(eqn: Any, cells: list[Cell]) -> Found:
    (cell,), power = cells, eqn.params.get("y", 2)
    if power < 0 and (cell.infinite or cell.range.has_zero or not is_real(eqn.invars[0])):
        return absorbs(eqn) if cell.infinite else Found(why=f"{primitive_name(eqn)} of what may be 0")
    size = abs(power)
    range_ = cell.range.magnitude() if size % 2 == 0 else cell.range
    range_ = range_.under(lambda x: math.copysign(abs(x) ** size, x)) if size else Interval(1.0, 1.0)
    return Found(range_.reciprocal() if power < 0 else range_, any_infinite(cells))


@rule("pow")
def _pow(eqn: Any, cells: list[Cell]) -> Found:
    base, power = cells
    if not all(map(is_real, eqn.invars)):
        return Found(why=f"{primitive_name(eqn)} of complex numbers")
    if base.infinite or power.infinite:
        return absorbs(eqn)
    if not base.range.may_be_below(0, True):
        return Found(Interval(0.0, low_open=True))
    rises = not power.range.may_be_below(0, True)
    if rises and (not base.inputs or not power.inputs):
        low = REALS if base.range.may_be_below(0) else Interval(0.0)
        return Found(low, frozenset(["nan"]) if base.range.may_be_below(0) else NONE)
    return Found(why=f"{primitive_name(eqn)} of what may not be positive")


# ---- logarithms, roots and other functions with an end of their domain ------------------------------------------------


def _ending(low: float, function: Callable[[float], float], *, infinite_at_end: bool) -> Rule:
    """Make the rule of an increasing function that is defined above `low`: not a number below, where a fit notices it.

    Where it is infinite at the end itself, an argument that may touch the end without going beyond is at a pole.
    """

    def of_ending(eqn: Any, cells: list[Cell]) -> Found:
        (cell,) = cells
        if not is_real(eqn.invars[0]):
            return Found(why=f"{primitive_name(eqn)} of complex numbers")
        kinds = frozenset("nan" if kind == "-" else kind for kind in cell.infinite)
        if cell.range.may_be_below(low):
            return Found(infinite=kinds | (frozenset(["-", "nan"]) if infinite_at_end else frozenset(["nan"])))
        if infinite_at_end and cell.range.may_be_below(low, True):
            return Found(why=f"{primitive_name(eqn)} of what may be {low:g}")
        return Found(cell.range.under(function), kinds)

    return of_ending


RULES["log"] = _ending(0.0, np.log, infinite_at_end=True)
RULES["log1p"] = _ending(-1.0, np.log1p, infinite_at_end=True)
RULES["sqrt"] = _ending(0.0, np.sqrt, infinite_at_end=False)
RULES["acosh"] = _ending(1.0, np.arccosh, infinite_at_end=False)


@rule("rsqrt")
def _rsqrt(eqn: Any, cells: list[Cell]) -> Found:
    (cell,) = cells
    if cell.infinite or not is_real(eqn.invars[0]):
        return absorbs(eqn)
    if cell.range.may_be_below(0):
        return Found(infinite=frozenset(["+", "nan"]))
    if cell.range.has_zero:
        return Found(why=f"{primitive_name(eqn)} of what may be 0")
    return Found(cell.range.under(np.sqrt).reciprocal())


@rule("asin acos atanh erf_inv")
def _inside_one(eqn: Any, cells: list[Cell]) -> Found:
    (cell,) = cells
    if not is_real(eqn.invars[0]) or cell.infinite:
        return absorbs(eqn)
    inside = not cell.range.may_be_below(-1) and not (-cell.range).may_be_below(-1)
    ends = inside and (cell.range.may_be_below(-1, True) or (-cell.range).may_be_below(-1, True))
    if not inside:
        return Found(infinite=ALL)
    return Found(infinite=ALL if ends and eqn.primitive.name in ("atanh", "erf_inv") else NONE)


@rule("lgamma digamma polygamma zeta")
def _gamma(eqn: Any, cells: list[Cell]) -> Found:
    if any(cell.infinite for cell in cells):
        return absorbs(eqn)
    if any(cell.range.may_be_below(0, True) for cell in cells if cell.inputs):
        return Found(why=f"{primitive_name(eqn)} of what may not be positive")
    return Found()


@rule("igamma igammac regularized_incomplete_beta random_gamma_grad igamma_grad_a")
def _incomplete(eqn: Any, cells: list[Cell]) -> Found:
    if any(cell.infinite for cell in cells):
        return absorbs(eqn)
    positive = not any(cell.range.may_be_below(0) for cell in cells if cell.inputs)
    bounded = eqn.primitive.name not in ("random_gamma_grad", "igamma_grad_a")
    return Found(UNIT if bounded else REALS, NONE if positive else frozenset(["nan"]))


# ---- functions that are continuous everywhere -------------------------------------------------------------------------


def _logistic(x: float) -> float:
    return float(scipy.special.expit(x))


_INCREASING: dict[str, Callable[[float], Any]] = {
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "tanh": np.tanh, "logistic": _logistic, "erf": scipy.special.erf,
    "atan": np.arctan, "asinh": np.arcsinh, "sinh": np.sinh, "cbrt": np.cbrt,
}  # fmt: skip
#: what each makes finite of infinities
_BOUNDED_BY: dict[str, str] = {
    "exp": "-",
    "exp2": "-",
    "expm1": "-",
    "tanh": "+-",
    "logistic": "+-",
    "erf": "+-",
    "atan": "+-",
}


@rule(" ".join(_INCREASING))
def _increasing(eqn: Any, cells: list[Cell]) -> Found:
    name, (cell,) = eqn.primitive.name, cells
    if cell.infinite & frozenset(_BOUNDED_BY.get(name, "")):
        return absorbs(eqn)
    if not is_real(eqn.invars[0]):
        return Found() if name == "exp" else Found(why=f"{primitive_name(eqn)} of complex numbers")
    return Found(cell.range.under(_INCREASING[name]))


@rule("erfc sin cos cosh bessel_i0e bessel_i1e")
def _continuous(eqn: Any, cells: list[Cell]) -> Found:
    ranges = {
        "erfc": Interval(0.0, 2.0, True, True), "sin": Interval(-1.0, 1.0), "cos": Interval(-1.0, 1.0),
        "cosh": Interval(1.0), "bessel_i0e": Interval(0.0, 1.0, True), "bessel_i1e": Interval(-1.0, 1.0),
    }  # fmt: skip
    if any(cell.infinite for cell in cells):
        return absorbs(eqn)
    return Found(ranges[eqn.primitive.name] if is_real(eqn.invars[0]) else REALS)


@rule("tan")
def _tan(eqn: Any, cells: list[Cell]) -> Found:
    (cell,), end = cells, math.pi / 2
    if cell.infinite or cell.range.may_be_below(-end, True) or (-cell.range).may_be_below(-end, True):
        return Found(why=f"{primitive_name(eqn)}, which has poles")
    return Found(cell.range.under(np.tan))


@rule("atan2")
def _atan2(eqn: Any, cells: list[Cell]) -> Found:
    y, x = cells
    if y.infinite or x.infinite or (x.range.may_be_below(0, True) and y.range.has_zero):
        return Found(why=f"{primitive_name(eqn)}, which jumps from pi to -pi")
    return Found(Interval(-math.pi, math.pi))


@rule("abs")
def _abs(eqn: Any, cells: list[Cell]) -> Found:
    (cell,) = cells
    kinds = frozenset("+" if kind == "-" else kind for kind in cell.infinite)
    return Found(cell.range.magnitude() if is_real(eqn.invars[0]) else Interval(0.0), kinds)


@rule("max cummax reduce_max reduce_window_max cumlogsumexp scatter-max")
def _max(eqn: Any, cells: list[Cell]) -> Found:
    if any("-" in cell.infinite for cell in cells) or eqn.primitive.name == "scatter-max":
        return absorbs(eqn)
    if eqn.primitive.name == "cumlogsumexp":
        return Found()
    return Found(cells[0].range if len(cells) == 1 else cells[0].range.larger_of(cells[1].range))


@rule("min cummin reduce_min reduce_window_min")
def _min(eqn: Any, cells: list[Cell]) -> Found:
    if any("+" in cell.infinite for cell in cells):
        return absorbs(eqn)
    return Found(cells[0].range if len(cells) == 1 else -((-cells[0].range).larger_of(-cells[1].range)))


@rule("clamp")
def _clamp(eqn: Any, cells: list[Cell]) -> Found:
    low, cell, high = cells
    if any(one.infinite for one in cells):
        return absorbs(eqn)
    return Found(-((-cell.range.larger_of(low.range)).larger_of(-high.range)))
