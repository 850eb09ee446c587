"""Eq. 12 at draws of the latents: log p, and the density of each observation."""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bbvi.blankets.analysis import row_shapes
from bbvi.blankets.pointwise import Pointwise
from bbvi.blankets.trace import Trace, trace_group, trace_prior
from bbvi.model.groups import AbstractGroups
from bbvi.model.problem import Problem
from bbvi.numerics.xla import for_one_run

_FLOATS_PER_BLOCK = 1 << 24
#: so many densities are computed without being asked for
_MOST_BY_ITSELF = 1 << 26

Draws = dict[str, Any]


class LogDensities(NamedTuple):
    """log p at each draw; densities of observations `(draw, ...)` by term, and which of these are observations."""

    log_p: np.ndarray
    pointwise: dict[str, np.ndarray]
    observed: dict[str, np.ndarray]
    #: why there are no densities of observations
    refused: str = ""


def at_draws(
    problem: Problem,
    data: Any,
    groups: AbstractGroups | None,
    draws: Draws,
    names: Sequence[str] | None,
    *,
    every: bool,
) -> LogDensities:
    """Evaluate at draws by factors of q, with the draws on the first axis and the groups on the second.

    `names` are those of the terms that are the likelihood; without, it is found. With `every` the densities of observations are
    computed however many they are.
    """
    num = len(next(iter(draws.values())))
    prior = trace_prior(problem, data)
    if groups is None:
        labels = _labels(prior, names)
        points = Pointwise(prior, names=labels, densities=names is None)
        refused = _refused(points, points.size() * num, names, every)
        both = _both(prior, None if refused else points)
        size = max(1, _FLOATS_PER_BLOCK // prior.largest())
        log_p, found = _in_pieces(lambda z: both(z, data), draws, num, size)
        observed = {} if refused else points.masks({n: x[0] for n, x in draws.items()}, data)
        return LogDensities(log_p, found, jax.tree.map(np.asarray, observed), refused)
    row = row_shapes(groups)
    whole = trace_group(problem, row)
    likelihood = Trace(lambda beta, z, row: problem.likelihood_terms(beta, z, row), whole.latents, row)
    points = Pointwise(likelihood, names=_labels(likelihood, names))
    refused = _refused(points, points.size() * num * len(groups), names, every)
    beta = {name: x for name, x in draws.items() if name in problem.globals}
    z = {name: np.swapaxes(x, 0, 1) for name, x in draws.items() if name in problem.locals}
    of_group = _both(whole, None if refused else points)

    def at_group(beta: Draws, z: Draws, row: Any) -> Any:
        one = jax.tree.map(lambda leaf: leaf[0], (beta, z))
        kept = {} if refused else points.masks(*one, row)
        return jax.vmap(lambda b, z: of_group(b, z, row))(beta, z), kept

    log_p, _ = _in_pieces(lambda b: _both(prior, None)(b, None), beta, num, num)
    many = jax.jit(jax.vmap(at_group, (None, 0, 0)), **for_one_run())
    block, parts = max(1, _FLOATS_PER_BLOCK // (num * whole.largest())), []
    for begin in range(0, len(groups), block):
        numbers = np.arange(begin, min(begin + block, len(groups)))
        part = many(beta, {name: x[numbers] for name, x in z.items()}, groups.take(numbers))
        parts.append(jax.tree.map(np.asarray, part))
        problem.raise_failure()
    (of_groups, found), observed = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
    log_p = log_p + of_groups.astype(np.float64).sum(0)
    return LogDensities(log_p, {name: np.swapaxes(x, 0, 1) for name, x in found.items()}, observed, refused)


def _both(trace: Trace, points: Pointwise | None) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        total = sum((jnp.sum(term) for term in trace(*arguments).values()), jnp.zeros(()))
        return total, {} if points is None else points(*arguments)

    return call


def _in_pieces(function: Callable[[Any], Any], draws: Draws, num: int, size: int) -> Any:
    """Evaluate at all draws, so many at once."""
    if not draws:
        return np.full(num, np.asarray(function({})[0], np.float64)), {}
    many = jax.jit(jax.vmap(function), **for_one_run())
    parts = [many(jax.tree.map(lambda x, at=at: x[at : at + size], draws)) for at in range(0, num, size)]
    log_p, found = jax.tree.map(lambda *leaves: np.concatenate(leaves), *jax.tree.map(np.asarray, parts))
    return log_p.astype(np.float64), found


def _labels(trace: Trace, names: Sequence[str] | None) -> list[str] | None:
    """Find the terms that a person names by their keys."""
    if names is None:
        return None
    known = {short_name(label): label for label in trace.written}
    if missing := [name for name in names if name not in known]:
        raise ValueError(f"to_arviz: log_likelihood= names the terms {missing}; the function returns {sorted(known)}")
    return [known[name] for name in names]


def _refused(points: Pointwise, size: int, names: Sequence[str] | None, every: bool) -> str:
    """Say why the densities of observations are not computed; raise if they were asked for."""
    if points.refused or not points.names:
        why = (
            "log_likelihood: which part of the log joint is the density of which observation could not be told; return a dict of "
            'unsummed terms and name those of the observations, as in to_arviz(log_likelihood="y")'
        )
        if names is not None or every:
            raise ValueError(why)
        return why
    if size > _MOST_BY_ITSELF and names is None and not every:
        return f"log_likelihood: its {size} numbers are computed when asked for by log_likelihood=True; or take fewer draws"
    return ""


def short_name(label: str) -> str:
    """Name a term by the keys that lead to it.

    Examples:
        >>> short_name("log_joint['y']"), short_name("log_likelihood"), short_name("log_joint[0].y")
        ('y', 'log_likelihood', '0_y')
    """
    words = re.findall(r"\w+", label)
    return "_".join(words[1:]) or words[0]
