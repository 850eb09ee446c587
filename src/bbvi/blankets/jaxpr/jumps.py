"""Show from its trace that a function is continuous in its inputs; where that is not shown, it is taken to jump.

A pathwise gradient follows the derivative of log p in z, and would be wrong, without a sign of it, where log p jumps. So
every variable of the trace gets a cell: the inputs it reads, the range of its values, whether it may be infinite, and
the first operation for which it cannot be shown to be continuous. `continuity.py` has the rules of single operations.

An infinity may come from a check of the support, `where(inside, log_p, -inf)`. While it is only added and scaled, it
reaches log p, where a fit notices it. Whatever turns it into a finite number, such as exp or max, makes a jump of it.

JAX's own functions that compare or stop a gradient on the way to a right derivative, such as logsumexp, are trusted to be
continuous where they are finite, and so are numpyro's densities.
"""

import functools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr

from bbvi.blankets.jaxpr.continuity import Cell, Found, Jump, is_real, joined
from bbvi.blankets.jaxpr.functions import found_of
from bbvi.blankets.jaxpr.intervals import REALS, Interval, range_of
from bbvi.blankets.jaxpr.lines import line_of
from bbvi.blankets.jaxpr.primitives import COPIES, CUSTOM, ELEMENTWISE, JOINS, MOVES, scan_parts, words
from bbvi.blankets.jaxpr.propagate import propagate, through_carry, widened
from bbvi.blankets.jaxpr.run import called
from bbvi.blankets.jaxpr.seams import Formula, formula_of, meet
from bbvi.blankets.jaxpr.trusted import Calls, is_trusted, is_written_in
from bbvi.numerics.xla import CHOSEN

#: the signs of what they return follow from those of their arguments
_KEEPS_SIGN = MOVES | JOINS | COPIES | words("mul div pow neg abs sqrt sign convert_element_type")
_NOT_ROUNDED = MOVES | JOINS | COPIES | words("neg abs max min gather dynamic_slice")


def find_jump(
    closed: ClosedJaxpr,
    names: Sequence[str | None],
    ranges: Mapping[str, Sequence[Interval]] | None = None,
    known: Mapping[Any, Cell] | None = None,
) -> Jump | None:
    """Find the first operation on the way to an output for which continuity is not shown.

    `names` tells which inputs matter, by the name they are given, and `ranges` where their values are: all of them, or those
    of each element along the last axis. `known` are cells of data, and of what is computed from data alone, by variable.
    """
    cells, known = [], known or {}
    for name, variable in zip(names, closed.jaxpr.invars, strict=True):
        data = known.get(variable, Cell())
        columns = tuple((ranges or {}).get(name or "", [data.range]))
        inside = functools.reduce(Interval.union, columns)
        inputs, formula = frozenset([name] if name else []), Formula(variable.aval, range_=inside)
        along = columns if len(columns) > 1 else None
        cells.append(Cell(inputs, None, inside, constant=data.constant, formula=formula, columns=along))
    return next((out.jump for out in _walk(closed, cells, None, (), known) if out.jump is not None), None)


def _walk(
    closed: ClosedJaxpr,
    inputs: Sequence[Cell],
    function: str | None,
    calls: Calls,
    known: Mapping[Any, Cell] = MappingProxyType({}),
) -> list[Cell]:
    cells = dict(zip(closed.jaxpr.invars, inputs, strict=True))
    cells |= {v: cell_of(c) for v, c in zip(closed.jaxpr.constvars, closed.consts, strict=True)}

    def rule(eqn: Any, ins: list[Cell]) -> list[Cell]:
        made = _equation(eqn, ins, function, calls)
        return [cell._replace(range=known.get(v, cell).range) for v, cell in zip(eqn.outvars, made, strict=True)]

    return propagate(closed.jaxpr, cells, cell_of, rule)


def cell_of(value: Any) -> Cell:
    """Return the cell of a constant."""
    if isinstance(value, jax.core.Tracer) or jnp.issubdtype(jnp.result_type(value), jax.dtypes.extended):
        return Cell()
    array = np.asarray(value)
    formula = Formula(jax.ShapeDtypeStruct(array.shape, array.dtype), value=array)
    if array.dtype.kind not in "biuf" and not jnp.issubdtype(array.dtype, jnp.floating):
        return Cell(formula=formula)
    array = array.astype(float)
    kinds = {"nan": np.isnan(array).any(), "+": (array == np.inf).any(), "-": (array == -np.inf).any()}
    constant = frozenset(kind for kind, yes in kinds.items() if yes)
    return Cell(range=range_of(array), constant=constant, formula=formula)


def _equation(eqn: Any, cells: list[Cell], function: str | None, calls: Calls) -> list[Cell]:
    where = ((eqn.source_info, function), *calls)
    if eqn.params.get("name") == CHOSEN:  # what is left of a factor's draw while its path is followed
        return [Cell()]
    if eqn.params.get("name") == "_interp" and is_written_in("interp", where) and _is_interpolation(cells):
        return [
            joined(cells)._replace(range=cells[2].range, formula=Formula(eqn.outvars[0].aval, range_=cells[2].range))
        ]
    if (inner := called(eqn)) is not None:
        made = _walk(inner, cells, eqn.params.get("name"), where)
        return [_promised(cell) for cell in made] if eqn.primitive.name in CUSTOM else made
    if (structural := _STRUCTURAL.get(eqn.primitive.name)) is not None:
        read = structural is not _while or any(cell.inputs for cell in cells)
        return structural(eqn, cells, where) if read else [Cell()] * len(eqn.outvars)
    return [_cell(eqn, number, cells, found, where) for number, found in enumerate(found_of(eqn, cells))]


def _cell(eqn: Any, number: int, cells: list[Cell], found: Found, where: Calls) -> Cell:
    """Join what a rule found of one result with what its arguments were."""
    inputs, jump, _, infinite, constant, *_, same_sign, rounded = joined(cells)
    constant |= found.constant
    if not is_real(eqn.outvars[number]):
        found = found._replace(range=REALS)
    if found.infinite is not None:
        infinite = found.infinite
    formula = _formula(eqn, cells) or Formula(eqn.outvars[number].aval, range_=found.range)
    if not inputs or found.fixed:
        return Cell(range=found.range, constant=constant | infinite, decided=found.decided, formula=formula)
    # what compares has been judged; its result may be turned and joined
    if jump is None and found.why is not None and not is_trusted(eqn.primitive.name, where, found.forgiven):
        jump = _jump(found.why, inputs, where, found.seen)
    same_sign &= eqn.primitive.name in _KEEPS_SIGN
    rounded |= eqn.primitive.name not in _NOT_ROUNDED
    return Cell(inputs, jump, found.range, infinite, constant, found.decided, formula, None, same_sign, rounded)


def _jump(operation: str, inputs: frozenset[str], where: Calls, seen: bool = True) -> Jump:
    return Jump(operation, tuple(sorted(inputs)), line_of(where[-1][0]), seen)


def _formula(eqn: Any, cells: list[Cell]) -> Formula | None:
    parts = [cell.formula for cell in cells if cell.formula is not None]
    if len(parts) < len(cells) or (eqn.primitive.name not in ELEMENTWISE and any(p.variables for p in parts)):
        return None
    return formula_of(eqn, parts) if len(eqn.outvars) == 1 else None


def _promised(cell: Cell) -> Cell:
    """Trust a function that brings its own derivative, unless an operation in it is known to jump."""
    return cell if cell.jump is None or cell.jump.seen else cell._replace(jump=None)


def _is_interpolation(cells: list[Cell]) -> bool:
    """Tell whether x is finite, no value outside of the points is given, and the points are known to increase."""
    if len(cells) != 3 or cells[0].infinite or cells[1].inputs or (formula := cells[1].formula) is None:
        return False
    return not formula.variables and bool((np.diff(np.asarray(formula.at({}), float)) > 1e-9).all())


def _select(eqn: Any, cells: list[Cell], where: Calls) -> list[Cell]:
    """A choice. Where one case is infinite it is a check of the support, and where all cases meet it is continuous."""
    which, *cases = cells
    out = joined(cases)._replace(formula=_formula(eqn, cells) or Formula(eqn.outvars[0].aval))
    if which.decided is not None and len(cases) == 2:
        return [cases[which.decided]]
    if not which.inputs:
        return [out]
    out = out._replace(inputs=out.inputs | which.inputs, formula=Formula(eqn.outvars[0].aval, range_=out.range))
    checks = [case for case in cases if _never_finite(case)]
    others = [case for case in cases if not _never_finite(case)]
    if checks and len(others) == 1:
        infinite = others[0].infinite.union(*(case.constant for case in checks))
        return [out._replace(range=others[0].range, infinite=infinite, constant=others[0].constant)]
    if out.jump is not None or _shown_to_meet(which, cases) or (which.jump is None and is_trusted("select_n", where)):
        return [out]
    return [out._replace(jump=which.jump or _jump("'select_n'", which.inputs, where))]


def _never_finite(case: Cell) -> bool:
    formula = case.formula if case.constant and not case.inputs else None
    return formula is not None and not formula.variables and not np.isfinite(formula.at({})).any()


def _shown_to_meet(which: Cell, cases: Sequence[Cell]) -> bool:
    compared, formulas = which.formula, [case.formula for case in cases if case.formula is not None]
    if compared is None or compared.eqn is None or compared.eqn.primitive.name not in ("lt", "le", "gt", "ge"):
        return False
    sides_are_continuous = which.jump is not None and which.jump.operation == repr(compared.eqn.primitive.name)
    absorbed = any(case.infinite for case in (which, *cases))
    return sides_are_continuous and not absorbed and len(formulas) == len(cases) and meet(compared, formulas)


def _cond(eqn: Any, cells: list[Cell], where: Calls) -> list[Cell]:
    which, *arguments = cells
    branches = [_walk(branch, arguments, where[0][1], where[1:]) for branch in eqn.params["branches"]]
    made = [joined(outs) for outs in zip(*branches, strict=True)]
    if not which.inputs or (which.jump is None and is_trusted("cond", where)):
        return made
    jump = which.jump or _jump("'cond'", which.inputs, where)
    return [cell._replace(inputs=cell.inputs | which.inputs, jump=jump, same_sign=False) for cell in made]


def _while(eqn: Any, cells: list[Cell], where: Calls) -> list[Cell]:
    """No derivative backwards through a loop of unknown length; what the body makes may jump, and what it counts does."""
    test, body = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
    of_test, of_body = cells[: eqn.params["cond_nconsts"]], cells[eqn.params["cond_nconsts"] :]
    consts, carry = of_body[: eqn.params["body_nconsts"]], of_body[eqn.params["body_nconsts"] :]

    def step(carry: list[Cell]) -> list[Cell]:
        return _walk(body, _as_variables([*consts, *carry], body.jaxpr.invars), where[0][1], where[1:])

    carry, _ = widened([cell._replace(range=REALS, formula=None, columns=None) for cell in carry], step, _join_step)
    (again,) = _walk(test, _as_variables([*of_test, *carry], test.jaxpr.invars), where[0][1], where[1:])
    inputs, jump, *_ = joined(cells)
    counts = bool(again.inputs) and not is_trusted("while", where)
    out = []
    for cell, variable in zip(carry, body.jaxpr.outvars, strict=True):
        own = jump or cell.jump
        if own is None and not cell.inputs and counts and variable not in body.jaxpr.invars:
            own = _jump("a count of steps ('while_loop')", inputs, where)
        out.append(Cell(inputs, own or _jump("'while_loop'", inputs, where, seen=False)))
    return out


def _join_step(old: Cell, new: Cell) -> Cell:
    return joined([old, new])._replace(range=REALS)


def _scan(eqn: Any, cells: list[Cell], where: Calls) -> list[Cell]:
    """A loop: what is carried reads what any step made it read."""

    def step(cells: list[Cell]) -> list[Cell]:
        return _walk(eqn.params["jaxpr"], cells, where[0][1], where[1:])

    def join(old: Cell, new: Cell) -> Cell:
        both = joined([old, new])
        # a range that grows may grow at every step; its sign stays if every step keeps it
        range_ = old.range if both.range == old.range else _sign(both.range)
        return both._replace(formula=old.formula, range=range_)

    cells, made = through_carry(eqn, _as_variables(cells, eqn.params["jaxpr"].jaxpr.invars), step, join)
    _, carry, _ = scan_parts(eqn, cells)
    return _as_variables([*carry, *made[len(carry) :]], eqn.outvars)


_STRUCTURAL = {"select_n": _select, "cond": _cond, "while": _while, "scan": _scan}


def _as_variables(cells: list[Cell], variables: list[Any]) -> list[Cell]:
    """Forget how values are computed."""
    pairs = zip(cells, variables, strict=True)
    return [cell._replace(formula=Formula(v.aval, range_=cell.range)) for cell, v in pairs]


def _sign(range_: Interval) -> Interval:
    """Return the widest range with the same sign."""
    if range_.low >= 0:
        return Interval(0.0, low_open=not range_.has_zero)
    return -_sign(-range_) if range_.high <= 0 else REALS
