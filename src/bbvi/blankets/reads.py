"""Section 3.1: which latent elements each element of each term reads, by interpreting the trace abstractly.

Every variable of the trace is mapped to the sets of latent elements that its elements read, by the rules of `rules/`. A
primitive without a rule reads all that its inputs read: that costs variance, never bias.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from bbvi.blankets.jaxpr.lines import line_of
from bbvi.blankets.jaxpr.propagate import propagate
from bbvi.blankets.jaxpr.run import called
from bbvi.blankets.jaxpr.values import Values
from bbvi.blankets.read_sets import Reads, empty, everything, own, spread
from bbvi.blankets.rules import RULES, arrays, indexing, linear, loops

#: the modules whose rules are used here: importing them filled the table
BUILT_IN = (arrays, indexing, linear, loops)
_REMEDIES = {
    "sort": "sorting reads every element",
    "while": "a while loop is not followed; lax.scan or fori_loop with a fixed number of steps is",
    "cholesky": "a Cholesky factor reads its whole matrix",
    "triangular_solve": "a solve reads its whole system",
    "shard_map": "a function over devices reads all that goes in",
    "reduce": "lax.reduce with a function of one's own; jnp.sum, max, logsumexp are followed",
}


class Lost(NamedTuple):
    """Where precision was lost: the line of the user's function, and why."""

    line: str
    why: str


class Found(NamedTuple):
    """What the outputs of a function read, the look-ups that only the data can resolve, and what was lost.

    The sets' columns are all latent elements, then one for each element that a look-up yields.
    """

    outputs: list[Reads]
    look_ups: list[indexing.LookUp]
    lost: list[Lost]
    closed: ClosedJaxpr
    shapes: Any


def reads(function: Callable[..., Any], latents: Any, constants: Any = (), *, known: bool = False) -> Found:
    """Find for each leaf of `function(latents, constants)` the latent elements that each of its elements reads.

    Latent elements are numbered over the leaves of `latents` in order, row-major. With `known` the values of
    the constants may be used, for indices and masks among them; without, only their shapes.
    """
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(latents, constants)
    leaves, others = jax.tree.leaves(latents), jax.tree.leaves(constants)
    sizes = [int(np.prod(leaf.shape)) for leaf in leaves]
    offsets = np.cumsum([0, *sizes])
    inputs: list[Reads] = [own(leaf.shape, int(at), sum(sizes)) for leaf, at in zip(leaves, offsets, strict=False)]
    look_ups = None if known else indexing.LookUps(sizes)
    interpreter = Interpreter(look_ups)
    values = [*map(_ordinary, leaves), *(others if known else [None] * len(others))]
    outputs = interpreter.run(closed, [*inputs, *[None] * len(others)], values)
    return Found(outputs, [] if look_ups is None else look_ups.found, list(interpreter.lost), closed, shapes)


def _ordinary(leaf: Any) -> np.ndarray:
    """A value on most supports, to work out what does not depend on it."""
    return np.full(leaf.shape, 0.5 if np.issubdtype(leaf.dtype, np.floating) else 0, leaf.dtype)


def _fitting(eqn: Any, part: Reads, shape: tuple[int, ...]) -> Reads:
    try:
        return spread(part, shape)
    except ValueError:
        found = None if part is None else part.ids.shape
        raise ValueError(
            f"the rule for {eqn.primitive.name!r} returned reads of shape {found} for a result of {shape}"
        ) from None


class Interpreter:
    """One trace under interpretation: what each variable reads and, where it can be had, its value."""

    def __init__(self, look_ups: indexing.LookUps | None = None, lost: dict[Lost, None] | None = None):
        self.look_ups = look_ups
        self.lost: dict[Lost, None] = {} if lost is None else lost
        self._reads: dict[Any, Reads] = {}
        self._value = Values(lambda variable: self.reads(variable) is not None)

    def run(self, closed: ClosedJaxpr, inputs: list[Reads], values: list[Any]) -> list[Reads]:
        """Find what the outputs read, from what the inputs read and their values, None where these are not known."""
        jaxpr = closed.jaxpr
        self._value.know([*jaxpr.constvars, *jaxpr.invars], [*closed.consts, *values])
        self._reads.update(dict.fromkeys(jaxpr.constvars) | dict(zip(jaxpr.invars, inputs, strict=True)))
        return propagate(jaxpr, self._reads, lambda literal: None, self._equation)

    def _equation(self, eqn: Any, ins: list[Reads]) -> list[Reads]:
        self._value.made_by(eqn)
        if not eqn.outvars or all(part is None for part in ins):  # a side effect, or nothing to follow
            return [None] * len(eqn.outvars)
        rule, inner = RULES.get(eqn.primitive), called(eqn)
        if rule is not None:
            made = rule(self, eqn, ins)
        elif inner is not None:
            made = self.nested(inner, eqn.invars, ins, self.look_ups)
        else:
            made = self.everything(eqn, ins, _REMEDIES.get(eqn.primitive.name, f"no rule for {eqn.primitive.name!r}"))
        return [_fitting(eqn, part, v.aval.shape) for part, v in zip(made, eqn.outvars, strict=True)]

    def reads(self, atom: Any) -> Reads:
        """What a variable of the trace reads."""
        return None if isinstance(atom, Literal) else self._reads.get(atom)

    def known(self, atom: Any) -> tuple[np.ndarray, np.ndarray] | None:
        """The value of those elements that read no latent, and which these are; None if there are none."""
        trusted = np.broadcast_to(empty(self.reads(atom)), atom.aval.shape)
        if not trusted.any():
            return None
        value = self._value(atom)
        return None if value is None else (np.asarray(value), trusted)

    def zeros(self, atom: Any) -> np.ndarray:
        """Mark the elements that are known to be exactly zero."""
        known = self.known(atom)
        return np.zeros(atom.aval.shape, bool) if known is None else known[1] & (known[0] == 0)

    def value_of(self, atom: Any) -> Any:
        """The value of what reads no latent at all, if it is known."""
        return self._value(atom) if np.all(empty(self.reads(atom))) else None

    def everything(self, eqn: Any, ins: list[Reads], why: str) -> list[Reads]:
        """Give up: each result reads all that goes in; the user is told why."""
        self.lose(eqn, why)
        return [everything(ins, v.aval.shape) for v in eqn.outvars]

    def lose(self, eqn: Any, why: str) -> None:
        """Note that precision was lost here."""
        self.lost[Lost(line_of(eqn.source_info), why)] = None

    def nested(self, inner: ClosedJaxpr, atoms: Any, ins: list[Reads], look_ups: Any = None) -> list[Reads]:
        """Find what a trace inside reads, called with these variables."""
        values = [self._value(atom) if np.any(empty(r)) else None for atom, r in zip(atoms, ins, strict=True)]
        return Interpreter(look_ups, self.lost).run(inner, ins, values)

    def fresh(self) -> "Interpreter":
        """Return an interpreter for a trace inside, which notes here what is lost."""
        return Interpreter(lost=self.lost)
