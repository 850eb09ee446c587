"""Forward propagation over a trace: from what is known of a function's inputs to what follows for its outputs.

What is known of a variable is a *cell*: a member of a lattice, such as the set of latents it reads. Cells are ordered by
how much they admit, and the join of two cells is the least that admits what either does. A rule takes the cells of an
equation's inputs and returns those of its outputs. It must be sound: where it does not know, it returns more than is
true, never less. It must also be monotone, so that a loop, whose carry is joined with what each step makes of it until
nothing changes, comes to an end.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from jax.extend.core import Jaxpr, Literal

from bbvi.blankets.jaxpr.primitives import scan_parts
from bbvi.blankets.jaxpr.run import reached

Cell = TypeVar("Cell")


def propagate(
    jaxpr: Jaxpr, cells: dict[Any, Cell], of_literal: Callable[[Any], Cell], rule: Callable[..., list[Cell]]
) -> list[Cell]:
    """Find the cells of a trace's outputs; `cells` has those of its inputs and constants, and gets those of all variables."""

    def of(atom: Any) -> Cell:
        return of_literal(atom.val) if isinstance(atom, Literal) else cells[atom]

    for eqn in jaxpr.eqns:
        cells.update(zip(eqn.outvars, rule(eqn, [of(atom) for atom in eqn.invars]), strict=True))
    return [of(atom) for atom in jaxpr.outvars]


def through_carry(
    eqn: Any, inputs: Sequence[Cell], body: Callable[[list[Cell]], list[Cell]], join: Callable[[Cell, Cell], Cell]
) -> tuple[list[Cell], list[Cell]]:
    """Find cells of a loop's inputs that hold at every step, the carry joined with what each step makes; and its outputs'."""
    consts, carry, xs = scan_parts(eqn, inputs)
    carry, made = widened(carry, lambda carry: body([*consts, *carry, *xs]), join)
    return [*consts, *carry, *xs], made


def widened(
    carry: list[Cell], step: Callable[[list[Cell]], list[Cell]], join: Callable[[Cell, Cell], Cell]
) -> tuple[list[Cell], list[Cell]]:
    """Find cells of what is carried that hold before every step, and what a step makes of them."""
    while True:
        made = step(carry)
        wider = [join(old, new) for old, new in zip(carry, made, strict=False)]
        if wider == carry:
            return carry, made
        carry = wider


def reached_through_carry(eqn: Any, marked: Sequence[bool]) -> list[bool]:
    """Mark the inputs of a loop's body that the marked ones reach at some step, themselves among them."""
    body = eqn.params["jaxpr"].jaxpr

    def step(cells: list[bool]) -> list[bool]:
        found = reached(body, [v for v, yes in zip(body.invars, cells, strict=True) if yes])
        return [not isinstance(out, Literal) and out in found for out in body.outvars]

    return through_carry(eqn, marked, step, lambda old, new: old or new)[0]
