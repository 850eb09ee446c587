"""Refuse a log joint that counts a sum several times because another sum was forgotten.

`Normal(0, 1).log_prob(w) + loglik.sum()` has the shape of w, and its total has the likelihood as often as w has elements. A
single number that is added to an array is meant where it is part of one density, as log sigma is; not where it is a
library's density, or a sum of such. Of densities written by hand nobody can tell.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from bbvi.blankets.jaxpr.lines import is_library, line_of
from bbvi.blankets.jaxpr.primitives import ADDITIONS, COPIES
from bbvi.blankets.trace import Trace
from bbvi.blankets.walk import Walk

_PASSED = ADDITIONS | COPIES | {"convert_element_type", "broadcast_in_dim", "reshape", "squeeze"}
#: between a density and its sum
_MASKED = _PASSED | {"mul", "div", "select_n"}


def refuse_forgotten_sums(trace: Trace) -> None:
    """Raise if a returned array has a library's density, or a sum of such, added to each of its elements."""
    jaxpr = trace.inlined.jaxpr
    latents = dict(zip(jaxpr.invars, trace.names, strict=False))
    walk = Walk(jaxpr, list(latents))
    for name, out in zip(trace.outputs, jaxpr.outvars, strict=True):
        size = int(np.prod(out.aval.shape))
        for eqn in _added(out, walk, size):
            if walk.is_read(eqn.outvars[0]):
                inputs = [repr(latent) for v, latent in latents.items() if v in walk.leaves[eqn.outvars[0]]]
                at = f" ({line_of(eqn.source_info)})".replace(" ()", "")
                raise ValueError(
                    f"{name} is an array of shape {out.aval.shape}, and a single number that reads {', '.join(inputs)}"
                    f"{at} is added to each of its elements: log p would count it {size} times. Sum the array "
                    "before you add to it, for example .log_prob(w).sum(), or return the parts as a dict of terms. If it is "
                    "meant to count so often, return the sum of the whole"
                )


def _added(out: Any, walk: Walk, size: int) -> Iterator[Any]:
    """Yield the equations of single numbers that the user's code adds to an array of this size, if they are densities or their sums."""
    todo = [(out, False)]
    while todo:
        atom, single = todo.pop()
        if (eqn := walk.maker(atom)) is None:
            continue
        name, library = eqn.primitive.name, is_library(eqn)
        # a number that reads a latent, times one that does not
        scales = name in ("mul", "div") and sum(map(walk.is_read, eqn.invars)) == 1
        if single and (library or (name == "reduce_sum" and walk.is_density(eqn.invars[0], _MASKED))):
            yield eqn
        elif not library and (name in _PASSED or (single and scales)):
            todo += [(part, single or (size > 1 and int(np.prod(part.aval.shape)) == 1)) for part in eqn.invars]
