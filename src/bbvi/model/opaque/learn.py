"""The first calls of an opaque function: which terms it returns, and whether it does what was declared of it."""

import itertools
from typing import Any

import jax
import numpy as np

from bbvi.model.opaque.calls import Failure, Form, Function, Segment, call, run
from bbvi.model.opaque.moving import Term, one_after_another


def learn(function: Function, segment: Segment, constant: tuple[Any, ...], label: str, *, vectorized: bool):
    """Call twice with the same arguments; return the terms with their shapes, and the structure of the result."""
    try:
        first, again = (call(function, constant, segment.cut(0, 1), 0, vectorized=vectorized) for _ in range(2))
    except Exception as error:
        error.add_note(f"This came from {label}, called to see which terms it returns.")
        raise
    leaves, structure = jax.tree_util.tree_flatten_with_path(first)
    if not leaves:
        raise ValueError(f"{label} returned {first!r}; it must return a number or terms (did it forget `return`?)")
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves]
    arrays = [np.asarray(leaf) for _, leaf in leaves]
    for name, array in zip(names, arrays, strict=True):
        where = f"{label}: term {name!r}" if name else label
        if array.dtype.kind not in "fiu":
            got = f"got {str(array)[:60]!r} of type {array.dtype}"
            raise TypeError(f"{where} must be a log density, a real number or an array of them; {got}")
        if vectorized and array.shape[:1] != (1,):
            raise ValueError(
                f"{where} has shape {array.shape} for 1 sample; with vectorized=True every term must have the samples on its "
                "first axis. Sum over other axes only, for example x.sum(axis=-1)"
            )
    _check_same(arrays, [np.asarray(leaf) for leaf in jax.tree.leaves(again)], label, segment.seeds is not None)
    shapes = [array.shape[1:] if vectorized else array.shape for array in arrays]
    return list(map(Term, names, shapes, one_after_another(shapes))), structure


def check_vectorized(
    function: Function, segment: Segment, constant: tuple[Any, ...], label: str, *, form: Form
) -> None:
    """Refuse a function for which two samples at once do not give what each of them gives alone."""
    results = []
    for batch in ([segment], [segment.cut(i, i + 1) for i in range(segment.num)]):
        if isinstance(outcome := run(function, constant, batch, form), Failure):
            raise ValueError(
                f"{label}, called with {segment.num} samples at once: {outcome.reason}; with vectorized=True it must "
                "return every term with the samples on its first axis"
            )
        results.append(outcome)
    for both, alone in zip(*results, strict=True):
        # a batch may add up in another order
        if not np.allclose(both, alone, rtol=1e-3, atol=1e-5, equal_nan=True):
            raise ValueError(
                f"{label}: two samples at once give {_short(both)}, each alone {_short(alone)}; with "
                "vectorized=True the first axis of every latent and term is the samples, which must not mix"
            )


def _check_same(one: list[np.ndarray], other: list[np.ndarray], label: str, seeded: bool) -> None:
    hint = ": it is random, or keeps state from call to call. If it is random, declare it with bbvi.opaque(fn, "
    hint += "stochastic=True) and draw from np.random.default_rng(seed), where seed= is what it is then given"
    if seeded:
        hint = " and the same seed: all its random numbers must come from seed=, for example from "
        hint += "np.random.default_rng(seed)"
    for a, b in itertools.zip_longest(one, other, fillvalue=np.zeros(0)):
        if not np.array_equal(a, b, equal_nan=True):
            raise ValueError(f"{label} returned {_short(a)} and then {_short(b)} for the same arguments{hint}")


def _short(array: Any) -> str:
    return np.array2string(np.asarray(array), precision=6, threshold=4)
