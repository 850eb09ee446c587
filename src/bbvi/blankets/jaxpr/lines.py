"""Where an operation of the trace was written: in the user's own code, or in a library's density."""

import os
from pathlib import Path
from typing import Any

import equinox
import jax
import numpyro

#: where these packages are installed
JAX, EQUINOX, NUMPYRO = (os.path.join(os.path.dirname(str(m.__file__)), "") for m in (jax, equinox, numpyro))
_BBVI, _MACHINERY = Path(__file__).parents[2], (JAX, EQUINOX, "<")
BBVI = os.path.join(_BBVI, "")
#: densities, and the special functions that they call
_DENSITIES = (NUMPYRO, str(_BBVI / "families"), str(_BBVI / "numerics"))
#: JAX's own densities
_STATS = os.path.join(JAX, "_src", "scipy", "stats", "")
_LOG_PROBS = ("log_prob", "logpdf", "logpmf")
#: what runs functions of other libraries, in which the user's lines stand
_BRIDGES = str(_BBVI / "bridges")
#: models that are written as a user's are
_MODELS = str(_BBVI / "study")


def frames_of(source_info: Any) -> list[Any]:
    """List the calls that led to an operation, innermost first."""
    return [] if source_info.traceback is None else list(source_info.traceback.frames)


def file_of(source_info: Any, *, inside_call: bool = False) -> str | None:
    """Find the innermost file that is not JAX's own.

    A compiled function is traced once: what lies outside of it, seen from inside, may be an earlier caller. So with
    `inside_call` the search ends where JAX was called to compile.
    """
    for frame in frames_of(source_info):
        if not frame.file_name.startswith(_MACHINERY):
            return str(frame.file_name)
        if inside_call and frame.file_name.endswith("pjit.py"):
            return None
    return None


def is_library(eqn: Any) -> bool:
    """Tell whether an operation is part of a library's density."""
    return (file_of(eqn.source_info) or "").startswith(_DENSITIES)


def is_log_prob(eqn: Any) -> bool:
    """Tell whether an operation computes the log density of a library's distribution, not another part of the library."""
    is_density = is_library(eqn)
    for frame in frames_of(eqn.source_info):
        name, file = frame.function_name.rpartition(".")[2], frame.file_name
        if file.startswith(_STATS) and name in _LOG_PROBS:
            return True
        # where numpyro looks at whether the value is one that can be
        validates = name == "wrapper" and file.endswith(os.path.join("distributions", "util.py"))
        if is_density and file.startswith(_DENSITIES) and (name in _LOG_PROBS or validates):
            return True
        if not file.startswith((*_MACHINERY, *_DENSITIES)):
            return False
    return False


def line_of(source_info: Any) -> str:
    """Name file and line of the innermost function that is neither a library's nor bbvi's; empty if there is none."""
    for frame in frames_of(source_info):
        if frame.file_name.startswith((*_MACHINERY, *_DENSITIES, _BRIDGES)):
            continue
        if frame.file_name.startswith(str(_BBVI)) and not frame.file_name.startswith(_MODELS):
            return ""
        return f"{os.path.basename(frame.file_name)}:{frame.line_num}"
    return ""
