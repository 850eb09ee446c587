"""A trace evaluated for many samples at once, with samples on the last axis of every array that has them.

Samples last means that each operation runs over them in one go. What does not depend on a sample is computed once.
On the way two costs go away that a user need not think of: the logarithm of a latent that was drawn as a logarithm
is handed over as it is, without underflow, and lgamma and digamma are replaced by faster ones.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr
from jaxtyping import Array

from bbvi.blankets.jaxpr.primitives import CUMULATIVE, CUSTOM, ELEMENTWISE, MOVES, REDUCTIONS, num_summed, scan_parts
from bbvi.blankets.jaxpr.products import along_common_axes
from bbvi.blankets.jaxpr.propagate import reached_through_carry
from bbvi.blankets.jaxpr.run import bind, bind_whole, called, run, scan_like
from bbvi.numerics import special
from bbvi.numerics.blas import batch_on_one_thread

_MOST_UNROLLED = 16
_FASTER = {"lgamma": special.lgamma, "digamma": special.digamma}
Log = Callable[[], Array] | None


class Last(NamedTuple):
    """An array with samples on its last axis; `log` works out its logarithm where that is known otherwise."""

    array: Array
    log: Log = None


def run_last(
    closed: ClosedJaxpr, inputs: Sequence[Any], num: int, *, fast_lgamma: bool = True, derivatives: bool = False
) -> list[Array]:
    """Compute the outputs of a trace, all with samples last; inputs are `Last`, or the same for all samples.

    With `derivatives` the result will be differentiated: functions that bring a derivative of their own keep it.
    """
    typed = [_typed(value, v.aval.dtype) for value, v in zip(inputs, closed.jaxpr.invars, strict=True)]
    values = run(closed, typed, closed.jaxpr.outvars, special=_Rules(num, fast_lgamma, derivatives))
    return [_spread(value, v.aval.shape, num) for value, v in zip(values, closed.jaxpr.outvars, strict=True)]


def _typed(value: Any, dtype: Any) -> Any:
    is_last = isinstance(value, Last)
    return Last(jnp.asarray(value.array, dtype), value.log) if is_last else jnp.asarray(value, dtype)


def _spread(value: Any, shape: tuple[int, ...], num: int) -> Array:
    """Repeat an operand of the given shape, or a number, for every sample."""
    if isinstance(value, Last):
        return value.array if value.array.ndim == len(shape) + 1 else jnp.broadcast_to(value.array, (*shape, num))
    array = jnp.asarray(value)
    return jnp.broadcast_to(array[..., None] if array.ndim == len(shape) else array, (*shape, num))


class _Rules:
    """`rules(equation, values, source)`: the results with samples last; None where no value has samples."""

    def __init__(self, num: int, fast_lgamma: bool, derivatives: bool):
        self.num, self.derivatives, self._faster = num, derivatives, _FASTER if fast_lgamma else {}

    def __call__(self, eqn: Any, values: list[Any], source: Any) -> list[Any] | None:
        name, has = eqn.primitive.name, [isinstance(value, Last) for value in values]
        if not any(has):
            return None
        if self.derivatives and name in CUSTOM:
            return self._mapped(eqn, values, bind_whole)
        if (inner := called(eqn)) is not None:
            return run(inner, values, inner.jaxpr.outvars, special=self, call=source)
        if name in ELEMENTWISE:
            return [self._elementwise(eqn, values)]
        if name == "concatenate":
            return [self._concatenate(eqn, values)]
        if name == "scan":
            return self._scan(eqn, values)
        if name in _BEHIND and has[0] and not any(has[1:]):
            return [self._in_front(eqn, *values)]
        # backwards a product is two more products, which are fastest as such
        made = _dot(eqn, values, self.num) if name == "dot_general" and not self.derivatives else None
        return self._mapped(eqn, values) if made is None else [made]

    def _elementwise(self, eqn: Any, values: list[Any]) -> Last:
        name = eqn.primitive.name
        if name == "log" and values[0].log is not None:
            return Last(values[0].log())
        arrays = [_spread(value, eqn.outvars[0].aval.shape, self.num) for value in values]
        if name in self._faster:
            return Last(self._faster[name](arrays[0]))
        return Last(eqn.primitive.bind(*arrays, **eqn.params), _log_of(name, eqn, values, self.num))

    def _in_front(self, eqn: Any, value: Last, *others: Any) -> Last:
        """Run an operation on the axes before that of the samples; it may have indices or a filling without samples."""
        name, last, params = eqn.primitive.name, len(eqn.outvars[0].aval.shape), dict(eqn.params)
        for key, more in _BEHIND[name](self.num, last).items():
            params[key] = None if params[key] is None else (*params[key], more)
        if name == "gather":
            numbers = params["dimension_numbers"]
            params["dimension_numbers"] = numbers._replace(offset_dims=(*numbers.offset_dims, last))
        if name == "dynamic_slice":
            others = (*others, jnp.zeros_like(others[0]))
        log = value.log if name in MOVES else None

        def move(array: Array) -> Array:
            return eqn.primitive.bind(array, *others, **params)

        return Last(move(value.array), None if log is None else lambda: move(log()))

    def _concatenate(self, eqn: Any, values: list[Any]) -> Last:
        def joined(parts: list[Any]) -> Array:
            arrays = [_spread(part, atom.aval.shape, self.num) for part, atom in zip(parts, eqn.invars, strict=True)]
            return lax.concatenate(arrays, eqn.params["dimension"])

        return Last(joined(values), _all_logs(values, joined))

    def _scan(self, eqn: Any, values: list[Any]) -> list[Any]:
        """Run a loop whose body is evaluated in the same way; what never meets a sample stays without."""
        body = eqn.params["jaxpr"]
        consts, carry, xs = scan_parts(eqn, values)
        _, carried, _ = scan_parts(eqn, reached_through_carry(eqn, [isinstance(value, Last) for value in values]))

        def carry_of(parts: list[Any]) -> list[Any]:
            given = zip(parts, (v.aval for v in eqn.outvars), carried, strict=False)
            return [Last(_spread(x, v.shape, self.num)) if yes else jnp.asarray(x, v.dtype) for x, v, yes in given]

        def without_logs(parts: list[Any]) -> list[Any]:
            return [Last(part.array) if isinstance(part, Last) else jnp.asarray(part) for part in parts]

        def step(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
            made = run(body, [*consts, *carry, *x], body.jaxpr.outvars, special=self)
            return carry_of(made[: len(carry)]), without_logs(made[len(carry) :])

        final, stacked = scan_like(eqn, step, carry_of(carry), without_logs(xs))
        return [*final, *stacked]

    def _mapped(self, eqn: Any, values: list[Any], how: Callable[[Any, list[Any]], list[Any]] = bind) -> list[Any]:
        """Map an operation without a rule of its own over the samples, in batches that LAPACK takes on one thread."""
        axes = [-1 if isinstance(value, Last) else None for value in values]
        arrays = [value.array if isinstance(value, Last) else value for value in values]
        mapped = jax.vmap(lambda *one: how(eqn, list(one)), in_axes=axes, out_axes=-1)
        size = batch_on_one_thread(eqn, self.num)
        if size == self.num:
            return [Last(array) for array in mapped(*arrays)]

        def cut(array: Array) -> Array:
            return jnp.moveaxis(array.reshape(*array.shape[:-1], -1, size), -2, 0)

        parts = lax.map(
            lambda own: mapped(*(a if axis is None else own[i] for i, (a, axis) in enumerate(zip(arrays, axes, strict=True)))),
            {i: cut(array) for i, (array, axis) in enumerate(zip(arrays, axes, strict=True)) if axis is not None},
        )  # fmt: skip
        return [Last(jnp.moveaxis(array, 0, -2).reshape(*array.shape[1:-1], self.num)) for array in parts]


#: what is appended to parameters of an operation on one array by `num` samples behind its axes; `last` is their axis in the result
_BEHIND: dict[str, Callable[[int, int], dict[str, Any]]] = {
    **dict.fromkeys(REDUCTIONS | CUMULATIVE | {"squeeze", "expand_dims", "rev"}, lambda num, last: {}),
    "broadcast_in_dim": lambda num, last: {"shape": num, "broadcast_dimensions": last},
    "reshape": lambda num, last: {"new_sizes": num},
    "transpose": lambda num, last: {"permutation": last},
    "slice": lambda num, last: {"start_indices": 0, "limit_indices": num, "strides": 1},
    "pad": lambda num, last: {"padding_config": (0, 0, 0)},
    "dynamic_slice": lambda num, last: {"slice_sizes": num},
    "gather": lambda num, last: {"slice_sizes": num},
}
#: the logarithm of a result from those of its arguments; one that is not positive has nan, and is never the larger
_LOGS: dict[str, Callable[..., Array]] = {
    "mul": jnp.add, "div": jnp.subtract, "min": jnp.minimum, "max": jnp.fmax, "sqrt": lambda log: 0.5 * log,
    "square": lambda log: 2 * log, "integer_pow": lambda log, y: y * log,
}  # fmt: skip


def _log(value: Any) -> Array:
    return jnp.log(value) if not isinstance(value, Last) or value.log is None else value.log()


def _all_logs(values: list[Any], combine: Callable[[list[Any]], Array]) -> Log:
    """Combine logarithms into that of the result, if all inputs that have samples have one."""
    if not all(value.log is not None for value in values if isinstance(value, Last)):
        return None
    return lambda: combine([Last(_log(v)) if isinstance(v, Last) else _log(v) for v in values])


def _log_of(name: str, eqn: Any, values: list[Any], num: int) -> Log:
    """Find the logarithm of a product, quotient, power, maximum or minimum of what has one."""
    if name not in _LOGS:
        return None
    shape, power = eqn.outvars[0].aval.shape, [eqn.params["y"]] if name == "integer_pow" else []
    return _all_logs(values, lambda logs: _LOGS[name](*(_spread(log, shape, num) for log in logs), *power))


def _dot(eqn: Any, values: list[Any], num: int) -> Last | None:
    """Multiply arrays: short sums are written out, so that they join what follows; long ones are reduced."""
    out, size = eqn.outvars[0].aval, num_summed(eqn)
    if size > _MOST_UNROLLED and not all(isinstance(value, Last) for value in values):
        return None
    sides = [value.array if isinstance(value, Last) else jnp.asarray(value)[..., None] for value in values]
    left, right = (x.reshape(*x.shape[: out.ndim], size, x.shape[-1]) for x in along_common_axes(eqn, sides))
    if size <= _MOST_UNROLLED:
        products = [left[..., k, :] * right[..., k, :] for k in range(size)]
        total = sum(products[1:], products[0]) if products else jnp.zeros((*out.shape, num))
    else:
        total = (left * right).sum(-2)
    return Last(total.astype(out.dtype))
