"""Eq. 12 in q: joint Normals of a group's locals that move with the globals, q(beta) and q(z_i | beta).

In coordinates q(z_i | beta) is Normal with mean loc_i + tilt_i t, a regression on the globals, and with scales whose logarithms are
scale_i + swell_i t: t are the globals' coordinates in a frame, the mean and the Cholesky factor that q(beta) had at some earlier step, so
that t is nearly standard Normal. What q(z_i | beta) says does not change as q(beta) moves, and the Fisher information of either's
parameters with the other's is 0.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy.special
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from bbvi.families.abstract import AbstractFamily
from bbvi.families.charts import AbstractChart, marginal
from bbvi.families.joint import FullRank, JointNormal, inverse_of_unit_lower, unit_lower
from bbvi.families.law import Parameter, Params
from bbvi.families.skew import solved

#: which parameters of the Normal move with the features, and by which of ours
_BY = {"loc": "tilt", "scale": "swell"}
_FEW = 8  # numbers, up to which a system is solved
# few: where scales vary much, the mean of the exponential of a number has no end, and far nodes would show it
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(8)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
_LEAST, _HALVINGS = 1e-30, 60


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
        # no narrower than the frame: else noise in the tilts, which makes q(beta) narrower, would grow by that
        back = (own * jnp.exp(jnp.minimum(params["frame_scale"] - params["scale"], 0))) @ inverse_of_unit_lower(frame)
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
    """A joint Normal of locals whose mean, and the logarithms of whose scales, are linear in `num` features of the globals.

    Alone, it is that where these are 0. With the features' moments the natural gradient and the marginals are those of
    q(beta) q(z_i | beta).
    """

    normal: JointNormal
    num: int
    moments: Moments | None = None
    #: of what leads to the optimum, the share that a step of `tilt` and `swell` makes
    share: float = 1.0

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
        each = Parameter(shape, constraints.independent(constraints.real, 2), spread=0.0)
        return {**self.normal.parameters(), "tilt": each, "swell": each}

    def sample(self, params, address):
        return self.normal.sample(self.own(params), address)

    def log_prob(self, params, coordinates):
        return self.normal.log_prob(self.own(params), coordinates)

    def own(self, params: Params) -> Params:
        """Return the parameters of the Normal where the features are 0."""
        return {name: leaf for name, leaf in params.items() if name not in _BY.values()}

    def given(self, params: Params, features: Float[Array, " features"]) -> Params:
        """Return the parameters at which `log_prob` is that of q(z_i | beta), for any number of factors at once."""
        return {**params, **{name: params[name] + params[by] @ features for name, by in _BY.items()}}

    def shifts(self, params: Params, features: Float[Array, "features samples"]) -> Params:
        """Return what is added to which parameters at each sample, on the last axis, for any number of factors at once."""
        return {name: jnp.einsum("...ij,js->...is", params[by], features) for name, by in _BY.items()}

    def moved(self, params: Params, shifts: Params, coordinates: Array) -> Array:
        """Return draws, samples last, of which `coordinates` are what they are where the features are 0."""
        around = coordinates - params["loc"][..., None]
        return coordinates + shifts["loc"] + jnp.expm1(shifts["scale"]) * around

    def along(self, params, direction):
        return self.normal.along(params, direction)

    def natural_gradient(self, params, gradient):
        # of (loc, tilt) F is that of a location, and of (scale, swell) that of scales, times E (1, t)(1, t)'; where scales
        # vary with t, the precision that counts is the mean one
        shape = self.normal.natural_gradient(self.own(params), self.own(gradient))
        mean, root, back = self._moments()
        rate = params["swell"] @ mean - ((params["swell"] @ root) ** 2).sum(-1)
        size, scale = len(rate), jnp.exp(params["scale"] + rate)[:, None]
        matrix = unit_lower(params["lower"], size)
        inverse = inverse_of_unit_lower(matrix)
        centred = {p: (gradient[by] - gradient[p][:, None] * mean) @ back.T @ back for p, by in _BY.items()}
        centred = {p: self.share * leaf for p, leaf in centred.items()}
        places = jnp.concatenate([gradient["loc"][:, None], centred["loc"]], -1)
        places = scale * (inverse @ (inverse.T @ (scale * places)))
        tilt, swell = (
            places[:, 1:],
            _solved(jnp.eye(size) + (inverse @ inverse.T) * (matrix.T @ matrix), centred["scale"]),
        )
        return {
            **shape, "loc": places[:, 0] - tilt @ mean, "tilt": tilt, "scale": shape["scale"] - swell @ mean, "swell": swell
        }  # fmt: skip

    def centred(self, value):
        return self.normal.centred(value)

    def marginals(self, params):
        # given x = swell t a number is Normal: the mixture over x by quadrature, exact where q(beta) is Normal
        mean, root, _ = (np.asarray(leaf, np.float64) for leaf in self._moments())
        tilt, swell = (np.asarray(params[name], np.float64) for name in ("tilt", "swell"))
        of_place, of_scale = tilt @ root, swell @ root
        spread = np.linalg.norm(of_scale, axis=-1)
        along = (of_place * of_scale).sum(-1) / np.where(spread > 0, spread, 1)
        rest = np.maximum((of_place**2).sum(-1) - along**2, 0)
        nodes = _NODES.reshape(-1, *[1] * spread.ndim)
        loc = np.asarray(params["loc"], np.float64) + tilt @ mean + along * nodes
        log_sd = np.log(self.normal.covariance.sd(self.own(params))) + params["scale"] + swell @ mean + spread * nodes
        return _mixture(self.chart, loc, 0.5 * np.logaddexp(2 * log_sd, np.log(np.maximum(rest, _LEAST))))

    def turned(self, params: Params, shift: Array, matrix: Array) -> Params:
        """Return the parameters of the same q(z_i | beta) where t = shift + matrix s and s are the features, for any number of factors."""
        new = {by: params[by] @ matrix for by in _BY.values()}
        return {**self.given(params, shift), **new}

    def informed(self, moments: Moments, share: float) -> "Conditional":
        """Return the family with moments of the features, and with that share of natural steps."""
        return Conditional(self.normal, self.num, moments, share)

    def _moments(self) -> Moments:
        return self.moments or Moments(jnp.zeros(self.num), jnp.eye(self.num), jnp.eye(self.num))


def _solved(matrix: Float[Array, "n n"], right: Float[Array, "n k"]) -> Array:
    """Solve a small positive definite system; a large one with a diagonal matrix that is above it."""
    if len(matrix) > _FEW:
        return right / jnp.abs(matrix).sum(1)[:, None]
    return solved(jnp.broadcast_to(matrix, (right.shape[1], *matrix.shape)), right.T).T


def _mixture(chart: AbstractChart, loc: np.ndarray, log_sd: np.ndarray) -> Any:
    """Return the marginals of a mixture of Normals in coordinates, whose components, with the weights of the nodes, stand first."""
    parts = chart.of_normal(loc, log_sd)
    mean = np.tensordot(_WEIGHTS, parts.mean(), 1)
    variance = np.tensordot(_WEIGHTS, parts.std() ** 2 + (parts.mean() - mean) ** 2, 1)

    def ppf(p: float) -> np.ndarray:
        if not 0 < p < 1:
            return np.asarray(parts.ppf(p)[0])
        low, high = ((loc + scipy.special.ndtri(p) * np.exp(log_sd)) for _ in range(2))
        low, high = low.min(0), high.max(0)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            below = np.tensordot(_WEIGHTS, scipy.special.ndtr((middle - loc) * np.exp(-log_sd)), 1) < p
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return np.asarray(chart.of_normal(high, np.full_like(high, np.log(_LEAST))).ppf(0.5))

    return marginal(mean, np.sqrt(variance), ppf)
