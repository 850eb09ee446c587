"""The gradient along the path of a draw: Kingma and Welling 2014, implicit as in Figurnov et al. 2018.

A draw by inversion is a function z(lambda) of the parameters at fixed random numbers. With l = log q(z | lambda) the
gradient of log p(x, z) - l along it is

    (d log p / dz - dl / dz) dz / dlambda - dl / dlambda,

of which the last term, the score, has mean zero and is left out (Roeder, Wu and Duvenaud 2017).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bbvi.draws.drawer import drawers
from bbvi.draws.draws import cut_samples
from bbvi.draws.layout import Layout, lay_out
from bbvi.draws.rows import Rows, over_rows
from bbvi.families import Params
from bbvi.families.abstract import Lambda
from bbvi.gradients.abstract import AbstractGradient, Estimate
from bbvi.gradients.evaluate import sum_chunks
from bbvi.gradients.group_blocks import GroupBlocks
from bbvi.gradients.slopes import Slopes
from bbvi.numerics.address import Key
from bbvi.numerics.xla import stored


class Pathwise(AbstractGradient):
    """The reparameterised gradient, along the path of each draw, for continuous latents and a smooth log joint.

    Its variance is mostly far below that of `Score`, so that 1 to 10 draws do: `draws=bbvi.MonteCarlo(10)`. Draws of all
    families of bbvi, the gamma, beta and Dirichlet among them, have exact derivatives. The score, which has mean zero,
    is left out: the variance vanishes where q is the posterior. Discrete latents, opaque functions and log joints that
    jump, such as `jnp.where(z > 0, a, b)`, are refused: there the derivative says nothing.

    Examples:
        >>> import bbvi, numpyro.distributions as dist, jax.numpy as jnp
        >>> def log_joint(z, y):
        ...     return dist.Normal(0, 10).log_prob(z["mu"]) + dist.Normal(z["mu"], 1).log_prob(y).sum()
        >>> model = bbvi.Model(log_joint, mu=bbvi.real())
        >>> posterior = bbvi.fit(
        ...     model, jnp.array([1.0, 2.0, 3.0]), gradient=bbvi.Pathwise(), draws=bbvi.MonteCarlo(10)
        ... )
        >>> print(round(float(posterior.mean()["mu"]), 2), round(float(posterior.sd()["mu"]), 2))
        1.99 0.58
    """

    def check(self, draws):
        pass

    def evaluations(self, analysis):
        # a derivative in reverse costs about two values beside the value itself
        return 3

    def estimate(self, analysis, params, data, batch, *, draws, key, buffers=None):
        slopes = Slopes(analysis, data, batch, analysis.fitted(batch is not None))
        cut = cut_samples(draws, analysis.floats_per_draw)
        latents = drawers(draws, analysis.problem.latents, analysis.fitted(batch is not None))
        layout = lay_out(analysis, latents, params, batch, key, cut.chunk)

        def visit(chunk: Array) -> tuple[Sums, Float[Array, " samples"], Array | None]:
            samples, counts = cut.samples(chunk)
            return *_chunk(slopes, _Along(layout, samples, counts)), counts

        sums, elbo, error = sum_chunks(cut, visit)
        means = jax.tree.map(lambda leaf: leaf / cut.num, (sums.gradient, sums.squares))
        gradient, fisher = (layout.in_shape(part) for part in means)
        return Estimate(gradient["globals"], gradient["rows"], fisher, elbo, error, sums.floored)


class Sums(NamedTuple):
    """Sums over samples: by rows, of the gradient and of squared scores; draws floored."""

    gradient: Lambda
    squares: Lambda
    floored: Int[Array, ""]


def _chunk(slopes: Slopes, along: "_Along") -> tuple[Sums, Float[Array, " samples"]]:
    """Sum over one chunk, and give the ELBO's samples."""
    layout = along.layout
    u, paths = {}, {}
    for name in layout.rows:
        found = layout.drawn(name, along.samples)
        u[name], paths[name] = found if layout.latents[name].paths else (found, None)
    group_blocks = None if layout.batch is None else GroupBlocks(layout, u)
    elbo, of_groups, slope = slopes(group_blocks, u, len(along.samples))
    elbo, floored = elbo + layout.scale * of_groups, jnp.int32(0)
    gradient, squares = {}, {}
    for name, rows in layout.rows.items():
        if name in layout.fitted:
            (log_q, moved), found = over_rows(
                along.tile(name), rows, layout.tiles[name], u[name], slope[name], paths[name]
            )
            (gradient[name], squares[name]), floored = found, floored + moved
        else:
            log_q = layout.total_log_q(name, u[name])
        elbo = elbo - layout.share(name) * log_q
    return Sums(gradient, squares, floored), stored(layout.on, elbo)


class _Along(NamedTuple):
    """Follow some samples of the factors of q along their paths."""

    layout: Layout
    samples: Array
    counts: Array | None

    def tile(self, name: str):
        """Make the function of rows, their draws and d log p / du that gives log q, floored draws, gradient and squared scores."""
        drawer = self.layout.latents[name]
        latent = drawer.latent

        def density(p: Params, u: Array) -> tuple[Array, tuple[Params, Array]]:
            return jax.value_and_grad(latent.family.log_prob, argnums=(0, 1))(p, u)

        def one(p: Params, key: Key, group: Array, element: Array, real: Array, u: Array, slope: Array, path: Any):
            log_q, (score, of_q) = jax.vmap(density, in_axes=(None, -1), out_axes=-1)(p, u)
            keep = real if self.counts is None else real & self.counts
            slope = jnp.where(keep, slope - of_q, 0)
            gradient = drawer.along_path(p, path, key, group, element, self.samples, slope)
            squares = jax.tree.map(lambda leaf: jnp.where(keep, leaf**2, 0).sum(-1), score)
            return jnp.where(real, log_q, 0), (gradient, squares)

        def tile(rows: Rows, u: Array, slope: Array, path: Any):
            real = jnp.ones(len(rows.elements), bool) if rows.real is None else rows.real
            where = (rows.keys, rows.groups, rows.elements, real)
            log_q, found = jax.vmap(one)(rows.prepared.params, *where, u, slope, path)
            return (log_q.sum(0), self.layout.num_floored(name, rows, u, self.counts)), found

        return tile
