"""Where a function reads its inputs in a way that its derivative does not see: comparisons, rounding, indices.

A pathwise gradient follows the derivative of log p in z, and would be wrong, without a sign of it, where log p jumps.
Every variable of the trace is mapped to the inputs it reads and to the first jump on its way. JAX's own functions that
compare or stop a gradient on the way to a right derivative, such as logsumexp, are trusted, and so are numpyro's
densities and functions that bring a derivative of their own.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax.extend.core import ClosedJaxpr

from bbvi.blankets.jaxpr.lines import line_of
from bbvi.blankets.jaxpr.primitives import CALLBACKS, CUSTOM, JUMPS, MOVES, REARRANGED, scan_sizes
from bbvi.blankets.jaxpr.propagate import Rules, propagate, through_carry
from bbvi.blankets.jaxpr.run import called

#: a constant that is nowhere finite stays so under these
_KEEP_INFINITE = MOVES | REARRANGED | {"neg"}
#: functions of JAX that are continuous and have the right derivative, though they use such operations
_TRUSTED = frozenset(
    "logsumexp softmax log_softmax logmeanexp standardize elu selu celu leaky_relu hard_tanh nan_to_num "
    "ndtr ndtri log_ndtr entr i0 i1 logpdf logcdf logsf solve inv det slogdet lu_solve norm".split()
)
#: by these numpyro's densities tell cases apart, such as the tails; they are continuous all the same
_CASES = frozenset("eq ne lt le gt ge is_finite rem sign stop_gradient".split())
_JAX, _NUMPYRO = (os.path.dirname(str(module.__file__)) for module in (jax, numpyro))


_rule: Rules[Callable[[Any, list["_Seen"], "Calls"], list["_Seen"]]] = Rules()


class _Place(NamedTuple):
    """Where an operation was written, and the compiled function around it."""

    source: Any
    function: str | None


#: the place of an operation, and those of the calls around it, innermost first
Calls = tuple[_Place, ...]


class Jump(NamedTuple):
    """An operation without a derivative, the inputs it reads and the line of the user's function."""

    operation: str
    inputs: tuple[str, ...]
    line: str


class _Seen(NamedTuple):
    """What is known of a variable: the inputs it reads, the jump on its way, and whether it is a constant inf or nan."""

    inputs: frozenset[str] = frozenset()
    jump: Jump | None = None
    infinite: bool = False


def find_jump(closed: ClosedJaxpr, names: Sequence[str | None]) -> Jump | None:
    """Find the first jump that reaches an output; `names` tells which inputs matter, by the name they are given."""
    seen = [_Seen() if name is None else _Seen(frozenset([name])) for name in names]
    return next((out.jump for out in _walk(closed, seen, None, ()) if out.jump is not None), None)


def _walk(closed: ClosedJaxpr, inputs: Sequence[_Seen], function: str | None, calls: Calls) -> list[_Seen]:
    seen = dict(zip(closed.jaxpr.invars, inputs, strict=True))
    seen |= {v: _constant(c) for v, c in zip(closed.jaxpr.constvars, closed.consts, strict=True)}
    return propagate(closed.jaxpr, seen, _constant, lambda eqn, ins: _equation(eqn, ins, function, calls))


def _constant(value: Any) -> _Seen:
    if not (hasattr(value, "dtype") or isinstance(value, float)) or isinstance(value, jax.core.Tracer):
        return _Seen()
    if not jnp.issubdtype(jnp.result_type(value), jnp.floating):
        return _Seen()
    return _Seen(infinite=not np.isfinite(np.asarray(value)).any())


def _equation(eqn: Any, seen: list[_Seen], function: str | None, calls: Calls) -> list[_Seen]:
    if not any(s.inputs for s in seen):
        kept = eqn.primitive.name in _KEEP_INFINITE and seen[0].infinite
        inner = called(eqn)
        return _walk(inner, seen, function, calls) if inner is not None else [_Seen(infinite=kept)] * len(eqn.outvars)
    name, where = eqn.primitive.name, (_Place(eqn.source_info, function), *calls)
    all_inputs = frozenset().union(*(s.inputs for s in seen))
    if name in CUSTOM:
        return [_Seen(all_inputs, _first(seen))] * len(eqn.outvars)
    if (inner := called(eqn)) is not None:
        return _walk(inner, seen, eqn.params.get("name"), where)
    rule = _rule.of(eqn)
    if rule is not None:
        return rule(eqn, seen, where)
    jump = _first(seen)
    out = []
    # what compares has been judged; its result may be turned and joined
    smooth = any(s.inputs and jnp.issubdtype(a.aval.dtype, jnp.inexact) for s, a in zip(seen, eqn.invars, strict=True))
    for variable in eqn.outvars:
        jumps = name in JUMPS | CALLBACKS or not jnp.issubdtype(variable.aval.dtype, jnp.inexact)
        new = jump or (_jump(name, all_inputs, where) if smooth and jumps and not _is_trusted(name, where) else None)
        out.append(_Seen(all_inputs, new))
    return out


def _first(seen: Sequence[_Seen]) -> Jump | None:
    return next((s.jump for s in seen if s.jump is not None), None)


def _jump(name: str, inputs: frozenset[str], where: Calls) -> Jump:
    return Jump(name, tuple(sorted(inputs)), line_of(where[-1].source))


def _is_trusted(name: str, where: Calls) -> bool:
    """Tell whether a trusted function of JAX did this, or a density of numpyro that tells cases apart."""
    for frame in _frames(where):
        if not frame.file_name.startswith(_JAX):
            return frame.file_name.startswith(_NUMPYRO) and name in _CASES
        if frame.function_name in _TRUSTED:
            return True
    return False


def _frames(where: Calls) -> Iterator[Any]:
    """List the functions that led here, innermost first.

    A compiled function was traced where it was first called: what lies outside of it is that of its call here.
    """
    for place in where:
        frames = [] if place.source.traceback is None else list(place.source.traceback.frames)
        if place.function is not None:
            own = [i for i, frame in enumerate(frames) if frame.function_name.endswith(place.function)]
            ends = [i for i, frame in enumerate(frames) if frame.file_name.endswith("pjit.py")]
            frames = frames[: next((i for i in ends if not own or i > own[0]), len(frames))]
        yield from frames


@_rule(jax.lax.select_n_p)
def _select(eqn: Any, seen: list[_Seen], where: Calls) -> list[_Seen]:
    """A choice between values; where one is a constant inf or nan it is a check of the support."""
    cases = seen[1:]
    inputs = frozenset().union(*(s.inputs for s in seen))
    checks = any(case.infinite for case in cases)
    return [_Seen(inputs, _first(cases if checks else seen))]


@_rule(jax.lax.sort_p)
def _sort(eqn: Any, seen: list[_Seen], where: Calls) -> list[_Seen]:
    """What is sorted is continuous; what is carried along jumps from place to place."""
    inputs, jump = frozenset().union(*(s.inputs for s in seen)), _first(seen)
    carried = jump or (_jump("sort", inputs, where) if seen[0].inputs else None)
    return [_Seen(inputs, jump if number == 0 else carried) for number in range(len(eqn.outvars))]


@_rule(jax.lax.cond_p)
def _cond(eqn: Any, seen: list[_Seen], where: Calls) -> list[_Seen]:
    which, *arguments = seen
    branches = [_walk(branch, arguments, where[0].function, where[1:]) for branch in eqn.params["branches"]]
    return [
        _Seen(which.inputs.union(*(s.inputs for s in made)), _first([which, *made]))
        for made in zip(*branches, strict=True)
    ]


@_rule(jax.lax.while_p)
def _while(eqn: Any, seen: list[_Seen], where: Calls) -> list[_Seen]:
    """No derivative backwards through a loop of unknown length."""
    inputs = frozenset().union(*(s.inputs for s in seen))
    return [_Seen(inputs, _first(seen) or _jump("while_loop", inputs, where))] * len(eqn.outvars)


@_rule(jax.lax.scan_p)
def _scan(eqn: Any, seen: list[_Seen], where: Calls) -> list[_Seen]:
    """A loop: what is carried reads what any step made it read."""
    num_consts, num_carry = scan_sizes(eqn)

    def step(cells: list[_Seen]) -> list[_Seen]:
        return _walk(eqn.params["jaxpr"], cells, where[0].function, where[1:])

    def join(a: _Seen, b: _Seen) -> _Seen:
        return _Seen(a.inputs | b.inputs, a.jump or b.jump, a.infinite and b.infinite)

    cells, made = through_carry(eqn, seen, step, join)
    return [*cells[num_consts : num_consts + num_carry], *made[num_carry:]]
