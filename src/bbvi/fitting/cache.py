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
    problem = analysis.problem
    things = [problem.num_groups, analysis.fit_globals, dict(analysis.axes)]
    for name, latent in problem.latents.items():
        things += [name, name in problem.globals, latent.shape, latent.event, latent.family]
    # the values of a flat model's data decide what is read
    things += jax.tree.leaves(data)
    for scope in analysis.scopes:
        things += [scope.problem.lengths, scope.size, *scope.traced()]
    digest = hashlib.sha256()
    for thing in things:
        if isinstance(thing, (np.ndarray, jax.Array)):
            digest.update(f"{thing.dtype}{thing.shape}".encode() + np.ascontiguousarray(thing).tobytes())
        else:
            digest.update(repr(thing).encode())
        digest.update(b"|")
    return digest.hexdigest()
