"""Eq. 12 in q: joint Normals of a group's locals that move with the globals, q(beta) and q(z_i | beta).

In coordinates q(z_i | beta) is Normal with mean loc_i + tilt_i t, a regression on the globals: t are their coordinates in a frame, the
mean and the Cholesky factor that q(beta) had at some earlier step, so that t is nearly standard Normal. What q(z_i | beta) says
does not change as q(beta) moves, and the Fisher information of either's parameters with the other's is 0.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from bbvi.families.abstract import AbstractFamily
from bbvi.families.joint import FullRank, JointNormal, inverse_of_unit_lower, unit_lower
from bbvi.families.law import Parameter, Params


class Moments(NamedTuple):
    """The mean of t under q(beta), a root K of its covariance K K', and the inverse of K."""

    mean: Float[Array, " features"]
    root: Float[Array, "features features"]
    inverse: Float[Array, "features features"]


class Framed(AbstractFamily):
    """A joint Normal of globals, with the frame in which locals depend on them; the frame is set, not fitted."""

    normal: JointNormal

    @property
    def chart(self):
        return self.normal.chart

    @property
    def name(self):
        return self.normal.name

    def settings(self):
        return {**self.normal.settings(), "framed": True}

    @property
    def num(self) -> int:
        """The number of entries of t."""
        return int(self.chart.coordinates_shape[0])

    def parameters(self):
        sizes = {"frame_loc": self.num, "frame_scale": self.num, "frame_lower": self.num * (self.num - 1) // 2}
        frame = {name: Parameter((size,), constraints.real_vector, spread=0.0) for name, size in sizes.items()}
        return {**self.normal.parameters(), **frame}

    def sample(self, params, address):
        return self.normal.sample(self._own(params), address)

    def log_prob(self, params, coordinates):
        return self.normal.log_prob(self._own(params), coordinates)

    def natural_gradient(self, params, gradient):
        own = self.normal.natural_gradient(self._own(params), self._own(gradient))
        return {name: own[name] if name in own else jnp.zeros_like(leaf) for name, leaf in params.items()}

    def centred(self, value):
        return self.normal.centred(value)

    def marginals(self, params):
        return self.normal.marginals(self._own(params))

    def features(self, params: Params, coordinates: Array) -> Float[Array, " features"]:
        """Return t at coordinates."""
        matrix = unit_lower(params["frame_lower"], self.num)
        return matrix @ ((coordinates - params["frame_loc"]) * jnp.exp(-params["frame_scale"]))

    def pulled_back(self, params: Params, slope: Float[Array, " features"]) -> Array:
        """Return the slope in the coordinates of what has this slope in t."""
        matrix = unit_lower(params["frame_lower"], self.num)
        return jnp.exp(-params["frame_scale"]) * (matrix.T @ slope)

    def moments(self, params: Params) -> Moments:
        """Return the moments of t under q(beta)."""
        covariance, size = self.normal.covariance, self.num
        assert isinstance(covariance, FullRank)
        mean, root = self.turn(params)
        frame, own = (unit_lower(params[name], size) for name in ("frame_lower", "lower"))
        back = (own * jnp.exp(params["frame_scale"] - params["scale"])) @ inverse_of_unit_lower(frame)
        if num := covariance.parents:
            # the root of E exp(2 slopes w): what is added to the logarithms of scales is Normal
            of_parents = params["slopes"] @ inverse_of_unit_lower(own)[:num, :num]
            sd = jnp.ones(size).at[num:].set(jnp.exp((of_parents**2).sum(1)))
            root, back = root * sd, back / sd[:, None]
        return Moments(mean, root, back)

    def turn(self, params: Params) -> tuple[Array, Array]:
        """Return the vector a and the matrix K of t = a + K s, where s are the features in the frame of the present q(beta)."""
        frame, own = (unit_lower(params[name], self.num) for name in ("frame_lower", "lower"))
        stretched = frame * jnp.exp(params["scale"] - params["frame_scale"])
        return self.features(params, params["loc"]), stretched @ inverse_of_unit_lower(own)

    def reframed(self, params: Params) -> Params:
        """Return the parameters with the present q(beta) as the frame."""
        return {**params, **{f"frame_{name}": params[name] for name in ("loc", "scale", "lower")}}

    def _own(self, params: Params) -> Params:
        return {name: leaf for name, leaf in params.items() if not name.startswith("frame_")}


class Conditional(AbstractFamily):
    """A joint Normal of locals whose mean is linear in `num` features of the globals; alone, it is that where these are 0.

    With the features' moments the natural gradient and the marginals are those of q(beta) q(z_i | beta).
    """

    normal: JointNormal
    num: int
    moments: Moments | None = None

    @property
    def chart(self):
        return self.normal.chart

    @property
    def name(self):
        return self.normal.name

    def settings(self):
        return {**self.normal.settings(), "features": self.num}

    def parameters(self):
        shape = (*self.chart.coordinates_shape, self.num)
        tilt = Parameter(shape, constraints.independent(constraints.real, 2), spread=0.0)
        return {**self.normal.parameters(), "tilt": tilt}

    def sample(self, params, address):
        return self.normal.sample(_without_tilt(params), address)

    def log_prob(self, params, coordinates):
        return self.normal.log_prob(_without_tilt(params), coordinates)

    def given(self, params: Params, features: Float[Array, " features"]) -> Params:
        """Return the parameters at which `log_prob` is that of q(z_i | beta), for any number of factors at once."""
        return {**params, "loc": params["loc"] + params["tilt"] @ features}

    def natural_gradient(self, params, gradient):
        # F of (loc, tilt) is that of a location, times E (1, t)(1, t)'
        direction = self.normal.natural_gradient(_without_tilt(params), _without_tilt(gradient))
        mean, _, back = self._moments()
        centred = gradient["tilt"] - gradient["loc"][:, None] * mean
        scale = jnp.exp(params["scale"])[:, None]
        inverse = inverse_of_unit_lower(unit_lower(params["lower"], len(scale)))
        tilt = scale * (inverse @ (inverse.T @ (scale * (centred @ back.T @ back))))
        return {**direction, "loc": direction["loc"] - tilt @ mean, "tilt": tilt}

    def centred(self, value):
        return self.normal.centred(value)

    def marginals(self, params):
        # exact but for quantiles where q(beta) is not Normal, in which the sum counts as Normal
        mean, root, _ = map(np.asarray, self._moments())
        tilt, scale = np.asarray(params["tilt"], np.float64), np.exp(np.asarray(params["scale"], np.float64))
        own = scale * self.normal.covariance.sd(_without_tilt(params))
        log_sd = 0.5 * np.log(own**2 + ((tilt @ root) ** 2).sum(-1))
        return self.chart.of_normal(np.asarray(params["loc"]) + tilt @ mean, log_sd)

    def turned(self, params: Params, shift: Array, matrix: Array) -> Params:
        """Return the parameters of the same q(z_i | beta) where t = shift + matrix s and s are the features, for any number of factors."""
        return {**params, "loc": params["loc"] + params["tilt"] @ shift, "tilt": params["tilt"] @ matrix}

    def informed(self, moments: Moments) -> "Conditional":
        """Return the family with moments of the features."""
        return Conditional(self.normal, self.num, moments)

    def _moments(self) -> Moments:
        return self.moments or Moments(jnp.zeros(self.num), jnp.eye(self.num), jnp.eye(self.num))


def _without_tilt(params: Params) -> Params:
    return {name: leaf for name, leaf in params.items() if name != "tilt"}
