"""Section 3.1 for what works element by element, moves data, or reduces along axes; and for functions on the host."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bbvi.blankets.jaxpr.primitives import CUMULATIVE, ELEMENTWISE, JOINS, MOVES, REDUCTIONS, named
from bbvi.blankets.jaxpr.run import bind
from bbvi.blankets.jaxpr.values import NUMPY
from bbvi.blankets.read_sets import Reads, ReadSets, accumulate, merge, mix, moved, reduce, spread, stack, union
from bbvi.blankets.rules import Rule, rule

# those of choices and products are replaced below
_IN_ONE_LINE: dict[frozenset[str], Rule] = {
    ELEMENTWISE: lambda interpreter, eqn, ins: [union(ins)],
    MOVES: lambda interpreter, eqn, ins: [moved(ins[0], lambda ids: NUMPY[eqn.primitive.name](eqn.params, ids))],
    JOINS: lambda interpreter, eqn, ins: on_numbers(eqn, ins),
    REDUCTIONS: lambda interpreter, eqn, ins: [reduce(ins[0], eqn.params["axes"])],
    CUMULATIVE: lambda interpreter, eqn, ins: [accumulate(ins[0], eqn.params["axis"], reverse=eqn.params["reverse"])],
    frozenset(["optimization_barrier"]): lambda interpreter, eqn, ins: ins,
}
for _names, _function in _IN_ONE_LINE.items():
    rule(*named(_names))(_function)


@rule(jax.lax.select_n_p)
def _select(interpreter: Any, eqn: Any, ins: list[Reads]) -> list[Reads]:
    """A choice by what is known reads only what was chosen."""
    known, shape = interpreter.known(eqn.invars[0]), eqn.outvars[0].aval.shape
    full = spread(union(ins), shape)
    if known is None:
        return [full]
    chosen, trusted = (np.broadcast_to(part, shape) for part in known)
    cases, sets = stack(ins[1:], [shape] * len(ins[1:]))
    return [mix(trusted, ReadSets(np.choose(chosen.astype(int), cases, mode="clip"), sets), full)]


@rule(jax.lax.mul_p)
def _multiply(interpreter: Any, eqn: Any, ins: list[Reads]) -> list[Reads]:
    """What is multiplied by an exact zero is not read."""
    shape = eqn.outvars[0].aval.shape
    result = spread(union(ins), shape)
    for zero in (np.broadcast_to(interpreter.zeros(atom), shape) for atom in eqn.invars):
        result = mix(zero, None, result) if zero.any() else result
    return [result]


def on_numbers(eqn: Any, ins: list[Reads], others: Sequence[Any] = ()) -> list[Reads]:
    """Run a move of data among arrays on the numbers of their sets; `others` are its last inputs, which are not moved."""
    ids, sets = stack(ins, [atom.aval.shape for atom in eqn.invars[: len(ins)]])
    if eqn.primitive.name == "concatenate":  # common, and needs no compiler
        return [ReadSets(NUMPY["concatenate"](eqn.params, *ids), sets)]
    typed = [jnp.asarray(o, atom.aval.dtype) for o, atom in zip(others, eqn.invars[len(ins) :], strict=True)]
    made = bind(eqn, [*(jnp.asarray(i, jnp.int32) for i in ids), *typed])
    return [ReadSets(np.asarray(m), sets) for m in made]


@rule(*named(["pure_callback"]))
def _call_the_host(interpreter: Any, eqn: Any, ins: list[Reads]) -> list[Reads]:
    """A function on the host reads all that goes in, unless it is one that knows better."""
    dependence = getattr(getattr(eqn.params["callback"], "callback_func", None), "dependence", None)
    if dependence is None:
        return interpreter.everything(eqn, ins, "a function on the host; bbvi.opaque finds out what it reads")
    ids, sets = stack(ins, [atom.aval.shape for atom in eqn.invars])
    flat = np.concatenate([part.ravel() for part in ids])
    found: list[Reads] = []
    for pairs, variable in zip(dependence, eqn.outvars, strict=True):
        rows = np.repeat(np.arange(pairs.shape[0]), np.diff(pairs.indptr))
        found.append(merge(ReadSets(flat[pairs.indices], sets), rows, variable.aval.shape))
    return found
