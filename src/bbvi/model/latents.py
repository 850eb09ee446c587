"""Latent variables by their support, each with its factor of q."""

import functools
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpyro.distributions import biject_to, constraints

from bbvi.families import (
    AbstractCovariance,
    AbstractFamily,
    Bernoulli,
    Beta,
    Categorical,
    Dirichlet,
    Gamma,
    JointNormal,
    LogNormal,
    Normal,
    OneHot,
    Params,
    Poisson,
    TransformedNormal,
    resolve,
)
from bbvi.numerics.address import Address, Key, fold

Shape = tuple[int | str, ...]


class Latent:
    """A latent variable: a support, a shape and a variational family with its starting point.

    `shape` is the shape of the array of factors of q; a name in it is an axis whose length differs between
    groups. `event` is the shape of one factor's value.
    """

    def __init__(self, support: str, shape: Shape, default: AbstractFamily, q: Any, init: Any):
        for size in shape:
            if isinstance(size, bool) or not isinstance(size, (int, np.integer, str)):
                raise TypeError(f"bbvi.{support}: an axis is an int or the name of a ragged axis, got {size!r}")
            if not isinstance(size, str) and size < 1:
                raise ValueError(f"bbvi.{support}: an axis must have length 1 or more, got {size}")
        self.support, self.shape, self.q, self.init = support, shape, q, init
        self.event = default.event_shape()
        length = default.k if isinstance(default, (Dirichlet, Categorical, OneHot)) else 1
        self.family: AbstractFamily
        if isinstance(q, AbstractCovariance):
            self.family = _joint(support, shape, default, q)
            self.shape, self.event = shape if self.event else shape[:-1], self.family.event_shape()
        else:
            self.family = default if q is None else resolve(q, length)
        if not _same_support(self.family.support(), default.support()) or self.family.event_shape() != self.event:
            raise ValueError(
                f"bbvi.{support}: the family {type_name(self.family)} lives on {self.family.support()}, "
                f"but this latent lives on {default.support()}; choose a family of that support, such as the default, "
                f"{type_name(default)}"
            )
        if isinstance(init, dict):
            _check_names(init, self.family, support)

    def __repr__(self) -> str:
        return f"{self.support}{self.shape} ~ {type_name(self.family)}"

    def describe(self) -> dict[str, Any]:
        """What must agree for saved parameters to fit this latent."""
        return {
            "support": self.support, "shape": list(self.shape), "event": list(self.event),
            "q": f"{type_name(self.family)}{self._fixed()} on {self.family.support()}",
            "parameters": sorted(self.family.parameters()),
        }  # fmt: skip

    def _fixed(self) -> str:
        fixed = getattr(self.family, "fixed", ())
        return f"({', '.join(f'{name}={value}' for name, value in fixed)})" if fixed else ""

    @property
    def ragged_axes(self) -> tuple[str, ...]:
        return tuple(size for size in self.shape if isinstance(size, str))

    def padded(self, lengths: dict[str, int]) -> tuple[int, ...]:
        """The factors' shape when each ragged axis is padded to `lengths`."""
        return tuple(lengths[size] if isinstance(size, str) else size for size in self.shape)

    def elements(self, lengths: dict[str, int]) -> np.ndarray:
        """A number for each factor that does not depend on how far a ragged axis is padded."""
        shape = self.padded(lengths)
        grids = np.indices(shape, dtype=np.uint64) if shape else np.zeros((0,), np.uint64)
        ragged = [grids[axis] for axis, size in enumerate(self.shape) if isinstance(size, str)]
        code = functools.reduce(_pair, ragged) if ragged else np.zeros(shape, np.uint64)
        for axis, size in enumerate(self.shape):
            if not isinstance(size, str):
                code = code * np.uint64(size) + grids[axis]
        return code.astype(np.uint32)

    def mask(self, lengths: dict[str, int], own: dict[str, Array]) -> Array:
        """Which factors of one group are real, not padding."""
        shape = self.padded(lengths)
        keep = jnp.ones(shape, bool)
        for axis, size in enumerate(self.shape):
            if isinstance(size, str):
                position = jnp.arange(shape[axis]).reshape([-1 if i == axis else 1 for i in range(len(shape))])
                keep = keep & (position < own[size])
        return keep

    def some_values(self, lengths: dict[str, int], num: int, generator: np.random.Generator) -> np.ndarray:
        """`num` arbitrary values on the support, `(num, *factors, *event)`."""
        shape = (num, *self.padded(lengths), *self.event)
        target = self.family.support()
        if self.support == "one_hot":
            return np.eye(*self.event, dtype=np.int32)[generator.integers(0, self.event[0], shape[:-1])]
        if self.family.is_discrete():
            high = min(getattr(target, "upper_bound", 1 if self.support == "binary" else 3), 3)
            return generator.integers(0, high, shape, endpoint=True).astype(np.int32)
        raw = generator.normal(size=biject_to(target).inverse_shape(shape))
        return np.asarray(biject_to(target)(jnp.asarray(raw, float)))

    def random_start(self, name: str, lengths: dict[str, int], key: Key) -> dict[str, Array]:
        """Unconstrained random parameters (Algorithm 1)."""
        shape = self.padded(lengths)
        entries = self.family.parameters()
        return {p: self._random(entry, shape, fold(key, name, p), lengths) for p, entry in entries.items()}

    def given_start(self, name: str, lengths: dict[str, int]) -> dict[str, Array]:
        """The unconstrained parameters that the user's `init=` fixes."""
        if self.init is None:
            return {}
        given = self.init if isinstance(self.init, dict) else self._centred(name)
        raw = {}
        for p, value in given.items():
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
                shown, where = (value, entry.constraint) if given is self.init else (self.init, self.family.support())
                raise ValueError(
                    f"init of {name!r}: {p if given is self.init else 'value'} = {np.asarray(shown)} is not strictly "
                    f"inside {where}; choose a value inside"
                )
        return raw

    def _centred(self, name: str) -> Params:
        if np.asarray(self.init).dtype.kind not in "biuf":
            raise TypeError(f"init of {name!r} must be a value or a dict of parameters, got {self.init!r}")
        value = jnp.asarray(self.init)
        if not self.family.is_discrete():
            value = value.astype(float)
        checked = self.family.support()(value)
        if not bool(jnp.all(checked)):
            raise ValueError(
                f"init of {name!r} is outside its support {self.family.support()}: {np.asarray(value)}; "
                "choose a value inside"
            )
        params = self.family.centred(value)
        if params is None:
            raise ValueError(
                f"init of {name!r}: {type_name(self.family)} has no rule to centre itself on a value; "
                f"give a dict of its parameters {sorted(self.family.parameters())}"
            )
        return params

    def _random(self, entry: Any, shape: tuple[int, ...], key: Key, lengths: dict[str, int]) -> Array:
        size = math.prod(entry.raw_shape())
        element = self.elements(lengths).astype(np.uint32)[..., None] * np.uint32(size)
        element = element + np.arange(size, dtype=np.uint32)
        uniform, _ = Address(key, jnp.uint32(0), jnp.asarray(element), jnp.uint32(0)).uniforms()
        noise = jnp.sqrt(12.0) * (uniform - 0.5)
        return (entry.start + 0.3 * entry.spread * noise).reshape(shape + entry.raw_shape())


def _joint(support: str, shape: Shape, default: AbstractFamily, q: AbstractCovariance) -> JointNormal:
    """One Normal over the vectors of this latent: those on its last axis, where it is not of vectors anyway."""
    name = type(q).__name__
    if default.is_discrete():
        raise ValueError(f"bbvi.{support}: q={name} is a Normal, and this latent is discrete; leave q= out")
    lengths = default.event_shape() or shape[-1:]
    if not lengths or isinstance(lengths[0], str) or lengths[0] < 2:
        raise ValueError(
            f"bbvi.{support}: q={name} joins the entries of the last axis, whose length must be a number, 2 or more; "
            f"got the shape {shape}"
        )
    return JointNormal(_like(support, default), int(lengths[0]), q)


def by_element(latent: "Latent") -> AbstractFamily:
    """A Normal of one number of a continuous latent, pushed onto its support."""
    return _like(latent.support, latent.family)


def _like(support: str, default: AbstractFamily) -> AbstractFamily:
    known: dict[str, AbstractFamily] = {"real": Normal(), "positive": LogNormal()}
    return known.get(support, TransformedNormal(default.support(), default.event_shape()))


def type_name(family: AbstractFamily) -> str:
    """The name of a family as a user knows it."""
    distribution = getattr(family, "distribution", type(family))
    return distribution.__name__


def _check_names(init: dict[str, Any], family: AbstractFamily, support: str) -> None:
    unknown = set(init) - set(family.parameters())
    if unknown:
        raise ValueError(
            f"bbvi.{support}: init has no parameter {sorted(unknown)}; "
            f"{type_name(family)} has {sorted(family.parameters())}"
        )


def _same_support(one: constraints.Constraint, other: constraints.Constraint) -> bool:
    nonnegative = (constraints.positive, constraints.nonnegative)
    unit = (constraints.unit_interval, constraints.interval(0.0, 1.0))
    if other == constraints.nonnegative_integer and getattr(one, "lower_bound", None) == 0 and one.is_discrete:
        return getattr(one, "upper_bound", 1) >= 1  # a count may have a bound
    return one == other or (one in nonnegative and other in nonnegative) or (one in unit and other in unit)


def _pair(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    # Szudzik's pairing: a number for (a, b) that needs no bound on either
    return np.where(a >= b, a * a + a + b, b * b + a)


def real(*shape: int | str, q: Any = None, init: Any = None) -> Latent:
    """Declare real latents; q is Normal by default.

    Examples:
        >>> import bbvi
        >>> bbvi.real(8)
        real(8,) ~ Normal
    """
    return Latent("real", shape, Normal(), q, init)


def positive(*shape: int | str, q: Any = None, init: Any = None) -> Latent:
    """Declare positive latents; q is Gamma by default.

    Examples:
        >>> import bbvi, numpyro.distributions as dist
        >>> bbvi.positive("visit", 5, q=dist.LogNormal)
        positive('visit', 5) ~ LogNormal
    """
    return Latent("positive", shape, Gamma(), q, init)


def unit_interval(*shape: int | str, q: Any = None, init: Any = None) -> Latent:
    """Declare latents between 0 and 1; q is Beta by default.

    Examples:
        >>> import bbvi
        >>> bbvi.unit_interval(init=0.3)
        unit_interval() ~ Beta
    """
    return Latent("unit_interval", shape, Beta(), q, init)


def binary(*shape: int | str, q: Any = None, init: Any = None) -> Latent:
    """Declare latents that are 0 or 1; q is Bernoulli by default.

    Examples:
        >>> import bbvi
        >>> bbvi.binary(3)
        binary(3,) ~ Bernoulli
    """
    return Latent("binary", shape, Bernoulli(), q, init)


def count(*shape: int | str, q: Any = None, init: Any = None) -> Latent:
    """Declare latents in 0, 1, 2, ...; q is Poisson by default.

    With a family of 0, ..., n as q, such as a Binomial of n trials, the latent has that bound.

    Examples:
        >>> import bbvi, functools, numpyro.distributions as dist
        >>> bbvi.count(2)
        count(2,) ~ Poisson
        >>> bbvi.count(q=functools.partial(dist.Binomial, total_count=10))
        count() ~ Binomial
    """
    return Latent("count", shape, Poisson(), q, init)


def interval(low: float, high: float, *shape: int | str, q: Any = None, init: Any = None) -> Latent:
    """Declare latents between `low` and `high`; q is a Normal squeezed into the interval by default.

    Examples:
        >>> import bbvi
        >>> bbvi.interval(-1.0, 1.0, 2)
        interval(2,) ~ TransformedNormal
    """
    if not low < high:
        raise ValueError(f"bbvi.interval: low must be below high, got {low} and {high}")
    target = constraints.interval(float(low), float(high))
    return Latent("interval", shape, TransformedNormal(target), q, init)


def ordered(*shape: int | str, q: Any = None, init: Any = None) -> Latent:
    """Declare vectors whose entries increase along the last axis; a vector is one factor of q.

    Examples:
        >>> import bbvi
        >>> bbvi.ordered(4)
        ordered() ~ TransformedNormal
    """
    if not shape or isinstance(shape[-1], str):
        raise ValueError("bbvi.ordered needs the vector's length as its last axis, for example bbvi.ordered(4)")
    family = TransformedNormal(constraints.ordered_vector, (int(shape[-1]),))
    return Latent("ordered", shape[:-1], family, q, init)


def simplex(k: int, *shape: int | str, q: Any = None, init: Any = None) -> Latent:
    """Declare vectors of k positive entries that sum to 1, as arrays of shape `(*shape, k)`.

    Examples:
        >>> import bbvi
        >>> bbvi.simplex(3, 10)
        simplex(10,) ~ Dirichlet
    """
    _at_least_two("simplex", k)
    return Latent("simplex", shape, Dirichlet(k), q, init)


def categorical(k: int, *shape: int | str, q: Any = None, init: Any = None) -> Latent:
    """Declare latents in 0, ..., k-1; q is Categorical by default.

    Examples:
        >>> import bbvi
        >>> bbvi.categorical(3, 100)
        categorical(100,) ~ Categorical
    """
    _at_least_two("categorical", k)
    return Latent("categorical", shape, Categorical(k), q, init)


def one_hot(k: int, *shape: int | str, q: Any = None, init: Any = None) -> Latent:
    """Declare vectors of k integers, one of them 1 and the others 0, as arrays of shape `(*shape, k)`.

    They are categories, held so that `z["which"] @ means` chooses a mean; q is a Categorical, and a vector is one factor
    of q.

    Examples:
        >>> import bbvi
        >>> bbvi.one_hot(3, 100)
        one_hot(100,) ~ OneHot
    """
    _at_least_two("one_hot", k)
    return Latent("one_hot", shape, OneHot(k), q, init)


def _at_least_two(name: str, k: int) -> None:
    if isinstance(k, (bool, str)) or int(k) != k or k < 2:
        raise ValueError(f"bbvi.{name}: the first argument is the number of categories, 2 or more, got {k!r}")
