"""Section 3.1 for branches and loops: what each time step of a `lax.scan` reads, whatever the number of steps.

The body is interpreted once for all time steps, with time as a leading axis. What the carry reads at each step is
the least solution of "the carry at t is what the body makes of the carry at t - 1". States that are handed on for
a few steps are found by iteration; a true recurrence reads all of its past; any guess that the body does not
enlarge is sound.
"""

from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from bbvi.blankets.jaxpr.primitives import scan_sizes
from bbvi.blankets.jaxpr.propagate import reached_through_carry
from bbvi.blankets.jaxpr.run import run
from bbvi.blankets.read_sets import Reads, ReadSets, accumulate, covers, everything, reduce, stack, union
from bbvi.blankets.rules import rule

_ITERATIONS = 4
_MOST_PLACES = 12


@rule(jax.lax.cond_p)
def _cond(interpreter: Any, eqn: Any, ins: list[Reads]) -> list[Reads]:
    """A choice reads what any branch reads, and what it is chosen by."""
    branches, known = eqn.params["branches"], interpreter.known(eqn.invars[0])
    if known is not None:
        chosen = branches[int(np.clip(known[0], 0, len(branches) - 1))]
        return interpreter.nested(chosen, eqn.invars[1:], ins[1:])
    found = [interpreter.nested(branch, eqn.invars[1:], ins[1:]) for branch in branches]
    return [union([*parts, ins[0]]) for parts in zip(*found, strict=True)]


@rule(jax.lax.scan_p)
def _scan(interpreter: Any, eqn: Any, ins: list[Reads]) -> list[Reads]:
    """The final carry, then the stacked results."""
    params = eqn.params
    length, body = params["length"], params["jaxpr"]
    num_consts, num_carry = scan_sizes(eqn)
    consts, init, xs = ins[:num_consts], ins[num_consts : num_consts + num_carry], ins[num_consts + num_carry :]
    if length == 0:
        return [*init, *[None] * (len(eqn.outvars) - num_carry)]
    xs = [_flip(part) for part in xs] if params["reverse"] else xs
    batched = _over_time(body, num_consts, length)
    values = _values(interpreter, eqn)
    shapes = [v.aval.shape for v in eqn.outvars[:num_carry]]

    def read(carry: list[Reads]) -> list[Reads]:
        return interpreter.nested_with(batched, [*consts, *carry, *xs], values)

    def step(carry: list[Reads]) -> list[Reads]:
        made = read(carry)[:num_carry]
        return [_shifted(i, m, shape, length) for i, m, shape in zip(init, made, shapes, strict=True)]

    outs = read(_solve(step, init, shapes, length))
    final = [None if out is None else ReadSets(out.ids[-1], out.sets) for out in outs[:num_carry]]
    stacked = [_flip(out) for out in outs[num_carry:]] if params["reverse"] else outs[num_carry:]
    return [*final, *stacked]


def _solve(step: Any, init: list[Reads], shapes: list[tuple[int, ...]], length: int) -> list[Reads]:
    """What the carry reads at the beginning of each step."""
    carry: list[Reads] = [_shifted(i, None, shape, length) for i, shape in zip(init, shapes, strict=True)]
    # a delay line hands a state on from one place of the carry to the next
    places = sum(int(np.prod(shape)) for shape in shapes)
    for _ in range(max(_ITERATIONS, min(places, _MOST_PLACES) + 2)):
        made = step(carry)
        if all(covers(c, m) for c, m in zip(carry, made, strict=True)):
            return carry
        carry = [union([c, m]) for c, m in zip(carry, made, strict=True)]
    for widen in (_past_of_each, _past_of_all):
        guess = [widen(c) for c in carry]
        if all(covers(g, m) for g, m in zip(guess, step(guess), strict=True)):
            return guess
    while True:
        guess = [everything(carry, (length, *shape)) for shape in shapes]
        made = step(guess)
        if all(covers(g, m) for g, m in zip(guess, made, strict=True)):
            return guess
        carry = [*guess, *made]


def _past_of_each(part: Reads) -> Reads:
    """Each element reads what it read at any earlier step."""
    return accumulate(part, 0)


def _past_of_all(part: Reads) -> Reads:
    """Each element reads what any element read at any earlier step."""
    if part is None:
        return None
    past = accumulate(reduce(part, tuple(range(1, part.ids.ndim))), 0)
    assert past is not None
    ids = past.ids.reshape([-1] + [1] * (part.ids.ndim - 1))
    return ReadSets(np.broadcast_to(ids, part.ids.shape), past.sets)


def _shifted(init: Reads, made: Reads, shape: tuple[int, ...], length: int) -> Reads:
    """The carry at the beginning of each step: the first, then what the steps made."""
    if init is None and made is None:
        return None
    (first, later), sets = stack([init, made], [shape, (length, *shape)])
    return ReadSets(np.concatenate([first[None], later[:-1]]), sets)


def _flip(part: Reads) -> Reads:
    return None if part is None else ReadSets(part.ids[::-1], part.sets)


def _over_time(body: ClosedJaxpr, num_consts: int, length: int) -> ClosedJaxpr:
    """The body for all steps at once."""
    variables = body.jaxpr.invars
    axes = [None] * num_consts + [0] * (len(variables) - num_consts)
    inputs = [
        jax.ShapeDtypeStruct(v.aval.shape if axis is None else (length, *v.aval.shape), v.aval.dtype)
        for v, axis in zip(variables, axes, strict=True)
    ]
    function = jaxpr_as_fun(body)
    if all(axis is None for axis in axes):
        return jax.make_jaxpr(jax.vmap(lambda: function(), axis_size=length))()
    return jax.make_jaxpr(jax.vmap(function, in_axes=axes, out_axes=0, axis_size=length))(*inputs)


def _values(interpreter: Any, eqn: Any) -> list[Any]:
    """What is known of the body's inputs over all steps, such as a counter of the steps."""
    params = eqn.params
    num_consts, num_carry = scan_sizes(eqn)
    values = [interpreter.value_of(atom) for atom in eqn.invars]
    clean = [not yes for yes in reached_through_carry(eqn, [value is None for value in values])]
    kept = [k for k in range(num_carry) if clean[num_consts + k]]
    stacked = list(values)
    for k in range(num_carry):
        stacked[num_consts + k] = None
    if kept:
        for k, value in zip(kept, _run_clean(eqn, values, clean, kept), strict=True):
            stacked[num_consts + k] = value
    if params["reverse"]:
        for i in range(num_consts + num_carry, len(stacked)):
            stacked[i] = None if stacked[i] is None else np.asarray(stacked[i])[::-1]
    return stacked


def _run_clean(eqn: Any, values: list[Any], clean: list[bool], kept: list[int]) -> list[Any]:
    """The carries that read no latent, before each step, by running the loop on them alone."""
    params = eqn.params
    (num_consts, num_carry), closed = scan_sizes(eqn), params["jaxpr"]
    outputs = [closed.jaxpr.outvars[k] for k in kept]
    first_x = num_consts + num_carry

    consts = [values[i] if clean[i] else None for i in range(num_consts)]
    xs = {i: values[i] for i in range(first_x, len(values)) if clean[i]}

    def step(carry: list[Any], x: dict[int, Any]) -> tuple[Any, Any]:
        held: list[Any] = [None] * num_carry
        for k, value in zip(kept, carry, strict=True):
            held[k] = value
        rest = [x.get(i) for i in range(first_x, len(values))]
        return run(closed, [*consts, *held, *rest], outputs), carry

    start = [jax.numpy.asarray(values[num_consts + k]) for k in kept]
    start = [s.astype(closed.jaxpr.invars[num_consts + k].aval.dtype) for s, k in zip(start, kept, strict=True)]
    _, stacked = jax.lax.scan(step, start, xs, length=params["length"], reverse=params["reverse"])
    return [np.asarray(s)[::-1] if params["reverse"] else np.asarray(s) for s in stacked]
