"""Eq. 4 with larger factors: a discrete number and, given each of its values, Normals of continuous ones (Titsias and Lázaro-Gredilla 2011).

"Spike and slab variational inference for multi-task and multiple kernel learning": q(g) q(b | g) is a small mixture.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from bbvi.families.abstract import AbstractFamily
from bbvi.families.charts import AbstractChart, smallest
from bbvi.families.law import Parameter, Params
from bbvi.families.normal import HALF_LOG_TWO_PI
from bbvi.numerics.samplers import standard_normal

_BISECTIONS = 60
_SPREAD = 0.1  # of a random start: q is to settle what is given each value before it decides for one


class _PairedConstraint(constraints.Constraint):
    """The supports of a discrete number and of continuous ones, side by side."""

    event_dim = 1

    def __init__(self, parts: tuple[AbstractChart, ...]):
        self.parts = parts

    def __call__(self, x):
        return jnp.all(jnp.stack([part.support(x[..., k]) for k, part in enumerate(self.parts)], -1), -1)

    def __repr__(self):
        return f"Paired({', '.join(str(part.support) for part in self.parts)})"

    def eq(self, other, static=False):
        return isinstance(other, _PairedConstraint) and repr(self) == repr(other)

    def tree_flatten(self):
        # numpyro before 0.22 asks every constraint for it
        return (), ((), {"parts": self.parts})


class Paired(AbstractChart):
    """Vectors of a discrete number, whose values can be listed, and of continuous ones."""

    discrete: AbstractChart
    parts: tuple[AbstractChart, ...]
    is_unconstrained = False

    @property
    def support(self):
        return _PairedConstraint((self.discrete, *self.parts))

    @property
    def shape(self):
        return (1 + len(self.parts),)

    @property
    def chooses(self):
        return True

    def value(self, coordinates):
        return self._each("value", coordinates)

    def coordinates(self, value):
        return self._each("coordinates", value)

    def _each(self, what: str, x: Array) -> Array:
        parts = (self.discrete, *self.parts)
        return jnp.stack([getattr(part, what)(x[..., k]) for k, part in enumerate(parts)], -1)

    def floored(self, coordinates):
        return jnp.any(jnp.stack([part.floored(coordinates[..., 1 + k]) for k, part in enumerate(self.parts)], -1), -1)

    def some_values(self, shape, generator):
        return np.stack([part.some_values(shape, generator) for part in (self.discrete, *self.parts)], -1)

    def log_slopes(self, u: Float[Array, "... parts"]) -> Float[Array, "... parts"]:
        """Return log |db/du| of each continuous number at its coordinate."""
        return jnp.stack([part.log_slope(u[..., k]) for k, part in enumerate(self.parts)], -1)


class PerValue(AbstractFamily):
    """q(g) q(b_1 | g) ... q(b_m | g): a Normal of each coordinate for each value of g.

    The natural gradient of what is given a value is free of the probability of that value: F and the gradient both carry it.
    """

    chart: Paired
    choice: AbstractFamily

    def parameters(self):
        shape = (len(self.values), len(self.chart.parts))
        loc = Parameter(shape, constraints.independent(constraints.real, 2), spread=_SPREAD)
        scale = Parameter(shape, constraints.independent(constraints.positive, 2), spread=_SPREAD)
        found = {p: eqx.tree_at(lambda x: x.spread, entry, _SPREAD) for p, entry in self.choice.parameters().items()}
        return {**found, "loc": loc, "scale": scale}

    @property
    def name(self):
        return f"{self.choice.name} and Normal"

    @property
    def values(self) -> np.ndarray:
        """The values of the discrete number."""
        found = self.chart.discrete.values()
        assert found is not None
        return found

    def of_choice(self, params: Params) -> Params:
        """Return the parameters of q(g)."""
        return {name: params[name] for name in self.choice.parameters()}

    def log_q(self, params: Params) -> Float[Array, " values"]:
        """Return log q(g) of each value."""
        return jax.vmap(self.choice.log_prob, in_axes=(None, 0))(self.of_choice(params), jnp.asarray(self.values))

    def sample(self, params, address):
        # parts from 1 on belong to the continuous numbers
        value, parts = self.choice.sample(self.of_choice(params), address), range(1, 1 + len(self.chart.parts))
        noise = jnp.stack([standard_normal(address, part) for part in parts])
        u = self._of_value(params["loc"], value) + jnp.exp(self._of_value(params["scale"], value)) * noise
        return jnp.concatenate([jnp.asarray(value, u.dtype)[None], u])

    def _of_value(self, table: Float[Array, "values parts"], value: Array) -> Float[Array, " parts"]:
        return jnp.where((self.values == value)[:, None], table, 0).sum(0)

    def log_prob(self, params, coordinates):
        value, u = coordinates[0], coordinates[1:]
        loc, scale = (self._of_value(params[name], value) for name in ("loc", "scale"))
        normal = -0.5 * ((u - loc) * jnp.exp(-scale)) ** 2 - scale - HALF_LOG_TWO_PI
        return self.choice.log_prob(self.of_choice(params), value) + (normal - self.chart.log_slopes(u)).sum()

    def natural_gradient(self, params, gradient):
        q = jnp.exp(self.log_q(params))
        found = self.choice.natural_gradient(self.of_choice(params), self.of_choice(gradient))
        # next to the smallest number a gradient that has q in it has no digits left, and a compiler may divide by the square of it
        least = smallest(q) ** 0.75
        found = {p: jnp.where(q.min() > least, leaf, 0) for p, leaf in found.items()}
        q, is_drawn = jnp.maximum(q, least)[:, None], (q > least)[:, None]
        loc, scale = (jnp.where(is_drawn, gradient[name] / q, 0) for name in ("loc", "scale"))
        return {**found, "loc": jnp.exp(2 * params["scale"]) * loc, "scale": scale / 2}

    def along(self, params, direction):
        # straight in the natural parameters of each Normal, as `Normal` goes
        found = self.choice.along(self.of_choice(params), self.of_choice(direction))
        ratio = 1 - 2 * direction["scale"]
        loc, scale = params["loc"] + direction["loc"] / ratio, params["scale"] - 0.5 * jnp.log(ratio)
        return {**found, "loc": loc, "scale": scale}

    def every_path(self, params: Params, u: Array) -> Float[Array, " entries"]:
        """Return a draw, its standard normals, and where these lead to given each value."""
        value, own = u[0], u[1:]
        noise = (own - self._of_value(params["loc"], value)) * jnp.exp(-self._of_value(params["scale"], value))
        return jnp.concatenate([u, noise, jnp.ravel(params["loc"] + jnp.exp(params["scale"]) * noise)])

    def drawn(self, every: Float[Array, "... entries samples"]) -> Float[Array, "... parts samples"]:
        """Return the draw itself out of `every_path`."""
        return every[..., : 1 + len(self.chart.parts), :]

    def taken_apart(self, every: Float[Array, "... entries samples"]) -> tuple[Array, Array, Array]:
        """Return the draw, its standard normals, and the paths given each value, (..., values, parts, samples)."""
        num = len(self.chart.parts)
        noise, paths = every[..., 1 + num : 1 + 2 * num, :], every[..., 1 + 2 * num :, :]
        return self.drawn(every), noise, paths.reshape(*paths.shape[:-2], -1, num, paths.shape[-1])

    @property
    def num_sums(self) -> int:
        """How many sums over samples a value has: of log p_i, and for each path of its slope and of that times its noise."""
        return 1 + 2 * len(self.chart.parts)

    def centre(self, params: Params) -> Array:
        """Return the most probable value of the discrete number, and the centres of the others given it."""
        best = jnp.argmax(self.log_q(params))
        u = jnp.concatenate([jnp.asarray(self.values)[best][None] * 1.0, params["loc"][best]])
        return self.chart.value(u)

    def marginals(self, params):
        return _Marginals(self, params)


class _Marginals:
    """Means, standard deviations and quantiles of the discrete number and of the mixtures of the others, side by side."""

    def __init__(self, family: PerValue, params: Params):
        shape = np.shape(params["loc"])[:-2]
        flat = {name: jnp.reshape(leaf, (-1, *np.shape(leaf)[len(shape) :])) for name, leaf in params.items()}
        self._shape, self._family = shape, family
        self._q = np.asarray(jnp.exp(jax.vmap(family.log_q)(flat)), np.float64)
        self._loc, self._scale = (np.asarray(flat[name], np.float64) for name in ("loc", "scale"))

    def _joined(self, of_choice: np.ndarray, of_parts: list[np.ndarray]) -> np.ndarray:
        return np.stack([of_choice, *of_parts], -1).reshape(*self._shape, 1 + len(of_parts))

    def _moments(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the mean and the variance of each number."""
        values = self._family.values
        given = [(np.broadcast_to(values, self._q.shape) * 1.0, np.zeros_like(self._q))]
        for k, part in enumerate(self._family.chart.parts):
            own = part.of_normal(self._loc[..., k], self._scale[..., k])
            given.append((np.asarray(own.mean()), np.asarray(own.std()) ** 2))
        means = [(self._q * mean).sum(-1) for mean, _ in given]
        pairs = zip(means, given, strict=True)
        return [(mean, (self._q * (var + (own - mean[:, None]) ** 2)).sum(-1)) for mean, (own, var) in pairs]

    def mean(self) -> np.ndarray:
        first, *others = (mean for mean, _ in self._moments())
        return self._joined(first, others)

    def std(self) -> np.ndarray:
        first, *others = (np.sqrt(variance) for _, variance in self._moments())
        return self._joined(first, others)

    def ppf(self, p: float) -> np.ndarray:
        below = np.cumsum(self._q, -1)[:, :-1] < p
        parts = [np.asarray(x.value(jnp.asarray(self._quantile(p, k)))) for k, x in enumerate(self._family.chart.parts)]
        return self._joined(self._family.values[below.sum(-1)], parts)

    def _quantile(self, p: float, k: int) -> np.ndarray:
        """Bisect for the coordinate below which the mixture has probability p: between the quantiles of its parts."""
        loc, sd = self._loc[..., k], np.exp(self._scale[..., k])
        own = loc + sd * scipy.special.ndtri(p)
        low, high = own.min(-1), own.max(-1)
        for _ in range(_BISECTIONS if np.isfinite(own).all() else 0):
            middle = (low + high) / 2
            above = (self._q * scipy.special.ndtr((middle[:, None] - loc) / sd)).sum(-1) > p
            low, high = np.where(above, low, middle), np.where(above, middle, high)
        return low
