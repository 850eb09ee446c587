"""Now and then take the globals' q as the frame in which locals depend on them, between two calls of the compiled loop.

q stays what it is: the locals' lambda is written in the new frame. In a frame far from q(beta) the parameters of a regression on the globals
say nearly the same, and no stopping rule could tell how far each is from its optimum. The rules' averages begin anew.
"""

import jax
import jax.numpy as jnp

from bbvi.families import Conditional, Framed
from bbvi.fitting.loop import Loop
from bbvi.fitting.probe import Params
from bbvi.fitting.state import State
from bbvi.numerics.xla import for_one_run, program

#: the step after which there is a new frame first, and how many times as many steps there are until the next one
_FIRST, _TIMES = 50, 4


def steps_left(loop: Loop, step: int) -> int | None:
    """Count the steps until the next frame; None where there are none."""
    if loop.analysis.problem.leading is None or not loop.analysis.fit_globals:
        return None
    at = _FIRST
    while at <= step:
        at *= _TIMES
    return at - step


def in_new_frame(loop: Loop, state: State) -> State:
    """Return the state with a new frame if this is a step after which there is one."""
    step, at = int(state.step), _FIRST
    while at < step:
        at *= _TIMES
    if steps_left(loop, step) is None or at != step or int(state.fired) >= 0 or int(state.broken) >= 0:
        return state
    if (turn := loop.programs.get("frame")) is None:
        turn = loop.programs["frame"] = program(lambda params: turned(loop, params), **for_one_run())
    kept = ("optimizer", "draws", "step", "claimed", "share", "setbacks", "waits")
    fresh = loop.init(turn(state.params))
    return fresh._replace(**{name: jax.tree.map(jnp.copy, getattr(state, name)) for name in kept})


def turned(loop: Loop, params: Params) -> Params:
    """Write the same q in the frame of its globals' block."""
    problem = loop.analysis.problem
    name = problem.leading
    assert name is not None
    family, own = problem.globals[name].family, params["globals"][name]
    assert isinstance(family, Framed)
    shift, matrix = family.turn(own)

    def of_local(name: str, leaf: dict[str, jax.Array]) -> dict[str, jax.Array]:
        family = problem.locals[name].family
        return family.turned(leaf, shift, matrix) if isinstance(family, Conditional) else leaf

    of_globals = params["globals"] | {name: family.reframed(own)}
    return {**params, "globals": of_globals, "locals": {n: of_local(n, leaf) for n, leaf in params["locals"].items()}}
