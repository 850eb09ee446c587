"""Find the numbers that a function can reach beside its arguments: in its closure, its globals, the objects it belongs to."""

import collections
import functools
import itertools
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

#: more objects, or more numbers in one of them, are not looked through
_MOST_OBJECTS, _MOST_NUMBERS = 20_000, 1 << 24
#: integers from here on are too many for 32 bits, and floats are rounded to whole numbers, up to those that doubles round too
_LARGE_INTEGER, _LARGE_FLOAT, _TOO_LARGE = 1 << 31, float(1 << 24), 1e18
#: whose tables are in memory
_TABLES = ("pandas", "polars")
#: whose functions read no globals of the user's
_LIBRARIES = frozenset(
    "bbvi jax jaxlib numpy scipy numpyro equinox optax jaxtyping pandas polars xarray pyarrow pytensor pymc pytest _pytest pluggy IPython".split()
) | frozenset(sys.stdlib_module_names) - {"__main__"}
_LEAVES = (bool, complex, str, bytes, bytearray, type(None), jax.Array, np.dtype, types.CodeType, types.FrameType)


class Found(NamedTuple):
    """An object and the name by which the user may know it."""

    name: str
    value: Any


class Reach(NamedTuple):
    """Arrays of numbers within reach, and whether there is more that may be, or become, large numbers."""

    arrays: list[Found]
    may_hold_more: bool


def within_reach(function: Callable[..., Any]) -> Reach:
    """Walk what a function can reach: cells, globals it names, defaults, what it wraps, the attributes of objects.

    Examples:
        >>> import numpy as np
        >>> def model(times):
        ...     return lambda z: -((z * times) ** 2).sum()
        >>> within_reach(model(np.array([1.0, 2.0])))
        Reach(arrays=[Found(name='times', value=array([1., 2.]))], may_hold_more=False)
    """
    arrays: list[Found] = []
    todo, seen, more = [Found("", function)], set[int](), False
    kept: list[Any] = []
    while todo:
        found = todo.pop()
        value = found.value
        if isinstance(value, _LEAVES) or id(value) in seen:
            continue
        if len(kept) == _MOST_OBJECTS:
            return Reach(arrays, True)
        seen.add(id(value))
        kept.append(value)  # so that no other object gets its id
        if (numbers := _as_numbers(value)) is None:
            todo += reversed([part for part in _parts(found) if not isinstance(part.value, _LEAVES)])
        elif _can_be_looked_at(numbers):
            arrays.append(Found(found.name, numbers))
        else:
            more |= _may_hold(numbers)
    return Reach(arrays, more)


def _as_numbers(value: Any) -> Any:
    """Return an array, or a number of Python's as it is; None for what is no number."""
    if isinstance(value, (int, float, np.ndarray, np.generic)):
        return np.asarray(value) if isinstance(value, np.generic) else value
    if isinstance(value, (list, tuple)) and value and all(isinstance(item, (int, float, np.number)) for item in value):
        return np.asarray(value)
    if isinstance(value, (type, Mapping)) or not hasattr(type(value), "__array__"):
        return None
    # others may have to be read from a disk, or computed
    is_table = type(value).__module__.partition(".")[0] in _TABLES
    return np.asarray(value) if is_table else np.zeros((), object)


def _can_be_looked_at(numbers: Any) -> bool:
    is_array = isinstance(numbers, np.ndarray) and not isinstance(numbers, np.memmap)
    return is_array and numbers.dtype.kind in "iuf" and numbers.size <= _MOST_NUMBERS


def _may_hold(numbers: Any) -> bool:
    """Tell whether large numbers may be made of these."""
    if isinstance(numbers, np.ndarray):
        return numbers.dtype.kind in "iufmMO"
    return (_LARGE_INTEGER if isinstance(numbers, int) else _LARGE_FLOAT) <= abs(numbers) < _TOO_LARGE


def _parts(found: Found) -> Iterator[Found]:
    """List what an object holds."""
    name, value = found
    if isinstance(value, types.FunctionType):
        yield from _of_function(value)
    elif isinstance(value, types.MethodType):
        yield from (Found("", value.__func__), Found("self", value.__self__))
    elif isinstance(value, functools.partial):
        names = getattr(getattr(value.func, "__code__", None), "co_varnames", ())
        yield from itertools.starmap(Found, itertools.zip_longest(names[: len(value.args)], value.args, fillvalue=""))
        yield from (Found("", value.func), Found("", value.keywords))
    elif isinstance(value, Mapping):
        yield from (Found(f"{name}[{key!r}]" if name else str(key), item) for key, item in list(value.items()))
    elif isinstance(value, (list, tuple, set, frozenset, collections.deque)):
        yield from (Found(f"{name}[{i}]" if name else "", item) for i, item in enumerate(value))
    elif isinstance(value, (staticmethod, classmethod)):
        yield Found(name, value.__func__)
    elif isinstance(value, property):
        yield from (Found(name, value.fget), Found(name, value.fset))
    elif isinstance(value, type):
        if not _is_library(value):
            yield from (Found(f"{value.__name__}.{key}", item) for key, item in list(vars(value).items()))
            yield from (Found(base.__name__, base) for base in value.__bases__)
    elif not isinstance(value, types.ModuleType):
        yield from _of_object(name, value)


def _of_function(function: types.FunctionType) -> Iterator[Found]:
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield Found(name, cell.cell_contents)
        except ValueError:  # nothing is in it yet
            continue
    positional = code.co_varnames[: code.co_argcount]
    yield from map(Found, reversed(positional), reversed(function.__defaults__ or ()))
    yield from (Found(name, value) for name, value in (function.__kwdefaults__ or {}).items())
    yield from (Found(name, value) for name, value in vars(function).items())
    if _is_library(function):
        return
    names, constants = _names_and_constants(code)
    yield from constants
    for name in names:
        # a module that is imported within the function
        value = function.__globals__.get(name, sys.modules.get(name))
        yield from _of_module(name, value, names) if isinstance(value, types.ModuleType) else [Found(name, value)]


def _names_and_constants(code: types.CodeType) -> tuple[list[str], list[Found]]:
    """List the names that a function's code looks up and the numbers it holds, in functions within it too."""
    names, constants = list(code.co_names), list[Found]()
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner = _names_and_constants(constant)
            names, constants = names + inner[0], constants + inner[1]
        else:
            constants.append(Found("a constant", constant))
    return list(dict.fromkeys(names)), constants


def _of_module(path: str, module: types.ModuleType, names: list[str], depth: int = 0) -> Iterator[Found]:
    """List what of a module of the user's a function may look up, by its names."""
    if module.__name__.partition(".")[0] in _LIBRARIES or depth > 3:
        return
    for name in names:
        value = vars(module).get(name)
        if isinstance(value, types.ModuleType):
            yield from _of_module(f"{path}.{name}", value, names, depth + 1)
        elif value is not None:
            yield Found(f"{path}.{name}", value)


def _of_object(name: str, value: Any) -> Iterator[Found]:
    yield Found(name, type(value))
    for key, item in list(getattr(value, "__dict__", {}).items()):
        yield Found(f"{name}.{key}" if name else key, item)
    for cls in type(value).__mro__:
        for key, slot in vars(cls).items():
            if isinstance(slot, types.MemberDescriptorType) and not _is_library(cls):
                yield Found(f"{name}.{key}" if name else key, getattr(value, key, None))
    # compiled and otherwise decorated functions
    if callable(value) and isinstance(
        inner := getattr(value, "__wrapped__", None), (types.FunctionType, types.MethodType)
    ):
        yield Found(name, inner)


def _is_library(thing: Any) -> bool:
    return str(getattr(thing, "__module__", None) or "").partition(".")[0] in _LIBRARIES
