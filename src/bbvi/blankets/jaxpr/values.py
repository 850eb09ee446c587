"""Values of a trace's variables, worked out when they are asked for and only as far as they are known."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from bbvi.blankets.jaxpr.primitives import CALLBACKS
from bbvi.blankets.jaxpr.run import bind

#: operations on NumPy arrays, moves of data among them
NUMPY: dict[str, Callable[..., np.ndarray]] = {
    "broadcast_in_dim": lambda p, array: _broadcast_in_dim(array, p["shape"], p["broadcast_dimensions"]),
    "reshape": lambda p, array: array.reshape(p["new_sizes"]),
    "transpose": lambda p, array: array.transpose(p["permutation"]),
    "squeeze": lambda p, array: array.squeeze(p["dimensions"]),
    "expand_dims": lambda p, array: np.expand_dims(array, p["dimensions"]),
    "tile": lambda p, array: np.tile(array, p["reps"]),
    "rev": lambda p, array: np.flip(array, p["dimensions"]),
    "slice": lambda p, array: array[
        tuple(map(slice, p["start_indices"], p["limit_indices"], p["strides"] or [1] * array.ndim))
    ],
    "concatenate": lambda p, *arrays: np.concatenate(arrays, p["dimension"]),
    "integer_pow": lambda p, array: array ** p["y"],
    "convert_element_type": lambda p, array: array,
}
_UFUNCS: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.maximum, "min": np.minimum, "neg": np.negative,
    "div": np.divide, "log": np.log, "exp": np.exp, "eq": np.equal, "ne": np.not_equal, "gt": np.greater, "lt": np.less,
    "ge": np.greater_equal, "le": np.less_equal, "sqrt": np.sqrt, "and": np.logical_and, "or": np.logical_or, "not": np.logical_not,
}  # fmt: skip
_FLOATS, _LOGIC = (np.float32, np.float64), ("and", "or", "not")


class Values:
    """The values of a trace's variables; `depends(variable)` tells whether one is known only at some made-up inputs."""

    def __init__(self, depends: Callable[[Any], bool]):
        self._depends = depends
        self._values: dict[Any, Any] = {}
        self._makers: dict[Any, Any] = {}

    def know(self, variables: Any, values: Any) -> None:
        """Note the values of some variables, None for those that are not known."""
        self._values.update((v, value) for v, value in zip(variables, values, strict=True) if value is not None)

    def made_by(self, eqn: Any) -> None:
        """Note the equation from which the values of its results can be worked out."""
        self._makers.update((v, eqn) for v in eqn.outvars)

    def __call__(self, atom: Any) -> Any:
        """Work out the value of a variable or literal, None if it cannot be had."""
        todo = [atom]
        while todo:
            top = todo[-1]
            if isinstance(top, Literal) or top in self._values or top not in self._makers:
                todo.pop()
                continue
            eqn = self._makers[top]
            waiting = [a for a in eqn.invars if not isinstance(a, Literal) and a not in self._values]
            unmade = [a for a in waiting if a not in self._makers]
            if unmade or self._must_not_run(eqn):
                self._values.update((v, None) for v in eqn.outvars)
            elif waiting:
                todo += waiting
            else:
                self._evaluate(eqn)
        return atom.val if isinstance(atom, Literal) else self._values.get(atom)

    def _evaluate(self, eqn: Any) -> None:
        inputs = [a.val if isinstance(a, Literal) else self._values[a] for a in eqn.invars]
        made: Any = [None] * len(eqn.outvars)
        if all(value is not None for value in inputs):
            made = _with_numpy(eqn, inputs) or bind(eqn, [jnp.asarray(v) for v in inputs])
            # what is not finite at made-up inputs, such as 0 * log(0), may be so because of them
            made = [None if self._depends(v) and _is_wild(m) else m for v, m in zip(eqn.outvars, made, strict=True)]
        self._values.update(zip(eqn.outvars, made, strict=True))

    def _must_not_run(self, eqn: Any) -> bool:
        """Tell whether it calls the host, or is a loop that might not end at made-up inputs."""
        name = eqn.primitive.name
        return name in CALLBACKS or (name == "while" and any(map(self._depends, eqn.outvars)))


def _with_numpy(eqn: Any, inputs: list[Any]) -> list[np.ndarray] | None:
    """Compute common operations without a compiler; None for others, and for integers, which wrap around."""
    name, out = eqn.primitive.name, eqn.outvars[0].aval
    if any(map(_is_key, inputs)):
        return None
    arrays = [np.asarray(value) for value in inputs]
    to_other = name == "convert_element_type" and out.dtype not in _FLOATS
    kinds = (np.bool_,) if name in _LOGIC else _FLOATS
    if to_other or name not in _UFUNCS | NUMPY or any(array.dtype not in kinds for array in arrays):
        return None
    with np.errstate(all="ignore"):
        made = _UFUNCS[name](*arrays) if name in _UFUNCS else NUMPY[name](eqn.params, *arrays)
    return [np.asarray(made, out.dtype)]


def _is_wild(value: Any) -> bool:
    return bool(jnp.issubdtype(jnp.result_type(value), jnp.inexact) and not np.all(np.isfinite(np.asarray(value))))


def _is_key(value: Any) -> bool:
    """Tell whether a value is a key of random numbers, which NumPy does not know."""
    return bool(jnp.issubdtype(jnp.result_type(value), jax.dtypes.prng_key))


def _broadcast_in_dim(array: np.ndarray, shape: tuple[int, ...], dimensions: tuple[int, ...]) -> np.ndarray:
    new = [axis for axis in range(len(shape)) if axis not in dimensions]
    return np.broadcast_to(np.expand_dims(array, new), shape)
