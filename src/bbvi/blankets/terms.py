"""Section 3.1: undo the sums that lead to log p, so that it falls apart into its terms.

From each output a walk goes back through the sums that lead to it, and into those of
loops, branches and dot products; where it cannot go on stands an array of terms. Their total, over all elements
and arrays, is the value of the function.
"""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr
from jaxtyping import Array

from bbvi.blankets.jaxpr.inline import Rewrite, retrace
from bbvi.blankets.jaxpr.integers import constant_range
from bbvi.blankets.jaxpr.intervals import Interval
from bbvi.blankets.jaxpr.lines import line_of
from bbvi.blankets.jaxpr.run import run
from bbvi.blankets.opening import open_cond, open_dot, open_scan
from bbvi.blankets.trace import Trace
from bbvi.blankets.walk import Term, Walk, can_open_dot, computed

_MOST_PASSES = 50
_CONSTANT = ".constant"


class SplitTerms:
    """A traced part of log p as arrays of terms, `terms(*latents, constants) -> {name: array}`.

    `known` are the arrays of the constants, if their values may decide which branch of a choice is taken; `ranges` those of
    latents that are integers, if they have bounds.
    """

    def __init__(self, trace: Trace, known: list[Any] | None = None, ranges: Mapping[str, Interval] | None = None):
        num_latents = len(trace.names)
        inputs = [(ranges or {}).get(name) for name in trace.names] + [constant_range(array) for array in known or []]

        def value(closed: ClosedJaxpr, atom: Any) -> Any:
            return None if known is None else run(closed, [*[None] * num_latents, *known], [atom])[0]

        closed, walk, found = _taken_apart(trace.inlined, num_latents, value, inputs)
        named = {output: _named(output, pieces, walk) for output, pieces in zip(trace.outputs, found, strict=True)}
        #: the arrays of terms in the order in which they are written
        self.names = [name for output in trace.written for name in named[output]]
        self._members = {name: members for of_output in named.values() for name, members in of_output.items()}
        self._constants = [name for name, members in self._members.items() if not walk.enters(members[0])]
        #: where in the user's function each array of terms is computed
        self.lines = {name: _line(members[0], walk) for name, members in self._members.items()}
        #: the lines of sums of integers that stay whole
        self.may_wrap = list(walk.may_wrap)
        self._trace, self._closed = trace, closed
        self._atoms = [atom for members in self._members.values() for piece in members for atom in piece.atoms]

    def _parts(self, arguments: tuple[Any, ...]) -> dict[str, list[Any]]:
        *latents, constants = arguments
        values = iter(run(self._closed, self._trace.inputs(tuple(latents), constants), self._atoms))
        return {name: computed(members, values) for name, members in self._members.items()}

    def size_of_constants(self, *arguments: Any) -> float:
        """Add up the sizes of what no latent enters: the function may round them before they cancel."""
        parts = self._parts(arguments)
        return float(sum(jnp.abs(jnp.sum(part)) for name in self._constants for part in parts[name]))

    def __call__(self, *arguments: Any) -> dict[str, Array]:
        parts = self._parts(arguments)
        totals = {name: jnp.sum(jnp.stack([jnp.sum(p) for p in parts[name]])) for name in self._constants}
        return {name: arrays[0] for name, arrays in parts.items()} | totals


def _taken_apart(
    closed: ClosedJaxpr, num_latents: int, value: Callable[[ClosedJaxpr, Any], Any], inputs: list[Interval | None]
) -> tuple[ClosedJaxpr, Walk, list[list[Term]]]:
    """The trace, with the sums of loops and products brought to light, and the pieces of each output."""
    for last in [*[False] * _MOST_PASSES, True]:
        constants = zip(closed.jaxpr.constvars, map(constant_range, closed.consts), strict=True)
        known = itertools.chain(zip(closed.jaxpr.invars, inputs, strict=False), constants)
        ranges = {v: range_ for v, range_ in known if range_ is not None}
        walk = Walk(closed.jaxpr, closed.jaxpr.invars[:num_latents], ranges)
        found = [walk.pieces(output) for output in closed.jaxpr.outvars]
        rewrites: dict[Any, Rewrite] = {}
        for atom in [piece.atom for pieces in found for piece in pieces]:
            if (eqn := walk.maker(atom)) is None:
                continue
            if eqn.primitive.name == "dot_general" and can_open_dot(eqn, walk.is_read):
                rewrites[atom] = open_dot
            elif eqn.primitive.name == "scan" and eqn.outvars[0] not in rewrites:
                if (rewrite := open_scan(eqn, eqn.outvars.index(atom))) is not None:
                    rewrites[eqn.outvars[0]] = rewrite
            elif eqn.primitive.name == "cond" and all(jnp.issubdtype(v.aval.dtype, jnp.floating) for v in eqn.outvars):
                chosen = None if walk.is_read(eqn.invars[0]) else value(closed, eqn.invars[0])
                if chosen is not None or atom.aval.shape == ():
                    rewrites[eqn.outvars[0]] = open_cond(None if chosen is None else int(chosen))
        if not rewrites or last:
            break
        closed = retrace(retrace(closed, rewrites), {})
    return closed, walk, found


def _named(output: str, pieces: list[Term], walk: Walk) -> dict[str, list[Term]]:
    """Each array of terms by its name; what reads no latent at all goes into one constant."""
    read = [piece for piece in pieces if walk.enters(piece)]
    constant = [piece for piece in pieces if not walk.enters(piece)]
    names = [output] if len(read) == 1 else [f"{output}.{i}" for i in range(len(read))]
    named = {name: [piece] for name, piece in zip(names, read, strict=True)}
    return named | {output + _CONSTANT: constant} if constant else named


def _line(piece: Term, walk: Walk) -> str:
    """Name the line where the first of what an array of terms is made of is computed."""
    made = [eqn for eqn in map(walk.maker, piece.atoms) if eqn is not None]
    return line_of(made[0].source_info) if made else ""
