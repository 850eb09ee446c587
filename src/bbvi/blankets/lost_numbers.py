"""Refuse functions that hold numbers which the device's types would change: data are looked at before, these are not data.

Of what a function can reach, most never enters its trace, or enters it after it was centred in NumPy. So what would be changed
is looked for in the trace, and in another one under 64 bits.
"""

import importlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr

from bbvi.blankets.jaxpr.held import Held, held
from bbvi.model.numbers import refuse_rounding
from bbvi.model.opaque.function import Opaque
from bbvi.model.within_reach import Found, within_reach

_MOST_NAMES = 3
_SINGLE, _WIDE = float(2**31), float(2**63)


def refuse_lost_numbers(
    functions: Mapping[str, Callable[..., Any]], closed: ClosedJaxpr, again: Callable[[bool], ClosedJaxpr]
) -> None:
    """Raise if numbers that functions hold are others in their trace; `again` traces them once more, with wide arguments or not.

    That is asked for, under 64 bits, only if there are such numbers within reach.
    """
    if jax.config.read("jax_enable_x64"):
        return
    reached = {name: within_reach(fn) for name, fn in functions.items() if not isinstance(fn, Opaque)}
    suspects = [(name, found) for name, reach in reached.items() for found in reach.arrays if _refusal(found.value)]
    if not suspects and not any(reach.may_hold_more for reach in reached.values()):
        return
    here = held(closed)
    for name, found in suspects:
        # integers may have been asked for as floats, which wraps nothing and may round
        for values in (found.value, found.value.astype(float)):
            why = _refusal(values, f"{found.name or 'an array'}, which {name} uses,")
            if why and values.ndim and _is_among(values, here):
                raise ValueError(why)
    listed = _listed([found for _, found in suspects])
    there = _traced_wide(again)
    if isinstance(there, Exception):
        if suspects:
            warnings.warn(
                f"{' and '.join(functions)} can reach {listed}: {_refusal(suspects[0][1].value, 'it')}. Whether it is used as it is "
                f"could not be found out, as the function cannot be traced under 64 bits ({type(there).__name__})",
                UserWarning, stacklevel=2,
            )  # fmt: skip
        return
    origin = f", computed from {listed}," if suspects else ""
    names, singles = " and ".join(functions), {found.value.item() for _, found in suspects if not found.value.ndim}
    for value, line in there:
        what = "a number" if not value.ndim else f"an array of shape {value.shape}"
        where = f"{what} in {names}{f' ({line})' * bool(line)}{origin}"
        if value.ndim and (why := _refusal(value, where)) and _is_among(value, here):
            raise ValueError(why)
        if not value.ndim and _SINGLE <= abs(value) < _WIDE and _is_wrapped(value, here, singles):
            raise ValueError(_refusal(np.int64(value), where))


def _traced_wide(again: Callable[[bool], ClosedJaxpr]) -> Sequence[Held] | Exception:
    """List what the trace under 64 bits holds; a function may ask for types of its own, which go with one kind of arguments."""
    failure = Exception()
    for widen in (True, False):
        try:
            with _wide_types():
                return held(again(widen))
        except Exception as error:  # whatever the user's function may raise
            failure = error
    return failure


def _refusal(values: Any, name: str = "it") -> str:
    """Say why these numbers would be refused as data; empty if they would not be."""
    try:
        refuse_rounding(np.asarray(values), name)
    except ValueError as error:
        return str(error)
    return ""


def _is_among(values: np.ndarray, here: Sequence[Held]) -> bool:
    """Tell whether a trace holds these numbers as they are after they were changed."""
    with np.errstate(all="ignore"):
        changed = values.astype(jax.dtypes.canonicalize_dtype(values.dtype))
    return any(value.shape == values.shape and np.array_equal(value, changed, equal_nan=True) for value, _ in here)


def _is_wrapped(number: np.ndarray, here: Sequence[Held], singles: set[float]) -> bool:
    """Tell whether a trace has not this whole number, but what 32 bits make of it: which is 0 for bits that JAX itself uses."""
    own = [float(value) for value, _ in here if not value.ndim]
    wrapped = float(np.int64(number).astype(np.int32))
    is_user = wrapped != 0 or float(number) in singles
    return (
        number == np.round(number)
        and is_user
        and wrapped in own
        and not any(np.isclose(one, float(number), rtol=1e-6, atol=0) for one in own)
    )


def _listed(suspects: Sequence[Found]) -> str:
    names = list(dict.fromkeys(found.name or "an array" for found in suspects))
    rest = " and others" * (len(names) > _MOST_NAMES)
    return ", ".join(names[:_MOST_NAMES]) + rest


def _wide_types() -> Any:
    """Return a context of 64 bits, as this version of JAX spells it."""
    where: Any = jax if hasattr(jax, "enable_x64") else importlib.import_module("jax.experimental")
    return where.enable_x64(True)
