"""Spread the calls of an opaque function over workers: threads, processes, or those of a cluster."""

import dataclasses
import functools
import hashlib
import itertools
import pickle
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Executor, ThreadPoolExecutor
from typing import Any

import numpy as np

from bbvi.model.opaque.calls import Caller, Failure, Form, Function, Results, Segment, run

_CHUNKS_PER_WORKER = 4


@dataclasses.dataclass(frozen=True)
class Workers:
    """Where calls are made: `submit` sends one and returns a future, `num` tells how many run at a time.

    `dumps` turns a function and its data into bytes that travel once to each worker; None if workers share this process's
    memory. No chunk of calls may take longer than `seconds`.
    """

    submit: Callable[..., Any]
    num: Callable[[], int]
    dumps: Callable[[Any], bytes] | None
    seconds: float | None = None


def as_workers(executor: Executor | Workers) -> Workers:
    """Describe a `concurrent.futures` executor as workers."""
    if isinstance(executor, Workers):
        return executor
    dumps = None if isinstance(executor, ThreadPoolExecutor) else pickle.dumps
    return Workers(executor.submit, lambda: getattr(executor, "_max_workers", 2), dumps)


def in_workers(workers: Workers, function: Function, constant: tuple[Any, ...], name: str) -> Caller:
    """Return what does as `run` in workers; what is the same in all calls travels once to each of them."""
    payload = None if workers.dumps is None else _pickled(workers.dumps, function, constant, name)
    token = hashlib.sha256(payload or b"").hexdigest()

    def run_there(segments: Sequence[Segment], form: Form) -> Results:
        pieces = _split(segments, _CHUNKS_PER_WORKER * workers.num())
        at, outcomes, futures = 0, dict.fromkeys(range(len(pieces))), {}
        try:
            # a worker that does not have the function and its data yet says None: it is asked again, with them
            for sent in (None, payload):
                shipped = functools.partial(run_shipped, token, sent)
                work: Callable[..., Any] = functools.partial(run, function, constant) if payload is None else shipped
                futures = {i: workers.submit(work, pieces[i], form) for i in outcomes if outcomes[i] is None}
                for at, future in futures.items():
                    outcomes[at] = future.result(timeout=workers.seconds)
        except Exception as error:  # what cannot be unpickled over there, an executor that was shut down
            for future in futures.values():
                future.cancel()
            return Failure(pieces[at][0].cut(0, 1), _reason(error, workers), traceback.format_exc())
        for outcome in outcomes.values():
            if isinstance(outcome, Failure):
                return outcome
        return [np.concatenate(arrays) for arrays in zip(*outcomes.values(), strict=True)]

    return run_there


def _reason(error: Exception, workers: Workers) -> str:
    """Say why a chunk of calls came to nothing, though the function itself raised nothing."""
    why: Any = error
    if isinstance(error, BrokenExecutor):
        why = "a worker died (killed, out of memory, or it ended the process); make a new executor"
    elif isinstance(error, TimeoutError):
        why = f"no answer within {workers.seconds:g} s to the calls that begin with these values; allow more seconds=, or look for a worker that hangs"
    return f"{type(error).__name__}: {why}"


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


def _pickled(dumps: Callable[[Any], bytes], function: Function, constant: tuple[Any, ...], name: str) -> bytes:
    for what, value in (("the function", function), ("its data", constant)):
        try:
            dumps(value)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{name}: {what} cannot be sent to worker processes ({error}); with executor= the function must stand "
                "at the top level of a module (no lambda, no function inside a function) and the data must be picklable"
            ) from error
    return dumps((function, constant))


def _split(segments: Sequence[Segment], num: int) -> list[list[Segment]]:
    """Split calls, in the same order, into `num` lists of about the same length."""
    calls = [(segment, i) for segment in segments for i in range(segment.num)]
    pieces = []
    for numbers in np.array_split(np.arange(len(calls)), min(num, len(calls))):
        by_segment = itertools.groupby((calls[n] for n in numbers), key=lambda call: id(call[0]))
        own = [list(members) for _, members in by_segment]
        pieces.append([members[0][0].cut(members[0][1], members[-1][1] + 1) for members in own])
    return pieces
