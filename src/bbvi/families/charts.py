"""The supports of latents, and the coordinates in which draws on them are held so that nothing underflows.

A chart answers all questions about values that do not depend on their distribution; a family is a law on a chart.
"""

import dataclasses
from abc import abstractmethod
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jax.nn import sigmoid, softplus
from jaxtyping import Array
from numpyro.distributions import biject_to, constraints

from bbvi.numerics.xla import for_one_run

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(64)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
_FEW = 3  # the largest of arbitrary integers that have no bound


def marginal(mean: np.ndarray, std: np.ndarray, ppf: Callable[[float], np.ndarray]) -> SimpleNamespace:
    """Return mean, standard deviation and quantiles in the form that scipy.stats has them."""
    return SimpleNamespace(mean=lambda: mean, std=lambda: std, ppf=ppf)


def smallest(x: Array) -> Any:
    """Return the smallest positive number of x's type that is not denormal: values are floored there."""
    return jnp.finfo(jnp.result_type(x)).tiny


class AbstractChart(eqx.Module):
    """A support, and how coordinates become values on it; coordinates are the values themselves unless a chart says more."""

    if TYPE_CHECKING:  # abstract variables look to mypy like arguments of every chart

        @property
        def support(self) -> constraints.Constraint: ...

        @property
        def shape(self) -> tuple[int, ...]: ...
    else:
        support: eqx.AbstractVar[constraints.Constraint]
        shape: eqx.AbstractVar[tuple[int, ...]]  # of one value

    #: whether coordinates may be any real numbers, with a `log_slope`
    is_unconstrained: ClassVar[bool] = True

    @property
    def is_discrete(self) -> bool:
        return bool(self.support.is_discrete)

    @property
    def chooses(self) -> bool:
        """Whether a value, or a part of it, is discrete."""
        return self.is_discrete

    @property
    def num_categories(self) -> int:
        """How many categories a value chooses between, or shares 1 among."""
        return getattr(self, "k", 1)

    @property
    def coordinates_shape(self) -> tuple[int, ...]:
        return self.shape

    @property
    def unconstrained(self) -> "AbstractChart":
        """The chart of the same support whose coordinates are any real numbers, for Normals."""
        return self if self.is_unconstrained else Through(self.support, self.shape)

    def values(self) -> np.ndarray | None:
        """List the coordinates of all values, `(values, *shape)`, where these are few enough."""
        return None

    def value(self, coordinates: Array) -> Array:
        """Return the z of these coordinates, for the model."""
        return coordinates

    def log_value(self, coordinates: Array) -> Array | None:
        """Return log z where the coordinates have it, so that a model that asks for it does not lose it by underflow."""
        return None

    def coordinates(self, value: Array) -> Array:
        """Return the coordinates of this z."""
        return value

    def floored(self, coordinates: Array) -> Array:
        """Tell whether `value` had to move z to stay inside the support in floating point."""
        return jnp.zeros(jnp.shape(coordinates)[: jnp.ndim(coordinates) - len(self.shape)], bool)

    def log_slope(self, coordinates: Array) -> Array:
        """Return log |dz/du| at coordinates u, of a chart that is `unconstrained`; a vector may have one for each entry."""
        return jnp.zeros_like(coordinates)

    def some_values(self, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
        """Draw arbitrary values, `(*shape, *self.shape)`, for a trial of the model."""
        if self.is_discrete:
            top = 1 if self.support == constraints.boolean else getattr(self.support, "upper_bound", _FEW)
            return generator.integers(0, top, shape, endpoint=True).astype(np.int32)
        chart = self.unconstrained
        raw = generator.normal(size=(*shape, *chart.coordinates_shape)).astype(jnp.result_type(float))
        return np.asarray(jax.jit(lambda u: chart.value(u), **for_one_run())(raw))  # a chart has no hash

    def of_normal(self, loc: np.ndarray, log_sd: np.ndarray) -> SimpleNamespace:
        """Return the marginals of z whose coordinates are Normal."""
        if self.support.event_dim:
            raise NotImplementedError("only draws can tell")
        values = np.asarray(self.value(jnp.asarray(loc[..., None] + np.exp(log_sd)[..., None] * _NODES)))
        mean = (values * _WEIGHTS).sum(-1)
        std = np.sqrt((_WEIGHTS * (values - mean[..., None]) ** 2).sum(-1))
        return marginal(mean, std, lambda p: np.asarray(self.value(jnp.asarray(_normal_quantile(loc, log_sd, p)))))


def _normal_quantile(loc: np.ndarray, log_sd: np.ndarray, p: float) -> np.ndarray:
    return loc + np.exp(log_sd) * scipy.special.ndtri(p)


class Real(AbstractChart):
    """Real numbers, or vectors of them, held as they are."""

    support = constraints.real
    shape: tuple[int, ...] = ()

    def of_normal(self, loc, log_sd):
        return marginal(loc, np.exp(log_sd), lambda p: _normal_quantile(loc, log_sd, p))


class AbstractLogarithms(AbstractChart):
    """Positive numbers of any kind, held as log z."""

    def value(self, coordinates):
        return jnp.maximum(jnp.exp(coordinates), smallest(coordinates))

    def log_value(self, coordinates):
        return coordinates

    def coordinates(self, value):
        return jnp.log(value)

    def floored(self, coordinates):
        below = coordinates < float(np.log(smallest(coordinates)))
        return jnp.any(below, axis=-1) if self.shape else below


class Positive(AbstractLogarithms):
    """Positive numbers, or vectors of them, held as log z."""

    support = constraints.positive
    shape: tuple[int, ...] = ()

    def log_slope(self, coordinates):
        return coordinates

    def of_normal(self, loc, log_sd):
        variance = np.exp(2 * log_sd)
        mean = np.exp(loc + variance / 2)
        return marginal(mean, mean * np.sqrt(np.expm1(variance)), lambda p: np.exp(_normal_quantile(loc, log_sd, p)))


class Unit(AbstractChart):
    """Numbers between 0 and 1, held as logits, where neither end underflows."""

    support = constraints.unit_interval
    shape = ()
    is_unconstrained = False

    def value(self, coordinates):
        dtype = jnp.finfo(jnp.result_type(coordinates))
        return jnp.clip(sigmoid(coordinates), dtype.tiny, 1 - dtype.epsneg)

    def coordinates(self, value):
        return jnp.log(value) - jnp.log1p(-value)

    def floored(self, coordinates):
        z = sigmoid(coordinates)
        return (z < smallest(z)) | (z == 1)

    def log_slope(self, coordinates):
        return -softplus(coordinates) - softplus(-coordinates)


class AbstractCategoryVectors(AbstractChart):
    """Vectors with an entry for each of k categories."""

    k: int

    @property
    def shape(self):
        return (self.k,)


class Simplex(AbstractCategoryVectors, AbstractLogarithms):
    """Vectors of k positive numbers that sum to 1, held as log z."""

    support = constraints.simplex
    is_unconstrained = False


class Through(AbstractChart):
    """Any continuous support, by numpyro's bijection from real numbers: intervals, vectors of them, ordered vectors."""

    support: constraints.Constraint
    shape: tuple[int, ...] = ()

    @property
    def coordinates_shape(self):
        return biject_to(self.support).inverse_shape(self.shape)

    def value(self, coordinates):
        return biject_to(self.support)(coordinates)

    def coordinates(self, value):
        return biject_to(self.support).inv(value)

    def log_slope(self, coordinates):
        transform = biject_to(self.support)
        return transform.log_abs_det_jacobian(coordinates, transform(coordinates))


class AbstractIntegers(AbstractChart):
    """0, 1, ..., `top`, or without end."""

    shape = ()

    @property
    @abstractmethod
    def top(self) -> int | None: ...

    @property
    def support(self):
        return constraints.nonnegative_integer if self.top is None else constraints.integer_interval(0, self.top)

    def values(self):
        return None if self.top is None else np.arange(self.top + 1)


class Binary(AbstractIntegers):
    """0 or 1."""

    support = constraints.boolean
    top = 1


class Categories(AbstractIntegers):
    """0, ..., k - 1, as names of categories."""

    k: int

    @property
    def top(self):
        return self.k - 1


class Counts(AbstractIntegers):
    """0, 1, 2, ..., which may have a bound."""

    top: int | None = None


class _OneHot(constraints.ParameterFreeConstraint):
    """Vectors with a single 1 among zeros: numpyro has no such constraint."""

    is_discrete = True
    event_dim = 1

    def __call__(self, x):
        return jnp.all((x == 0) | (x == 1), axis=-1) & (jnp.sum(x, axis=-1) == 1)


class OneHotVectors(AbstractCategoryVectors):
    """Vectors of k integers, one of them 1 and the others 0."""

    support = _OneHot()

    def values(self):
        return np.eye(self.k, dtype=int)

    def some_values(self, shape, generator):
        return np.eye(self.k, dtype=np.int32)[generator.integers(0, self.k, shape)]


def vectors(chart: AbstractChart, length: int) -> AbstractChart:
    """Return the chart of vectors of numbers on the same support; their coordinates are any real numbers."""
    each: Any = chart.unconstrained
    return dataclasses.replace(each, shape=(length,))


def agree(chart: AbstractChart, declared: AbstractChart) -> bool:
    """Tell whether a family on `chart` can be the q of a latent that was declared on another."""
    one, other = chart.support, declared.support
    positive = (constraints.positive, constraints.nonnegative)
    unit = (constraints.unit_interval, constraints.interval(0.0, 1.0))
    if chart.shape != declared.shape:
        return False
    if other == constraints.nonnegative_integer and getattr(one, "lower_bound", None) == 0 and one.is_discrete:
        return getattr(one, "upper_bound", 1) >= 1  # a count may have a bound
    return one == other or any(one in same and other in same for same in (positive, unit))
