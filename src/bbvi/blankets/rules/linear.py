"""Section 3.1 for products: dot_general and convolution. An exact zero of a constant is not read."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bbvi.blankets.jaxpr.primitives import dot_axes
from bbvi.blankets.read_sets import MOST_PAIRS, Reads, ReadSets, everything, merge, reduce, union
from bbvi.blankets.rules import rule


@rule(jax.lax.dot_general_p)
def _dot(interpreter: Any, eqn: Any, ins: list[Reads]) -> list[Reads]:
    shapes, axes = [atom.aval.shape for atom in eqn.invars], dot_axes(eqn)
    arranged = [[*b, *own, *c] for b, own, c in axes]
    sizes = [[int(np.prod([s[a] for a in part])) for part in parts] for s, parts in zip(shapes, axes, strict=True)]
    (num_batch, left, inner), (_, right, _) = sizes
    sides: list[Reads] = []
    for k, (part, other) in enumerate(zip(ins, reversed(list(eqn.invars)), strict=True)):
        if part is None:
            sides.append(None)
            continue
        mine, theirs = (left, right) if k == 0 else (right, left)
        ids = part.ids.transpose(arranged[k]).reshape(num_batch, mine, inner)
        zero = _zeros(interpreter, other, arranged[1 - k], (num_batch, theirs, inner))
        sides.append(_side(ReadSets(ids, part.sets), zero, theirs))
    if sides[1] is not None:
        sides[1] = ReadSets(sides[1].ids.transpose(0, 2, 1), sides[1].sets)
    result = union(
        [None if s is None else ReadSets(np.broadcast_to(s.ids, (num_batch, left, right)), s.sets) for s in sides]
    )
    return [None if result is None else ReadSets(result.ids.reshape(eqn.outvars[0].aval.shape), result.sets)]


def _side(part: ReadSets, zero: np.ndarray | None, theirs: int) -> Reads:
    """For each element of the product, (batch, mine, theirs): what is read of this side, (batch, mine, inner)."""
    num_batch, mine, inner = part.ids.shape
    if zero is None or num_batch * mine * inner * theirs > MOST_PAIRS:
        whole = reduce(part, (2,))
        assert whole is not None
        return ReadSets(whole.ids[:, :, None], whole.sets)
    shape = (num_batch, mine, theirs, inner)
    read = np.broadcast_to(~zero[:, None], shape)
    ids = np.broadcast_to(part.ids[:, :, None, :], shape)[read]
    rows = np.broadcast_to(np.arange(num_batch * mine * theirs).reshape(*shape[:3], 1), shape)[read]
    return merge(ReadSets(ids, part.sets), rows, shape[:3])


def _zeros(interpreter: Any, atom: Any, order: list[int], shape: tuple[int, ...]) -> np.ndarray | None:
    """Where the other side is known to be exactly zero, (batch, theirs, inner)."""
    known = interpreter.known(atom)
    if known is None:
        return None
    zero = known[1] & (known[0] == 0)
    return zero.transpose(order).reshape(shape) if zero.any() else None


@rule(jax.lax.conv_general_dilated_p)
def _convolve(interpreter: Any, eqn: Any, ins: list[Reads]) -> list[Reads]:
    """Run the convolution on numbers, with one entry of the kernel at a time."""
    image, kernel = (atom.aval for atom in eqn.invars)
    numbers = eqn.params["dimension_numbers"]
    _, features, *space = numbers.rhs_spec
    out = eqn.outvars[0].aval.shape
    size, entries = int(np.prod(image.shape)), int(np.prod([kernel.shape[a] for a in (features, *space)]))
    if size >= 2**24 or entries * int(np.prod(out)) > MOST_PAIRS:
        return [everything(ins, out)]
    known = interpreter.known(eqn.invars[1])
    read = np.ones(kernel.shape, bool) if known is None else ~(known[1] & (known[0] == 0))
    feature_of = np.broadcast_to(
        np.arange(out[numbers.out_spec[1]]).reshape([-1 if a == numbers.out_spec[1] else 1 for a in range(len(out))]),
        out,
    )
    params = {**eqn.params, "preferred_element_type": None, "precision": None}
    ids = jnp.arange(1, size + 1, dtype=jnp.float32).reshape(image.shape)
    kernel_ids = np.arange(int(np.prod(kernel.shape))).reshape(kernel.shape)
    rows, images, weights = [], [], []
    for entry in np.ndindex(*[kernel.shape[a] for a in (features, *space)]):
        index: list[Any] = [slice(None)] * len(kernel.shape)
        for axis, position in zip((features, *space), entry, strict=True):
            index[axis] = position
        one = np.zeros(kernel.shape, np.float32)
        one[tuple(index)] = read[tuple(index)]
        hit = np.asarray(eqn.primitive.bind(ids, jnp.asarray(one), **params)).astype(int).ravel()
        at = np.flatnonzero(hit)
        rows.append(at)
        images.append(hit[at] - 1)
        weights.append(kernel_ids[tuple(index)][feature_of.ravel()[at]])
    row = np.concatenate(rows)

    def side(part: Reads, members: list[np.ndarray]) -> Reads:
        if part is None:
            return None
        return merge(ReadSets(part.ids.ravel()[np.concatenate(members)], part.sets), row, out)

    return [union([side(ins[0], images), side(ins[1], weights)])]
