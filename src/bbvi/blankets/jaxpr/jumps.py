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
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr

from bbvi.blankets.jaxpr.continuity import Cell, Found, Jump, joined
from bbvi.blankets.jaxpr.functions import found_of
from bbvi.blankets.jaxpr.intervals import REALS, Interval, range_of
from bbvi.blankets.jaxpr.lines import JAX, NUMPYRO, frames_of, line_of
from bbvi.blankets.jaxpr.primitives import COPIES, CUSTOM, ELEMENTWISE, JOINS, MOVES, scan_parts, words
from bbvi.blankets.jaxpr.propagate import propagate, through_carry
from bbvi.blankets.jaxpr.run import called
from bbvi.blankets.jaxpr.seams import Formula, formula_of, meet
from bbvi.numerics.xla import CHOSEN

#: functions of JAX that are continuous and have the right derivative, though they use such operations
_TRUSTED = words(
    "logsumexp softmax log_softmax logmeanexp standardize elu selu celu leaky_relu hard_tanh sparse_plus ndtr ndtri log_ndtr "
    "entr rel_entr kl_div betaln xlogy xlog1py sinc i0 i1 logpdf logcdf logsf solve inv det slogdet lu_solve norm hypot interp odeint"
)
#: by these numpyro's densities tell cases apart, such as the tails; they are continuous all the same
_CASES = words("eq ne lt le gt ge is_finite rem sign stop_gradient select_n atan2")
#: the signs of what they return follow from those of their arguments
_KEEPS_SIGN = MOVES | JOINS | COPIES | words("mul div pow neg abs sqrt sign convert_element_type")


#: where an operation was written and the compiled function around it; then the same for the calls around that, innermost first
Calls = tuple[tuple[Any, str | None], ...]


def find_jump(
    closed: ClosedJaxpr,
    names: Sequence[str | None],
    ranges: Mapping[str, Sequence[Interval]] | None = None,
    known: Mapping[Any, Interval] | None = None,
) -> Jump | None:
    """Find the first operation on the way to an output for which continuity is not shown.

    `names` tells which inputs matter, by the name they are given, and `ranges` where their values are: all of them, or those
    of each element along the last axis. `known` are the ranges of data, and of what is computed from data alone, by variable.
    """
    cells, known = [], known or {}
    for name, variable in zip(names, closed.jaxpr.invars, strict=True):
        columns = tuple((ranges or {}).get(name or "", [known.get(variable, REALS)]))
        inside = functools.reduce(Interval.union, columns)
        inputs, formula = frozenset([name] if name else []), Formula(variable.aval, range_=inside)
        cells.append(Cell(inputs, None, inside, formula=formula, columns=columns if len(columns) > 1 else None))
    return next((out.jump for out in _walk(closed, cells, None, (), known) if out.jump is not None), None)


def _walk(
    closed: ClosedJaxpr,
    inputs: Sequence[Cell],
    function: str | None,
    calls: Calls,
    known: Mapping[Any, Interval] = MappingProxyType({}),
) -> list[Cell]:
    cells = dict(zip(closed.jaxpr.invars, inputs, strict=True))
    cells |= {v: _known(c) for v, c in zip(closed.jaxpr.constvars, closed.consts, strict=True)}

    def rule(eqn: Any, ins: list[Cell]) -> list[Cell]:
        made = _equation(eqn, ins, function, calls)
        return [cell._replace(range=known.get(v, cell.range)) for v, cell in zip(eqn.outvars, made, strict=True)]

    return propagate(closed.jaxpr, cells, _known, rule)


def _known(value: Any) -> Cell:
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
    if (inner := called(eqn)) is not None:
        made = _walk(inner, cells, eqn.params.get("name"), where)
        return [_promised(cell) for cell in made] if eqn.primitive.name in CUSTOM else made
    if (structural := _STRUCTURAL.get(eqn.primitive.name)) is not None:
        read = structural is _select or any(cell.inputs for cell in cells)
        return structural(eqn, cells, where) if read else [Cell()] * len(eqn.outvars)
    return [_cell(eqn, number, cells, found, where) for number, found in enumerate(found_of(eqn, cells))]


def _cell(eqn: Any, number: int, cells: list[Cell], found: Found, where: Calls) -> Cell:
    """Join what a rule found of one result with what its arguments were."""
    inputs, jump, _, infinite, constant, *_, same_sign = joined(cells)
    constant |= found.constant
    if found.infinite is not None:
        infinite = found.infinite
    formula = _formula(eqn, cells) or Formula(eqn.outvars[number].aval, range_=found.range)
    if not inputs or found.fixed:
        return Cell(range=found.range, constant=constant | infinite, decided=found.decided, formula=formula)
    # what compares has been judged; its result may be turned and joined
    if jump is None and found.why is not None and not _is_trusted(eqn.primitive.name, where, found.forgiven):
        jump = _jump(found.why, inputs, where, found.seen)
    same_sign &= eqn.primitive.name in _KEEPS_SIGN
    return Cell(inputs, jump, found.range, infinite, constant, found.decided, formula, same_sign=same_sign)


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


def _is_trusted(name: str, where: Calls, forgiven: bool = True) -> bool:
    """Tell whether a trusted function of JAX did this that it may do, or a density of numpyro that tells cases apart."""
    for frame in _frames(where):
        if not frame.file_name.startswith(JAX):
            return frame.file_name.startswith(NUMPYRO) and name in _CASES
        if frame.function_name in _TRUSTED:
            return forgiven
    return False


def _frames(where: Calls) -> Iterator[Any]:
    """List the functions that led here, innermost first.

    A compiled function was traced where it was first called: what lies outside of it is that of its call here.
    """
    for source, function in where:
        frames = frames_of(source)
        if function is not None:
            own = [i for i, frame in enumerate(frames) if frame.function_name.endswith(function)]
            ends = [i for i, frame in enumerate(frames) if frame.file_name.endswith("pjit.py")]
            frames = frames[: next((i for i in ends if not own or i > own[0]), len(frames))]
        yield from frames


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
    if out.jump is not None or _shown_to_meet(which, cases) or (which.jump is None and _is_trusted("select_n", where)):
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
    if not which.inputs or (which.jump is None and _is_trusted("cond", where)):
        return made
    jump = which.jump or _jump("'cond'", which.inputs, where)
    return [cell._replace(inputs=cell.inputs | which.inputs, jump=jump, same_sign=False) for cell in made]


def _while(eqn: Any, cells: list[Cell], where: Calls) -> list[Cell]:
    """No derivative backwards through a loop of unknown length."""
    inputs, jump, *_ = joined(cells)
    return [Cell(inputs, jump or _jump("'while_loop'", inputs, where, seen=False))] * len(eqn.outvars)


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
