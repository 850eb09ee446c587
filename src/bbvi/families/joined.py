"""Vectors as one factor of q: numbers of one chart, or parts that have supports of their own, for a block of latents."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from numpyro.distributions import constraints

from bbvi.families.charts import AbstractChart


class Vector(AbstractChart):
    """Vectors of `length` numbers, each on the same chart, so that they can be one factor of q."""

    each: AbstractChart
    length: int

    @property
    def support(self):
        return self.each.support

    @property
    def shape(self):
        return (self.length,)

    def value(self, coordinates):
        return self.each.value(coordinates)

    def log_value(self, coordinates):
        return self.each.log_value(coordinates)

    def coordinates(self, value):
        return self.each.coordinates(value)

    def floored(self, coordinates):
        return jnp.any(self.each.floored(coordinates), axis=-1)

    def log_slope(self, coordinates):
        return self.each.log_slope(coordinates)

    def normal_moments(self, loc, log_sd):
        return self.each.normal_moments(loc, log_sd)

    def normal_quantile(self, loc, log_sd, p):
        return self.each.normal_quantile(loc, log_sd, p)


class _JoinedConstraint(constraints.Constraint):
    """The supports of the parts, side by side."""

    event_dim = 1

    def __init__(self, parts: tuple[Vector, ...]):
        self.parts = parts

    def __call__(self, x):
        inside = [part.support(own) for part, own in zip(self.parts, _cut(self.parts, x), strict=True)]
        return jnp.all(jnp.concatenate(inside, -1), -1)

    def __repr__(self):
        return f"Joined({', '.join(f'{part.length} of {part.support}' for part in self.parts)})"

    def eq(self, other, static=False):
        return isinstance(other, _JoinedConstraint) and repr(self) == repr(other)

    def tree_flatten(self):
        return (), ((), {"parts": self.parts})


class Joined(AbstractChart):
    """The vectors of several charts, one after the other."""

    parts: tuple[Vector, ...]

    @property
    def support(self):
        return _JoinedConstraint(self.parts)

    @property
    def shape(self):
        return (sum(part.length for part in self.parts),)

    def value(self, coordinates):
        return jnp.concatenate([part.value(u) for part, u in self._zip(coordinates)], -1)

    def coordinates(self, value):
        return jnp.concatenate([part.coordinates(z) for part, z in self._zip(value)], -1)

    def floored(self, coordinates):
        return jnp.any(jnp.stack([part.floored(u) for part, u in self._zip(coordinates)], -1), -1)

    def log_slope(self, coordinates):
        return sum(part.log_slope(u).sum(-1) for part, u in self._zip(coordinates))

    def normal_moments(self, loc, log_sd):
        found = [part.normal_moments(*own) for part, *own in self._zip(loc, log_sd)]
        return tuple(np.concatenate([np.asarray(pair[k]) for pair in found], -1) for k in range(2))

    def normal_quantile(self, loc, log_sd, p):
        return np.concatenate([np.asarray(part.normal_quantile(*own, p)) for part, *own in self._zip(loc, log_sd)], -1)

    def _zip(self, *arrays: Any) -> Any:
        return zip(self.parts, *(_cut(self.parts, x) for x in arrays), strict=True)


def _cut(parts: tuple[Vector, ...], x: Any) -> list[Any]:
    ends = np.cumsum([part.length for part in parts])
    return [x[..., end - part.length : end] for part, end in zip(parts, ends, strict=True)]
