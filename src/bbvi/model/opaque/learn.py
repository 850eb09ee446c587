"""The first calls of an opaque function: which terms it returns, and whether it does what was declared of it."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from bbvi.model.opaque.calls import Failure, Form, Segment, call, run
from bbvi.model.opaque.moving import Term


def learn(function: Callable[..., Any], segment: Segment, constant: tuple[Any, ...], label: str, *, vectorized: bool):
    """Call twice with the same arguments; return the terms with their shapes, and the structure of the result."""
    try:
        first, again = (call(function, constant, segment.cut(0, 1), 0, vectorized=vectorized) for _ in range(2))
    except Exception as error:
        error.add_note(f"This came from {label}, called to see which terms it returns.")
        raise
    leaves, structure = jax.tree.flatten(first)
    names = [
        jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in jax.tree_util.tree_leaves_with_path(first)
    ]
    if not leaves:
        raise ValueError(f"{label} returned {first!r}; it must return a number or terms (did it forget `return`?)")
    arrays = [_number(leaf, name, label) for leaf, name in zip(leaves, names, strict=True)]
    _check_same(arrays, [np.asarray(leaf) for leaf in jax.tree.leaves(again)], label, segment.seeds is not None)
    if vectorized:
        arrays = [_without_samples(array, name, label) for array, name in zip(arrays, names, strict=True)]
    ends = np.cumsum([array.size for array in arrays])
    terms = [
        Term(name, array.shape, int(end) - array.size, int(end))
        for name, array, end in zip(names, arrays, ends, strict=True)
    ]
    return terms, structure


def check_vectorized(
    function: Callable[..., Any], segment: Segment, constant: tuple[Any, ...], label: str, *, form: Form
) -> None:
    """Refuse a function for which two samples at once do not give what each of them gives alone."""
    batches = ([segment], [segment.cut(i, i + 1) for i in range(segment.num)])
    results = []
    for batch in batches:
        outcome = run(function, constant, batch, form)
        if isinstance(outcome, Failure):
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


def _number(leaf: Any, name: str, label: str) -> np.ndarray:
    where = f"{label}: term {name!r}" if name else label
    try:
        array = np.asarray(leaf)
    except ValueError:
        raise TypeError(f"{where} must be a number or an array of numbers, got {type(leaf).__name__}") from None
    if array.dtype.kind not in "fiu":
        raise TypeError(
            f"{where} must be a log density, a real number or an array of them; got {type(leaf).__name__} "
            f"{str(leaf)[:60]!r} of type {array.dtype}"
        )
    return array


def _check_same(one: list[np.ndarray], other: list[np.ndarray], label: str, seeded: bool) -> None:
    if len(one) == len(other) and all(np.array_equal(a, b, equal_nan=True) for a, b in zip(one, other, strict=True)):
        return
    a, b = next(((a, b) for a, b in zip(one, other, strict=False) if not np.array_equal(a, b, equal_nan=True)), (0, 0))
    got = f"{label} returned {_short(a)} and then {_short(b)} for the same arguments"
    if seeded:
        raise ValueError(
            f"{got} and the same seed: all its random numbers must come from seed=, for example from "
            "np.random.default_rng(seed)"
        )
    raise ValueError(
        f"{got}: it is random, or keeps state from call to call. If it is random, declare it with "
        "bbvi.opaque(fn, stochastic=True) and draw from np.random.default_rng(seed), where seed= is what it is then given"
    )


def _short(array: Any) -> str:
    return np.array2string(np.asarray(array), precision=6, threshold=4)


def _without_samples(array: np.ndarray, name: str, label: str) -> np.ndarray:
    if array.shape[:1] != (1,):
        term = f"term {name!r}" if name else "the value"
        raise ValueError(
            f"{label}: with vectorized=True every term must have the samples on its first axis; for 1 sample {term} has "
            f"shape {array.shape}. Sum over other axes only, for example x.sum(axis=-1)"
        )
    return array[0]
