"""Section 3.1: undo the sums that lead to log p, so that it falls apart into its terms.

From each output a walk goes back through the sums that lead to it, and into those of
loops, branches and dot products; where it cannot go on stands an array of terms. Their total, over all elements
and arrays, is the value of the function.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Literal
from jaxtyping import Array

from bbvi.blankets.jaxpr.inline import Rewrite, retrace
from bbvi.blankets.jaxpr.lines import line_of
from bbvi.blankets.jaxpr.run import run
from bbvi.blankets.opening import open_cond, open_dot, open_scan
from bbvi.blankets.trace import Trace
from bbvi.blankets.walk import Term, Walk, can_open_dot, is_real

_MOST_PASSES = 50
_CONSTANT = ".constant"


class SplitTerms:
    """A traced part of log p as arrays of terms, `terms(*latents, constants) -> {name: array}`.

    `known` are the arrays of the constants, if their values may decide which branch of a choice is taken.
    """

    def __init__(self, trace: Trace, known: list[Any] | None = None):
        num_latents = len(trace.names)

        def value(closed: ClosedJaxpr, atom: Any) -> Any:
            return None if known is None else run(closed, [*[None] * num_latents, *known], [atom])[0]

        closed, walk, found = _taken_apart(trace.inlined, num_latents, value)
        atoms: list[Any] = []
        self._recipes: list[tuple[str, list[Term], int]] = []
        self._outputs: dict[str, str] = {}
        self._constants: set[str] = set()
        #: where in the user's function each array of terms is computed
        self.lines: dict[str, str] = {}
        makers = {v: eqn for eqn in closed.jaxpr.eqns for v in eqn.outvars}
        for output, pieces in zip(trace.outputs, found, strict=True):
            for name, members in _named(output, pieces, walk.is_read).items():
                self._outputs[name] = output
                if not any(walk.is_read(atom) for piece in members for atom in piece.atoms):
                    self._constants.add(name)
                self._recipes.append((name, members, len(atoms)))
                atoms += [atom for piece in members for atom in piece.atoms]
                made = [makers[a] for a in members[0].atoms if not isinstance(a, Literal) and a in makers]
                self.lines[name] = line_of(made[0].source_info) if made else ""
        self._trace, self._closed, self._atoms = trace, closed, atoms
        #: the arrays of terms in the order in which they are written
        self.names = [name for output in trace.written for name, _, _ in self._recipes if self._outputs[name] == output]

    def __call__(self, *arguments: Any) -> dict[str, Array]:
        *latents, constants = arguments
        values = run(self._closed, self._trace.inputs(tuple(latents), constants), self._atoms)
        out = {}
        for name, members, slot in self._recipes:
            parts = []
            for piece in members:
                parts.append(piece.compute(values[slot : slot + len(piece.atoms)]))
                slot += len(piece.atoms)
            out[name] = jnp.sum(jnp.stack([jnp.sum(p) for p in parts])) if name in self._constants else parts[0]
        return out


def _taken_apart(
    closed: ClosedJaxpr, num_latents: int, value: Callable[[ClosedJaxpr, Any], Any]
) -> tuple[ClosedJaxpr, Walk, list[list[Term]]]:
    """The trace, with the sums of loops and products brought to light, and the pieces of each output."""
    for last in [*[False] * _MOST_PASSES, True]:
        walk = Walk(closed.jaxpr, closed.jaxpr.invars[:num_latents])
        found = [walk.pieces(output) for output in closed.jaxpr.outvars]
        rewrites: dict[Any, Rewrite] = {}
        for atom in [piece.atom for pieces in found for piece in pieces]:
            eqn = None if isinstance(atom, Literal) else walk.makers.get(atom)
            if eqn is None:
                continue
            if eqn.primitive.name == "dot_general" and can_open_dot(eqn, walk.is_read):
                rewrites[atom] = open_dot
            elif eqn.primitive.name == "scan" and eqn.outvars[0] not in rewrites:
                rewrite = open_scan(eqn, eqn.outvars.index(atom))
                if rewrite is not None:
                    rewrites[eqn.outvars[0]] = rewrite
            elif eqn.primitive.name == "cond" and all(is_real(v.aval) for v in eqn.outvars):
                chosen = None if walk.is_read(eqn.invars[0]) else value(closed, eqn.invars[0])
                if chosen is not None or atom.aval.shape == ():
                    rewrites[eqn.outvars[0]] = open_cond(None if chosen is None else int(chosen))
        if not rewrites or last:
            break
        closed = retrace(retrace(closed, rewrites), {})
    return closed, walk, found


def _named(output: str, pieces: list[Term], is_read: Callable[[Any], bool]) -> dict[str, list[Term]]:
    """Each array of terms by its name; what reads no latent at all goes into one constant."""
    read = [piece for piece in pieces if any(is_read(atom) for atom in piece.atoms)]
    constant = [piece for piece in pieces if not any(is_read(atom) for atom in piece.atoms)]
    names = [output] if len(read) == 1 else [f"{output}.{i}" for i in range(len(read))]
    return {name: [piece] for name, piece in zip(names, read, strict=True)} | (
        {output + _CONSTANT: constant} if constant else {}
    )
