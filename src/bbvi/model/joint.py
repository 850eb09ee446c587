"""Eq. 4 with larger factors: several latents in one factor of q (structured mean field, Saul and Jordan 1996)."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bbvi.families import (
    AbstractCovariance,
    CodeVectors,
    Conditional,
    Framed,
    FullRank,
    Joined,
    JointNormal,
    Order,
    SparsePrecision,
    Tree,
)
from bbvi.families.charts import AbstractChart, vectors
from bbvi.model.latents import Latent, Shape
from bbvi.model.paired import as_pair, check_pair, has_discrete, is_paired, join_pair, split_pair

Latents = dict[str, Latent]
Blocks = dict[str, Latents]


class Block(NamedTuple):
    """Latents that share one factor of q, a joint Normal through the bijections of their supports.

    With a discrete one among them they share factors element by element: its value, and a Normal for each of its values.

    The first `parents` of them set the scales of the others, too: the logarithm of the standard deviation of each other number,
    given those before it, is linear in them. With a `core`, the precision is sparse (`bbvi.SparsePrecision`): of all numbers, in this
    `order` if not in that of the names, the first `core` are linked with all, and the others with those near them, in blocks of `width`.

    A `forest` makes it a Markov tree over one discrete latent, instead: of each of its numbers the position of its parent, or -1.

    With `axes` there are many such factors, one for each entry along so many first axes, which the latents have in common.

    With `skewed` numbers that have bounds, such as rates, have a skew each in their coordinates, unless they are parents. A block with
    a core has none.

    The locals of a group may be `given` the block of these globals: the means of their Normals are linear in its coordinates.
    """

    names: tuple[str, ...]
    parents: int = 0
    core: int | None = None
    width: int = 0
    order: tuple[int, ...] = ()
    forest: tuple[int, ...] | None = None
    axes: int = 0
    skewed: bool = False
    given: tuple[str, ...] = ()

    def __repr__(self) -> str:
        own = {name: value for name, value in self._asdict().items() if value != self._field_defaults.get(name)}
        own |= {name: Order(own[name]) for name in ("order", "forest") if name in own}
        return f"Block({', '.join(f'{name}={value!r}' for name, value in own.items())})"


def read_block(saved: Sequence[Any]) -> Block:
    """Make a block of what a file has of it, where tuples are lists."""
    values: Any = [tuple(value) if isinstance(value, list) else value for value in saved]
    return Block(*values)


def as_blocks(joint: Any) -> tuple[Block, ...]:
    """Read what a user gives as `joint=`: blocks, or tuples of names."""
    if not isinstance(joint, (list, tuple)) or not all(isinstance(b, (list, tuple)) and len(b) for b in joint):
        raise TypeError(f'joint= takes a list of tuples of names, such as [("mu", "tau")], got {joint!r}')
    blocks = tuple(b if isinstance(b, Block) else Block(tuple(b)) for b in joint)
    for block in blocks:
        names, parents, core, *_ = block
        if block.skewed and (core is not None or block.forest is not None):
            raise ValueError(
                f"joint=: skewed=True is for a dense block, and {names} has {'a core' if block.forest is None else 'a forest'}: "
                "leave one of them out"
            )
        if not 0 <= parents <= (len(names) if core is None else core) or parents == len(names):
            raise ValueError(
                f"joint=: of {names} at most {len(names) - 1} can be parents, and those in the core; got {parents}, {core}"
            )
    return blocks


def find_blocks(structure: Sequence[Block], scopes: Sequence[Mapping[str, Latent]]) -> Blocks:
    """Return the members of each block, under its name, in the shapes that they have in one factor.

    A block lies within the globals, or within the locals.
    """
    known = [name for scope in scopes for name in scope]
    joint = [block.names for block in structure]
    used = [name for names in joint for name in names]
    if unknown := [name for name in used if name not in known]:
        raise ValueError(f"joint= names {unknown}; the latents are {known}")
    if len(set(used)) < len(used):
        raise ValueError(f"joint=: a latent is in one block at the most, once; got {joint!r}")
    blocks: Blocks = {}
    leading = _leading(structure, scopes)
    for names, parents, core, _, _, forest, axes, is_skewed, given in structure:
        if not (within := [scope for scope in scopes if set(names) <= set(scope)]):
            raise ValueError(f"joint=: {tuple(names)} has globals and locals in it; a block has latents of one kind")
        members = within_factor({name: within[0][name] for name in names}, axes)
        if pair := forest is None and has_discrete(members):
            check_pair(members)
            if parents or core is not None or axes or is_skewed:
                raise ValueError(
                    f"joint=: {names} are paired element by element: these have no parents, core, axes or skew"
                )
        else:
            for name, latent in members.items():
                _check_member(name, latent, forest)
        alone = forest is None and not pair and sum(map(num_coordinates, members.values())) < 2
        if alone and not given and names != leading:
            raise ValueError(f"joint=: {tuple(names)} has a single number, and nothing to be joined with")
        if len(names) > 1 and "+".join(names) in known:
            raise ValueError(f"joint=: the block {tuple(names)} would have the name of a latent; rename that")
        blocks["+".join(names)] = members
    return blocks


def _leading(structure: Sequence[Block], scopes: Sequence[Mapping[str, Latent]]) -> tuple[str, ...]:
    """Return the block of globals that locals are given, empty if none is; refuse what none can be given."""
    followers = [block for block in structure if block.given]
    given = {block.given for block in followers}
    if not given:
        return ()
    if len(given) > 1:
        raise ValueError(f"joint=: all blocks of locals are given one block of globals; got {sorted(given)}")
    leading = next((block for block in structure if block.names in given), None)
    if leading is None or not set(leading.names) <= set(scopes[0]):
        raise ValueError(f"joint=: given={next(iter(given))!r} is no block of globals; name one as it stands in joint=")
    for block in (leading, *followers):
        plain = block.core is None and block.forest is None and not has_discrete(_named(block, scopes))
        if not plain or (block.given and (block.parents or block.skewed or not set(block.names) <= set(scopes[-1]))):
            raise ValueError(
                f"joint=: {block.names} cannot be in given=: one dense block of globals leads, and dense blocks of locals without "
                "parents and skew follow it"
            )
    return leading.names


def _named(block: Block, scopes: Sequence[Mapping[str, Latent]]) -> Latents:
    return {name: scope[name] for name in block.names for scope in scopes if name in scope}


def within_factor(members: Latents, axes: int) -> Latents:
    """Leave out the first axes, along which each entry has a factor of its own."""
    if len({latent.shape[:axes] for latent in members.values()}) > 1 or any(
        len(x.shape) < axes for x in members.values()
    ):
        shapes = ", ".join(f"{name!r} has {latent.shape}" for name, latent in members.items())
        raise ValueError(f"joint=: a factor for each entry along {axes} axes needs latents that share these; {shapes}")
    return {name: dataclasses.replace(latent, shape=latent.shape[axes:]) for name, latent in members.items()}


def _check_member(name: str, latent: Latent, forest: Sequence[int] | None) -> None:
    if forest is not None:
        if not latent.family.chart.is_discrete or latent.event or _size(latent) != len(forest):
            raise ValueError(f"joint=: a forest of {len(forest)} numbers is not one over {name!r}, {latent}")
    elif why := why_not(latent):
        raise ValueError(f"joint=: {name!r} {why}")


def why_not(latent: Latent) -> str:
    """Say why a latent cannot be in a block; empty if it can."""
    no_numbers = latent.family.chart.is_discrete or (latent.event and latent.shape)
    refused = {
        f"is {latent.support}; a block is Normal, of real, positive and bounded numbers and of single vectors": no_numbers,
        f"has the ragged axis {next(iter(latent.ragged_axes), None)!r}; a block has one length": latent.ragged_axes,
        "has a q= of its own; in a block it has a share in the joint one: leave q= out": latent.q is not None,
        "starts from parameters of its own q; give a value as init=": isinstance(latent.init, dict),
    }
    return next((why for why, is_so in refused.items() if is_so), "")


def _shape(latent: Latent) -> tuple[int, ...]:
    return (*latent.padded({}), *latent.event)


def _size(latent: Latent) -> int:
    return math.prod(_shape(latent))


def _chart(latent: Latent) -> AbstractChart:
    return latent.chart.unconstrained if latent.event else vectors(latent.chart, _size(latent))


def num_coordinates(latent: Latent) -> int:
    """Count the real numbers that stand for a latent in a block."""
    return int(_chart(latent).coordinates_shape[0])


def in_blocks(latents: Mapping[str, Latent], blocks: Blocks, structure: Sequence[Block]) -> dict[str, Latent]:
    """Put latents into the factors of q: a block stands where its first member stood."""
    of = {name: block for block, members in blocks.items() for name in members}
    joined, leading = {}, {"+".join(block.given) for block in structure if block.given}
    for name, block in zip(blocks, structure, strict=True):
        if block.names[0] in latents:
            made = _joined(blocks[name], block, latents[block.names[0]].shape[: block.axes])
            if name in leading:
                made = dataclasses.replace(made, family=Framed(_dense(made)))
            elif block.given:
                num = sum(map(num_coordinates, blocks["+".join(block.given)].values()))
                made = dataclasses.replace(made, family=Conditional(_dense(made), num))
            joined[name] = made
    return {of.get(name, name): joined.get(of.get(name, name), latent) for name, latent in latents.items()}


def _dense(latent: Latent) -> JointNormal:
    assert isinstance(latent.family, JointNormal)
    return latent.family


def tree_over(chart: AbstractChart, parents: Sequence[int]) -> Tree:
    """Return the family of Markov trees over numbers on a chart of few values."""
    values = chart.values()
    assert values is not None
    return Tree(CodeVectors(len(values), len(parents)), tuple(parents))


def _as_tree(latent: Latent, forest: Sequence[int]) -> Latent:
    init = None if latent.init is None else np.broadcast_to(np.asarray(latent.init), _shape(latent)).ravel()
    return Latent(latent.support, (), latent.chart, tree_over(latent.chart, forest), None, init)


def _joined(members: Mapping[str, Latent], block: Block, shape: Shape) -> Latent:
    """Return the latent of a block's factors, an array of this shape."""
    if block.forest is not None:
        return _as_tree(next(iter(members.values())), block.forest)
    if is_paired(members):
        return as_pair(members)
    charts = [_chart(latent) for latent in members.values()]
    init = None
    if any(latent.init is not None for latent in members.values()):
        # where no value is given, the middle of the support
        middle = [np.asarray(chart.value(jnp.zeros(chart.coordinates_shape))) for chart in charts]
        pairs = zip(members.values(), middle, strict=True)
        given = [(at.reshape(_shape(x)) if x.init is None else np.asarray(x.init, float), _shape(x)) for x, at in pairs]
        init = _side_by_side(given)
    chart = Joined(tuple(charts))
    sizes = [num_coordinates(latent) for latent in members.values()]
    parents, size = sum(sizes[: block.parents]), sum(sizes)
    if block.order and len(block.order) != size:
        raise ValueError(f"joint=: the order of {block.names} has {len(block.order)} numbers, and they have {size}")
    has_bounds = np.repeat([latent.support != "real" for latent in members.values()], sizes)
    skewed = parents + np.flatnonzero(has_bounds[parents:] & block.skewed)
    if block.skewed and not skewed.size:
        raise ValueError(f"joint=: skewed=True is for numbers with bounds, and {block.names} has none beside parents")
    covariance: AbstractCovariance = FullRank(parents, tuple(skewed.tolist()))
    if block.core is not None:
        covariance = SparsePrecision(block.width, block.core, parents, tuple(block.order))
    return Latent("block", shape, chart, JointNormal(chart, covariance), None, init)


def _side_by_side(values: Sequence[tuple[np.ndarray, tuple[int, ...]]]) -> np.ndarray:
    """Put values into vectors of a factor, in which they have these shapes; other axes may stand before."""
    flat = []
    for value, shape in values:
        lead = value.shape[: max(0, value.ndim - len(shape))]
        flat.append(np.broadcast_to(value, (*lead, *shape)).reshape(*lead, math.prod(shape)))
    lead = np.broadcast_shapes(*(x.shape[:-1] for x in flat))
    return np.concatenate([np.broadcast_to(x, (*lead, x.shape[-1])) for x in flat], -1)


def take_apart(values: Mapping[str, Any], blocks: Blocks, order: Iterable[str]) -> dict[str, Any]:
    """Turn arrays by factors of q, whose last axis is a block's, into arrays by latents; other axes may stand before."""
    if not blocks:
        return dict(values)
    found = {name: value for name, value in values.items() if name not in blocks}
    for block in (name for name in blocks if name in values):
        whole, end = values[block], 0
        if is_paired(blocks[block]):
            found |= split_pair(whole, blocks[block])
            continue
        for name, latent in blocks[block].items():
            begin, end = end, end + _size(latent)

            def own(leaf: Any, part: slice = slice(begin, end), latent: Latent = latent) -> Any:
                return leaf[..., part].reshape((*leaf.shape[:-1], *_shape(latent)))

            found[name] = jax.tree.map(own, whole)
    return {name: found.pop(name) for name in order if name in found} | found


def put_together(values: Mapping[str, Any], blocks: Blocks) -> dict[str, Any]:
    """Turn arrays by latents into arrays by factors of q: the inverse of `take_apart`."""
    found = dict(values)
    for block, members in blocks.items():
        if is_paired(members):
            if all(name in found for name in members):
                found[block] = join_pair(found, members)
        elif any(name in found for name in members):
            ndims, parts = [len(_shape(latent)) for latent in members.values()], [found.pop(name) for name in members]

            def join(*leaves: Any, ndims: list[int] = ndims) -> Array:
                arrays = zip(map(jnp.asarray, leaves), ndims, strict=True)
                return jnp.concatenate([jax.lax.collapse(a, a.ndim - ndim) for a, ndim in arrays], -1)

            found[block] = jax.tree.map(join, *parts, is_leaf=lambda leaf: isinstance(leaf, list))
    return found
