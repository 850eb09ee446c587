"""Where an operation of the trace was written: in the user's own code, or in a library's density."""

import os
from pathlib import Path
from typing import Any, NamedTuple

import equinox
import jax
import numpyro

_MACHINERY = tuple(os.path.dirname(str(module.__file__)) for module in (jax, equinox))
_DENSITIES = (os.path.dirname(str(numpyro.__file__)), str(Path(__file__).parents[2]))


class Place(NamedTuple):
    """File and line, and whether that is in a library of densities."""

    file: str
    line: int
    library: bool


def place_of(source_info: Any, *, inside_call: bool = False) -> Place | None:
    """The innermost place that is not JAX's own.

    A compiled function is traced once: what lies outside of it, seen from inside, may be an earlier caller. So with
    `inside_call` the search ends where JAX was called to compile.
    """
    for frame in source_info.traceback.frames if source_info.traceback is not None else []:
        if frame.file_name.startswith(_MACHINERY) or frame.file_name.startswith("<"):
            if inside_call and frame.file_name.endswith("pjit.py"):
                return None
            continue
        return Place(frame.file_name, frame.line_num, frame.file_name.startswith(_DENSITIES))
    return None


def line_of(source_info: Any) -> str:
    """File and line of the innermost function that is neither a library's nor ours; empty if there is none."""
    for frame in source_info.traceback.frames if source_info.traceback is not None else []:
        if frame.file_name.startswith(_DENSITIES[1]) and not frame.file_name.endswith("gamma_e.py"):
            return ""
        if not frame.file_name.startswith((*_MACHINERY, *_DENSITIES, "<")):
            return f"{os.path.basename(frame.file_name)}:{frame.line_num}"
    return ""
