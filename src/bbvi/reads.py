"""Section 3.1: which latent elements each element of each factor reads, by interpreting the trace abstractly.

A variable of the trace is mapped to a boolean sparse matrix, its elements by all latent elements, or to None
when it reads none. A primitive without a rule reads all that its inputs read: that costs variance, never bias.
What is asked is value dependence: comparisons, rounding and look-ups read their inputs, whatever their derivative.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import numpy as np
import scipy.sparse as sparse
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun

Reads: TypeAlias = Any  # a boolean sparse.csr_array, or None

_ELEMENTWISE = frozenset(
    "abs add add_any and acos acosh asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp clz complex conj "
    "convert_element_type copy copy_p cos cosh digamma div eq erf erf_inv erfc exp exp2 expm1 floor ge gt igamma "
    "igamma_grad_a igammac imag integer_pow is_finite le lgamma log log1p logistic lt max min mul nan_to_num ne neg "
    "nextafter not or polygamma population_count pow real reduce_precision regularized_incomplete_beta rem round rsqrt "
    "select_n shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt square stop_gradient sub tan "
    "tanh xor zeta".split()
)
_MOVES = frozenset("broadcast_in_dim reshape transpose squeeze expand_dims slice rev split".split())
_JOINS = frozenset("concatenate pad dynamic_update_slice".split())
_LOOK_UPS = frozenset("gather dynamic_slice".split())
_REDUCTIONS = frozenset(
    "reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor argmax argmin".split()
)
_CUMULATIVE = frozenset("cumsum cumprod cummax cummin cumlogsumexp".split())
# functions that are called with their own arguments; a `reduce` or a loop also carries a trace, to be used otherwise
_CALLS = frozenset(
    "jit pjit closed_call core_call remat remat2 checkpoint custom_jvp_call custom_vjp_call custom_vjp_call_jaxpr".split()
)
_MOST_PAIRS = 20_000_000


def reads(
    function: Callable[..., Any], latents: Any, constants: Any = (), *, known: bool = False
) -> tuple[list[sparse.csr_array], Any]:
    """For each leaf of `function(latents, constants)`, the latent elements each of its elements reads.

    Latent elements are numbered over the leaves of `latents` in order, row-major. With `known` the values of
    the constants may be used, for indices among them; without, only their shapes.
    """
    closed, out_shape = jax.make_jaxpr(function, return_shape=True)(latents, constants)
    leaves = jax.tree.leaves(latents)
    sizes = [int(np.prod(leaf.shape)) for leaf in leaves]
    total = sum(sizes)
    inputs: list[Reads] = []
    offset = 0
    for size in sizes:
        inputs.append(sparse.csr_array(sparse.eye_array(size, total, k=offset, dtype=bool)))
        offset += size
    others = jax.tree.leaves(constants)
    inputs += [None] * len(others)
    scope = _Scope(total)
    scope.know(closed.jaxpr.constvars, closed.consts)
    if known:
        scope.know(closed.jaxpr.invars[len(leaves) :], others)
    outputs = scope.interpret(closed.jaxpr, inputs)
    shapes = jax.tree.leaves(out_shape)
    full = [
        sparse.csr_array((int(np.prod(s.shape)), total), dtype=bool) if out is None else out
        for out, s in zip(outputs, shapes, strict=True)
    ]
    return full, out_shape


class _Scope:
    """One trace under interpretation: what each variable reads and, where it can be had, its value."""

    def __init__(self, total: int):
        self.total = total
        self._reads: dict[Any, Reads] = {}
        self._values: dict[Any, Any] = {}
        self._makers: dict[Any, Any] = {}

    def know(self, variables: Any, values: Any) -> None:
        self._values.update((v, value) for v, value in zip(variables, values, strict=True) if value is not None)

    def interpret(self, jaxpr: Jaxpr, inputs: list[Reads]) -> list[Reads]:
        self._reads.update(zip(jaxpr.invars, inputs, strict=True))
        for eqn in jaxpr.eqns:
            ins = [self.reads(atom) for atom in eqn.invars]
            if all(r is None for r in ins):
                self._makers.update((v, eqn) for v in eqn.outvars)
                outs: list[Reads] = [None] * len(eqn.outvars)
            else:
                outs = self.apply(eqn, ins)
            self._reads.update(zip(eqn.outvars, outs, strict=True))
        return [self.reads(atom) for atom in jaxpr.outvars]

    def reads(self, atom: Any) -> Reads:
        return None if isinstance(atom, Literal) else self._reads.get(atom)

    def value(self, atom: Any) -> Any:
        """The value of something that reads no latent, worked out when it is asked for; None if it is not known."""
        if isinstance(atom, Literal):
            return atom.val
        if atom not in self._values and atom in self._makers:
            eqn = self._makers[atom]
            inputs = [self.value(other) for other in eqn.invars]
            if all(value is not None for value in inputs):
                arrays, inner = [jax.numpy.asarray(v) for v in inputs], called(eqn)
                if inner is not None:
                    self.know(eqn.outvars, jaxpr_as_fun(inner)(*arrays))
                else:
                    made = eqn.primitive.bind(*arrays, **eqn.params)
                    self.know(eqn.outvars, made if eqn.primitive.multiple_results else [made])
        return self._values.get(atom)

    def apply(self, eqn: Any, ins: list[Reads]) -> list[Reads]:
        name = eqn.primitive.name
        if not eqn.outvars:  # a side effect
            return []
        out = eqn.outvars[0].aval
        if name in _ELEMENTWISE:
            shapes = [atom.aval.shape for atom in eqn.invars]
            return [_union([_broadcast(r, shape, out.shape) for r, shape in zip(ins, shapes, strict=True)])]
        if name in _MOVES:
            return [_select(ins[0], ids) for ids in _move(eqn, [_ids(eqn.invars[0])], [])]
        if name in _JOINS or name in _LOOK_UPS:
            return self.look_up(eqn, ins, 2 if name in ("pad", "dynamic_update_slice") else None)
        if name in _REDUCTIONS:
            kept = [axis for axis in range(eqn.invars[0].aval.ndim) if axis not in eqn.params["axes"]]
            return [_reduce(ins[0], eqn.invars[0].aval.shape, kept)]
        if name in _CUMULATIVE:
            return [_accumulate(eqn, ins)]
        if name == "dot_general":
            return [_dot(eqn, ins)]
        if name == "cond":
            return self.branches(eqn, ins)
        if name == "pure_callback":
            return _callback(eqn, ins, self.total)
        inner = called(eqn)
        return _everything(eqn, ins) if inner is None else self.nested(inner, eqn.invars, ins)

    def look_up(self, eqn: Any, ins: list[Reads], num_moved: int | None) -> list[Reads]:
        """Run a move of data on element ids; its indices must be known, else it may read all of its inputs."""
        if num_moved is None:
            num_moved = len(ins) if eqn.primitive.name in _JOINS else 1
        if any(r is not None for r in ins[num_moved:]):
            return _everything(eqn, ins)
        indices = [self.value(atom) for atom in eqn.invars[num_moved:]]
        if any(value is None for value in indices):
            return _everything(eqn, ins)
        ids, offset, stack = [], 0, []
        for atom, part in zip(eqn.invars[:num_moved], ins[:num_moved], strict=True):
            ids.append(_ids(atom) + offset)
            offset += _size(atom)
            stack.append(sparse.csr_array((_size(atom), self.total), dtype=bool) if part is None else part)
        return [_select(sparse.csr_array(sparse.vstack(stack)), _move(eqn, ids, indices)[0])]

    def nested(self, inner: ClosedJaxpr, atoms: Any, ins: list[Reads]) -> list[Reads]:
        scope = _Scope(self.total)
        scope.know(inner.jaxpr.constvars, inner.consts)
        unread = [(v, atom) for v, atom, r in zip(inner.jaxpr.invars, atoms, ins, strict=True) if r is None]
        scope.know([v for v, _ in unread], [self.value(atom) for _, atom in unread])
        return scope.interpret(inner.jaxpr, ins)

    def branches(self, eqn: Any, ins: list[Reads]) -> list[Reads]:
        """A choice reads what any branch reads, and what it is chosen by."""
        found = [self.nested(branch, eqn.invars[1:], ins[1:]) for branch in eqn.params["branches"]]
        chosen_by = [_broadcast(ins[0], (), v.aval.shape) for v in eqn.outvars]
        return [_union([*parts, chooser]) for *parts, chooser in zip(*found, chosen_by, strict=True)]


def called(eqn: Any) -> ClosedJaxpr | None:
    """The trace of the function that is called here, if this is a call."""
    if eqn.primitive.name not in _CALLS:
        return None
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        inner = eqn.params.get(key)
        if isinstance(inner, Jaxpr):
            inner = ClosedJaxpr(inner, ())
        if isinstance(inner, ClosedJaxpr) and len(inner.jaxpr.invars) == len(eqn.invars):
            return inner
    return None


def _callback(eqn: Any, ins: list[Reads], total: int) -> list[Reads]:
    """A function on the host reads all that goes in, unless it is one that knows better."""
    dependence = getattr(getattr(eqn.params["callback"], "callback_func", None), "dependence", None)
    if dependence is None:
        return _everything(eqn, ins)
    sizes = [_size(atom) for atom in eqn.invars]
    parts = [sparse.csr_array((n, total), dtype=bool) if r is None else r for n, r in zip(sizes, ins, strict=True)]
    stacked = sparse.csr_array(sparse.vstack(parts)).astype(np.int32)
    return [sparse.csr_array((matrix.astype(np.int32) @ stacked).astype(bool)) for matrix in dependence]


def _everything(eqn: Any, ins: list[Reads]) -> list[Reads]:
    union = _union([_reduce(r, (r.shape[0],), []) for r in ins if r is not None])
    return [_broadcast(union, (), v.aval.shape) for v in eqn.outvars]


def _size(atom: Any) -> int:
    return int(np.prod(atom.aval.shape))


def _ids(atom: Any) -> np.ndarray:
    return np.arange(_size(atom)).reshape(atom.aval.shape)


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
    """Rows of a matrix by element ids; an id that is none (a look-up out of bounds) reads nothing."""
    if part is None:
        return None
    flat = np.asarray(ids).ravel()
    missing = (flat < 0) | (flat >= part.shape[0])
    if not missing.any():
        return sparse.csr_array(part[flat])
    keep = sparse.diags_array((~missing).astype(np.int32), dtype=np.int32)
    return sparse.csr_array((keep @ part[np.where(missing, 0, flat)].astype(np.int32)).astype(bool))


def _move(eqn: Any, arrays: list[np.ndarray], indices: list[Any]) -> list[np.ndarray]:
    """Run a move of data on element ids: no rule for each move is needed."""
    moved = [jax.numpy.asarray(a, np.int32) for a in arrays]
    params = {**eqn.params, "fill_value": -1} if "fill_value" in eqn.params else eqn.params
    made = eqn.primitive.bind(*moved, *[jax.numpy.asarray(i) for i in indices], **params)
    return [np.asarray(m) for m in (made if eqn.primitive.multiple_results else [made])]


def _gathered(members: np.ndarray, rows: np.ndarray, num_rows: int, part: Reads) -> Reads:
    """Row r of the result is the union of the rows of `part` that are listed with r."""
    ones = np.ones(members.size, np.int32)
    gather = sparse.csr_array((ones, (rows.ravel(), members.ravel())), (num_rows, part.shape[0]))
    return sparse.csr_array((gather @ part.astype(np.int32)).astype(bool))


def _reduce(part: Reads, shape: tuple[int, ...], kept: list[int]) -> Reads:
    """Union over all axes but `kept`, which come out in that order."""
    if part is None:
        return None
    ids = np.arange(part.shape[0]).reshape(shape)
    rest = [axis for axis in range(len(shape)) if axis not in kept]
    sizes = [int(np.prod([shape[a] for a in axes])) for axes in (kept, rest)]
    members = ids.transpose(kept + rest).reshape(sizes)
    rows = np.broadcast_to(np.arange(members.shape[0])[:, None], members.shape)
    return _gathered(members, rows, members.shape[0], part)


def _accumulate(eqn: Any, ins: list[Reads]) -> Reads:
    """A cumulative operation reads all that stands before, or behind if it is reversed."""
    axis, shape = eqn.params["axis"], eqn.invars[0].aval.shape
    length = shape[axis]
    if _size(eqn.invars[0]) * length > _MOST_PAIRS:
        return _everything(eqn, ins)[0]
    first, last = np.tril_indices(length)
    earlier, later = (first, last) if eqn.params.get("reverse") else (last, first)
    lines = np.moveaxis(_ids(eqn.invars[0]), axis, -1).reshape(_size(eqn.invars[0]) // max(1, length), length)
    return _gathered(lines[:, earlier], lines[:, later], _size(eqn.invars[0]), ins[0])


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
