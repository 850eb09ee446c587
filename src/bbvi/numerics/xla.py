"""Compiler options for `jax.jit`: fast code for the training loop, fast compilation for programs that run once.

Also marks and conditions that make XLA store a value once instead of computing it again for each use.
"""

import contextlib
import functools
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array

from bbvi.numerics.alarm import without_alarm
from bbvi.numerics.blas import factorises_small_matrices, jaxprs_inside, one_thread

# XLA's older way to write a kernel takes a quarter to a half less time, and a third less memory, than its newer one
_OLDER_KERNELS = ("xla_cpu_use_fusion_emitters", False)
# how a program is cut for threads of the compiler would change the last bits of functions that it calls
_IN_ONE_PIECE = ("xla_cpu_parallel_codegen_split_count", 1)
# kernels that wait for each other in turn need fewer copies of what a step carries to the next
_IN_TURN = ("xla_cpu_enable_concurrency_optimized_scheduler", False)
_NO_EFFORT = {"xla_backend_optimization_level": 0}
# numbers to compute for each operation that is compiled: below, faster code costs more to compile (0.6 ms an operation)
# than it saves (0.3 ns a number)
_WORTH_EFFORT = 2_000_000
_NAME = "bbvi stage"
# from here on XLA compiles for minutes where random numbers or recurrences are fused into all that reads them
_COPIES = jax.__version_info__ >= (0, 11)
_LANES = 8  # numbers in a vector register
_WORTH_UNROLLING = 12_000  # numbers: below, longer code costs more to compile than it saves


def for_many_runs() -> dict[str, Any]:
    """Return arguments of `jit` for a program that runs again and again."""
    return {"compiler_options": _known_among(_OLDER_KERNELS, _IN_TURN)}


def for_one_run() -> dict[str, Any]:
    """Return arguments of `jit` for a program that runs a few times: not worth the compiler's effort."""
    return {"compiler_options": _known_among(_OLDER_KERNELS, _IN_ONE_PIECE) | _NO_EFFORT}


def program(function: Callable[..., Any], *, runs: int | None = None, **options: Any) -> Callable[..., Any]:
    """Compile a function of arrays, for which all else in its arguments is constant; `options` are those of `jax.jit`.

    Without `options` of the compiler, `runs` is how often it runs, or goes round a loop of unknown length: if there is
    little to compute for what there is to compile, it is compiled as for one run, unless it is called with `long=True`. That is counted, not measured,
    so that the same calls are always made by the same code.

    What was compiled goes when the program goes. `equinox.filter_jit` would keep it, with all that the function closes
    over, to the end of the process: its caches are weak in the function, but hold it as a constant of its own program.
    """
    compiled: dict[Any, tuple[Callable[..., Any], Callable[..., Any], bool]] = {}
    run_before: set[Callable[..., Any]] = set()

    def call(*arguments: Any, long: bool = False) -> Any:
        arrays, rest = eqx.partition(arguments, eqx.is_array)
        leaves, tree = jax.tree.flatten(rest)
        shapes = tuple(array.shape for array in jax.tree.leaves(arrays)) if runs else ()
        key = (tree, shapes, *((type(leaf), leaf) for leaf in leaves))
        if key not in compiled:
            whole = functools.wraps(function)(lambda *arrays: function(*eqx.combine(arrays, rest)))
            with_effort = jax.jit(whole, **(for_many_runs() if runs else {}), **options)
            traced = with_effort.trace(*arrays).jaxpr
            numbers, operations = to_compute(traced)
            is_little = runs is not None and runs * numbers <= _WORTH_EFFORT * operations
            first = jax.jit(whole, **for_one_run(), **options) if is_little else with_effort
            compiled[key] = with_effort, first, factorises_small_matrices(traced)
        late, early, on_one_thread = compiled[key]
        run = late if long else early
        with contextlib.nullcontext() if run in run_before else without_alarm():
            run_before.add(run)
            if not on_one_thread:
                return run(*arrays)
            with one_thread:
                return jax.block_until_ready(run(*arrays))

    return call


def to_compute(jaxpr: Any) -> tuple[int, int]:
    """Count the numbers that a traced program computes, going once round a loop whose length is not known, and its operations."""
    numbers, operations = 0, len(jaxpr.eqns)
    for eqn in jaxpr.eqns:
        inner = [to_compute(one) for one in jaxprs_inside(eqn)]
        of_each = [own for own, _ in inner] or [sum(math.prod(out.aval.shape) for out in eqn.outvars)]
        own = max(of_each) if eqn.primitive.name == "cond" else sum(of_each)
        numbers += own * eqn.params.get("length", 1)
        operations += sum(own for _, own in inner)
    return numbers, operations


def _known_among(*options: tuple[str, Any]) -> dict[str, Any]:
    """Return those options that this version of XLA and this device know; they would refuse others."""
    if _are_known(_OLDER_KERNELS, _IN_TURN, _IN_ONE_PIECE):
        return dict(options)
    return dict(option for option in options if _are_known(option))


@functools.cache
def _are_known(*options: tuple[str, Any]) -> bool:
    try:
        jax.jit(lambda: 0, compiler_options=dict(options)).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


#: by this name the analysis of jumps knows an integer that stays as it is while what stands beside it moves
CHOSEN = "_bbvi_chosen_value"


def chosen_value(value: Array) -> Array:
    """Return the integer that a factor of q holds, beside real numbers, as one of them."""
    return _bbvi_chosen_value(value)


@jax.jit
def _bbvi_chosen_value(value: Array) -> Array:
    return jnp.round(value).astype(int)


def mark(value: Array) -> Array:
    """Return the same value, marked to be stored once instead of being computed again wherever it is used."""
    return value if isinstance(value, np.ndarray) else once(checkpoint_name(value, _NAME))


def once(value: Array) -> Array:
    """Return the same value, of which XLA is to make no copies; no stage ends here."""
    return jax.lax.optimization_barrier(value) if _COPIES else value


def is_mark(eqn: Any) -> bool:
    """Tell whether this equation of a trace is a mark."""
    return eqn.primitive.name == "name" and eqn.params["name"] == _NAME


def run_time_true(key: Array) -> Array:
    """Return a boolean that is always True but known only at run time, so XLA cannot remove the branch it guards."""
    return (key[0] | np.uint32(1)) != 0


def materialise(on: Array, stage: Callable[..., Any], *arguments: Any) -> Any:
    """Run a stage so that its results are stored once.

    XLA on CPU would otherwise copy a cheap-looking producer, such as the random numbers, into every consumer:
    more to compile and more to compute. The condition `on` of `run_time_true` stops it.
    """
    stage = jax.jit(stage)  # traced once
    zeros = lambda *_: jax.tree.map(jnp.zeros_like, jax.eval_shape(stage, *arguments))  # noqa: E731
    return jax.lax.cond(on, stage, zeros, *arguments)


def stored(on: Array, values: Any) -> Any:
    """Return the same values, computed once for all that follows."""
    return materialise(on, lambda same: same, values)


def sum_over_samples(function: Callable[..., Any], *arrays: Any) -> Any:
    """Return the sums over the last axis of `function(*arrays)`, which works element by element.

    Some hundred samples are cut into pieces of one vector register each and these added: on CPU that takes half as long.
    """
    some = jax.tree.leaves(arrays)[0]
    num = some.shape[-1]
    # more to compile: worth it for many rows only
    if num % _LANES or not 8 * _LANES <= num <= 32 * _LANES or some.size < _WORTH_UNROLLING:
        return jax.tree.map(lambda leaf: leaf.sum(-1), function(*arrays))
    total = None
    for first in range(0, num, _LANES):
        cut = function(*jax.tree.map(lambda leaf, a=first: leaf[..., a : a + _LANES], arrays))
        total = cut if total is None else jax.tree.map(jnp.add, total, cut)
    return jax.tree.map(lambda leaf: leaf.sum(-1), total)
