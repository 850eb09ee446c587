"""Section 3.1: which latent elements each element of each factor reads, by interpreting the trace abstractly.

Every variable of the trace is mapped to the sets of latent elements that its elements read. A primitive without a
rule reads all that its inputs read: that costs variance, never bias. What is asked is value dependence:
comparisons, rounding and look-ups read their inputs, whatever their derivative.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from bbvi.blankets.jaxpr.lines import line_of
from bbvi.blankets.jaxpr.primitives import CUMULATIVE, ELEMENTWISE, REDUCTIONS
from bbvi.blankets.jaxpr.run import bind, called
from bbvi.blankets.read_sets import (
    Reads,
    ReadSets,
    accumulate,
    empty,
    everything,
    merge,
    mix,
    own,
    reduce,
    stack,
    union,
)
from bbvi.blankets.rules import indexing, linear
from bbvi.blankets.rules import loops as scans

_MOVES: dict[str, Callable[[np.ndarray, dict[str, Any]], np.ndarray]] = {
    "broadcast_in_dim": lambda ids, p: _broadcast_in_dim(ids, p["shape"], p["broadcast_dimensions"]),
    "reshape": lambda ids, p: ids.reshape(p["new_sizes"]),
    "transpose": lambda ids, p: ids.transpose(p["permutation"]),
    "squeeze": lambda ids, p: ids.squeeze(p["dimensions"]),
    "expand_dims": lambda ids, p: np.expand_dims(ids, p["dimensions"]),
    "tile": lambda ids, p: np.tile(ids, p["reps"]),
    "rev": lambda ids, p: np.flip(ids, p["dimensions"]),
    "slice": lambda ids, p: ids[
        tuple(
            slice(*s) for s in zip(p["start_indices"], p["limit_indices"], p["strides"] or [1] * ids.ndim, strict=True)
        )
    ],
}
_CALLBACKS = frozenset("pure_callback io_callback debug_callback".split())
_REMEDIES = {
    "sort": "sorting reads every element",
    "while": "a while loop is not followed; lax.scan or fori_loop with a fixed number of steps is",
    "cholesky": "a Cholesky factor reads its whole matrix",
    "triangular_solve": "a solve reads its whole system",
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
    """For each leaf of `function(latents, constants)`, the latent elements each of its elements reads.

    Latent elements are numbered over the leaves of `latents` in order, row-major. With `known` the values of
    the constants may be used, for indices and masks among them; without, only their shapes.
    """
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(latents, constants)
    leaves, others = jax.tree.leaves(latents), jax.tree.leaves(constants)
    sizes = [int(np.prod(leaf.shape)) for leaf in leaves]
    total, offset = sum(sizes), 0
    inputs: list[Reads] = []
    for leaf, size in zip(leaves, sizes, strict=True):
        inputs.append(own(leaf.shape, offset, total))
        offset += size
    look_ups = None if known else indexing.LookUps(sizes)
    scope = Scope(look_ups=look_ups)
    scope.know(closed.jaxpr.constvars, closed.consts)
    scope.know(closed.jaxpr.invars[: len(leaves)], [_ordinary(leaf) for leaf in leaves])
    if known:
        scope.know(closed.jaxpr.invars[len(leaves) :], others)
    outputs = scope.interpret(closed.jaxpr, inputs + [None] * len(others))
    return Found(outputs, [] if look_ups is None else look_ups.found, list(scope.lost), closed, shapes)


def _ordinary(leaf: Any) -> np.ndarray:
    """A value on most supports, to work out what does not depend on it."""
    return np.full(leaf.shape, 0.5 if np.issubdtype(leaf.dtype, np.floating) else 0, leaf.dtype)


class Scope:
    """One trace under interpretation: what each variable reads and, where it can be had, its value."""

    def __init__(self, look_ups: indexing.LookUps | None = None, lost: dict[Lost, None] | None = None):
        self.look_ups = look_ups
        self.lost: dict[Lost, None] = {} if lost is None else lost
        self._reads: dict[Any, Reads] = {}
        self._values: dict[Any, Any] = {}
        self._makers: dict[Any, Any] = {}

    def know(self, variables: Any, values: Any) -> None:
        self._values.update((v, value) for v, value in zip(variables, values, strict=True) if value is not None)

    def interpret(self, jaxpr: Jaxpr, inputs: list[Reads]) -> list[Reads]:
        self._reads.update(zip(jaxpr.invars, inputs, strict=True))
        for eqn in jaxpr.eqns:
            self._makers.update((v, eqn) for v in eqn.outvars)
            ins = [self.reads(atom) for atom in eqn.invars]
            outs = [None] * len(eqn.outvars) if all(r is None for r in ins) else self.apply(eqn, ins)
            self._reads.update(zip(eqn.outvars, outs, strict=True))
        return [self.reads(atom) for atom in jaxpr.outvars]

    def reads(self, atom: Any) -> Reads:
        return None if isinstance(atom, Literal) else self._reads.get(atom)

    def known(self, atom: Any) -> tuple[np.ndarray, np.ndarray] | None:
        """The value of those elements that read no latent, and which these are; None if there are none."""
        trusted = np.broadcast_to(empty(self.reads(atom)), atom.aval.shape)
        if not trusted.any():
            return None
        value = self._value(atom)
        return None if value is None else (np.asarray(value), trusted)

    def _value(self, atom: Any) -> Any:
        """A value worked out when it is asked for, at some latents; None where the data are unknown."""
        todo = [atom]
        while todo:
            top = todo[-1]
            if isinstance(top, Literal) or top in self._values or top not in self._makers:
                todo.pop()
                continue
            eqn = self._makers[top]
            waiting = [a for a in eqn.invars if not isinstance(a, Literal) and a not in self._values]
            unmade = [a for a in waiting if a not in self._makers]
            if unmade or self._must_not_run(eqn):
                self._values.update((v, None) for v in eqn.outvars)
            elif waiting:
                todo += waiting
            else:
                self._evaluate(eqn)
        return atom.val if isinstance(atom, Literal) else self._values.get(atom)

    def _evaluate(self, eqn: Any) -> None:
        inputs = [a.val if isinstance(a, Literal) else self._values[a] for a in eqn.invars]
        made: Any = [None] * len(eqn.outvars)
        if all(value is not None for value in inputs):
            made = _with_numpy(eqn, inputs) or bind(eqn, [jnp.asarray(v) for v in inputs])
            # what is not finite at some latents, such as 0 * log(0), may be so because of them
            made = [
                None if self.reads(v) is not None and _is_wild(m) else m for v, m in zip(eqn.outvars, made, strict=True)
            ]
        self._values.update(zip(eqn.outvars, made, strict=True))

    def _must_not_run(self, eqn: Any) -> bool:
        """Calls of the host, and loops that might not end at latents of our choice."""
        name = eqn.primitive.name
        return name in _CALLBACKS or (name == "while" and any(self.reads(v) is not None for v in eqn.outvars))

    def apply(self, eqn: Any, ins: list[Reads]) -> list[Reads]:
        name = eqn.primitive.name
        if not eqn.outvars:  # a side effect
            return []
        if name == "select_n":
            return [self.choose(eqn, ins)]
        if name == "mul":
            return [self.multiply(eqn, ins)]
        if name in ELEMENTWISE:
            return [_like(union(ins), eqn.outvars[0])]
        if name in _MOVES:
            assert ins[0] is not None
            return [ReadSets(_MOVES[name](ins[0].ids, eqn.params), ins[0].sets)]
        if name == "optimization_barrier":
            return ins
        if name in ("concatenate", "pad", "split", "stack", "unstack"):
            return _join(eqn, ins)
        if name in REDUCTIONS:
            return [reduce(ins[0], eqn.params["axes"])]
        if name in CUMULATIVE:
            return [accumulate(ins[0], eqn.params["axis"], reverse=eqn.params.get("reverse", False))]
        if name == "cond":
            return self.branches(eqn, ins)
        if name == "pure_callback":
            return self.callback(eqn, ins)
        if name == "scan":
            return scans.scan(self, eqn, ins)
        for rules in (indexing.RULES, linear.RULES):
            if name in rules:
                return [rules[name](self, eqn, ins)]
        inner = called(eqn)
        if inner is not None:
            return self.nested(inner, eqn.invars, ins, self.look_ups)
        return self.everything(eqn, ins, _REMEDIES.get(name, f"no rule for {name!r}"))

    def everything(self, eqn: Any, ins: list[Reads], why: str) -> list[Reads]:
        self.lose(eqn, why)
        return [everything(ins, v.aval.shape) for v in eqn.outvars]

    def callback(self, eqn: Any, ins: list[Reads]) -> list[Reads]:
        """A function on the host reads all that goes in, unless it is one that knows better."""
        dependence = getattr(getattr(eqn.params["callback"], "callback_func", None), "dependence", None)
        if dependence is None:
            return self.everything(eqn, ins, "a function on the host; bbvi.opaque finds out what it reads")
        ids, sets = stack(ins, [atom.aval.shape for atom in eqn.invars])
        flat = np.concatenate([part.ravel() for part in ids])
        found: list[Reads] = []
        for pairs, variable in zip(dependence, eqn.outvars, strict=True):
            rows = np.repeat(np.arange(pairs.shape[0]), np.diff(pairs.indptr))
            found.append(merge(ReadSets(flat[pairs.indices], sets), rows, variable.aval.shape))
        return found

    def lose(self, eqn: Any, why: str) -> None:
        """Note that precision was lost here."""
        self.lost[Lost(line_of(eqn.source_info), why)] = None

    def choose(self, eqn: Any, ins: list[Reads]) -> Reads:
        """A choice by what is known reads only what was chosen."""
        known, shape = self.known(eqn.invars[0]), eqn.outvars[0].aval.shape
        full = _like(union(ins), eqn.outvars[0])
        if known is None:
            return full
        chosen, trusted = (np.broadcast_to(part, shape) for part in known)
        cases, sets = stack(ins[1:], [shape] * len(ins[1:]))
        return mix(trusted, ReadSets(np.choose(chosen.astype(int), cases, mode="clip"), sets), full)

    def multiply(self, eqn: Any, ins: list[Reads]) -> Reads:
        """What is multiplied by an exact zero is not read."""
        result, shape = _like(union(ins), eqn.outvars[0]), eqn.outvars[0].aval.shape
        for atom in eqn.invars:
            known = self.known(atom)
            if known is not None:
                zero = np.broadcast_to(known[1] & (known[0] == 0), shape)
                result = mix(zero, None, result) if zero.any() else result
        return result

    def value_of(self, atom: Any) -> Any:
        """The value of what reads no latent at all, if it is known."""
        return self._value(atom) if np.all(empty(self.reads(atom))) else None

    def nested(
        self, inner: ClosedJaxpr, atoms: Any, ins: list[Reads], look_ups: indexing.LookUps | None = None
    ) -> list[Reads]:
        values = [self._value(atom) if np.any(empty(r)) else None for atom, r in zip(atoms, ins, strict=True)]
        return self.nested_with(inner, ins, values, look_ups)

    def nested_with(
        self, inner: ClosedJaxpr, ins: list[Reads], values: list[Any], look_ups: indexing.LookUps | None = None
    ) -> list[Reads]:
        scope = Scope(look_ups, self.lost)
        scope.know(inner.jaxpr.constvars, inner.consts)
        scope.know(inner.jaxpr.invars, values)
        return scope.interpret(inner.jaxpr, ins)

    def branches(self, eqn: Any, ins: list[Reads]) -> list[Reads]:
        """A choice reads what any branch reads, and what it is chosen by."""
        branches, known = eqn.params["branches"], self.known(eqn.invars[0])
        if known is not None:
            chosen = branches[int(np.clip(known[0], 0, len(branches) - 1))]
            return self.nested(chosen, eqn.invars[1:], ins[1:])
        found = [self.nested(branch, eqn.invars[1:], ins[1:]) for branch in branches]
        return [_like(union([*parts, ins[0]]), v) for *parts, v in zip(*found, eqn.outvars, strict=True)]


_NUMPY: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.maximum, "min": np.minimum, "neg": np.negative,
    "div": np.divide, "log": np.log, "exp": np.exp, "eq": np.equal, "ne": np.not_equal, "gt": np.greater, "lt": np.less,
    "ge": np.greater_equal, "le": np.less_equal,
}  # fmt: skip


def _with_numpy(eqn: Any, inputs: list[Any]) -> list[np.ndarray] | None:
    """The results of common operations, without a compiler; None for others, and for integers, which wrap around."""
    name, variable = eqn.primitive.name, eqn.outvars[0]
    arrays = [np.asarray(value) for value in inputs]
    if any(array.dtype not in (np.float32, np.float64) for array in arrays):
        return None
    with np.errstate(all="ignore"):
        if name in _NUMPY:
            made = _NUMPY[name](*arrays)
        elif name in _MOVES:
            made = _MOVES[name](arrays[0], eqn.params)
        elif name == "concatenate":
            made = np.concatenate(arrays, eqn.params["dimension"])
        elif name == "integer_pow":
            made = arrays[0] ** eqn.params["y"]
        elif name == "convert_element_type" and variable.aval.dtype in (np.float32, np.float64):
            made = arrays[0]
        else:
            return None
    return [np.asarray(made, variable.aval.dtype)]


def _is_wild(value: Any) -> bool:
    array = np.asarray(value)
    return bool(np.issubdtype(array.dtype, np.inexact) and not np.all(np.isfinite(array)))


def _broadcast_in_dim(ids: np.ndarray, shape: tuple[int, ...], dimensions: tuple[int, ...]) -> np.ndarray:
    inner = [1] * len(shape)
    for axis, dimension in enumerate(dimensions):
        inner[dimension] = ids.shape[axis]
    return np.broadcast_to(ids.reshape(inner), shape)


def _like(part: Reads, variable: Any) -> Reads:
    """Spread over the shape of a variable."""
    if part is None or part.ids.shape == variable.aval.shape:
        return part
    return ReadSets(np.broadcast_to(part.ids, variable.aval.shape), part.sets)


def _join(eqn: Any, ins: list[Reads]) -> list[Reads]:
    """Run a move of data among arrays on the numbers of their sets."""
    ids, sets = stack(ins, [atom.aval.shape for atom in eqn.invars])
    name = eqn.primitive.name
    if name == "concatenate":
        moved = [np.concatenate(ids, eqn.params["dimension"])]
    elif name == "stack":
        moved = [np.stack(ids, eqn.params["axis"])]
    elif name == "unstack":
        moved = list(np.moveaxis(ids[0], eqn.params["axis"], 0))
    elif name == "split":
        moved = np.split(ids[0], np.cumsum(eqn.params["sizes"])[:-1], eqn.params["axis"])
    else:
        array, filling = (jnp.asarray(i, jnp.int32) for i in ids)
        moved = [np.asarray(jax.lax.pad(array, filling, eqn.params["padding_config"]))]
    return [ReadSets(m, sets) for m in moved]
