"""Keep compiled loops, so that a fit which differs in its numbers alone need not wait for the compiler again.

The user's functions are traced at every fit, and their traces compared: a function that changed, or that reads a
variable that changed, is another one.
"""

import re
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

import jax
import numpy as np

from bbvi.blankets.analysis import Analysis
from bbvi.draws.draws import AbstractDraws
from bbvi.fitting.loop import Loop, Method
from bbvi.gradients.slopes import smooth_latents
from bbvi.model.groups import AbstractGroups, first_row
from bbvi.posterior.storage import digest

_MOST = 8
_kept: OrderedDict[Hashable, Loop] = OrderedDict()


def compiled(analysis: Analysis, method: Method) -> Loop:
    """Return the compiled loop of a fit: that of an earlier fit if it is the same."""
    if analysis.problem.opaque:
        return Loop(analysis, method)  # bound to this fit's workers and failures
    key = (_signature(analysis, method), method._replace(stops=tuple(rule.identity() for rule in method.stops)))
    try:
        found = _kept.pop(key, None)
    except TypeError:  # a plug-in that holds arrays cannot be compared
        return Loop(analysis, method)
    _kept[key] = found or Loop(analysis, method)
    while len(_kept) > _MOST:
        _kept.popitem(last=False)
    return _kept[key].at(analysis)


def _signature(analysis: Analysis, method: Method) -> str:
    """Digest all that a step of this analysis depends on, except its arguments, of which the data are one."""
    problem = analysis.problem
    by_reads = any(gradient.reads_blankets for gradient in method.gradient.by_latent(analysis).values())
    by_reads |= type(method.draws).arranged is not AbstractDraws.arranged
    # the data may decide which paths can be followed
    things = [problem.num_groups, analysis.fit_globals, dict(analysis.axes), sorted(smooth_latents(analysis))]
    for name, latent in problem.latents.items():
        things += [name, name in problem.globals, latent.shape, latent.event, latent.family]
    for scope in analysis.scopes:
        things += [scope.problem.lengths, scope.size, *scope.traced(apart=by_reads)]
        if by_reads:  # the values of a flat model's data may decide what is read
            reads = scope.patterns, scope.look_ups
            things += [reads, *jax.tree.leaves(reads)]
    return digest(things)


def functions_known_by(analysis: Analysis, data: Any, groups: AbstractGroups | None) -> str:
    """Tell a model's functions from others, in another process too: by their traces, those of the host by values at fixed points."""
    problem, things, paths = analysis.problem, [], smooth_latents(analysis)
    for scope in analysis.blankets.scopes:
        traced = [*scope.traced(), *scope.trace.derivative(paths)]
        # what stands somewhere else in memory may be the same
        things += [re.sub("0x[0-9a-f]+", "", thing) if isinstance(thing, str) else thing for thing in traced]
    if problem.opaque or any(isinstance(thing, str) and "_callback[" in thing for thing in things):
        generator, site = np.random.default_rng(0), problem.no_call_site(1)
        at = {name: x.some_values(problem.lengths, 1, generator) for name, x in problem.latents.items()}
        point = [{n: np.moveaxis(at[n], 0, -1) for n in part} | site for part in (problem.globals, problem.locals)]
        for scope in analysis.blankets.scopes:
            latents, row = (point, first_row(groups)) if scope.of_groups and groups else (point[:1], data)
            made = scope.trace.at_samples(tuple(latents), row, 1)
            things += [f"{value:.4g}" for term in made.values() for value in np.ravel(term)]
        problem.raise_failure()
    return digest(things)
