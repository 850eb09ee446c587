"""Vectors whose parts have supports of their own: where a block of several latents lives."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.transforms import Transform

from bbvi.families.abstract import AbstractFamily
from bbvi.families.normal import TransformedNormal
from bbvi.numerics.address import Address

#: the family of each number of a part, which says what its coordinates are, and how many numbers it has
Part = tuple[AbstractFamily, int]


def _cut(parts: Sequence[Part], x: Any) -> list[Any]:
    ends = np.cumsum([size for _, size in parts])
    return [x[..., end - size : end] for (_, size), end in zip(parts, ends, strict=True)]


class _JoinedSupport(constraints.Constraint):
    event_dim = 1

    def __init__(self, parts: tuple[Part, ...]):
        self.parts = parts

    def __call__(self, x):
        inside = [family.support()(part) for (family, _), part in zip(self.parts, _cut(self.parts, x), strict=True)]
        return jnp.all(jnp.concatenate(inside, -1), -1)

    def __repr__(self):
        return f"Joined({', '.join(f'{size} of {family.support()}' for family, size in self.parts)})"

    def eq(self, other, static=False):
        return isinstance(other, _JoinedSupport) and repr(self) == repr(other)

    def tree_flatten(self):
        return (), ((), {"parts": self.parts})


class _JoinedTransform(Transform):
    """The bijections of the parts, side by side."""

    def __init__(self, parts: tuple[Part, ...]):
        self.parts = parts

    def __call__(self, x):
        return jnp.concatenate([f.value(u) for (f, _), u in zip(self.parts, _cut(self.parts, x), strict=True)], -1)

    def _inverse(self, y):
        found = [f.coordinates(z) for (f, _), z in zip(self.parts, _cut(self.parts, y), strict=True)]
        return jnp.concatenate(found, -1)

    def log_abs_det_jacobian(self, x, y, intermediates=None):
        total = jnp.zeros(jnp.shape(x)[:-1])
        for (family, _), u, z in zip(self.parts, _cut(self.parts, x), _cut(self.parts, y), strict=True):
            total = total + biject_to(family.support()).log_abs_det_jacobian(u, z).sum(-1)
        return total

    def tree_flatten(self):
        return (), ((), {"parts": self.parts})


@biject_to.register(_JoinedSupport)
def _transform(support: _JoinedSupport) -> _JoinedTransform:
    return _JoinedTransform(support.parts)


class Joined(AbstractFamily):
    """Independent Normals, each pushed onto the support of its part, as one vector."""

    parts: tuple[Part, ...]

    def _normals(self) -> TransformedNormal:
        return TransformedNormal(self.support(), self.event_shape())

    def event_shape(self):
        return (sum(size for _, size in self.parts),)

    def support(self):
        return _JoinedSupport(self.parts)

    def is_discrete(self):
        return False

    def parameters(self):
        return self._normals().parameters()

    def sample(self, params, address: Address):
        return self._normals().sample(params, address)

    def value(self, coordinates):
        return self._normals().value(coordinates)

    def coordinates(self, value):
        return self._normals().coordinates(value)

    def floored(self, coordinates):
        moved = [f.floored(u) for (f, _), u in zip(self.parts, _cut(self.parts, coordinates), strict=True)]
        return jnp.any(jnp.concatenate(moved, -1), -1)

    def log_prob(self, params, coordinates):
        return self._normals().log_prob(params, coordinates)

    def centred(self, value):
        return self._normals().centred(value)

    def _of_parts(self, params):
        cut = {name: _cut(self.parts, np.asarray(leaf)) for name, leaf in params.items()}
        return [(f, {name: cut[name][k] for name in cut}) for k, (f, _) in enumerate(self.parts)]

    def moments(self, params):
        found = [family.moments(own) for family, own in self._of_parts(params)]
        return tuple(np.concatenate([np.asarray(pair[k]) for pair in found], -1) for k in range(2))

    def quantile(self, params, p):
        return np.concatenate([np.asarray(family.quantile(own, p)) for family, own in self._of_parts(params)], -1)
