"""Section 3.1 for indices in the data of a group: which latent elements a look-up reads is known only in the batch.

`beta["V"][row["item"]]` reads the items that the group mentions. Each sum goes to those, so that a term counts
only for the items it is about. Arrays have groups first and samples last.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sparse
from jax.extend.core import ClosedJaxpr
from jaxtyping import Array, Float, Int

from bbvi.blankets.jaxpr.run import run
from bbvi.blankets.patterns import Reduction, Shape, pairs_of, recognise
from bbvi.blankets.rules.indexing import LookUp
from bbvi.blankets.trace import is_array


def chosen_elements(closed: ClosedJaxpr, look_ups: Sequence[LookUp], num_latents: int, row: Any) -> list[Array]:
    """Find for each look-up which elements of its operand this group's data choose; -1 for none."""
    if not look_ups:
        return []
    inputs = [*[None] * num_latents, *jax.tree.leaves(eqx.filter(row, is_array))]
    values = iter(run(closed, inputs, [atom for look_up in look_ups for atom in look_up.eqn.invars[1:]]))
    return [look_up.ids([next(values) for _ in look_up.eqn.invars[1:]]) for look_up in look_ups]


def _added_up(values: Float[Array, "rows ..."], targets: Int[Array, " rows"], num: int) -> Float[Array, "num ..."]:
    """Add up the rows with each target; those beyond the last are dropped."""
    return jnp.zeros((num, *values.shape[1:]), values.dtype).at[targets].add(values, mode="drop")


class Rows(eqx.Module):
    """Sum a term for the factors of a latent that the data choose: whole rows are looked up, each element reads one of them."""

    number: int
    reduction: Reduction
    num_axes: int
    factor_shape: Shape = eqx.field(static=True)
    row_size: int = eqx.field(static=True)

    def _targets(self, ids: Array) -> Int[Array, " rows"]:
        first = ids.reshape(*ids.shape[: self.num_axes], -1)[..., 0]
        return jnp.where(first < 0, self.factor_shape[0], first // self.row_size)

    def sum(self, term: Float[Array, "groups *term samples"], indices: list[Array]) -> Float[Array, "..."]:
        """Sum over these groups, for each factor of q; to be added up over blocks of groups."""
        targets = jax.vmap(self._targets)(indices[self.number]).reshape(-1)
        values = jax.vmap(self.reduction.sum)(term)
        values = values.reshape(len(targets), *values.shape[self.num_axes + 1 :])
        return _added_up(values, targets, self.factor_shape[0])

    def spread(self, total: Float[Array, "..."]) -> Float[Array, "*factors samples"]:
        """Give what `sum` left to every factor of q."""
        return jnp.broadcast_to(total, (*self.factor_shape, total.shape[-1]))

    def pairs(self, indices: list[Array]) -> sparse.csr_array:
        """List the elements of one group's term by factors of q, as a boolean matrix."""
        element, position = self.reduction.pairs().nonzero()
        row, inner = np.divmod(position, self.row_size)
        target = np.asarray(self._targets(indices[self.number])).ravel()[row]
        real = target < self.factor_shape[0]
        column = (target * self.row_size + inner)[real]
        return pairs_of(element[real], column, self.reduction.term_shape, self.factor_shape)


class Pairs(eqx.Module):
    """Do as `Rows` for anything else: pairs of a term element and a look-up it reads; equal ones of one element count once."""

    elements: np.ndarray
    positions: np.ndarray
    operand_targets: list[np.ndarray | None]
    may_repeat: bool = eqx.field(static=True)
    term_size: int = eqx.field(static=True)
    factor_shape: Shape = eqx.field(static=True)

    def _targets(self, indices: list[Array]) -> Int[Array, " pairs"]:
        """The factor of q that each pair is about, beyond the last one if there is none."""
        num = int(np.prod(self.factor_shape))
        parts = []
        for ids, targets in zip(indices, self.operand_targets, strict=True):
            if targets is not None:
                flat = ids.ravel()
                parts.append(jnp.where(flat < 0, -1, jnp.asarray(targets)[jnp.maximum(flat, 0)]))
        found = jnp.concatenate(parts)[self.positions]
        found = jnp.where(found < 0, num, found)
        if self.may_repeat:
            order = jnp.lexsort((found, self.elements))
            element, target = jnp.asarray(self.elements)[order], found[order]
            again = (element[1:] == element[:-1]) & (target[1:] == target[:-1])
            found = found.at[order[1:]].set(jnp.where(again, num, target[1:]))
        return found

    def sum(self, term, indices):
        targets = jax.vmap(self._targets)(indices).reshape(-1)
        flat = term.reshape(term.shape[0], -1, term.shape[-1])
        values = flat[:, self.elements].reshape(len(targets), -1)
        return _added_up(values, targets, int(np.prod(self.factor_shape)))

    def spread(self, total):
        return total.reshape(*self.factor_shape, total.shape[-1])

    def pairs(self, indices):
        targets = np.asarray(self._targets(indices))
        real = targets < int(np.prod(self.factor_shape))
        return pairs_of(self.elements[real], targets[real], (self.term_size,), self.factor_shape)


LookedUp = Rows | Pairs


def looked_up(
    term_shape: Shape, pairs: sparse.csr_array, look_ups: Sequence[LookUp], leaf: int, factor_shape: Shape, event: int
) -> LookedUp | None:
    """Find how the factors of one latent that the data choose get their sums from one term; None if it reads none.

    `pairs` are the term's elements by all that is read; `leaf` is the latent's number.
    """
    mine = [(number, item) for number, item in enumerate(look_ups) if leaf in item.targets]
    blocks = {n: sparse.csr_array(pairs[:, item.first : item.first + item.size]) for n, item in mine}
    if not (read := [(n, item) for n, item in mine if blocks[n].nnz]):
        return None
    if len(read) == 1 and event == 1:
        number, item = read[0]
        if (reduction := _by_rows(term_shape, blocks[number], item, leaf, factor_shape)) is not None:
            num_axes = len(item.shape) - len(factor_shape) + 1
            return Rows(number, reduction, num_axes, factor_shape, int(np.prod(factor_shape[1:])))
    # one look-up after the other, as `Pairs` has their targets
    elements, positions = sparse.hstack([blocks[number] for number, _ in read], format="coo").nonzero()
    targets = {number: np.where(item.targets[leaf] < 0, -1, item.targets[leaf] // event) for number, item in read}
    operand_targets = [targets.get(number) for number in range(len(look_ups))]
    may_repeat = bool(np.bincount(elements).max() > 1)
    return Pairs(elements, positions, operand_targets, may_repeat, pairs.shape[0], factor_shape)


def _by_rows(term_shape: Shape, block: sparse.csr_array, item: LookUp, leaf: int, shape: Shape) -> Reduction | None:
    """Find how whole rows of a latent that are looked up are read, each term element by one of them; None if otherwise."""
    target, operand = item.targets[leaf], item.eqn.invars[0].aval.shape
    if not item.rows or operand != shape or not np.array_equal(target, np.arange(len(target))):
        return None
    pattern = recognise(block, term_shape, item.shape)
    if not isinstance(pattern, Reduction):
        return None
    # a term element that reads several rows could read one of them twice
    by_row = zip(pattern.matched[: len(item.shape) - len(operand) + 1], item.shape, strict=False)
    return None if any(axis is None and size > 1 for axis, size in by_row) else pattern
