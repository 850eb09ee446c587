"""Calls of a function that JAX cannot trace: one after the other, or many at once."""

import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np


class OpaqueError(RuntimeError):
    """An opaque function failed; `posterior` is what a fit had reached until then, or None outside a fit."""

    posterior: Any = None


class Segment(NamedTuple):
    """Calls that share a row; other arrays have the calls on the first axis, or length 1 if they do not vary."""

    latents: tuple[dict[str, np.ndarray], ...]
    row: tuple[Any, ...]
    seeds: np.ndarray | None
    num: int
    sites: np.ndarray | None = None

    def cut(self, begin: int, end: int) -> "Segment":
        """Return some of these calls."""
        varying = (self.latents, self.seeds, self.sites)
        latents, seeds, sites = jax.tree.map(lambda leaf: leaf[begin:end] if len(leaf) > 1 else leaf, varying)
        return Segment(latents, self.row, seeds, end - begin, sites)


class Form(NamedTuple):
    """What a call must return: arrays of these shapes, stored in this type."""

    shapes: tuple[tuple[int, ...], ...]
    dtype: Any
    vectorized: bool


class Failure(NamedTuple):
    """The call that failed, and why: text, since not every exception can travel between processes."""

    call: Segment
    reason: str
    trace: str


Function = Callable[..., Any]
Results = list[np.ndarray] | Failure
Caller = Callable[[Sequence[Segment], Form], Results]


def call(function: Function, constant: tuple[Any, ...], segment: Segment, i: int, *, vectorized: bool) -> Any:
    """Call the function with all calls of a segment at once if it is vectorized, else with call `i` alone."""

    def own(leaf: np.ndarray) -> Any:
        return np.broadcast_to(leaf, (segment.num, *leaf.shape[1:])) if vectorized else leaf[i if len(leaf) > 1 else 0]

    latents = [{name: own(leaf) for name, leaf in part.items()} for part in segment.latents]
    if segment.seeds is None:
        return function(*latents, *segment.row, *constant)
    seeds = own(segment.seeds)
    return function(*latents, *segment.row, *constant, seed=seeds.astype(np.int64) if vectorized else int(seeds))


def run(function: Function, constant: tuple[Any, ...], segments: Sequence[Segment], form: Form) -> Results:
    """Make all calls; return for each term the results of all of them, or the first failure."""
    results = []
    for segment in segments:
        size = segment.num if form.vectorized else 1
        for i in range(0, segment.num, size):
            try:
                result = call(function, constant, segment, i, vectorized=form.vectorized)
                results.append(_leaves(result, form, size))
            except Exception as error:  # whatever it is, it is the user's: it is kept and raised where the fit stops
                return Failure(segment.cut(i, i + 1), f"{type(error).__name__}: {error}", traceback.format_exc())
    return [np.concatenate(arrays) for arrays in zip(*results, strict=True)]


def _leaves(result: Any, form: Form, num: int) -> list[np.ndarray]:
    """Return the terms of `num` calls at once, `(num, *shape)` each."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(result)]
    wanted = [(num, *shape) if form.vectorized else shape for shape in form.shapes]
    if [leaf.shape for leaf in leaves] != wanted:
        raise ValueError(
            f"returned arrays of shapes {[leaf.shape for leaf in leaves]}, expected {wanted}; "
            "every call must return the terms of the first, in the same shapes"
        )
    return [leaf.reshape(num, *shape).astype(form.dtype) for leaf, shape in zip(leaves, form.shapes, strict=True)]
