"""Section 3.1 for branches and loops: what each time step of a `lax.scan` reads, whatever the number of steps.

The body is interpreted once for all time steps, with time as a leading axis. What the carry reads at each step is
the least solution of "the carry at t is what the body makes of the carry at t - 1". States that are handed on for
a few steps are found by iteration; a true recurrence reads all of its past; any guess that the body does not
enlarge is sound.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from bbvi.blankets.jaxpr.primitives import scan_parts, scan_sizes
from bbvi.blankets.jaxpr.propagate import reached_through_carry
from bbvi.blankets.jaxpr.run import run, scan_like
from bbvi.blankets.read_sets import Reads, ReadSets, accumulate, covers, everything, moved, reduce, stack, union
from bbvi.blankets.rules import rule

_ITERATIONS = 4
_MOST_PLACES = 12


@rule(jax.lax.cond_p)
def _cond(interpreter: Any, eqn: Any, ins: list[Reads]) -> list[Reads]:
    """A choice reads what any branch reads, and what it is chosen by."""
    branches, known = eqn.params["branches"], interpreter.known(eqn.invars[0])
    if known is not None:
        branches = [branches[int(np.clip(known[0], 0, len(branches) - 1))]]
    found = [interpreter.nested(branch, eqn.invars[1:], ins[1:]) for branch in branches]
    return [union([*parts, ins[0]]) for parts in zip(*found, strict=True)]


@rule(jax.lax.scan_p)
def _scan(interpreter: Any, eqn: Any, ins: list[Reads]) -> list[Reads]:
    """The final carry, then the stacked results."""
    params = eqn.params
    length, body = params["length"], params["jaxpr"]
    consts, init, xs = scan_parts(eqn, ins)
    num_carry = len(init)
    if length == 0:
        return [*init, *[None] * (len(eqn.outvars) - num_carry)]
    # a loop that goes backwards is one that goes forwards over what is turned round
    turn = slice(None, None, -1 if params["reverse"] else 1)
    xs = [moved(part, lambda ids: ids[turn]) for part in xs]
    batched = _over_time(body, len(consts), length)
    values = _values(interpreter, eqn)
    shapes = [v.aval.shape for v in eqn.outvars[:num_carry]]

    def read(carry: list[Reads]) -> list[Reads]:
        return interpreter.fresh().run(batched, [*consts, *carry, *xs], values)

    def step(carry: list[Reads]) -> list[Reads]:
        made = read(carry)[:num_carry]
        return [_shifted(i, m, shape, length) for i, m, shape in zip(init, made, shapes, strict=True)]

    outs = read(_solve(step, init, shapes, length))
    final = [moved(out, lambda ids: ids[-1]) for out in outs[:num_carry]]
    return [*final, *(moved(out, lambda ids: ids[turn]) for out in outs[num_carry:])]


def _solve(step: Any, init: list[Reads], shapes: list[tuple[int, ...]], length: int) -> list[Reads]:
    """What the carry reads at the beginning of each step."""
    carry: list[Reads] = [_shifted(i, None, shape, length) for i, shape in zip(init, shapes, strict=True)]
    # a delay line hands a state on from one place of the carry to the next
    places = sum(int(np.prod(shape)) for shape in shapes)
    for _ in range(max(_ITERATIONS, min(places, _MOST_PLACES) + 2)):
        made = step(carry)
        if all(map(covers, carry, made)):
            return carry
        carry = [union([c, m]) for c, m in zip(carry, made, strict=True)]
    for guess in ([accumulate(c, 0) for c in carry], [_past_of_all(c) for c in carry]):
        if all(map(covers, guess, step(guess))):
            return guess
    while True:
        guess = [everything(carry, (length, *shape)) for shape in shapes]
        made = step(guess)
        if all(map(covers, guess, made)):
            return guess
        carry = [*guess, *made]


def _past_of_all(part: Reads) -> Reads:
    """Each element reads what any element read at any earlier step."""
    if part is None:
        return None
    shape = part.ids.shape
    past = accumulate(reduce(part, range(1, len(shape))), 0)
    return moved(past, lambda ids: np.broadcast_to(ids.reshape(-1, *[1] * (len(shape) - 1)), shape))


def _shifted(init: Reads, made: Reads, shape: tuple[int, ...], length: int) -> Reads:
    """The carry at the beginning of each step: the first, then what the steps made."""
    if init is None and made is None:
        return None
    (first, later), sets = stack([init, made], [shape, (length, *shape)])
    return ReadSets(np.concatenate([first[None], later[:-1]]), sets)


def _over_time(body: ClosedJaxpr, num_consts: int, length: int) -> ClosedJaxpr:
    """The body for all steps at once."""
    variables = body.jaxpr.invars
    axes = [None] * num_consts + [0] * (len(variables) - num_consts)
    over_time = zip(variables, [()] * num_consts + [(length,)] * (len(variables) - num_consts), strict=True)
    inputs = [jax.ShapeDtypeStruct((*time, *v.aval.shape), v.aval.dtype) for v, time in over_time]
    # the number of the step is there for loops that carry nothing and go over nothing
    at_step = jax.vmap(lambda number, *given: jaxpr_as_fun(body)(*given), in_axes=(0, *axes))
    return jax.make_jaxpr(lambda *given: at_step(np.arange(length), *given))(*inputs)


def _values(interpreter: Any, eqn: Any) -> list[Any]:
    """What is known of the body's inputs over all steps, such as a counter of the steps."""
    body = eqn.params["jaxpr"]
    values = [interpreter.value_of(atom) for atom in eqn.invars]
    reached = reached_through_carry(eqn, [value is None for value in values])
    known = {i: jnp.asarray(values[i], v.aval.dtype) for i, v in enumerate(body.jaxpr.invars) if not reached[i]}
    consts, carry, xs = ({i: known[i] for i in part if i in known} for part in scan_parts(eqn, range(len(values))))
    outputs = [body.jaxpr.outvars[i - scan_sizes(eqn)[0]] for i in carry]

    def step(carry: dict[int, Any], x: dict[int, Any]) -> tuple[Any, Any]:
        """Run the part of the loop that reads no latent; the carry is that before each step."""
        made = run(body, [(consts | carry | x).get(i) for i in range(len(values))], outputs)
        return dict(zip(carry, made, strict=True)), carry

    over_time = (scan_like(eqn, step, carry, xs)[1] if carry else {}) | xs
    if eqn.params["reverse"]:
        over_time = {i: value[::-1] for i, value in over_time.items()}
    return [(consts | over_time).get(i) for i in range(len(values))]
