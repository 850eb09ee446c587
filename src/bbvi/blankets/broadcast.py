"""Refuse a log joint that counts a sum several times because another sum was forgotten.

`Normal(0, 1).log_prob(w) + loglik.sum()` has the shape of w, and its total has the likelihood as often as w has elements. What
is added to several elements of an array, as a single number or along an axis, is meant where it is part of one density, as log sigma is; not where it is a
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
        for eqn, own in _added(out, walk):
            if walk.is_read(eqn.outvars[0]):
                what = "a single number that reads" if own == 1 else f"an array of {own} numbers that reads"
                to = "each of its elements" if own == 1 else f"{size // own} of its elements each"
                inputs = [repr(latent) for v, latent in latents.items() if v in walk.leaves[eqn.outvars[0]]]
                at = f" ({line_of(eqn.source_info)})".replace(" ()", "")
                raise ValueError(
                    f"{name} is an array of shape {out.aval.shape}, and {what} {', '.join(inputs)}"
                    f"{at} is added to {to}: log p would count it {size // own} times. Sum the array "
                    "before you add to it, for example .log_prob(w).sum(), or return the parts as a dict of terms. If it is "
                    "meant to count so often, return the sum of the whole"
                )


def _added(out: Any, walk: Walk) -> Iterator[tuple[Any, int]]:
    """Yield the equations of what the user's code adds to several elements of an array, if that is densities or their sums.

    With each goes how many numbers are added.
    """
    todo = [(out, 0)]
    while todo:
        atom, repeated = todo.pop()
        if (eqn := walk.maker(atom)) is None:
            continue
        name, library = eqn.primitive.name, is_library(eqn)
        # a number that reads a latent, times one that does not
        scales = name in ("mul", "div") and sum(map(walk.is_read, eqn.invars)) == 1
        if repeated and (library or (name == "reduce_sum" and walk.is_density(eqn.invars[0], _MASKED))):
            yield eqn, repeated
        elif not library and (name in _PASSED or (repeated and scales)):
            sizes = [int(np.prod(part.aval.shape)) for part in eqn.invars]
            num = int(np.prod(atom.aval.shape))
            todo += [
                (part, min(own, repeated or own) if own < num or repeated else 0)
                for part, own in zip(eqn.invars, sizes, strict=True)
            ]
