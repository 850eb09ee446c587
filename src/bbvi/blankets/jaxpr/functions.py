"""Tell which functions of numbers are continuous, at what ranges of their arguments, and what they make of infinities."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import erf, expit

from bbvi.blankets.jaxpr.continuity import (
    ALL,
    NONE,
    RULES,
    Cell,
    Found,
    Kinds,
    absorbs,
    any_infinite,
    is_float,
    is_real,
    primitive_name,
    rule,
)
from bbvi.blankets.jaxpr.intervals import REALS, UNIT, Interval
from bbvi.blankets.jaxpr.primitives import words

#: functions that are continuous as functions of real numbers
_REAL = words(
    "pow exp2 expm1 tanh logistic atan asinh sinh cbrt log log1p sqrt acosh rsqrt asin acos atanh tan sign "
    "max min sort top_k reduce_max reduce_min cummax cummin"  # of complex numbers by their real parts first
)


def found_of(eqn: Any, cells: list[Cell]) -> list[Found]:
    """Apply the rule for an equation: what is found of each result."""
    name, num = eqn.primitive.name, len(eqn.outvars)
    if name not in RULES:
        return [Found(why=f"{name!r}, of which nothing is known", seen=False)] * num
    if name in _REAL and not all(map(is_real, eqn.invars)):
        return [Found(why=f"{name!r} of complex numbers", forgiven=False)] * num
    function, absorbed = RULES[name]
    found = absorbs(eqn) if any(cell.infinite & absorbed for cell in cells) else function(eqn, *cells)
    return found if isinstance(found, list) else [found] * num


def _at_pole(*cells: Cell) -> Kinds:
    """Return what a result is at a pole where the inputs do not decide whether that is one."""
    return NONE if any(cell.inputs for cell in cells) else ALL


# ---- quotients and powers ---------------------------------------------------------------------------------------------


@rule("div")
def _div(eqn: Any, one: Cell, other: Cell) -> Found:
    if other.infinite:
        return absorbs(eqn)
    zero = other.range.has_zero or not is_real(eqn.invars[1])
    if zero and other.inputs and other.keeps_sign:
        return Found(infinite=any_infinite(one), constant=ALL)
    if other.inputs and zero:
        return Found(why=f"{primitive_name(eqn)} by what may be 0")
    if zero:
        return Found(infinite=ALL)  # data or constants that may be 0
    return Found(one.range * other.range.reciprocal(), any_infinite(one))


@rule("integer_pow square")
def _integer_pow(eqn: Any, cell: Cell) -> Found:
    power = eqn.params.get("y", 2)
    if power <= 0 and (cell.infinite or cell.range.has_zero or not is_real(eqn.invars[0])):
        return (
            absorbs(eqn)
            if cell.infinite
            else Found(constant=_at_pole(cell), why=f"{primitive_name(eqn)} of what may be 0")
        )
    size = abs(power)
    range_ = cell.range.magnitude() if size % 2 == 0 else cell.range
    range_ = range_.under(lambda x: math.copysign(float(np.float64(abs(x)) ** size), x)) if size else Interval(1.0, 1.0)
    return Found(range_.reciprocal() if power < 0 else range_, any_infinite(cell))


@rule("pow")
def _pow(eqn: Any, base: Cell, power: Cell) -> Found:
    if base.infinite or power.infinite:
        return absorbs(eqn)
    if not base.range.may_be_below(0, True):
        return Found(Interval(0.0, low_open=True))
    if not is_float(eqn.invars[1]) and not power.range.may_be_below(0):
        return Found()
    if base.keeps_sign and not (power.inputs and power.range.may_be_below(0, True)):
        return Found(constant=ALL)
    if power.range.may_be_below(0, True) or (base.inputs and power.inputs):
        return Found(constant=_at_pole(base, power), why=f"{primitive_name(eqn)} of what may not be positive")
    return Found(infinite=frozenset(["nan"])) if base.range.may_be_below(0) else Found(Interval(0.0), NONE)


# ---- increasing functions, those with an end of their domain among them -------------------------------------------------


def _increasing(
    functions: dict[str, Callable[[float], Any]], *, absorbed: str = "", low: float = -math.inf, pole: bool = False
) -> None:
    """Register increasing functions that are defined above `low`: not a number below, where a fit notices it.

    Where they have a pole at the end itself, an argument that may touch the end without going beyond is at it.
    """

    def of_increasing(eqn: Any, cell: Cell) -> Found:
        name, beyond = eqn.primitive.name, "-" if low == -math.inf else "nan"
        kinds = frozenset(kind.replace("-", beyond) for kind in cell.infinite)
        outside = frozenset(["-", "nan"] if pole else ["nan"])
        if low == 0 and cell.range.may_be_below(low, pole) and cell.keeps_sign:
            return Found(constant=outside)
        if cell.range.may_be_below(low):
            return Found(infinite=kinds | outside)
        if pole and cell.range.may_be_below(low, True):
            return Found(constant=_at_pole(cell), why=f"{name!r} of what may be {low:g}")
        return Found(cell.range.under(functions[name]), kinds)

    rule(" ".join(functions), absorbed)(of_increasing)


_increasing({"exp": np.exp, "exp2": np.exp2, "expm1": np.expm1}, absorbed="-")
_increasing({"tanh": np.tanh, "logistic": expit, "erf": erf, "atan": np.arctan}, absorbed="+-")
_increasing({"asinh": np.arcsinh, "sinh": np.sinh, "cbrt": np.cbrt})
_increasing({"log": np.log}, low=0.0, pole=True)
_increasing({"log1p": np.log1p}, low=-1.0, pole=True)
_increasing({"sqrt": np.sqrt}, low=0.0)
_increasing({"acosh": np.arccosh}, low=1.0)


# ---- other functions with an end of their domain ------------------------------------------------------------------------


@rule("rsqrt", ALL)
def _rsqrt(eqn: Any, cell: Cell) -> Found:
    if cell.range.may_be_below(0, True) and cell.keeps_sign:
        return Found(constant=frozenset(["+", "nan"]))
    if cell.range.may_be_below(0):
        return Found(infinite=frozenset(["+", "nan"]))
    if cell.range.has_zero:
        return Found(why=f"{primitive_name(eqn)} of what may be 0")
    return Found(cell.range.under(np.sqrt).reciprocal())


@rule("asin acos atanh erf_inv", ALL)
def _inside_one(eqn: Any, cell: Cell) -> Found:
    poles = eqn.primitive.name in ("atanh", "erf_inv")
    return Found(infinite=ALL if any(side.may_be_below(-1, poles) for side in (cell.range, -cell.range)) else NONE)


@rule("lgamma digamma polygamma zeta", ALL)
def _gamma(eqn: Any, *cells: Cell) -> Found:
    low = 1 if eqn.primitive.name == "zeta" else 0
    positive = not any(cell.range.may_be_below(low, True) for cell in cells)
    if not any(cell.inputs for cell in cells):
        return Found(constant=NONE if positive else ALL)
    positive |= not any(cell.range.may_be_below(low, True) for cell in cells if cell.inputs)
    return Found(why=None if positive else f"{primitive_name(eqn)} of what may not be above {low}")


@rule("igamma igammac regularized_incomplete_beta random_gamma_grad igamma_grad_a", ALL)
def _incomplete(eqn: Any, *cells: Cell) -> Found:
    x = cells[-1]  # not a number where another one, a shape, is 0
    positive = not any(cell.range.may_be_below(0, cell is not x) for cell in cells if cell.inputs)
    if eqn.primitive.name == "regularized_incomplete_beta":
        positive &= not (-x.range).may_be_below(-1)
    bounded = eqn.primitive.name not in ("random_gamma_grad", "igamma_grad_a")
    return Found(UNIT if bounded else REALS, NONE if positive else frozenset(["nan"]))


@rule("tan")
def _tan(eqn: Any, cell: Cell) -> Found:
    if cell.infinite or any(side.may_be_below(-math.pi / 2, True) for side in (cell.range, -cell.range)):
        return Found(why=f"{primitive_name(eqn)}, which has poles")
    return Found(cell.range.under(np.tan))


@rule("atan2")
def _atan2(eqn: Any, y: Cell, x: Cell) -> Found:
    if y.infinite or x.infinite or (x.range.may_be_below(0, True) and y.range.has_zero):
        return Found(why=f"{primitive_name(eqn)}, which jumps from pi to -pi")
    return Found(Interval(-math.pi, math.pi))


# ---- functions that are continuous everywhere -------------------------------------------------------------------------

_RANGES = {
    "erfc": Interval(0.0, 2.0, True, True), "sin": Interval(-1.0, 1.0), "cos": Interval(-1.0, 1.0),
    "cosh": Interval(1.0), "bessel_i0e": Interval(0.0, 1.0, True), "bessel_i1e": Interval(-1.0, 1.0),
}  # fmt: skip


rule(" ".join(_RANGES), ALL)(lambda eqn, cell: Found(_RANGES[eqn.primitive.name] if is_real(eqn.invars[0]) else REALS))


@rule("abs")
def _abs(eqn: Any, cell: Cell) -> Found:
    kinds = frozenset(kind.replace("-", "+") for kind in cell.infinite)
    return Found(cell.range.magnitude() if is_real(eqn.invars[0]) else Interval(0.0), kinds)


rule("max", "-")(lambda eqn, one, other: Found(one.range.larger_of(other.range)))
rule("min", "+")(lambda eqn, one, other: Found(one.range.smaller_of(other.range)))
rule("clamp", ALL)(lambda eqn, low, cell, high: Found(cell.range.larger_of(low.range).smaller_of(high.range)))
rule("cummax reduce_max reduce_window_max", "-")(lambda eqn, cell: Found(cell.range))
rule("cummin reduce_min reduce_window_min", "+")(lambda eqn, cell: Found(cell.range))
rule("cumlogsumexp", "-")(lambda eqn, cell: Found())
rule("scatter-max")(lambda eqn, *cells: absorbs(eqn))
