"""A trace of the user's function: running parts of it, and what enters what."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.extend import source_info_util
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from bbvi.blankets.jaxpr.lines import file_of
from bbvi.blankets.jaxpr.primitives import CALLS, closed_trace

Special = Callable[[Any, list[Any], Any], list[Any] | None]


def run(
    closed: ClosedJaxpr,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    special: Special | None = None,
    call: Any = None,
    given: Mapping[Any, Any] | None = None,
) -> list[Any]:
    """Compute these variables and no more than they need; inputs that are not needed may be None.

    `special(equation, inputs, source)` may compute an equation in another way. `call` is where the whole is called.
    `given` has the values of variables on the way that are known.
    """
    jaxpr = closed.jaxpr
    env: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*closed.consts, *inputs], strict=True))
    env.update(given or {})

    def value(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else env[atom]

    for eqn in _leading_to(jaxpr, outputs, given or {}, effects=all(v is not None for v in inputs)):
        values = [value(atom) for atom in eqn.invars]
        # a function that was compiled long ago stands where it is called now
        source = eqn.source_info if call is None or file_of(eqn.source_info, inside_call=True) else call
        with source_info_util.user_context(source.traceback):
            made = None if special is None else special(eqn, values, source)
            env.update(zip(eqn.outvars, bind(eqn, values) if made is None else made, strict=True))
    return [value(atom) for atom in outputs]


def bind(eqn: Any, values: list[Any]) -> list[Any]:
    """Compute one equation."""
    if (inner := called(eqn)) is not None:
        return run(inner, values, inner.jaxpr.outvars)
    return bind_whole(eqn, values)


def bind_whole(eqn: Any, values: list[Any]) -> list[Any]:
    """Compute one equation as it is: a function with a derivative of its own keeps it, one over devices its mesh."""
    bound = eqn.primitive.get_bind_params(eqn.params)
    functions, params = bound if isinstance(bound, tuple) else ((), bound)  # older versions of JAX give a pair
    made = eqn.primitive.bind(*functions, *values, **params)
    return list(made) if eqn.primitive.multiple_results else [made]


def scan_like(eqn: Any, step: Callable[..., Any], init: Any, xs: Any) -> tuple[Any, Any]:
    """Run another body over as many steps as a loop has, in the same direction."""
    return jax.lax.scan(step, init, xs, **{key: eqn.params[key] for key in ("length", "reverse", "unroll")})


def called(eqn: Any) -> ClosedJaxpr | None:
    """Return the trace of the function that an equation calls, None if it is no call."""
    if eqn.primitive.name not in CALLS:
        return None
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        inner = closed_trace(eqn.params.get(key))
        if inner is not None and len(inner.jaxpr.invars) == len(eqn.invars):
            return inner
    return None


def reached(jaxpr: Jaxpr, variables: Sequence[Any]) -> set[Any]:
    """Find all variables that these enter."""
    found = set(variables)
    for eqn in jaxpr.eqns:
        if any(not isinstance(atom, Literal) and atom in found for atom in eqn.invars):
            found.update(eqn.outvars)
    return found


def all_consts(closed: ClosedJaxpr) -> list[Any]:
    """List the arrays that a trace holds, those of loops and branches inside it too."""
    found = list(closed.consts)
    for eqn in closed.jaxpr.eqns:
        for value in eqn.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                trace = closed_trace(inner)
                found += [] if trace is None else all_consts(trace)
    return found


def _leading_to(jaxpr: Jaxpr, outputs: Sequence[Any], given: Mapping[Any, Any], *, effects: bool) -> list[Any]:
    """List the equations these variables come from, and those with side effects such as printing if asked for."""
    needed = {atom for atom in outputs if not isinstance(atom, Literal)}
    kept = []
    for eqn in reversed(jaxpr.eqns):
        if (effects and eqn.effects) or any(v in needed and v not in given for v in eqn.outvars):
            kept.append(eqn)
            needed.update(atom for atom in eqn.invars if not isinstance(atom, Literal))
    return kept[::-1]
