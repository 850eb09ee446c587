"""Calls of a function that JAX cannot trace: one after the other, many at once, or spread over workers."""

import functools
import hashlib
import itertools
import pickle
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Executor, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np

_CHUNKS_PER_WORKER = 4


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


def in_executor(executor: Executor, function: Function, constant: tuple[Any, ...], name: str) -> Caller:
    """Return what does as `run` in the workers of an executor; what is the same in all calls travels once to each worker."""
    payload = None if isinstance(executor, ThreadPoolExecutor) else _pickled(function, constant, name)
    token = hashlib.sha256(payload or b"").hexdigest()

    def run_there(segments: Sequence[Segment], form: Form) -> Results:
        pieces = _split(segments, _CHUNKS_PER_WORKER * getattr(executor, "_max_workers", 2))
        at, outcomes = 0, dict.fromkeys(range(len(pieces)))
        try:
            # a worker that does not have the function and its data yet says None: it is asked again, with them
            for sent in (None, payload):
                shipped = functools.partial(run_shipped, token, sent)
                work: Callable[..., Any] = functools.partial(run, function, constant) if payload is None else shipped
                futures = {i: executor.submit(work, pieces[i], form) for i in outcomes if outcomes[i] is None}
                for at, future in futures.items():
                    outcomes[at] = future.result()
        except Exception as error:  # what cannot be unpickled over there, an executor that was shut down
            died = "a worker died (killed, out of memory, or it ended the process); make a new executor"
            why = died if isinstance(error, BrokenExecutor) else error
            return Failure(pieces[at][0].cut(0, 1), f"{type(error).__name__}: {why}", traceback.format_exc())
        for outcome in outcomes.values():
            if isinstance(outcome, Failure):
                return outcome
        return [np.concatenate(arrays) for arrays in zip(*outcomes.values(), strict=True)]

    return run_there


# What a worker has been sent, by checksum. It is the worker's alone and saves sending the data with every chunk.
_received: dict[str, tuple[Function, tuple[Any, ...]]] = {}


def run_shipped(token: str, payload: bytes | None, segments: list[Segment], form: Form) -> Results | None:
    """Run calls in a worker, with a function and data that came before or come now; None asks for them."""
    if token not in _received:
        if payload is None:
            return None
        while len(_received) >= 4:
            del _received[next(iter(_received))]
        _received[token] = pickle.loads(payload)
    return run(*_received[token], segments, form)


def _pickled(function: Function, constant: tuple[Any, ...], name: str) -> bytes:
    for what, value in (("the function", function), ("its data", constant)):
        try:
            pickle.dumps(value)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{name}: {what} cannot be sent to worker processes ({error}); with executor= the function must stand "
                "at the top level of a module (no lambda, no function inside a function) and the data must be picklable"
            ) from error
    return pickle.dumps((function, constant))


def _split(segments: Sequence[Segment], num: int) -> list[list[Segment]]:
    """Split calls, in the same order, into `num` lists of about the same length."""
    calls = [(segment, i) for segment in segments for i in range(segment.num)]
    pieces = []
    for numbers in np.array_split(np.arange(len(calls)), min(num, len(calls))):
        by_segment = itertools.groupby((calls[n] for n in numbers), key=lambda call: id(call[0]))
        own = [list(members) for _, members in by_segment]
        pieces.append([members[0][0].cut(members[0][1], members[-1][1] + 1) for members in own])
    return pieces
