"""A latent variable: an array of factors of q, and where they start."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bbvi.families import AbstractChart, AbstractFamily, Params
from bbvi.numerics.address import Address, Key, fold_names

Shape = tuple[int | str, ...]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Latent:
    """A latent variable: a support, a shape and a variational family with its starting point.

    `shape` is the shape of the array of factors of q; a name in it is an axis whose length differs between
    groups. `chart` is that of the declared support; the family's may be another, such as that of bounded counts. Latents
    with equal shapes, charts, families and starts are equal, so that what is compiled for one serves the other.
    """

    support: str
    shape: Shape
    chart: AbstractChart
    family: AbstractFamily
    q: Any = None  # as the user gave it
    init: Any = None
    #: the names of the axes of its array, the event's too, where they have names; and the entries along each
    dims: tuple[str | None, ...] = ()
    coords: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Latent) and bool(self._key() == other._key())

    def __hash__(self) -> int:
        return hash((self.support, self.shape, self.family.name, _hashable(self.init)))

    def _key(self) -> tuple[Any, ...]:
        return self.support, self.shape, self.chart, self.family, _hashable(self.init)

    def __repr__(self) -> str:
        return f"{self.support}{self.shape} ~ {self.family.name}"

    @property
    def event(self) -> tuple[int, ...]:
        """The shape of one factor's value."""
        return self.family.chart.shape

    def describe(self) -> dict[str, Any]:
        """Return what must agree for saved parameters to fit this latent."""
        settings = ", ".join(f"{name}={value}" for name, value in self.family.settings().items())
        q = f"{self.family.name}({settings})" if settings else self.family.name
        return {
            "support": self.support, "shape": list(self.shape), "event": list(self.event),
            "q": f"{q} on {self.family.chart.support}", "parameters": sorted(self.family.parameters()),
        }  # fmt: skip

    @property
    def ragged_axes(self) -> tuple[str, ...]:
        return tuple(size for size in self.shape if isinstance(size, str))

    def padded(self, lengths: dict[str, int]) -> tuple[int, ...]:
        """Return the factors' shape when each ragged axis is padded to `lengths`."""
        return tuple(lengths[size] if isinstance(size, str) else size for size in self.shape)

    def elements(self, lengths: dict[str, int]) -> np.ndarray:
        """Number the factors in a way that does not depend on how far a ragged axis is padded."""
        shape = self.padded(lengths)
        grids = np.indices(shape, dtype=np.uint64)
        ragged = [grids[axis] for axis, size in enumerate(self.shape) if isinstance(size, str)]
        code = functools.reduce(_pair, ragged) if ragged else np.zeros(shape, np.uint64)
        for axis, size in enumerate(self.shape):
            if not isinstance(size, str):
                code = code * np.uint64(size) + grids[axis]
        return code.astype(np.uint32)

    def mask(self, lengths: dict[str, int], own: dict[str, Array]) -> Array:
        """Tell which factors of one group are real, not padding."""
        shape = self.padded(lengths)
        keep = jnp.ones(shape, bool)
        for axis, size in enumerate(self.shape):
            if isinstance(size, str):
                keep = keep & (jax.lax.broadcasted_iota(int, shape, axis) < own[size])
        return keep

    def some_values(self, lengths: dict[str, int], num: int, generator: np.random.Generator) -> np.ndarray:
        """Draw `num` arbitrary values on the support, `(num, *factors, *event)`."""
        return self.family.chart.some_values((num, *self.padded(lengths)), generator)

    def given_start(self, name: str, lengths: dict[str, int]) -> dict[str, Array]:
        """Return the unconstrained parameters that the user's `init=` fixes."""
        if self.init is None:
            return {}
        by_name = isinstance(self.init, dict)
        raw = {}
        for p, value in (self.init if by_name else self._centred(name)).items():
            entry = self.family.parameters()[p]
            target = self.padded(lengths) + entry.shape
            try:
                full = jnp.broadcast_to(jnp.asarray(value, float), target)
            except ValueError:
                raise ValueError(
                    f"init of {name!r}: parameter {p!r} has shape {jnp.shape(value)}, expected {target}"
                ) from None
            raw[p] = entry.unconstrain(full)
            if not bool(jnp.all(jnp.isfinite(raw[p]))):
                what = (p, value, entry.constraint) if by_name else ("value", self.init, self.family.chart.support)
                shown = f"{what[0]} = {np.asarray(what[1])} is not strictly inside {what[2]}"
                raise ValueError(f"init of {name!r}: {shown}; choose a value inside")
        return raw

    def _centred(self, name: str) -> Params:
        if np.asarray(self.init).dtype.kind not in "biuf":
            raise TypeError(f"init of {name!r} must be a value or a dict of parameters, got {self.init!r}")
        value = jnp.asarray(self.init, None if self.family.chart.is_discrete else float)
        if not bool(jnp.all(self.family.chart.support(value))):
            raise ValueError(
                f"init of {name!r} is outside its support {self.family.chart.support}: {np.asarray(value)}; "
                "choose a value inside"
            )
        if (params := self.family.centred(value)) is None:
            raise ValueError(
                f"init of {name!r}: {self.family.name} has no rule to centre itself on a value; "
                f"give a dict of its parameters {sorted(self.family.parameters())}"
            )
        return params


def random_starts(latents: Mapping[str, Latent], lengths: dict[str, int], key: Key) -> dict[str, Params]:
    """Draw unconstrained parameters of all these latents (Algorithm 1) as one array of random numbers, on the host.

    A key of shape `(2, groups, 1)` is that of each group: their rows are drawn.
    """
    start: dict[str, Any] = {name: {} for name in latents}
    entries = [(name, p, entry) for name in latents for p, entry in latents[name].family.parameters().items()]
    if not entries:
        return start
    elements = []
    for name, _, entry in entries:
        size = math.prod(entry.raw_shape())
        first = latents[name].elements(lengths)[..., None] * np.uint32(size)
        elements.append(np.ravel(first + np.arange(size, dtype=np.uint32)))
    sizes = [len(own) for own in elements]
    keys = fold_names(key, [name for name, _, _ in entries], [p for _, p, _ in entries]).T
    owners, float_ = np.repeat(np.arange(len(sizes)), sizes), jnp.result_type(float)
    at: Any = [np.uint32(0), np.concatenate(elements), np.uint32(0)]
    uniform = Address(keys[..., owners], *at).uniform()
    centres, spreads = np.array([(entry.start, 0.3 * entry.spread) for *_, entry in entries], float_)[owners].T
    raw = centres + (spreads * np.sqrt(float_.type(12))) * (uniform - float_.type(0.5))
    for (name, p, entry), own in zip(entries, np.split(raw, np.cumsum(sizes)[:-1], axis=-1), strict=True):
        start[name][p] = own.reshape((*key.shape[1:-1], *latents[name].padded(lengths), *entry.raw_shape()))
    return start


def _hashable(init: Any) -> Any:
    arrays = [(str(path), np.asarray(leaf)) for path, leaf in jax.tree_util.tree_leaves_with_path(init)]
    return tuple((path, array.shape, array.dtype.str, array.tobytes()) for path, array in arrays)


def _pair(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    # Szudzik's pairing: a number for (a, b) that needs no bound on either
    return np.where(a >= b, a * a + a + b, b * b + a)
