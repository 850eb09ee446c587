"""Vectors as one factor of q whose parts have supports of their own, for a block of latents."""

import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpyro.distributions import constraints

from bbvi.families.charts import AbstractChart, marginal


class _JoinedConstraint(constraints.Constraint):
    """The supports of the parts, side by side."""

    event_dim = 1

    def __init__(self, parts: tuple[AbstractChart, ...]):
        self.parts = parts

    def __call__(self, x):
        inside = [(part.support.event_dim, part.support(own)) for part, own in _values(self.parts, x)]
        return jnp.all(jnp.stack([own if vectors else jnp.all(own, -1) for vectors, own in inside], -1), -1)

    def __repr__(self):
        return f"Joined({', '.join(f'{part.shape[0]} of {part.support}' for part in self.parts)})"

    def eq(self, other, static=False):
        return isinstance(other, _JoinedConstraint) and repr(self) == repr(other)

    def tree_flatten(self):
        # numpyro before 0.22 asks every constraint for it
        return (), ((), {"parts": self.parts})


class Joined(AbstractChart):
    """The vectors of several charts, one after the other."""

    parts: tuple[AbstractChart, ...]

    @property
    def support(self):
        return _JoinedConstraint(self.parts)

    @property
    def shape(self):
        return (sum(part.shape[0] for part in self.parts),)

    @property
    def coordinates_shape(self):
        return (sum(part.coordinates_shape[0] for part in self.parts),)

    def value(self, coordinates):
        return jnp.concatenate([part.value(u) for part, u in _coordinates(self.parts, coordinates)], -1)

    def coordinates(self, value):
        return jnp.concatenate([part.coordinates(z) for part, z in _values(self.parts, value)], -1)

    def floored(self, coordinates):
        return jnp.any(jnp.stack([part.floored(u) for part, u in _coordinates(self.parts, coordinates)], -1), -1)

    def log_slope(self, coordinates):
        return sum(jnp.sum(part.log_slope(u)) for part, u in _coordinates(self.parts, coordinates))

    def of_normal(self, loc, log_sd):
        found = [part.of_normal(*own) for part, *own in _coordinates(self.parts, loc, log_sd)]
        mean = np.concatenate([part.mean() for part in found], -1)
        std = np.concatenate([part.std() for part in found], -1)
        return marginal(mean, std, lambda p: np.concatenate([part.ppf(p) for part in found], -1))


def _values(parts: tuple[AbstractChart, ...], value: Any) -> list[tuple[Any, ...]]:
    """Return each part with its share of a value."""
    return _cut(parts, [part.shape[0] for part in parts], value)


def _coordinates(parts: tuple[AbstractChart, ...], *arrays: Any) -> list[tuple[Any, ...]]:
    """Return each part with its share of the last axis of arrays of coordinates."""
    return _cut(parts, [part.coordinates_shape[0] for part in parts], *arrays)


def _cut(parts: tuple[AbstractChart, ...], sizes: list[int], *arrays: Any) -> list[tuple[Any, ...]]:
    ends = itertools.pairwise(np.cumsum([0, *sizes]))
    return [(part, *(x[..., begin:end] for x in arrays)) for part, (begin, end) in zip(parts, ends, strict=True)]
