"""Section 3.1: undo the sums that lead to log p, so that it falls apart into its factors.

The function is traced once. From each output a walk goes back through additions, sums over axes, moves of data and
scalings by what no latent enters; where it cannot go on stands an array of factors. Their total, over all elements
and arrays, is the value of the function.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun
from jaxtyping import Array

from bbvi.reads import called

# the sum over all elements does not change under these
_REARRANGED = frozenset("reshape squeeze expand_dims transpose rev copy copy_p".split())


class Scale(NamedTuple):
    """What multiplies an array of factors: a number, and scalars of the trace to multiply or divide by."""

    number: float
    by: tuple[tuple[str, Any], ...]


class Factors:
    """A function of latents and constants as arrays of factors, `factors(latents, constants) -> {name: array}`."""

    def __init__(self, function: Callable[..., dict[str, Array]], latents: Any, constants: Any):
        arrays, self._static = eqx.partition(constants, is_array)

        def flat(latents: Any, arrays: Any) -> dict[str, Array]:
            return function(*latents, eqx.combine(arrays, self._static))

        closed, shapes = jax.make_jaxpr(flat, return_shape=True)(latents, arrays)
        closed = _inlined(closed)
        num_latents = len(jax.tree.leaves(latents))
        pieces = _walk_back(closed.jaxpr, num_latents, sorted(shapes))
        atoms: list[Any] = []

        def slot(atom: Any) -> int:
            known = [i for i, other in enumerate(atoms) if other is atom]
            if not known:
                atoms.append(atom)
            return known[0] if known else len(atoms) - 1

        self._recipes = [
            (name, slot(atom), scale.number, [(kind, slot(scalar)) for kind, scalar in scale.by])
            for name, atom, scale in pieces
        ]
        jaxpr = closed.jaxpr.replace(outvars=atoms, debug_info=None)
        self._evaluate = jaxpr_as_fun(ClosedJaxpr(jaxpr, closed.consts))

    def __call__(self, *arguments: Any) -> dict[str, Array]:
        *latents, constants = arguments
        arrays, _ = eqx.partition(constants, is_array)
        values = self._evaluate(*jax.tree.leaves((tuple(latents), arrays)))
        out = {}
        for name, slot, number, by in self._recipes:
            value = values[slot]
            for kind, scalar in by:
                other = values[scalar].reshape(())
                value = value * other if kind == "mul" else value / other
            out[name] = value if number == 1 else number * value
        return out


def is_array(leaf: Any) -> bool:
    """Whether a leaf of the data enters the trace; others are built into it."""
    return eqx.is_array(leaf) or isinstance(leaf, (np.ndarray, np.generic, jax.ShapeDtypeStruct))


def _inlined(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The same trace without calls of functions inside it."""

    def evaluate(jaxpr: Jaxpr, consts: Any, arguments: Any) -> list[Any]:
        env: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *arguments], strict=True))

        def value(atom: Any) -> Any:
            return atom.val if isinstance(atom, Literal) else env[atom]

        for eqn in jaxpr.eqns:
            inputs = [value(atom) for atom in eqn.invars]
            inner = called(eqn)
            if inner is not None:
                outputs = evaluate(inner.jaxpr, inner.consts, inputs)
            else:
                outputs = eqn.primitive.bind(*inputs, **eqn.params)
                outputs = outputs if eqn.primitive.multiple_results else [outputs]
            env.update(zip(eqn.outvars, outputs, strict=True))
        return [value(atom) for atom in jaxpr.outvars]

    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in closed.jaxpr.invars]
    return jax.make_jaxpr(lambda *arguments: evaluate(closed.jaxpr, closed.consts, arguments))(*avals)


def _walk_back(jaxpr: Jaxpr, num_latents: int, names: list[str]) -> list[tuple[str, Any, Scale]]:
    """The arrays of factors, each with the name of its output and its scale."""
    tainted = set(jaxpr.invars[:num_latents])
    for eqn in jaxpr.eqns:
        if any(not isinstance(atom, Literal) and atom in tainted for atom in eqn.invars):
            tainted.update(eqn.outvars)

    def reads(atom: Any) -> bool:
        return not isinstance(atom, Literal) and atom in tainted

    pieces = []
    for name, output in zip(names, jaxpr.outvars, strict=True):
        open_: dict[tuple[Any, tuple], float] = {}
        found: list[tuple[Any, Scale]] = []
        _add(open_, found, output, (), 1.0, reads)
        for eqn in reversed(jaxpr.eqns):
            for key in [key for key in open_ if key[0] in eqn.outvars]:
                number = open_.pop(key)
                parts = _open(eqn, reads)
                if parts is None:
                    found.append((key[0], Scale(number, key[1])))
                    continue
                for atom, factor, by in parts:
                    _add(open_, found, atom, key[1] + by, number * factor, reads)
        found += [(atom, Scale(number, by)) for (atom, by), number in open_.items()]
        whole = len(found) == 1 and found[0][1] == Scale(1.0, ())
        pieces += [(name if whole else f"{name}.{i}", atom, scale) for i, (atom, scale) in enumerate(found)]
    return pieces


def _add(open_: Any, found: Any, atom: Any, by: tuple, number: float, reads: Callable[[Any], bool]) -> None:
    if reads(atom):
        open_[atom, by] = open_.get((atom, by), 0.0) + number
    else:
        found.append((atom, Scale(number, by)))


def _open(eqn: Any, reads: Callable[[Any], bool]) -> list[tuple[Any, float, tuple]] | None:
    """The parts whose sums add up to the sum of this result; None where it is an array of factors itself."""
    name, out = eqn.primitive.name, eqn.outvars[0].aval
    size = int(np.prod(out.shape))

    def repeated(atom: Any) -> float:
        return size / max(1, int(np.prod(atom.aval.shape)))

    if name == "reduce_sum" or name in _REARRANGED:
        return [(eqn.invars[0], 1.0, ())]
    if name == "convert_element_type" and _both_real(eqn.invars[0].aval, out):
        return [(eqn.invars[0], 1.0, ())]
    if name == "broadcast_in_dim":
        return [(eqn.invars[0], repeated(eqn.invars[0]), ())]
    if name == "neg":
        return [(eqn.invars[0], -1.0, ())]
    if name in ("add", "add_any"):
        return [(atom, repeated(atom), ()) for atom in eqn.invars]
    if name == "sub":
        left, right = eqn.invars
        return [(left, repeated(left), ()), (right, -repeated(right), ())]
    if name in ("mul", "div"):
        return _scaled(eqn, name, repeated, reads)
    return None


def _both_real(one: Any, other: Any) -> bool:
    return jnp.issubdtype(one.dtype, jnp.floating) and jnp.issubdtype(other.dtype, jnp.floating)


def _scaled(eqn: Any, name: str, repeated: Callable[[Any], float], reads: Any) -> list[tuple[Any, float, tuple]] | None:
    left, right = eqn.invars
    if name == "mul" and reads(right) and not reads(left):
        left, right = right, left
    if reads(right) or int(np.prod(right.aval.shape)) != 1:
        return None
    if isinstance(right, Literal):
        number = float(right.val)
        if number == 0:
            return None
        return [(left, repeated(left) * (number if name == "mul" else 1 / number), ())]
    return [(left, repeated(left), ((name, right),))]
