"""Tell which operations on arrays are continuous, and what they make of infinities; `functions.py` has those of numbers.

A rule looks at one equation and the cells of its arguments. It returns the range of the result and the infinities it may
be, or says why the result may jump. What has no rule is not known to be continuous.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from bbvi.blankets.jaxpr.intervals import NO_NUMBERS, REALS, UNIT, Interval
from bbvi.blankets.jaxpr.primitives import COPIES, JOINS, MOVES, dot_axes
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
    #: whether each element is above 0, 0, below 0 or none of these whatever the inputs; see `keeps_sign`
    same_sign: bool = False
    #: whether rounding may have led to an open end of the range, as `exp` to 0
    rounded: bool = False

    @property
    def keeps_sign(self) -> bool:
        """Tell whether the inputs do not decide the sign of any element, nor whether it is 0."""
        one_signed = not self.range.has_zero and (self.range.low >= 0 or self.range.high <= 0)
        return not self.inputs or (not self.infinite and (self.same_sign or one_signed))


class Found(NamedTuple):
    """What a rule says of a result: its range, its infinities (None for those of the arguments), and why it may jump."""

    range: Interval = REALS
    infinite: Kinds | None = None
    #: what single elements may be whatever the inputs, beside what those of the arguments may be
    constant: Kinds = NONE
    why: str | None = None
    #: whether it is known to jump, and whether a function that is trusted to be continuous may do it
    seen: bool = True
    forgiven: bool = True
    decided: bool | None = None
    #: whether it does not depend on the inputs, although they are read
    fixed: bool = False


#: called with an equation and the cells of its arguments; it returns what it found of all results, or a list of each
Rule = Callable[..., Found | list[Found]]
RULES: dict[str, tuple[Rule, Kinds]] = {}


def rule(names: str, absorbed: Iterable[str] = ()) -> Callable[[Rule], Rule]:
    """Register a function as the rule of the primitives with these names.

    `absorbed` are the infinities of an argument that they may make finite: those make a jump.
    """

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names.split(), (function, frozenset(absorbed))))
        return function

    return register


def primitive_name(eqn: Any) -> str:
    return repr(eqn.primitive.name)


def _swapped(kinds: Kinds) -> Kinds:
    return frozenset(_SWAPPED[kind] for kind in kinds)


def any_infinite(*cells: Cell) -> Kinds:
    """Return all kinds if an argument may be infinite: its sign, and whether it meets another one, is not followed.

    What is not a number stays so.
    """
    kinds = joined(cells).infinite
    return ALL if kinds - {"nan"} else kinds


def absorbs(eqn: Any) -> Found:
    return Found(why=f"{primitive_name(eqn)} of what may be infinite", forgiven=False)


def is_float(atom: Any) -> bool:
    return bool(jnp.issubdtype(atom.aval.dtype, jnp.inexact))


def is_real(atom: Any) -> bool:
    return not jnp.issubdtype(atom.aval.dtype, jnp.complexfloating)


def joined(cells: Sequence[Cell]) -> Cell:
    """Return the cell of a value that is one of these."""
    return Cell(
        frozenset().union(*(cell.inputs for cell in cells)),
        next((cell.jump for cell in cells if cell.jump is not None), None),
        functools.reduce(Interval.union, (cell.range for cell in cells), NO_NUMBERS),
        frozenset().union(*(cell.infinite for cell in cells)),
        frozenset().union(*(cell.constant for cell in cells)),
        same_sign=all(cell.keeps_sign for cell in cells),
        rounded=any(cell.rounded for cell in cells),
    )


# ---- sums, and operations that jump or may be infinite wherever they are -------------------------------------------------

_IN_ONE_LINE: dict[str, Rule] = {
    "add add_any": lambda eqn, one, other: Found(one.range + other.range),
    "sub": lambda eqn, one, other: Found(one.range + -other.range, one.infinite | _swapped(other.infinite)),
    "neg": lambda eqn, cell: Found(-cell.range, _swapped(cell.infinite)),
    "reduce_sum cumsum reduce_window_sum": lambda eqn, cell: Found(cell.range.total()),
    "iota": lambda eqn: Found(Interval(0.0, max(0.0, eqn.params["shape"][eqn.params["dimension"]] - 1.0))),
    "real imag conj complex fft": lambda eqn, *cells: Found(infinite=any_infinite(*cells)),
    "cholesky": lambda eqn, cell: Found(infinite=any_infinite(cell) | {"nan"}),
    # infinite where the matrix is singular: noticed unless something follows that makes it finite
    "triangular_solve custom_linear_solve tridiagonal_solve": lambda eqn, *cells: Found(infinite=ALL),
    "floor ceil round rem nextafter stop_gradient reduce_precision bitcast_convert_type argmax argmin": (
        lambda eqn, *cells: Found(why=primitive_name(eqn))
    ),
}
for _names, _function in _IN_ONE_LINE.items():
    rule(_names)(_function)


# ---- moves and products -----------------------------------------------------------------------------------------------


@rule(" ".join(MOVES | JOINS | COPIES) + " name optimization_barrier sharding_constraint device_put pvary")
def _moved(eqn: Any, *cells: Cell) -> Found:
    range_, decided = joined(cells).range, {cell.decided for cell in cells}
    if eqn.primitive.name == "slice" and cells[0].columns is not None:
        ends, steps = (eqn.params[name] for name in ("limit_indices", "strides"))
        columns = cells[0].columns[eqn.params["start_indices"][-1] : ends[-1] : steps[-1] if steps else 1]
        range_ = functools.reduce(Interval.union, columns, NO_NUMBERS)
    return Found(range_, decided=decided.pop() if len(decided) == 1 else None)


@rule("gather dynamic_slice")
def _taken(eqn: Any, operand: Cell, *indices: Cell) -> Found:
    if any(cell.inputs for cell in indices):
        return Found(why=f"an index ({primitive_name(eqn)})")
    return Found(operand.range)


@rule("dynamic_update_slice scatter scatter-add scatter-sub scatter-mul")
def _put(eqn: Any, into: Cell, *others: Cell) -> Found:
    update, *indices = others if eqn.primitive.name == "dynamic_update_slice" else others[::-1]
    if any(cell.inputs for cell in indices):
        return Found(why=f"an index ({primitive_name(eqn)})")
    values = [into, update]
    if eqn.primitive.name in ("scatter", "dynamic_update_slice"):
        return Found(joined(values).range)
    return Found(infinite=any_infinite(*values))


@rule("mul dot_general conv_general_dilated")
def _product(eqn: Any, one: Cell, other: Cell) -> Found:
    is_sum = eqn.primitive.name != "mul"
    is_square = eqn.invars[0] is eqn.invars[1]
    if is_sum and is_square:
        of_one, of_other = dot_axes(eqn) if eqn.primitive.name == "dot_general" else (0, 1)
        is_square = of_one == of_other and not eqn.outvars[0].aval.shape
    range_ = one.range.magnitude() * one.range.magnitude() if is_square else one.range * other.range
    # inf * z has the sign of z
    turned = any(a.constant - {"nan"} and not b.keeps_sign for a, b in ((one, other), (other, one)))
    return Found(range_.total() if is_sum else range_, ALL if turned else any_infinite(one, other))


@rule("reduce_prod cumprod")
def _product_of_all(eqn: Any, cell: Cell) -> Found:
    range_ = Interval(0.0, low_open=not cell.range.has_zero) if cell.range.low >= 0 else REALS
    return Found(range_, any_infinite(cell))


# ---- signs, comparisons and orders --------------------------------------------------------------------------------------


@rule("is_finite")
def _is_finite(eqn: Any, cell: Cell) -> Found:
    if cell.infinite:
        return Found(why=primitive_name(eqn))
    return Found(fixed=True) if cell.constant else Found(decided=True)


@rule("sign")
def _sign(eqn: Any, cell: Cell) -> Found:
    if cell.infinite or cell.range.has_zero:
        return Found(Interval(-1.0, 1.0), why=primitive_name(eqn), forgiven=False)
    return Found(Interval(1.0, 1.0) if cell.range.low >= 0 else Interval(-1.0, -1.0))


@rule("convert_element_type")
def _convert(eqn: Any, cell: Cell) -> Found:
    old, new = eqn.invars[0].aval.dtype, eqn.outvars[0].aval.dtype
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
def _compare(eqn: Any, one: Cell, other: Cell) -> Found:
    name, cells = eqn.primitive.name, (one, other)
    if any(cell.infinite for cell in cells):
        return Found(why=primitive_name(eqn))
    values = [cell.formula.value for cell in cells if cell.formula is not None and cell.formula.value is not None]
    if name in ("eq", "ne") and (eqn.invars[0] is eqn.invars[1] or any(np.all(np.isinf(value)) for value in values)):
        # is it nan, or infinite? The inputs do not decide that
        is_true = (name == "eq") == (eqn.invars[0] is eqn.invars[1])
        return Found(fixed=True) if one.constant or other.constant & {"nan"} else Found(decided=is_true)
    if any(cell.constant for cell in cells):
        return Found(why=primitive_name(eqn))
    ranges = [cell.range.closed() if cell.rounded else cell.range for cell in cells]
    below = _surely_below(ranges[0], ranges[1], name in ("lt", "ge", "eq", "ne"))
    above = _surely_below(ranges[1], ranges[0], name in ("gt", "le", "eq", "ne"))
    if below or above:
        return Found(decided=name == "ne" if name in ("eq", "ne") else (name in ("lt", "le")) == below)
    return Found(why=primitive_name(eqn))


def _surely_below(one: Interval, other: Interval, strictly: bool) -> bool:
    """Tell whether all numbers of one range are below all of the other, or equal to them at the most."""
    if one.high == other.low:
        return not strictly or one.high_open or other.low_open
    return one.high < other.low


@rule("and or not xor reduce_and reduce_or")
def _logic(eqn: Any, *cells: Cell) -> Found:
    name, known = eqn.primitive.name, [cell.decided for cell in cells]
    one_decides = {"and": False, "or": True}.get(name)
    if one_decides in known:
        return Found(decided=one_decides)
    if None in known or name == "xor":
        return Found()
    return Found(decided=not known[0] if name == "not" else known[0])


@rule("sort top_k", ALL)
def _sort(eqn: Any, sorted_: Cell, *carried: Cell) -> list[Found]:
    """What is sorted is continuous; what is carried along jumps from place to place."""
    along = Found(why=f"the order of {primitive_name(eqn)}") if sorted_.inputs else Found()
    return [Found(sorted_.range), *[along] * (len(eqn.outvars) - 1)]


@rule("eigh svd eig lu qr geqrf householder_product schur hessenberg tridiagonal", ALL)
def _factorised(eqn: Any, *cells: Cell) -> list[Found]:
    """Singular values, and eigenvalues of symmetric matrices, are continuous; vectors and pivots change their signs."""
    found = [Found(why=primitive_name(eqn))] * len(eqn.outvars)
    continuous = {"svd": (0, Interval(0.0)), "eigh": (1, REALS)}
    if eqn.primitive.name in continuous:
        number, range_ = continuous[eqn.primitive.name]
        found[number] = Found(range_)
    return found
