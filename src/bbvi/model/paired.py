"""Eq. 4 with larger factors: a discrete latent with continuous ones of its shape, element by element: q(g_i) q(b_i | g_i)."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bbvi.families import Bernoulli, Categorical, Paired, PerValue
from bbvi.model.latents import Latent

Latents = Mapping[str, Latent]


def has_discrete(members: Latents) -> bool:
    """Tell whether one of these latents is discrete."""
    return any(latent.family.chart.is_discrete for latent in members.values())


def is_paired(members: Latents) -> bool:
    """Tell whether these latents share factors element by element: one of them is discrete, and has others beside it."""
    return len(members) > 1 and has_discrete(members)


def in_order(members: Latents) -> list[str]:
    """Name the members of a pair in the order in which they stand in a factor: the discrete one first."""
    return sorted(members, key=lambda name: not members[name].family.chart.is_discrete)


def check_pair(members: Latents) -> None:
    """Refuse latents that cannot share factors element by element."""
    names = tuple(members)
    for name, latent in members.items():
        if why := why_not_paired(latent):
            raise ValueError(f"joint=: {name!r} {why}")
    discrete = [name for name, latent in members.items() if latent.family.chart.is_discrete]
    if len(discrete) > 1 or len(members) == 1:
        raise ValueError(
            f"joint=: {names} has the discrete latents {discrete}; a factor q(g_i) q(b_i | g_i) has one of them and continuous "
            "ones beside it: pair each discrete latent with the continuous ones it switches"
        )
    if len({latent.shape for latent in members.values()}) > 1:
        shapes = ", ".join(f"{name!r} has {latent.shape}" for name, latent in members.items())
        raise ValueError(
            f"joint=: {names} are to be paired element by element, since {discrete[0]!r} is discrete, and differ in shape: {shapes}; "
            "declare them with one shape, or leave joint= out"
        )


def why_not_paired(latent: Latent) -> str:
    """Say why a latent cannot be in a factor q(g_i) q(b_i | g_i); empty if it can."""
    chart = latent.family.chart
    refused = {
        "has a q= of its own; beside a discrete latent it has a share in the joint one: leave q= out": latent.q
        is not None,
        f"is {latent.support}; a block is Normal, of real, positive and bounded numbers and of single vectors, or it pairs a binary "
        "or categorical latent with numbers of its shape": bool(chart.shape)
        or (chart.is_discrete and not isinstance(latent.family, (Bernoulli, Categorical))),
        "starts from parameters of its own q; give a value as init=": isinstance(latent.init, dict),
    }
    return next((why for why, is_so in refused.items() if is_so), "")


def as_pair(members: Latents) -> Latent:
    """Return the latent of factors q(g_i) q(b_i | g_i)."""
    first, *others = (members[name] for name in in_order(members))
    chart = Paired(first.chart, tuple(latent.chart.unconstrained for latent in others))
    return Latent("pair", first.shape, chart, PerValue(chart, first.family), None, _start(members))


def _start(members: Latents) -> dict[str, Any] | None:
    """Return the parameters that put q around the values that the members' `init=` give."""
    (name, first), *others = ((name, members[name]) for name in in_order(members))
    start = {}
    if first.init is not None:
        start = {
            p: np.asarray(first.family.parameters()[p].constrain(raw)) for p, raw in first.given_start(name, {}).items()
        }
    if any(latent.init is not None for _, latent in others):
        locs = []
        for name, latent in others:
            if latent.init is None:
                locs.append(jnp.zeros(()))
                continue
            value = jnp.asarray(latent.init, float)
            if not bool(jnp.all(latent.chart.support(value))):
                shown = f"{latent.chart.support}: {np.asarray(value)}"
                raise ValueError(f"init of {name!r} is outside its support {shown}; choose a value inside")
            locs.append(latent.chart.unconstrained.coordinates(value))
        # the same for each value of the discrete latent, which stand before the members on the last axes
        start["loc"] = np.stack(jnp.broadcast_arrays(*locs), -1)[..., None, :]
    return start or None


def split_pair(whole: Any, members: Latents) -> dict[str, Any]:
    """Turn values of factors, or what has the same last axis, into those of the members."""
    return {name: jax.tree.map(lambda leaf, k=k: leaf[..., k], whole) for k, name in enumerate(in_order(members))}


def join_pair(found: dict[str, Any], members: Latents) -> Any:
    """Take the members' values out of what was found, and put them together as values of factors."""
    float_ = jnp.result_type(float)
    parts = [found.pop(name) for name in in_order(members)]
    stack = lambda *leaves: jnp.stack([jnp.asarray(leaf, float_) for leaf in leaves], -1)  # noqa: E731
    return jax.tree.map(stack, *parts, is_leaf=lambda leaf: isinstance(leaf, list))
