"""LAPACK on one thread and in small batches, for programs that factorise many small matrices.

JAX on CPU calls SciPy's LAPACK for each matrix of a batch. Its threads wait for each other between two calls, and on a busy machine
that takes twenty times as long as the work. And JAX shares out a large batch to its own threads and waits for them: where as many such
batches run at a time as there are threads, all wait and none works, for ever.
"""

import functools
import math
import threading
from collections.abc import Iterator
from typing import Any

import threadpoolctl

_BY_LAPACK = frozenset(
    "cholesky triangular_solve lu qr geqrf householder_product eigh eig svd schur hessenberg tridiagonal".split()
)
_SMALL = 512  # rows or columns; several threads pay for larger matrices
_NOT_SHARED_OUT = 200_000  # operations of a batch below which JAX keeps it on one thread
_MOST_PER_CUBE = 25  # operations for a matrix, by the cube of its size: those of a singular value decomposition


def factorises_small_matrices(jaxpr: Any) -> bool:
    """Tell whether a traced program calls LAPACK, and for small matrices alone."""
    return 0 < max(_sizes(jaxpr), default=0) <= _SMALL


def _sizes(jaxpr: Any) -> Iterator[int]:
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in _BY_LAPACK:
            yield from (max(atom.aval.shape[-2:], default=1) for atom in eqn.invars)
        for inner in jaxprs_inside(eqn):
            yield from _sizes(inner)


def batch_on_one_thread(eqn: Any, num: int) -> int:
    """Return how many of `num` samples an operation may take at a time such that no batch of LAPACK's is shared out: a divisor."""
    work = _MOST_PER_CUBE * max(_cubes(eqn), default=0)
    return next(size for size in range(num, 0, -1) if num % size == 0 and (size == 1 or size * work < _NOT_SHARED_OUT))


def _cubes(eqn: Any) -> Iterator[int]:
    if eqn.primitive.name in _BY_LAPACK:
        *batch, rows, columns = eqn.invars[0].aval.shape
        yield math.prod(batch) * max(rows, columns) ** 3
    for inner in jaxprs_inside(eqn):
        for one in inner.eqns:
            yield from _cubes(one)


def jaxprs_inside(eqn: Any) -> Iterator[Any]:
    """Yield the traces that an equation holds, such as the body of a loop."""
    for value in eqn.params.values():
        for inner in value if isinstance(value, (tuple, list)) else (value,):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield inner


class _OneThread:
    """How many programs ask for one thread now, and what brings the others back."""

    def __init__(self) -> None:
        self._lock, self._num = threading.Lock(), 0
        self._limit: Any = None

    def __enter__(self) -> None:
        with self._lock:
            self._num += 1
            if self._num == 1:
                self._limit = _libraries().limit(limits=1)

    def __exit__(self, *_: Any) -> None:
        with self._lock:
            self._num -= 1
            if self._num == 0:
                self._limit.restore_original_limits()


#: keeps BLAS and LAPACK on one thread; there are as many as before when the last that asked for it is done
one_thread = _OneThread()


@functools.cache
def _libraries() -> Any:
    import scipy.linalg  # so that its library is loaded, which JAX calls

    assert scipy.linalg
    return threadpoolctl.ThreadpoolController().select(user_api="blas")
