"""Section 3.1: which latent elements each element of each term reads, by interpreting the trace abstractly.

A variable of the trace is mapped to a boolean sparse matrix, its elements by all latent elements, or to None
when it reads none. A primitive without a rule reads all that its inputs read: that costs variance, never bias.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import numpy as np
import scipy.sparse as sparse
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

Reads: TypeAlias = Any  # a boolean sparse.csr_array, or None

_ELEMENTWISE = frozenset(
    "abs add add_any and acos acosh asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp clz complex conj "
    "convert_element_type copy copy_p cos cosh digamma div eq erf erf_inv erfc exp exp2 expm1 floor ge gt igamma "
    "igamma_grad_a igammac imag integer_pow is_finite le lgamma log log1p logistic lt max min mul nan_to_num ne neg "
    "nextafter not or polygamma population_count pow real reduce_precision regularized_incomplete_beta rem round rsqrt "
    "select_n shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt square stop_gradient sub tan "
    "tanh xor zeta".split()
)
_MOVES = frozenset("broadcast_in_dim reshape transpose squeeze expand_dims slice rev".split())
_REDUCTIONS = frozenset(
    "reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor argmax argmin".split()
)
_NESTED = ("jaxpr", "call_jaxpr", "fun_jaxpr")


def reads(function: Callable[..., Any], latents: Any, *constants: Any) -> tuple[list[sparse.csr_array], Any]:
    """For each leaf of `function(latents, *constants)`, the latent elements each of its elements reads.

    Latent elements are numbered over the leaves of `latents` in order, row-major.
    """
    closed, out_shape = jax.make_jaxpr(function, return_shape=True)(latents, *constants)
    leaves = jax.tree.leaves(latents)
    sizes = [int(np.prod(leaf.shape)) for leaf in leaves]
    total = sum(sizes)
    inputs: list[Reads] = []
    offset = 0
    for size in sizes:
        inputs.append(sparse.csr_array(sparse.eye_array(size, total, k=offset, dtype=bool)))
        offset += size
    inputs += [None] * (len(closed.jaxpr.invars) - len(leaves))
    outputs = _interpret(closed.jaxpr, inputs, total)
    shapes = jax.tree.leaves(out_shape)
    full = [
        sparse.csr_array((int(np.prod(s.shape)), total), dtype=bool) if out is None else out
        for out, s in zip(outputs, shapes, strict=True)
    ]
    return full, out_shape


def _interpret(jaxpr: Jaxpr, inputs: list[Reads], total: int) -> list[Reads]:
    env: dict[Any, Reads] = dict(zip(jaxpr.invars, inputs, strict=True))

    def look_up(atom: Any) -> Reads:
        return None if isinstance(atom, Literal) else env.get(atom)

    for eqn in jaxpr.eqns:
        ins = [look_up(atom) for atom in eqn.invars]
        outs = [None] * len(eqn.outvars) if all(r is None for r in ins) else _apply(eqn, ins, total)
        env.update(zip(eqn.outvars, outs, strict=True))
    return [look_up(atom) for atom in jaxpr.outvars]


def _apply(eqn: Any, ins: list[Reads], total: int) -> list[Reads]:
    name = eqn.primitive.name
    out = eqn.outvars[0].aval
    if name in _ELEMENTWISE:
        return [_union([_broadcast(r, atom.aval.shape, out.shape) for r, atom in zip(ins, eqn.invars, strict=True)])]
    if name in _MOVES:
        return [_select(ins[0], _move(eqn, [np.arange(_size(eqn.invars[0])).reshape(eqn.invars[0].aval.shape)]))]
    if name in ("concatenate", "pad"):
        return [_joined(eqn, ins, total)]
    if name in _REDUCTIONS:
        kept = [axis for axis in range(eqn.invars[0].aval.ndim) if axis not in eqn.params["axes"]]
        return [_reduce(ins[0], eqn.invars[0].aval.shape, kept)]
    if name == "dot_general":
        return [_dot(eqn, ins)]
    for key in _NESTED:
        inner = eqn.params.get(key)
        if inner is not None and name not in ("scan", "while", "cond"):
            jaxpr = inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner
            if len(jaxpr.invars) == len(ins):
                return _interpret(jaxpr, ins, total)
    return _everything(eqn, ins)


def _everything(eqn: Any, ins: list[Reads]) -> list[Reads]:
    union = _union([_reduce(r, (r.shape[0],), []) for r in ins if r is not None])
    return [_broadcast(union, (), v.aval.shape) for v in eqn.outvars]


def _size(atom: Any) -> int:
    return int(np.prod(atom.aval.shape))


def _union(parts: list[Reads]) -> Reads:
    present = [p for p in parts if p is not None]
    result = present[0] if present else None
    for part in present[1:]:
        result = sparse.csr_array(result + part)
    return result


def _broadcast(part: Reads, shape: tuple[int, ...], target: tuple[int, ...]) -> Reads:
    if part is None or shape == target:
        return part
    return _select(part, np.broadcast_to(np.arange(part.shape[0]).reshape(shape), target))


def _select(part: Reads, ids: np.ndarray) -> Reads:
    return None if part is None else sparse.csr_array(part[np.asarray(ids).ravel()])


def _move(eqn: Any, arrays: list[np.ndarray]) -> np.ndarray:
    """Run a move of data on element ids: no rule for each move is needed."""
    return np.asarray(eqn.primitive.bind(*[jax.numpy.asarray(a, np.int32) for a in arrays], **eqn.params))


def _joined(eqn: Any, ins: list[Reads], total: int) -> Reads:
    ids, offset, stack = [], 0, []
    for atom, part in zip(eqn.invars, ins, strict=True):
        size = _size(atom)
        ids.append(np.arange(offset, offset + size).reshape(atom.aval.shape))
        stack.append(sparse.csr_array((size, total), dtype=bool) if part is None else part)
        offset += size
    return _select(sparse.csr_array(sparse.vstack(stack)), _move(eqn, ids))


def _reduce(part: Reads, shape: tuple[int, ...], kept: list[int]) -> Reads:
    """Union over all axes but `kept`, which come out in that order."""
    if part is None:
        return None
    ids = np.arange(part.shape[0]).reshape(shape)
    rest = [axis for axis in range(len(shape)) if axis not in kept]
    members = ids.transpose(kept + rest).reshape(int(np.prod([shape[a] for a in kept])), -1)
    rows = np.repeat(np.arange(members.shape[0]), members.shape[1])
    ones = np.ones(members.size, np.int32)
    gather = sparse.csr_array((ones, (rows, members.ravel())), (members.shape[0], part.shape[0]))
    return sparse.csr_array((gather @ part.astype(np.int32)).astype(bool))


def _dot(eqn: Any, ins: list[Reads]) -> Reads:
    contract, batch = eqn.params["dimension_numbers"]
    sides, frees = [], []
    for atom, part, contracted, batched in zip(eqn.invars, ins, contract, batch, strict=True):
        shape = atom.aval.shape
        free = [a for a in range(len(shape)) if a not in contracted and a not in batched]
        sides.append(_reduce(part, shape, [*batched, *free]))
        frees.append(int(np.prod([shape[a] for a in free])))
    num_batch = int(np.prod([eqn.invars[0].aval.shape[a] for a in batch[0]]))
    b, left, right = np.indices((num_batch, *frees))
    return _union([_select(sides[0], b * frees[0] + left), _select(sides[1], b * frees[1] + right)])
