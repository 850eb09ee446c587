"""Refuse a log joint that counts a sum several times because another sum was forgotten.

`Normal(0, 1).log_prob(w) + loglik.sum()` has the shape of w, and its total has the likelihood as often as w has elements. A
single number that is added to an array is meant where it is part of one density, as log sigma is; not where it is a
library's density, or a sum of such. Of densities written by hand nobody can tell.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from jax.extend.core import Literal

from bbvi.blankets.jaxpr.lines import is_library, line_of
from bbvi.blankets.jaxpr.primitives import ADDITIONS, COPIES
from bbvi.blankets.jaxpr.run import reached
from bbvi.blankets.trace import Trace

_PASSED = ADDITIONS | COPIES | {"convert_element_type", "broadcast_in_dim", "reshape", "squeeze"}
#: between a density and its sum
_MASKED = _PASSED | {"mul", "div", "select_n"}


def refuse_forgotten_sums(trace: Trace) -> None:
    """Raise if a returned array has a library's density, or a sum of such, added to each of its elements."""
    jaxpr = trace.inlined.jaxpr
    makers = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
    read = reached(jaxpr, jaxpr.invars[: len(trace.names)])
    for name, out in zip(trace.outputs, jaxpr.outvars, strict=True):
        size = int(np.prod(out.aval.shape))
        for eqn in _added(out, makers, read, size):
            if any(v in read for v in eqn.outvars):
                latents, line = zip(trace.names, jaxpr.invars, strict=False), line_of(eqn.source_info)
                inputs = [repr(latent) for latent, v in latents if eqn.outvars[0] in reached(jaxpr, [v])]
                at = f" ({line})" if line else ""
                raise ValueError(
                    f"{name} is an array of shape {out.aval.shape}, and a single number that reads {', '.join(inputs)}"
                    f"{at} is added to each of its elements: log p would count it {size} times. Sum the array "
                    "before you add to it, for example .log_prob(w).sum(), or return the parts as a dict of terms. If it is "
                    "meant to count so often, return the sum of the whole"
                )


def _added(out: Any, makers: dict[Any, Any], read: set[Any], size: int) -> Iterator[Any]:
    """Yield the equations of single numbers that the user's code adds to an array of this size, if they are densities or their sums."""
    todo = [(out, False)]
    while todo:
        atom, single = todo.pop()
        if isinstance(atom, Literal) or atom not in makers:
            continue
        eqn = makers[atom]
        library = is_library(eqn)
        if single and (library or (eqn.primitive.name == "reduce_sum" and _has_density(eqn.invars[0], makers))):
            yield eqn
        elif not library and (eqn.primitive.name in _PASSED or (single and _scales(eqn, read))):
            todo += [(part, single or (size > 1 and int(np.prod(part.aval.shape)) == 1)) for part in eqn.invars]


def _has_density(atom: Any, makers: dict[Any, Any]) -> bool:
    """Tell whether an array is a library's density, which may be masked and weighed."""
    todo = [atom]
    while todo:
        atom = todo.pop()
        eqn = None if isinstance(atom, Literal) else makers.get(atom)
        if eqn is not None and is_library(eqn):
            return True
        todo += eqn.invars if eqn is not None and eqn.primitive.name in _MASKED else []
    return False


def _scales(eqn: Any, read: set[Any]) -> bool:
    """Tell whether an equation multiplies one number that reads a latent by one that does not."""
    parts = [not isinstance(atom, Literal) and atom in read for atom in eqn.invars]
    return eqn.primitive.name in ("mul", "div") and sum(parts) == 1
