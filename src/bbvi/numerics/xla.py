"""What to ask of the compiler: the shorter of two ways to code where the code is as fast, and no effort for one run."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array

# XLA's older way to write a kernel takes a quarter to a half less time, and a third less memory, than its newer one
_OLDER_KERNELS = {"xla_cpu_use_fusion_emitters": False}
_NO_EFFORT = {"xla_backend_optimization_level": 0}


def for_many_runs() -> dict[str, Any]:
    """Arguments of `jit` for a program that runs again and again."""
    return {"compiler_options": _known_here()}


def for_one_run() -> dict[str, Any]:
    """Arguments of `jit` for a program that runs a few times: not worth the compiler's effort."""
    return {"compiler_options": {**_known_here(), **_NO_EFFORT}}


@functools.cache
def _known_here() -> dict[str, Any]:
    """Options that this version of XLA and this device know; others would be refused."""
    try:
        jax.jit(lambda: 0, compiler_options=_OLDER_KERNELS).lower().compile()
    except jax.errors.JaxRuntimeError:
        return {}
    return _OLDER_KERNELS


_NAME = "bbvi stage"
# from here on XLA compiles for minutes where random numbers or recurrences are fused into all that reads them
_COPIES = jax.__version_info__ >= (0, 11)


def mark(value: Array) -> Array:
    """The same value, stored once instead of being computed again wherever it is used."""
    return once(checkpoint_name(value, _NAME))


def once(value: Array) -> Array:
    """The same value, of which XLA is to make no copies; no stage ends here."""
    return jax.lax.optimization_barrier(value) if _COPIES else value


def is_mark(eqn: Any) -> bool:
    """Whether this equation of a trace is a mark."""
    return eqn.primitive.name == "name" and eqn.params["name"] == _NAME


def run_time_true(key: Array) -> Array:
    """True, which the compiler cannot know."""
    return (key[0] | np.uint32(1)) != 0


def materialise(on: Array, stage: Callable[..., Any], *arguments: Any) -> Any:
    """Run a stage so that its results are stored once.

    XLA on CPU would otherwise copy a cheap-looking producer, such as the random numbers, into every consumer:
    more to compile and more to compute. A condition that is always true, though the compiler cannot know, stops it.
    """
    stage = jax.jit(stage)  # traced once
    shapes = jax.eval_shape(stage, *arguments)
    zeros = lambda *_: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)  # noqa: E731
    return jax.lax.cond(on, stage, zeros, *arguments)


def stored(on: Array, values: Any) -> Any:
    """The same values, computed once and for all that follows."""
    return materialise(on, lambda same: same, values)


def sum_over_samples(function: Callable[..., Any], *arrays: Any) -> Any:
    """The sums over the last axis of `function(*arrays)`, which works element by element.

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


_LANES = 8


_WORTH_UNROLLING = 12_000
