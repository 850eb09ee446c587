"""Eq. 4 with larger factors: one Normal over a whole vector, pushed onto its support.

The full-rank Normal is that of Kucukelbir et al. (2017, "Automatic differentiation variational inference"), the
low-rank one that of Ong, Nott and Smith (2018, "Gaussian variational approximation with a factor covariance structure").
"""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.sparse.linalg
import numpy as np
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from bbvi.families.abstract import AbstractFamily
from bbvi.families.charts import AbstractChart
from bbvi.families.law import Parameter, Params
from bbvi.families.normal import HALF_LOG_TWO_PI, location_and_scale, standard_normals
from bbvi.families.skew import fisher, skewed, solved, unskewed

_RIDGE = 1e-3
_SMALLEST_SIZE = 1e-3  # of a direction's Fisher information, whose root is 0 where V is
_MOST_PRODUCTS = 50
MOST_ROUNDING = 0.1  # of a standard normal, by the condition number of the matrix that makes draws of it


class AbstractCovariance(eqx.Module):
    """How the entries of a Normal vector move together; w is the vector without location, over `scale`."""

    @abstractmethod
    def parameters(self, size: int) -> dict[str, Parameter]:
        """Describe the entries of lambda_i beside the location and the scale."""

    @abstractmethod
    def num_normals(self, size: int) -> int:
        """Return how many standard normals make one draw."""

    @abstractmethod
    def correlate(self, params: Params, noise: Array) -> Float[Array, " size"]:
        """Make w from standard normals."""

    @abstractmethod
    def log_prob(self, params: Params, w: Float[Array, " size"]) -> Float[Array, ""]:
        """Return the log density of w."""

    @abstractmethod
    def natural_gradient(self, params: Params, gradient: Params) -> Params:
        """Return F^-1 gradient, the location and the scale included."""

    @abstractmethod
    def sd(self, params: Params) -> np.ndarray:
        """Return the standard deviations of w, for any number of factors at once."""


class FullRank(AbstractCovariance):
    """A joint Normal with any covariance, for the vector on the last axis of a latent: `bbvi.real(8, q=bbvi.FullRank())`.

    Each entry is a Normal given the entries before it: w_i = e_i - sum of lower_ij w_j over j < i, the Cholesky
    factor of the precision. Its density is a product with a matrix, and the Fisher information of different rows is 0.

    With `parents`, the logarithm of the standard deviation of each further entry, given those before it, is a linear function
    of the first `parents` entries, too: e_i is multiplied by exp(sum of slopes_ij w_j over j < parents). So the effects of
    groups can be narrow where their scale is small (Tan, Bhaskaran and Nott 2020, "Conditionally structured variational
    Gaussian approximation with importance weights"). The e_i of entries that are `skewed` have a skew of their own.

    Examples:
        >>> import bbvi
        >>> bbvi.positive(10, 3, q=bbvi.FullRank())
        positive(10,) ~ FullRank
    """

    parents: int = 0
    skewed: tuple[int, ...] = eqx.field(static=True, default=(), converter=tuple)

    def parameters(self, size):
        found = {"lower": Parameter((size * (size - 1) // 2,), constraints.real_vector, spread=1 / size)}
        if not set(self.skewed) <= set(range(size)):
            raise ValueError(f"FullRank: skewed has the numbers of entries, 0 to {size - 1}; got {self.skewed}")
        if self.skewed:
            found["skew"] = Parameter((len(self.skewed),), constraints.real_vector, spread=0.0)
        if self.parents:
            each = constraints.independent(constraints.real, 2)
            found["slopes"] = Parameter((size - self.parents, self.parents), each, spread=0.0)
        return found

    def num_normals(self, size):
        return size

    def correlate(self, params, noise):
        num, matrix = self.parents, unit_lower(params["lower"], len(noise))
        inverse = inverse_of_unit_lower(matrix)
        # where rounding would drown what was drawn there is no draw, so that a fit goes back instead of trusting its density
        condition = jnp.abs(inverse).sum(1).max() * jnp.abs(matrix).sum(1).max()
        noise = jnp.where(condition * jnp.finfo(noise.dtype).eps < MOST_ROUNDING, noise, jnp.nan)
        if self.skewed:
            noise = noise.at[self._skewed].set(skewed(params["skew"], noise[self._skewed]))
        if num:
            of_parents = inverse[:num, :num] @ noise[:num]
            noise = noise.at[num:].multiply(jnp.exp(params["slopes"] @ of_parents))
        return inverse @ noise

    def log_prob(self, params, w):
        noise, log_scale = unit_lower(params["lower"], len(w)) @ w, jnp.zeros(())
        if self.parents:
            log_scales = params["slopes"] @ w[: self.parents]
            noise, log_scale = noise.at[self.parents :].multiply(jnp.exp(-log_scales)), log_scales.sum()
        if self.skewed:
            own, log_slope = unskewed(params["skew"], noise[self._skewed])
            noise, log_scale = noise.at[self._skewed].set(own), log_scale - log_slope.sum()
        return -0.5 * noise @ noise - log_scale - len(w) * HALF_LOG_TWO_PI

    def natural_gradient(self, params, gradient):
        # F is simple in changes of each row by itself: of the mean of w_i given the w before it, by location_i + rows_ij w_j,
        # and of the logarithm of its standard deviation, by scale_i + slopes_ij w_j
        size, num, scale = len(params["loc"]), self.parents, jnp.exp(params["scale"])
        matrix = unit_lower(params["lower"], size)
        inverse = inverse_of_unit_lower(matrix)
        slopes = jnp.pad(params["slopes"], ((num, 0), (0, 0))) if num else jnp.zeros((size, 0))

        def change(location: Array, rows: Array, own: Array, of_slopes: Array) -> Params:
            loc = inverse @ location
            log_scale = own + slopes @ loc[:num]
            moved = matrix * (log_scale - log_scale[:, None]) - rows
            found = {"loc": scale * loc, "scale": log_scale, "lower": moved[np.tril_indices(size, -1)]}
            return found | ({"slopes": (of_slopes + slopes * log_scale[:num])[num:]} if num else {})

        shapes = [jnp.zeros(size), jnp.zeros((size, size)), jnp.zeros(size), jnp.zeros((size, num))]
        of_normal = {name: leaf for name, leaf in gradient.items() if name != "skew"}
        location, rows, own, of_slopes = jax.linear_transpose(change, *shapes)(of_normal)
        # the scales of entries given their parents are not constant: E exp(-2 slopes w)
        precision = jnp.exp(2 * ((slopes @ inverse[:num, :num]) ** 2).sum(1))
        rows = jnp.tril(jnp.tril(rows, -1) @ matrix.T, -1) @ matrix / precision[:, None]
        of_slopes = of_slopes @ matrix[:num, :num].T @ matrix[:num, :num]
        if not self.skewed:
            return change(location / precision, rows, own / 2, of_slopes / 2)
        # what an entry has by itself, of which location and scale have 1 and 2 without a skew
        found = jnp.tile(jnp.diag(jnp.array([1.0, 2.0, 1.0])), (size, 1, 1))
        found = found.at[self._skewed].set(fisher(params["skew"]))
        of_skew = jnp.zeros(size).at[self._skewed].set(gradient["skew"])
        root = jnp.sqrt(precision)
        steps = solved(found, jnp.stack([location / root, own, of_skew], -1))
        rows, of_slopes = rows / found[:, 0, 0, None], of_slopes / found[:, 1, 1, None]
        return change(steps[:, 0] / root, rows, steps[:, 1], of_slopes) | {"skew": steps[self._skewed, 2]}

    @property
    def _skewed(self) -> np.ndarray:
        return np.array(self.skewed)

    def sd(self, params):
        if self.parents or self.skewed:
            raise NotImplementedError("only draws can tell")
        size = np.shape(params["scale"])[-1]
        matrix = np.zeros((*np.shape(params["lower"])[:-1], size, size))
        matrix[..., *np.tril_indices(size, -1)] = params["lower"]
        return np.linalg.norm(np.linalg.inv(matrix + np.eye(size)), axis=-1)


def unit_lower(lower: Array, size: int) -> Float[Array, "size size"]:
    return jnp.eye(size).at[np.tril_indices(size, -1)].set(lower)


@jax.custom_jvp
def inverse_of_unit_lower(matrix: Float[Array, "size size"]) -> Float[Array, "size size"]:
    """Invert a lower triangular matrix with ones on its diagonal, by products alone.

    The diagonal blocks of size 1, 2, 4, ... are inverted in turn. A program that solves such systems calls a library whose
    threads wait for each other, which takes a hundred times as long on a busy machine.
    """
    size, block = len(matrix), 1
    padded = 1 << max(size - 1, 0).bit_length()
    whole = jnp.eye(padded, dtype=matrix.dtype).at[:size, :size].set(matrix)
    inverse = jnp.ones((padded, 1, 1), matrix.dtype)
    while block < padded:
        number = padded // (2 * block)
        pairs = inverse.reshape(number, 2, block, block)
        tiles = whole.reshape(number, 2 * block, number, 2 * block)[
            np.arange(number), block:, np.arange(number), :block
        ]
        below = -pairs[:, 1] @ tiles @ pairs[:, 0]
        above = jnp.concatenate([pairs[:, 0], jnp.zeros_like(below)], -1)
        inverse = jnp.concatenate([above, jnp.concatenate([below, pairs[:, 1]], -1)], -2)
        block *= 2
    return inverse[0, :size, :size]


@inverse_of_unit_lower.defjvp
def _inverse_jvp(primals, tangents):
    inverse = inverse_of_unit_lower(*primals)
    return inverse, -inverse @ tangents[0] @ inverse


class LowRank(AbstractCovariance):
    """A joint Normal of `rank` common directions and noise of its own in each entry: `bbvi.real(200, q=bbvi.LowRank(5))`.

    w = e + V f with independent standard normals e and f, so that the cost grows with size times rank.

    Examples:
        >>> import bbvi
        >>> bbvi.real(200, q=bbvi.LowRank(5))
        real() ~ LowRank
    """

    rank: int

    def __check_init__(self):
        if isinstance(self.rank, bool) or not isinstance(self.rank, (int, np.integer)) or self.rank < 1:
            raise ValueError(f"LowRank: the rank must be an integer of 1 or more, got {self.rank!r}")

    def parameters(self, size):
        # not at 0, where the gradient is 0: all signs of a direction are alike
        entry = Parameter((size, self.rank), constraints.independent(constraints.real, 2), spread=size**-0.5)
        return {"directions": entry}

    def num_normals(self, size):
        return size + self.rank

    def correlate(self, params, noise):
        return noise[: -self.rank] + params["directions"] @ noise[-self.rank :]

    def log_prob(self, params, w):
        factor = _factor(params["directions"])
        return -0.5 * _square(params["directions"], w) - jnp.log(jnp.diagonal(factor)).sum() - len(w) * HALF_LOG_TWO_PI

    def natural_gradient(self, params, gradient):
        scale = jnp.exp(params["scale"])
        v, g = params["directions"], scale * gradient["loc"]
        rest = {name: gradient[name] for name in ("scale", "directions")}
        return {"loc": scale * (g + v @ (v.T @ g)), **_solve_low_rank(v, rest)}

    def sd(self, params):
        return np.sqrt(1 + (np.asarray(params["directions"], np.float64) ** 2).sum(-1))


def _factor(directions: Array) -> Float[Array, "rank rank"]:
    """Return the Cholesky factor of I + V'V, which has the determinant of I + VV'."""
    return jnp.linalg.cholesky(jnp.eye(directions.shape[1]) + directions.T @ directions)


def _explained(directions: Array, w: Array) -> tuple[Float[Array, " rank"], Float[Array, " size"]]:
    """Return the f that minimises |w - V f|**2 + |f|**2, and the rest w - V f."""
    f = cho_solve((_factor(directions), True), directions.T @ w)
    return f, w - directions @ f


@jax.custom_jvp
def _square(directions: Array, w: Array) -> Float[Array, ""]:
    """Return w' (I + VV')^-1 w, the minimum of |w - V f|**2 + |f|**2 over f."""
    f, rest = _explained(directions, w)
    return rest @ rest + f @ f


@_square.defjvp
def _square_jvp(primals, tangents):
    # at the minimum a change of f changes nothing: no derivative of the factorisation is needed for each draw
    (directions, w), (d_directions, dw) = primals, tangents
    f, rest = _explained(directions, w)
    return rest @ rest + f @ f, 2 * rest @ (dw - d_directions @ f)


def _solve_low_rank(v: Array, gradient: Params) -> Params:
    """Solve for F^-1 of a gradient in the log scales and in V, by conjugate gradients: a product with F costs no more than a draw.

    F is tr(P dC P dC) / 2 for a change dC of C = I + VV', the covariance over the scales, and P its inverse. It is blind to a
    rotation of V, so that a little is added to its diagonal.
    """
    k = cho_solve((_factor(v), True), jnp.eye(v.shape[1]))  # P = I - V k V'
    pv, gram = v @ k, v.T @ v
    cv = v + v @ gram
    variance, precision = 1 + (v**2).sum(1), jnp.maximum(1 - (pv * v).sum(1), 0)

    def times_fisher(change: Params) -> Params:
        dr, dv = change["scale"][:, None], change["directions"]
        moved = dr * (cv + v) + v @ (v.T @ (dr * v)) + dv @ gram + v @ (dv.T @ v)  # dC V
        own = 2 * change["scale"] * variance + 2 * (dv * v).sum(1)  # of dC's diagonal
        return {"scale": own - ((moved @ k) * v).sum(1), "directions": (moved - pv @ (v.T @ moved)) @ k}

    of_directions = precision[:, None] * (v * pv).sum(0) + pv**2
    size = {"scale": jnp.sqrt(1 + precision * variance), "directions": jnp.sqrt(of_directions)}
    size = jax.tree.map(lambda leaf: jnp.maximum(leaf, _SMALLEST_SIZE), size)

    def matrix(x: Params) -> Params:
        found = times_fisher(jax.tree.map(jnp.divide, x, size))
        return jax.tree.map(lambda f, s, own: f / s + _RIDGE * own, found, size, x)

    scaled = jax.tree.map(jnp.divide, gradient, size)
    solution, _ = jax.scipy.sparse.linalg.cg(matrix, scaled, tol=_RIDGE, maxiter=_MOST_PRODUCTS)
    return jax.tree.map(jnp.divide, solution, size)


class JointNormal(AbstractFamily):
    """One Normal over the coordinates of a chart of vectors, which is one factor of q."""

    chart: AbstractChart
    covariance: AbstractCovariance

    @property
    def name(self):
        return type(self.covariance).__name__

    def settings(self):
        return vars(self.covariance)

    def parameters(self):
        shape = self.chart.coordinates_shape
        return {**location_and_scale(shape), **self.covariance.parameters(*shape)}

    def sample(self, params, address):
        noise = standard_normals(address, (self.covariance.num_normals(*self.chart.coordinates_shape),))
        return params["loc"] + jnp.exp(params["scale"]) * self.covariance.correlate(params, noise)

    def log_prob(self, params, coordinates):
        w = (coordinates - params["loc"]) * jnp.exp(-params["scale"])
        log_slope = jnp.sum(self.chart.log_slope(coordinates))
        return self.covariance.log_prob(params, w) - params["scale"].sum() - log_slope

    def natural_gradient(self, params, gradient):
        return self.covariance.natural_gradient(params, gradient)

    def centred(self, value):
        return {"loc": self.chart.coordinates(value)}

    def marginals(self, params):
        log_sd = np.asarray(params["scale"]) + np.log(self.covariance.sd(params))
        return self.chart.of_normal(np.asarray(params["loc"]), log_sd)
