"""Eq. 4 with larger factors: one Normal over a long vector whose precision has a sparse Cholesky factor.

As in Tan and Nott (2018, "Gaussian variational approximation with sparse precision matrices"), with the natural gradient in closed form.
The pattern is an arrow and a band of blocks, which has no fill-in: each covariance that F asks for follows from those of the block before.
"""

import functools
import zlib

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from bbvi.families.joint import MOST_ROUNDING, AbstractCovariance, inverse_of_unit_lower, unit_lower
from bbvi.families.law import Parameter, Params
from bbvi.families.normal import HALF_LOG_TWO_PI

_FEW = 8
_TILE = 32  # numbers that are solved for by one product with a matrix, at least


class Order(tuple[int, ...]):
    """The numbers of entries in another order; shown by a digest."""

    def __repr__(self) -> str:
        return f"<{len(self)} numbers, {zlib.crc32(np.array(self, np.int32).tobytes()):08x}>" if self else "()"


class SparsePrecision(AbstractCovariance):
    """A joint Normal for a long vector whose entries depend on few others: `bbvi.real(1000, q=bbvi.SparsePrecision(1))`.

    w_i = e_i - sum of l_ij w_j over j < i, as in `FullRank`, where l_ij is 0 unless j is one of the first `core` entries, or i and j are
    in the same block of `width` entries or in two blocks next to each other. So a chain is of width 1, an autoregression of order p of
    width p, and the core is for what all depend on. The cost grows with size times core + 1.5 width.

    `order` has the numbers of the entries as they follow each other here, if not as in the vector. Of `parents`, the first
    entries of the core, the logarithms of the scales of the others are linear functions, as in `FullRank`.

    Examples:
        >>> import bbvi
        >>> bbvi.real(1000, q=bbvi.SparsePrecision(1))
        real() ~ SparsePrecision
    """

    width: int = 0
    core: int = 0
    parents: int = 0
    order: tuple[int, ...] = eqx.field(static=True, default=(), converter=Order)

    def __check_init__(self):
        for name in ("width", "core", "parents"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
                raise ValueError(f"SparsePrecision: {name} must be an integer of 0 or more, got {value!r}")
        if self.parents > self.core:
            raise ValueError(
                f"SparsePrecision: the parents are among the core's {self.core} entries, got {self.parents}"
            )
        if self.order and sorted(self.order) != list(range(len(self.order))):
            raise ValueError("SparsePrecision: order must have each number from 0 on once")

    def parameters(self, size):
        if self.order and len(self.order) != size:
            raise ValueError(f"SparsePrecision: order has {len(self.order)} numbers, and the vector {size}")
        core, each = min(self.core, size), constraints.independent(constraints.real, 2)
        found = {}
        if core > 1:
            found["lower"] = Parameter((core * (core - 1) // 2,), constraints.real_vector, spread=1 / size)
        if core and core < size:
            found["below"] = Parameter((size - core, core), each, spread=1 / size)
        body, width = size - core, self.width
        if width and body > width:
            found["band"] = Parameter((body - width, width), each, spread=1 / size)
        if num := len(_places(body, width)):
            found["within"] = Parameter((num,), constraints.real_vector, spread=1 / size)
        if self.parents and self.parents < size:
            found["slopes"] = Parameter((size - self.parents, self.parents), each, spread=0.0)
        return found

    def num_normals(self, size):
        return size

    def correlate(self, params, noise):
        factor = _Factor(self, params, len(noise))
        log_scales = factor.slopes @ (factor.inverse[: self.parents] @ noise[: factor.core])
        w = factor.solve(noise * jnp.exp(log_scales))
        # where rounding would drown what was drawn there is no draw, so that a fit goes back instead of trusting its density
        missed = factor.times(jax.lax.stop_gradient(w)) * jnp.exp(-log_scales) - noise
        return self._outside(jnp.where(jnp.all(jnp.abs(missed) < MOST_ROUNDING), w, jnp.nan))

    def log_prob(self, params, w):
        factor, w = _Factor(self, params, len(w)), self._inside(w)
        log_scales = factor.slopes @ w[: self.parents]
        noise = factor.times(w) * jnp.exp(-log_scales)
        return -0.5 * noise @ noise - log_scales.sum() - len(w) * HALF_LOG_TWO_PI

    def natural_gradient(self, params, gradient):
        # as for a full-rank Normal F is simple in changes of each row by itself, of which those of zeros are left out
        scale = jnp.exp(self._inside(params["scale"]))
        factor = _Factor(self, params, len(scale))
        core, num, slopes, size = factor.core, self.parents, factor.slopes, len(scale)

        def change(location: Array, rows: Array, band: Array, within: Array, own: Array, of_slopes: Array) -> Params:
            loc = factor.solve(location)
            log_scale = own + slopes @ loc[:num]
            moved = factor.tall * (log_scale[:core] - log_scale[:, None]) - rows
            found = {
                "lower": moved[np.tril_indices(core, -1)], "below": moved[core:],
                "slopes": (of_slopes + slopes * log_scale[:num])[num:],
                "loc": self._outside(scale * loc), "scale": self._outside(log_scale),
            }  # fmt: skip
            if factor.blocks:
                of_block = factor.padded(log_scale[core:])
                band = factor.band * (_shifted(of_block)[:, None] - of_block[..., None]) - band
                within = factor.within * (of_block[:, None] - of_block[..., None]) - within
                found |= factor.free(band, within)
            return {name: found[name] for name in gradient}

        blocks = (factor.blocks, factor.width, factor.width)
        shapes = [(size,), (size, core), blocks, blocks, (size,), (size, num)]
        location, rows, band, within, own, of_slopes = jax.linear_transpose(change, *map(jnp.zeros, shapes))(gradient)
        # the scales of entries given their parents are not constant: E exp(-2 slopes w)
        variance = jnp.exp(-2 * ((slopes @ factor.inverse[:num, :num]) ** 2).sum(1))
        rows, band, within = factor.natural_rows(rows, band, within, variance)
        of_slopes = of_slopes @ factor.top[:num, :num].T @ factor.top[:num, :num] / 2
        return change(location * variance, rows, band, within, own / 2, of_slopes)

    def sd(self, params):
        if self.parents:
            raise NotImplementedError("only draws can tell")
        size = np.shape(params["scale"])[-1]

        def one(p: Params) -> Array:
            return self._outside(_Factor(self, p, size).sd())

        lead = np.shape(params["scale"])[:-1]
        flat = {name: jnp.asarray(leaf).reshape(-1, *np.shape(leaf)[len(lead) :]) for name, leaf in params.items()}
        return np.asarray(jax.lax.map(one, flat), np.float64).reshape(*lead, size)

    def _inside(self, x: Array) -> Array:
        return x[np.array(self.order)] if self.order else x

    def _outside(self, x: Array) -> Array:
        return x[np.argsort(self.order)] if self.order else x


@functools.lru_cache(maxsize=32)
def _places(size: int, width: int) -> np.ndarray:
    """Where the entries below the diagonal are in an array of blocks `(blocks, width, width)`."""
    entry = np.arange(-(-size // max(width, 1)) * width)[:, None]
    return np.flatnonzero((np.arange(width) < entry % max(width, 1)) & (entry < size))


class _Factor:
    """The Cholesky factor of the precision, with ones on its diagonal: a core, what the body depends on it by, and a band of blocks.

    A block depends on the one before by `band`, and within itself by `within`.
    """

    def __init__(self, pattern: SparsePrecision, params: Params, size: int):
        core, num = min(pattern.core, size), pattern.parents
        self.core, self.width, self.size = core, pattern.width, size - core
        self.blocks = -(-self.size // self.width) if self.width else 0
        self.top = unit_lower(params.get("lower", jnp.zeros(0)), core)
        self.below = params.get("below", jnp.zeros((self.size, core)))
        self.slopes = jnp.pad(params["slopes"], ((num, 0), (0, 0))) if num and num < size else jnp.zeros((size, num))
        self.band = self.within = jnp.zeros((self.blocks, self.width, self.width))
        if "band" in params:
            self.band = self.padded(jnp.pad(params["band"], ((self.width, 0), (0, 0))))
        if "within" in params:
            flat, places = jnp.ravel(self.within), _places(self.size, self.width)
            flat = flat.at[places].set(params["within"], unique_indices=True, indices_are_sorted=True)
            self.within = flat.reshape(self.within.shape)
        self.inverse = inverse_of_unit_lower(self.top)
        self.tiles = self._tiles() if self.blocks else (self.band, self.band)

    def free(self, band: Array, within: Array) -> Params:
        """Return the entries of the blocks that are parameters."""
        of_band = band.reshape(-1, self.width)[self.width : self.size]
        return {"band": of_band, "within": within.reshape(-1)[_places(self.size, self.width)]}

    def padded(self, x: Array) -> Array:
        """Cut an array of the body into blocks, the last filled up with zeros."""
        fill = self.blocks * self.width - self.size
        return jnp.pad(x, [(0, fill), *[(0, 0)] * (x.ndim - 1)]).reshape(self.blocks, self.width, *x.shape[1:])

    @property
    def tall(self) -> Array:
        """The columns of the core."""
        return jnp.concatenate([self.top, self.below])

    def solve(self, noise: Array) -> Array:
        """Return the w of this noise."""
        of_core = self.inverse @ noise[: self.core]
        return jnp.concatenate([of_core, self._solve_body(noise[self.core :] - self.below @ of_core)])

    def times(self, w: Array) -> Array:
        """Return the noise of this w."""
        of_core, body = w[: self.core], w[self.core :]
        noise = body + self.below @ of_core
        if self.blocks:
            own = self.padded(body)
            near = _product(self.band, _shifted(own)[..., None])
            near = near + _product(self.within, own[..., None]) if self.width > 1 else near
            noise = noise + near.reshape(-1)[: self.size]
        return jnp.concatenate([self.top @ of_core, noise])

    def _tiles(self) -> tuple[Array, Array]:
        """Return inverses of tiles of some blocks, and what the numbers in a tile depend on the last block of the tile before by."""
        width = self.width
        per_tile = -(-_TILE // width)
        size, fill = per_tile * width, ((0, -self.blocks % per_tile), (0, 0), (0, 0))
        band, within = (jnp.pad(x, fill).reshape(-1, per_tile, width, width) for x in (self.band, self.within))

        def placed(at: int, blocks: Array) -> Array:
            where = jnp.eye(per_tile, k=at)[:, None, :, None]
            return (where * blocks[:, :, :, None]).reshape(-1, size, size)

        inverse = jax.vmap(inverse_of_unit_lower)(jnp.eye(size) + placed(0, within) + placed(-1, band))
        return inverse, -inverse[:, :, :width] @ band[:, 0]

    def _solve_body(self, noise: Array) -> Array:
        if not self.blocks:
            return noise
        inverse, follow = self.tiles
        num, size, width = *inverse.shape[:2], self.width
        own = inverse @ jnp.pad(noise, (0, num * size - self.size)).reshape(num, size, 1)
        if num > 1:

            def last(before: Array, tile: tuple[Array, Array]) -> tuple[Array, Array]:
                mine, links = tile
                return mine + links @ before, before

            _, before = jax.lax.scan(last, jnp.zeros((width, 1)), (own[:, -width:], follow[:, -width:]))
            own = own + follow @ before
        return own.reshape(-1)[: self.size]

    def covariances(self) -> Float[Array, "blocks width width"]:
        """Return covariances of the numbers of each block, given the core."""
        inverse, follow = self.tiles
        num, size, width = *inverse.shape[:2], self.width

        def last(before: Array, tile: tuple[Array, Array]) -> tuple[Array, Array]:
            mine, links = tile
            return mine @ mine.T + links @ before @ links.T, before

        _, before = jax.lax.scan(last, jnp.zeros((width, width)), (inverse[:, -width:], follow[:, -width:]))
        inverse, follow = inverse.reshape(num, -1, width, size), follow.reshape(num, -1, width, width)
        found = inverse @ inverse.mT + follow @ before[:, None] @ follow.mT
        return found.reshape(-1, width, width)[: self.blocks]

    def on_core(self) -> Float[Array, "body core"]:
        """Return what the mean of the body, given the core, is by."""
        return jax.vmap(self._solve_body, 1, 1)(-self.below)

    def sd(self) -> Array:
        """Return the standard deviations of w, where scales do not depend on parents."""
        own = jnp.ones(self.size)
        if self.blocks:
            own = jnp.diagonal(self.covariances(), axis1=1, axis2=2).reshape(-1)[: self.size]
        of_core = ((self.on_core() @ self.inverse) ** 2).sum(1)
        return jnp.sqrt(jnp.concatenate([(self.inverse**2).sum(1), own + of_core]))

    def natural_rows(self, rows: Array, band: Array, within: Array, variance: Array) -> tuple[Array, Array, Array]:
        """Solve each row's regression on the entries before it, whose precision is that of the core, the block before and its own."""
        core, top = self.core, self.top
        rows = rows * variance[:, None]
        of_core = jnp.tril(jnp.tril(rows[:core], -1) @ top.T, -1) @ top
        if not self.blocks:
            return jnp.concatenate([of_core, rows[core:] @ top.T @ top]), band, within
        of_blocks = self.padded(variance[core:])[..., None]
        own, below, arrow = jnp.eye(self.width) + self.within, self.padded(self.below), self.padded(rows[core:])
        # R whitens the block before, given the core: R (w - G w_core) is standard Normal
        spread = jnp.eye(self.width) + _product(_product(self.band, _shifted(self.covariances())), self.band.mT)
        root = jnp.sqrt(spread) if self.width == 1 else jnp.linalg.cholesky(spread)
        size = jnp.diagonal(root, axis1=1, axis2=2)
        whiten = _product(jax.vmap(inverse_of_unit_lower)(root / size[:, None]) / size[..., None], own)
        r, g = _shifted(whiten), _shifted(self.padded(self.on_core()))
        near, mine = band * of_blocks, within * of_blocks
        of_near = _product(near - _product(arrow, g.mT), r.mT)
        of_mine = _product(arrow, below.mT) + _product(near, self.band.mT) + _product(mine, own.mT)
        of_near, of_mine = _product(of_near, r), jnp.tril(of_mine, -1)
        arrow = arrow @ top.T @ top - _product(of_near, g) + _product(of_mine, below)
        found = jnp.concatenate([of_core, arrow.reshape(self.blocks * self.width, core)[: self.size]])
        return found, of_near + _product(of_mine, self.band), _product(of_mine, own)


def _shifted(blocks: Array) -> Array:
    """Return the block before each, zeros before the first."""
    return jnp.pad(blocks[:-1], [(1, 0), *[(0, 0)] * (blocks.ndim - 1)])


def _product(one: Array, other: Array) -> Array:
    """Multiply many matrices: those of a few numbers as arrays, which a library would be called for one by one."""
    if one.shape[-1] > _FEW:
        return one @ other
    return (one[..., :, :, None] * other[..., None, :, :]).sum(-2)
