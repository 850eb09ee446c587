"""The derivative of log p along draws, for log joints that have one."""

import functools
from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from bbvi.blankets.analysis import Analysis
from bbvi.blankets.jaxpr.continuity import Jump
from bbvi.blankets.jaxpr.intervals import Interval
from bbvi.blankets.jaxpr.jumps import find_jump
from bbvi.blankets.scope import Scope
from bbvi.blankets.trace import AtSamples
from bbvi.draws.batch import Batch
from bbvi.draws.layout import Layout, zero_padding
from bbvi.families import AbstractChart, Joined, NumpyroFamily
from bbvi.gradients.group_blocks import GroupBlocks
from bbvi.model.latents import Latent
from bbvi.model.problem import Problem, total
from bbvi.numerics.address import Address

Draws = dict[str, Array]
#: values as the model sees them, and the logarithms that are known
Seen = tuple[Draws, Draws]

_INSTEAD = "use gradient=bbvi.Score(), which needs values of log p alone"


class Smooth:
    """A traced part of log p. `smooth(latents, logs, constant, num)` is its total, for samples on the last axis."""

    def __init__(self, scope: Scope):
        trace = self._trace = scope.trace
        self._ranges = {name: _ranges(latent.chart) for name, latent in scope.problem.latents.items()}
        fast = scope.function.fast_lgamma
        self._terms = AtSamples(trace.closed, trace.names, trace.outputs, fast_lgamma=fast, derivatives=True)

    def jump(self, moved: Collection[str]) -> Jump | None:
        """Where the function is not shown to be continuous in these latents, if anywhere."""
        closed, names = self._trace.closed, self._trace.names
        others = [None] * (len(closed.jaxpr.invars) - len(names))
        moving = [*(name if name in moved else None for name in names), *others]
        return find_jump(closed, moving, self._ranges, self._trace.known)

    def __call__(self, latents: Draws, logs: Draws, constant: Any, num: int) -> Float[Array, " samples"]:
        """The sum of all terms for `num` samples on the last axis; `logs` are known logarithms."""
        return jnp.zeros(num) + total(self._terms(latents, logs, constant, num))


class Slopes:
    """log p at draws and its derivative in those of the latents `moved`, globals and locals of a batch."""

    def __init__(self, analysis: Analysis, data: Any, batch: Batch | None, moved: Collection[str]):
        problem = analysis.problem
        for name in moved:
            if reason := _no_path(problem.latents[name]):
                raise ValueError(f"Pathwise: the latent {name!r} {reason}; {_INSTEAD}")
        if problem.opaque:
            raise ValueError(f"Pathwise: {next(iter(problem.opaque))} is opaque, so it has no derivative; {_INSTEAD}")
        self._data = data
        scopes = analysis.scopes if batch is not None else ()
        self._prior = Smooth(analysis.blankets.prior)
        self._groups: dict[Problem, Smooth] = {scope.problem: Smooth(scope) for scope in scopes[1:]}
        for smooth in (self._prior, *self._groups.values()):
            if (jump := smooth.jump(frozenset(moved))) is not None:
                latents = ", ".join(map(repr, jump.inputs))
                raise ValueError(
                    f"Pathwise: the log joint is not shown to be continuous in {latents}, which it reads by {jump.operation}"
                    f"{jump.line and f' ({jump.line})'}, and where it jumps its derivative would mislead; {_INSTEAD}. If the "
                    "function is continuous there, write it with jnp.maximum, jnp.clip, jnp.abs or logsumexp"
                )

    def __call__(self, layout: Layout, u: Draws, num: int) -> tuple[Array, Array, Draws]:
        """Samples of the part that no group owns, and of that of the batch's groups; and the derivatives by tables.

        The groups' part carries N/B in the derivative in a global, but not in that in a local, nor in its samples.
        """
        moving, still = _parted(layout, layout.global_draws(u))
        (beta, logs), to_draws = jax.vjp(layout.model_values, moving)
        held = layout.model_values(still)
        prior, back = jax.vjp(lambda z, logs: self._prior(z | held[0], logs | held[1], self._data, num), beta, logs)
        slopes, groups = back(jnp.ones(num)), jnp.zeros(num)
        found: Draws = {}
        if layout.batch is not None:
            group_blocks = GroupBlocks(layout, u)
            out = {n: jnp.zeros_like(leaf) for n, leaf in group_blocks.draws.items() if n in layout.fitted}
            block = functools.partial(self._block, layout, num, (beta, logs), held)
            (groups, more), found = group_blocks.sweep(block, num, out)
            slopes = jax.tree.map(lambda one, other: one + layout.scale * other, slopes, more)
        found |= {name: leaf[None] for name, leaf in to_draws(slopes)[0].items()}
        return prior, groups, {name: layout.tables[name].as_rows(leaf) for name, leaf in found.items()}

    def _block(self, layout: Layout, num: int, seen: Seen, held: Seen, scope: Scope, taken: Any) -> tuple[Any, Draws]:
        """Some groups: their total and its derivative in the globals, and in their own draws."""
        _, rows, real, u = taken
        moving, still = _parted(layout, u)

        def total(beta: Draws, logs: Draws, moving: Draws) -> Float[Array, " samples"]:
            def one(row: Any, u: Draws) -> Array:
                z, own_logs = layout.model_values(u, scope.problem)
                return self._groups[scope.problem](beta | held[0] | z, logs | held[1] | own_logs, row, num)

            return zero_padding(real, jax.vmap(one)(rows, moving | still)).sum(0)

        value, back = jax.vjp(total, *seen, moving)
        *of_globals, of_locals = back(jnp.ones(num))
        return (value, tuple(of_globals)), of_locals


def _parted(layout: Layout, u: Draws) -> tuple[Draws, Draws]:
    """The draws of tables that move along their paths, and the others."""
    moving = {name: x for name, x in u.items() if name in layout.fitted}
    return moving, {name: x for name, x in u.items() if name not in moving}


def _ranges(chart: AbstractChart) -> list[Interval]:
    """Return where values are: all of them, or each entry of a block; an end of the support is never reached."""
    if isinstance(chart, Joined):
        return [range_ for part in chart.parts for range_ in _ranges(part) * int(np.prod(part.shape))]
    low, high = getattr(chart.support, "lower_bound", -np.inf), getattr(chart.support, "upper_bound", np.inf)
    if chart.support is constraints.simplex:
        low, high = 0.0, 1.0
    return [Interval(float(np.min(low)), float(np.max(high)), True, True)]


def _no_path(latent: Latent) -> str:
    """Why the draws of a latent are not smooth functions of lambda; empty if they are."""
    family = latent.family
    if family.chart.chooses:
        return "is discrete and does not move along a path"
    if isinstance(family, NumpyroFamily) and not _is_reparameterised(family):
        return f"has a q, {family.name}, that numpyro draws without a derivative in {', '.join(family.parameters())}"
    return ""


def smooth_latents(analysis: Analysis) -> frozenset[str]:
    """The latents whose pathwise gradient is right: smooth draws, and a log joint that does not jump in them."""
    problem, functions = analysis.problem, list(map(Smooth, analysis.blankets.scopes))
    if problem.opaque:
        return frozenset()
    names = [name for name, latent in problem.latents.items() if not _no_path(latent)]
    if all(function.jump(names) is None for function in functions):
        return frozenset(names)
    return frozenset(name for name in names if all(function.jump([name]) is None for function in functions))


def _is_reparameterised(family: NumpyroFamily) -> bool:
    """Whether numpyro says so, and the sampler does not jump."""
    if not set(family.parameters()) <= set(family.distribution.reparametrized_params):
        return False
    params = {p: jnp.zeros(entry.raw_shape()) for p, entry in family.parameters().items()}
    word = jnp.uint32(0)
    closed = jax.make_jaxpr(lambda p: family.sample(p, Address(jnp.zeros(2, jnp.uint32), word, word, word)))(params)
    return find_jump(closed, sorted(params)) is None
