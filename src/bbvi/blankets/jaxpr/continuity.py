"""Which operations on arrays are continuous, and what they make of infinities; `functions.py` has those of numbers.

A rule looks at one equation and the cells of its arguments. It returns the range of the result and the infinities it may
be, or says why the result may jump. What has no rule is not known to be continuous.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from bbvi.blankets.jaxpr.intervals import REALS, UNIT, Interval
from bbvi.blankets.jaxpr.primitives import COPIES, JOINS, MOVES
from bbvi.blankets.jaxpr.seams import Formula

Kinds = frozenset[str]
NONE: Kinds = frozenset()
ALL: Kinds = frozenset(["+", "-", "nan"])
_SWAPPED = {"+": "-", "-": "+", "nan": "nan"}


class Jump(NamedTuple):
    """An operation for which continuity is not shown, the inputs it reads and the line of the user's function.

    `seen` tells whether the operation is known to jump, rather than not known to be continuous.
    """

    operation: str
    inputs: tuple[str, ...]
    line: str
    seen: bool = True


class Cell(NamedTuple):
    """What is known of a variable: the inputs it reads, where it may jump, the range of its finite values.

    `infinite` has "+", "-" and "nan" as far as the inputs decide whether it is one of these; `constant` has those that
    single elements may be whatever the inputs. `decided` is the value of a comparison that is always the same. `formula`
    tells how it is computed, if that is known.
    """

    inputs: frozenset[str] = frozenset()
    jump: Jump | None = None
    range: Interval = REALS
    infinite: Kinds = NONE
    constant: Kinds = NONE
    decided: bool | None = None
    formula: Formula | None = None
    #: the ranges along the last axis, if these are known one by one
    columns: tuple[Interval, ...] | None = None


class Found(NamedTuple):
    """What a rule says of a result: its range, its infinities (None for those of the arguments), and why it may jump."""

    range: Interval = REALS
    infinite: Kinds | None = None
    why: str | None = None
    #: whether it is known to jump, and whether a function that is trusted to be continuous may do it
    seen: bool = True
    forgiven: bool = True
    decided: bool | None = None
    #: whether it does not depend on the inputs, although they are read
    fixed: bool = False


Rule = Callable[[Any, list[Cell]], Any]
RULES: dict[str, Rule] = {}


def rule(names: str) -> Callable[[Rule], Rule]:
    """Register a function as the rule of the primitives with these names."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names.split(), function))
        return function

    return register


def primitive_name(eqn: Any) -> str:
    return repr(eqn.primitive.name)


def _swapped(kinds: Kinds) -> Kinds:
    return frozenset(_SWAPPED[kind] for kind in kinds)


def any_infinite(cells: list[Cell]) -> Kinds:
    """Return all kinds if an argument may be infinite: its sign, and whether it meets another one, is not followed."""
    return ALL if any(cell.infinite for cell in cells) else NONE


def absorbs(eqn: Any) -> Found:
    return Found(why=f"{primitive_name(eqn)} of what may be infinite", forgiven=False)


def is_float(atom: Any) -> bool:
    return bool(jnp.issubdtype(atom.aval.dtype, jnp.inexact))


def is_real(atom: Any) -> bool:
    return not jnp.issubdtype(atom.aval.dtype, jnp.complexfloating)


# ---- moves and sums ---------------------------------------------------------------------------------------------------


@rule(" ".join(MOVES | JOINS | COPIES) + " name optimization_barrier sharding_constraint device_put pvary")
def _moved(eqn: Any, cells: list[Cell]) -> Found:
    ranges, decided = [cell.range for cell in cells], {cell.decided for cell in cells}
    if eqn.primitive.name == "slice" and cells[0].columns is not None:
        ends, steps = (eqn.params[name] for name in ("limit_indices", "strides"))
        ranges = list(cells[0].columns[eqn.params["start_indices"][-1] : ends[-1] : steps[-1] if steps else 1])
    range_ = functools.reduce(Interval.union, ranges)
    return Found(range_, decided=decided.pop() if len(decided) == 1 else None)


@rule("gather dynamic_slice")
def _taken(eqn: Any, cells: list[Cell]) -> Found:
    if any(cell.inputs for cell in cells[1:]):
        return Found(why=f"an index ({primitive_name(eqn)})")
    return Found(cells[0].range)


@rule("dynamic_update_slice scatter scatter-add scatter-sub scatter-mul")
def _put(eqn: Any, cells: list[Cell]) -> Found:
    into, *others = cells
    indices = [cell for cell, atom in zip(cells, eqn.invars, strict=True) if not is_float(atom)]
    if any(cell.inputs for cell in indices):
        return Found(why=f"an index ({primitive_name(eqn)})")
    values = [into, *(cell for cell in others if cell not in indices)]
    if eqn.primitive.name in ("scatter", "dynamic_update_slice"):
        return Found(_moved(eqn, values).range)
    return Found(infinite=any_infinite(values))


@rule("add add_any")
def _add(eqn: Any, cells: list[Cell]) -> Found:
    one, other = cells
    return Found(one.range + other.range)


@rule("sub")
def _sub(eqn: Any, cells: list[Cell]) -> Found:
    one, other = cells
    return Found(one.range + -other.range, one.infinite | _swapped(other.infinite))


@rule("neg")
def _neg(eqn: Any, cells: list[Cell]) -> Found:
    return Found(-cells[0].range, _swapped(cells[0].infinite))


@rule("mul")
def _mul(eqn: Any, cells: list[Cell]) -> Found:
    one, other = cells
    if eqn.invars[0] is eqn.invars[1]:
        return Found(square(one.range), any_infinite(cells))
    return Found(one.range * other.range, any_infinite(cells))


def square(range_: Interval) -> Interval:
    return range_.magnitude() * range_.magnitude()


@rule("reduce_sum cumsum reduce_window_sum")
def _sum(eqn: Any, cells: list[Cell]) -> Found:
    return Found(cells[0].range.total())


@rule("dot_general conv_general_dilated")
def _dot(eqn: Any, cells: list[Cell]) -> Found:
    one, other = cells
    same = eqn.invars[0] is eqn.invars[1] and len(eqn.outvars[0].aval.shape) == 0
    return Found(square(one.range).total() if same else (one.range * other.range).total(), any_infinite(cells))


@rule("reduce_prod cumprod")
def _product(eqn: Any, cells: list[Cell]) -> Found:
    inside = cells[0].range
    range_ = Interval(0.0, low_open=not inside.has_zero) if inside.low >= 0 else REALS
    return Found(range_, any_infinite(cells))


@rule("iota")
def _iota(eqn: Any, cells: list[Cell]) -> Found:
    return Found(Interval(0.0, max(0.0, eqn.params["shape"][eqn.params["dimension"]] - 1.0)))


@rule("real imag conj complex fft")
def _linear(eqn: Any, cells: list[Cell]) -> Found:
    return Found(infinite=any_infinite(cells))


# ---- operations that jump ---------------------------------------------------------------------------------------------


@rule("floor ceil round rem nextafter stop_gradient reduce_precision bitcast_convert_type argmax argmin")
def _jumps(eqn: Any, cells: list[Cell]) -> Found:
    return Found(why=primitive_name(eqn))


@rule("is_finite")
def _is_finite(eqn: Any, cells: list[Cell]) -> Found:
    if cells[0].infinite:
        return Found(why=primitive_name(eqn))
    return Found(fixed=True) if cells[0].constant else Found(decided=True)


@rule("sign")
def _sign(eqn: Any, cells: list[Cell]) -> Found:
    (cell,) = cells
    if cell.infinite or cell.range.has_zero or not is_real(eqn.invars[0]):
        return Found(Interval(-1.0, 1.0), why=primitive_name(eqn), forgiven=False)
    return Found(Interval(1.0, 1.0) if cell.range.low >= 0 else Interval(-1.0, -1.0))


@rule("convert_element_type")
def _convert(eqn: Any, cells: list[Cell]) -> Found:
    (cell,), old, new = cells, eqn.invars[0].aval.dtype, eqn.outvars[0].aval.dtype
    if cell.decided is not None and is_float(eqn.outvars[0]):
        return Found(Interval(float(cell.decided), float(cell.decided)))
    if not is_float(eqn.invars[0]):
        if is_float(eqn.outvars[0]) and cell.inputs:
            return Found(why=f"a number that is counted or compared ({primitive_name(eqn)})", forgiven=False)
        return Found(UNIT if old.kind == "b" else cell.range, decided=cell.decided)
    if not jnp.issubdtype(new, jnp.inexact) or (new.itemsize < 4 and new.itemsize < old.itemsize):
        return Found(why=f"rounding to {new} ({primitive_name(eqn)})")
    return Found(cell.range)


@rule("eq ne lt le gt ge")
def _compare(eqn: Any, cells: list[Cell]) -> Found:
    name, (one, other) = eqn.primitive.name, cells
    if any(cell.infinite for cell in cells):
        return Found(why=primitive_name(eqn))
    values = [cell.formula.value for cell in cells if cell.formula is not None and cell.formula.value is not None]
    if name in ("eq", "ne") and (eqn.invars[0] is eqn.invars[1] or any(np.all(np.isinf(value)) for value in values)):
        # is it nan, or infinite? The inputs do not decide that
        is_true = (name == "eq") == (eqn.invars[0] is eqn.invars[1])
        return Found(fixed=True) if one.constant or other.constant & {"nan"} else Found(decided=is_true)
    if any(cell.constant for cell in cells):
        return Found(why=primitive_name(eqn))
    below = _surely_below(one.range, other.range, name in ("lt", "ge", "eq", "ne"))
    above = _surely_below(other.range, one.range, name in ("gt", "le", "eq", "ne"))
    if below or above:
        return Found(decided=name == "ne" if name in ("eq", "ne") else (name in ("lt", "le")) == below)
    return Found(why=primitive_name(eqn))


def _surely_below(one: Interval, other: Interval, strictly: bool) -> bool:
    """Tell whether all numbers of one range are below all of the other, or equal to them at the most."""
    if one.high == other.low:
        return not strictly or one.high_open or other.low_open
    return one.high < other.low


@rule("and or not xor reduce_and reduce_or")
def _logic(eqn: Any, cells: list[Cell]) -> Found:
    name, known = eqn.primitive.name, [cell.decided for cell in cells]
    if name == "not" and known[0] is not None:
        return Found(decided=not known[0])
    if name == "and" and (False in known or known == [True, True]):
        return Found(decided=False not in known)
    if name == "or" and (True in known or known == [False, False]):
        return Found(decided=True in known)
    return Found(decided=known[0] if name.startswith("reduce") else None)


@rule("sort top_k")
def _sort(eqn: Any, cells: list[Cell]) -> list[Found]:
    """What is sorted is continuous; what is carried along jumps from place to place."""
    if any(cell.infinite for cell in cells):
        return [absorbs(eqn)] * len(eqn.outvars)
    carried = Found(why=f"the order of {primitive_name(eqn)}") if cells[0].inputs else Found()
    return [Found(cells[0].range), *[carried] * (len(eqn.outvars) - 1)]


# ---- linear algebra ---------------------------------------------------------------------------------------------------


@rule("cholesky")
def _cholesky(eqn: Any, cells: list[Cell]) -> Found:
    return Found(infinite=frozenset(["nan"]) | any_infinite(cells))


@rule("triangular_solve custom_linear_solve tridiagonal_solve")
def _solve(eqn: Any, cells: list[Cell]) -> Found:
    """Infinite where the matrix is singular: noticed unless something follows that makes it finite."""
    return Found(infinite=ALL)


@rule("eigh svd eig lu qr geqrf householder_product schur hessenberg tridiagonal")
def _factorised(eqn: Any, cells: list[Cell]) -> list[Found]:
    """Singular values, and eigenvalues of symmetric matrices, are continuous; vectors and pivots change their signs."""
    name = eqn.primitive.name
    values = {"svd": 0, "eigh": 1}.get(name)
    infinite = any(cell.infinite for cell in cells)
    jump = absorbs(eqn) if infinite else Found(why=primitive_name(eqn))
    found = [jump] * len(eqn.outvars)
    if values is not None and not infinite:
        found[values] = Found(Interval(0.0) if name == "svd" else REALS)
    return found
