"""Section 3.1 for products: dot_general and convolution. An exact zero of a constant is not read."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bbvi.blankets.jaxpr.products import along_common_axes
from bbvi.blankets.read_sets import MOST_PAIRS, Reads, ReadSets, everything, merge, moved, reduce, stack, union
from bbvi.blankets.rules import rule


@rule(jax.lax.dot_general_p)
def _dot(interpreter: Any, eqn: Any, ins: list[Reads]) -> list[Reads]:
    """Unite, on each side, what is summed over and not multiplied by zero."""
    zeros = along_common_axes(eqn, [interpreter.zeros(atom) for atom in eqn.invars])
    ids, sets = stack(ins, [atom.aval.shape for atom in eqn.invars])
    sides = zip(ins, along_common_axes(eqn, ids), reversed(zeros), strict=True)
    num_kept = len(eqn.outvars[0].aval.shape)
    return [union([None if part is None else _summed(ReadSets(i, sets), zero, num_kept) for part, i, zero in sides])]


def _summed(part: ReadSets, zero: np.ndarray, num_kept: int) -> Reads:
    """Unite over the axes behind the first `num_kept`, what is multiplied by zero left out."""
    shape = np.broadcast_shapes(part.ids.shape, zero.shape)
    if not zero.any() or np.prod(shape) > MOST_PAIRS:
        return reduce(part, range(num_kept, len(shape)))
    read, kept = np.broadcast_to(~zero, shape), shape[:num_kept]
    rows = np.arange(int(np.prod(kept))).reshape(*kept, *[1] * (len(shape) - num_kept))
    return merge(moved(part, lambda ids: np.broadcast_to(ids, shape)[read]), np.broadcast_to(rows, shape)[read], kept)


@rule(jax.lax.conv_general_dilated_p)
def _convolve(interpreter: Any, eqn: Any, ins: list[Reads]) -> list[Reads]:
    """Run the convolution on numbers, with one entry of the kernel at a time."""
    image, kernel = (atom.aval for atom in eqn.invars)
    out, numbers = eqn.outvars[0].aval.shape, eqn.params["dimension_numbers"]
    # of each entry, the elements of the kernel that make the features of the result
    entries = np.moveaxis(np.arange(kernel.size).reshape(kernel.shape), numbers.rhs_spec[0], -1)
    entries = entries.reshape(-1, kernel.shape[numbers.rhs_spec[0]])
    if image.size >= 2**24 or len(entries) * int(np.prod(out)) > MOST_PAIRS:
        return [everything(ins, out)]
    read = ~interpreter.zeros(eqn.invars[1]).ravel()
    feature = np.indices(out)[numbers.out_spec[1]].ravel()
    params = {**eqn.params, "preferred_element_type": None, "precision": None}
    ids = jnp.arange(1, image.size + 1, dtype=jnp.float32).reshape(image.shape)

    def hit(entry: np.ndarray) -> np.ndarray:
        one = np.zeros(kernel.size, np.float32)
        one[entry] = read[entry]
        return np.asarray(eqn.primitive.bind(ids, jnp.asarray(one.reshape(kernel.shape)), **params)).astype(int).ravel()

    hits = np.stack([hit(entry) for entry in entries])
    number, rows = hits.nonzero()
    members = hits[number, rows] - 1, entries[number, feature[rows]]
    moves = [functools.partial(np.take, indices=of_side) for of_side in members]
    return [union([merge(moved(part, move), rows, out) for part, move in zip(ins, moves, strict=True)])]
