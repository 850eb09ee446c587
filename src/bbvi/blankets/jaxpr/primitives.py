"""Tables of JAX primitives by what they do, and their parameters as each supported version of JAX spells them."""

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Primitive
from jax.extend.core import primitives as extended


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# functions that are called with their own arguments; a `reduce` or a loop also carries a trace, to be used otherwise
CUSTOM = words("custom_jvp_call custom_vjp_call custom_vjp_call_jaxpr")
CALLS = words("jit pjit closed_call core_call eval_jaxpr remat remat2 checkpoint") | CUSTOM
CALLBACKS = words("pure_callback io_callback debug_callback")
ELEMENTWISE = words(
    "abs add add_any and acos acosh asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp clz complex conj "
    "convert_element_type copy copy_p cos cosh digamma div eq eq_to erf erf_inv erfc exp exp2 expm1 floor ge gt igamma "
    "igamma_grad_a igammac imag integer_pow is_finite le le_to lgamma log log1p logistic lt lt_to max min mul nan_to_num ne neg "
    "nextafter not or polygamma population_count pow real reduce_precision regularized_incomplete_beta rem round rsqrt "
    "select_n shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt square stop_gradient sub tan "
    "tanh xor zeta"
)
REDUCTIONS = words("reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor argmax argmin")
CUMULATIVE = words("cumsum cumprod cummax cummin cumlogsumexp")
SCATTERS = words("scatter scatter-add scatter-sub scatter-mul scatter-min scatter-max")
COPIES = words("copy copy_p")
#: the sum over all elements does not change under these, if the type is wide enough
REARRANGED = words("reshape squeeze expand_dims transpose rev convert_element_type") | COPIES
#: each element of the result is an element of the one array that goes in
MOVES = words("broadcast_in_dim reshape transpose squeeze expand_dims tile rev slice")
#: the same for several arrays, or for one that falls apart
JOINS = words("concatenate pad split stack unstack")
ADDITIONS = words("neg add add_any sub")


def named(names: Iterable[str]) -> list[Primitive]:
    """Look up primitives by their names, as far as this version of JAX has them."""
    return [_PUBLIC[name] for name in sorted(names) if name in _PUBLIC]


def _public() -> dict[str, Primitive]:
    spaces = [vars(module).values() for module in (extended, jax.lax, jax.lax.linalg)]
    empty = jax.make_jaxpr(lambda: jax.pure_callback(np.zeros, jax.ShapeDtypeStruct((), np.float32)))()
    callbacks = [eqn.primitive for eqn in empty.jaxpr.eqns]
    return {p.name: p for p in itertools.chain(callbacks, *spaces) if isinstance(p, Primitive)}


_PUBLIC = _public()


def closed_trace(value: Any) -> ClosedJaxpr | None:
    """Return an equation's parameter as a trace with its constants, if it is a trace.

    From JAX 0.11 on there is one class of traces, which holds the constants itself: to close it again would lose them.
    """
    if isinstance(value, ClosedJaxpr):
        return value
    return ClosedJaxpr(value, ()) if isinstance(value, Jaxpr) else None


def scan_sizes(eqn: Any) -> tuple[int, int]:
    """Count the inputs of a `scan` that are constants, and those that are carried; the rest is scanned over.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> def walk(x):
        ...     return jax.lax.scan(lambda at, step: (at + x * step, at), 0.0, jnp.arange(3.0))
        >>> scan_sizes(next(eqn for eqn in jax.make_jaxpr(walk)(1.0).eqns if eqn.primitive.name == "scan"))
        (1, 1)
    """
    params = eqn.params
    if "num_consts" in params:  # JAX before 0.11
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)


def scan_parts(eqn: Any, items: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """Split what is given for each input of a `scan`: constants, what is carried, and what is scanned over."""
    num_consts, num_carry = scan_sizes(eqn)
    first_x = num_consts + num_carry
    return list(items[:num_consts]), list(items[num_consts:first_x]), list(items[first_x:])


def num_summed(eqn: Any) -> int:
    """Count the products that each element of a `dot_general` is the sum of."""
    (contract, _), _ = eqn.params["dimension_numbers"]
    return math.prod(eqn.invars[0].aval.shape[axis] for axis in contract)


def dot_axes(eqn: Any) -> list[tuple[list[int], list[int], list[int]]]:
    """List for each side of a `dot_general` its axes: those both sides run along, its own, and those summed over."""
    contract, batch = eqn.params["dimension_numbers"]
    sides = zip(eqn.invars, batch, contract, strict=True)
    return [(list(b), [k for k in range(atom.aval.ndim) if k not in (*b, *c)], list(c)) for atom, b, c in sides]
