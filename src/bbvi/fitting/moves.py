"""Moves out of a corner: where a run leads that starts with other values of discrete latents.

A discrete factor of q that has given up a value leaves no trace of what the others would do there: a predictor that is left out has
a coefficient drawn from its prior, with which it is best left out. So such factors are made undecided again, at once and with the other latents
settling first. Those that are least sure are given their next value, one by one; where values are names of components, components
are put to other uses instead (as in the moves of Richardson and Green 1997).
"""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from bbvi.families import PerValue
from bbvi.families.tree import NEVER
from bbvi.fitting.probe import SATURATED, Params, Probe
from bbvi.fitting.splits import at_values, find_splits, has_components
from bbvi.model.latents import Latent
from bbvi.posterior.values import probabilities

_SURE, _FLIPS = 0.9, 4  # probability of a value that a factor does not leave by itself; how many are given another
_SPLITS, _AFTER_SPLIT = 4, 80  # uses of components that are tried, and steps of each


def undecided(probe: Probe) -> Params | None:
    """Run on from where discrete factors that have given up other values are undecided again; None if none has."""
    moved = _opened(probe)
    return None if moved is None else probe.averaged(moved, probe.settle, "undecided")


def undecided_until_settled(probe: Probe) -> Params | None:
    """Do the same, but let the other latents settle while these factors are undecided."""
    moved = _opened(probe)
    if moved is None or not _has_others(probe):
        return None
    return probe.averaged(moved, probe.settle, "settled", waiting=probe.settle)


def flipped(probe: Probe, *, number: int) -> Params | None:
    """Give the next value to the factor that is the least sure but this many, and run on; None if there are no more."""
    found = []
    for part, name, latent in discrete_latents(probe):
        p = probabilities(latent, probe.origin[part][name])
        if p is not None and latent.family.chart.values() is not None and not has_components(latent):
            top = p.max(-1)
            found += [(top[at], part, name, at) for at in map(tuple, np.argwhere(top > _SURE))]
    if len(found) <= number:
        return None
    _, part, name, at = sorted(found, key=lambda one: one[0])[number]
    latent, own = probe.fit.loop.analysis.problem.latents[name], probe.origin[part][name]
    second = int(np.argsort(probabilities(latent, own)[at])[-2])  # type: ignore[index]
    values = latent.family.chart.values()
    centred = latent.family.centred(jnp.asarray(values[second]))  # type: ignore[index]
    moved = {p: jnp.asarray(leaf).at[at].set(centred[p]) for p, leaf in own.items()}  # type: ignore[index]
    there = probe.origin | {part: probe.origin[part] | {name: moved}}
    waiting = probe.settle // 2 if _has_others(probe) else 0
    return probe.averaged(there, probe.settle, "flipped", number, waiting=waiting)


def parted(probe: Probe, *, number: int) -> Params | None:
    """Take its rows from a component, part those of another between both, let the other latents settle, and run on.

    This is the split with so many better ones before it; None if there are no more.
    """
    found = []
    for part, name, latent in discrete_latents(probe):
        if has_components(latent) and (p := probabilities(latent, probe.origin[part][name])) is not None:
            found += [(rank, part, name, split.values) for rank, split in enumerate(find_splits(p))]
    if len(found) <= number:
        return None
    _, part, name, values = sorted(found, key=lambda one: one[0])[number]
    own, new = probe.origin[part][name], at_values(probe.fit.loop.analysis.problem.latents[name], values)
    # what log p rules out stays out
    moved = {p: jnp.where(jnp.abs(leaf) > -NEVER / 2, leaf, new[p].astype(leaf.dtype)) for p, leaf in own.items()}
    there = probe.origin | {part: probe.origin[part] | {name: moved}}
    steps = min(_AFTER_SPLIT, probe.settle)
    return probe.averaged(there, steps, "parted", number, waiting=steps // 2 if _has_others(probe) else 0)


#: from lambdas to others that challenge them
MOVES: tuple[Callable[[Probe], Params | None], ...] = (
    undecided,
    undecided_until_settled,
    *(functools.partial(parted, number=number) for number in range(_SPLITS)),
    *(functools.partial(flipped, number=number) for number in range(_FLIPS)),
)


def discrete_latents(probe: Probe) -> list[tuple[str, str, Latent]]:
    """List the discrete latents that are fitted."""
    latents = probe.fit.loop.analysis.problem.latents
    found = [(part, name, latents[name]) for part, own in probe.fisher.items() for name in own]
    return [(part, name, latent) for part, name, latent in found if latent.family.chart.chooses]


def _has_others(probe: Probe) -> bool:
    return len([1 for *_, x in discrete_latents(probe) if x.family.chart.is_discrete]) < sum(
        map(len, probe.fisher.values())
    )


def _opened(probe: Probe) -> Params | None:
    """Return the origin with discrete factors that have given up other values undecided; None if none has."""
    moved, any_moved = dict(probe.origin), False
    for part, name, latent in discrete_latents(probe):
        if (new := _undecided_rows(latent, probe.origin[part][name], probe.fisher[part][name])) is not None:
            moved[part], any_moved = moved[part] | {name: new}, True
    return moved if any_moved else None


def _undecided_rows(latent: Latent, params: Any, fisher: Any) -> Any:
    family = latent.family
    entries = (family.choice if isinstance(family, PerValue) else family).parameters()
    sharp = {}
    for p, entry in entries.items():
        own = np.asarray(fisher[p])
        events = tuple(range(own.ndim - len(entry.raw_shape()), own.ndim))
        few = (own.max(events, keepdims=True) if events else own) < SATURATED
        sharp[p] = few & (np.abs(np.asarray(params[p])) < -NEVER / 2)  # what log p rules out is no corner
    if not any(np.any(where) for where in sharp.values()):
        return None
    reset = {p: jnp.where(sharp[p], jnp.asarray(entries[p].start, params[p].dtype), params[p]) for p in entries}
    return {**params, **reset}
