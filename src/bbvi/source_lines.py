"""Where in the user's own code an operation of the trace was written."""

import os
from typing import Any

import equinox
import jax
import numpyro

_LIBRARIES = tuple(os.path.dirname(str(module.__file__)) for module in (jax, numpyro, equinox))
_OWN = os.path.dirname(os.path.abspath(__file__))


def line_of(source_info: Any) -> str:
    """File and line of the innermost function that is neither a library's nor ours; empty if there is none."""
    traceback = source_info.traceback
    for frame in traceback.frames if traceback is not None else []:
        if frame.file_name.startswith(_OWN):
            return ""
        if not frame.file_name.startswith((*_LIBRARIES, "<")):
            return f"{os.path.basename(frame.file_name)}:{frame.line_num}"
    return ""
