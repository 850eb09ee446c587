"""Keep compiled loops, so that a fit which differs in its numbers alone need not wait for the compiler again.

The user's functions are traced at every fit, and their traces compared: a function that changed, or that reads a
variable that changed, is another one.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

import jax
import numpy as np

from bbvi.blankets.analysis import Analysis
from bbvi.fitting.loop import Loop, Method

_MOST = 8
_kept: OrderedDict[Hashable, Loop] = OrderedDict()


def compiled(analysis: Analysis, data: Any, method: Method) -> Loop:
    """Return the compiled loop of a fit: that of an earlier fit if it is the same."""
    if analysis.problem.opaque:
        return Loop(analysis, method)  # bound to this fit's workers and failures
    key = (_signature(analysis, data), method._replace(stops=tuple(rule.identity() for rule in method.stops)))
    try:
        found = _kept.pop(key, None)
    except TypeError:  # a plug-in that holds arrays cannot be compared
        return Loop(analysis, method)
    _kept[key] = found or Loop(analysis, method)
    while len(_kept) > _MOST:
        _kept.popitem(last=False)
    return _kept[key]


def _signature(analysis: Analysis, data: Any) -> str:
    """Digest all that a step of this analysis depends on, except its arguments."""
    digest = hashlib.sha256()

    def add(*things: Any) -> None:
        for thing in things:
            is_array = isinstance(thing, (np.ndarray, jax.Array))
            if is_array:
                add(str(thing.dtype), str(thing.shape))
            digest.update(np.ascontiguousarray(thing).tobytes() if is_array else repr(thing).encode())
            digest.update(b"|")

    problem = analysis.problem
    add(problem.num_groups, analysis.fit_globals, dict(analysis.axes))
    for name, latent in problem.latents.items():
        add(name, name in problem.globals, latent.shape, latent.event, latent.family)
    # the values of a flat model's data decide what is read
    add(*jax.tree.leaves(data))
    for scope in analysis.scopes:
        add(scope.problem.lengths, scope.size)
        add(*scope.traced())
    return digest.hexdigest()
