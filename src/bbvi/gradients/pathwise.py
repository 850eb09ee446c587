"""The gradient along the path of a draw: Kingma and Welling 2014, implicit as in Figurnov et al. 2018.

A draw by inversion is a function z(lambda) of the parameters at fixed random numbers. With l = log q(z | lambda) the
gradient of log p(x, z) - l along it is

    (d log p / dz - dl / dz) dz / dlambda - dl / dlambda,

of which the last term, the score, has mean zero and is left out (Roeder, Wu and Duvenaud 2017).
"""

import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from bbvi.draws.drawer import Drawer, Rows
from bbvi.draws.draws import cut_samples, only_counted
from bbvi.draws.layout import Layout, lay_out
from bbvi.draws.tilts import Features, features_of, pulled_back, tilted
from bbvi.families import Conditional, Params
from bbvi.gradients.abstract import AbstractGradient, Estimate
from bbvi.gradients.evaluate import over_tables, sum_chunks
from bbvi.gradients.slopes import Slopes
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

    reads_blankets: ClassVar[bool] = False

    def evaluations(self, analysis):
        # a derivative in reverse costs about two values beside the value itself
        return 3

    def estimate(self, analysis, params, data, batch, *, draws, key, buffers=None):
        slopes = Slopes(analysis, data, batch, analysis.fitted(batch is not None))
        cut = cut_samples(draws, analysis.floats_per_draw)
        layout = lay_out(analysis, draws, params, batch, key, cut, paths=True)
        (sums, floored), elbo, error = sum_chunks(cut, functools.partial(_chunk, slopes, layout))
        means = jax.tree.map(lambda leaf: leaf / cut.num, sums)
        gradient, fisher = (layout.in_shape({name: pair[part] for name, pair in means.items()}) for part in (0, 1))
        return Estimate(**gradient, fisher=fisher, elbo=elbo, elbo_error=error, floored=floored)


def _chunk(slopes: Slopes, layout: Layout, samples: Array, counts: Array | None) -> tuple[Any, Array]:
    """Sum gradients and squared scores over one chunk, by rows, and count draws floored; give the ELBO's samples."""
    u, paths = {}, {}
    for name, table in layout.tables.items():
        found = layout.drawn(name, samples)
        u[name], paths[name] = found if table.is_fitted else (found, None)
    features = features_of(layout, u)
    u = tilted(layout, u, features)
    elbo, of_groups, slopes_of = slopes(layout, u, len(samples))
    slopes_of = pulled_back(layout, u, features, slopes_of)

    def tile(name: str, rows: Rows, u: Array, slope: Array, path: Any) -> tuple[Array, tuple[Params, Params]]:
        drawer = layout.tables[name].drawer
        family = drawer.latent.family
        density = jax.value_and_grad(family.log_prob, argnums=(0, 1))

        def one(row: Rows, u: Array, slope: Array, path: Any) -> Any:
            log_q, (score, of_q) = jax.vmap(density, in_axes=(None, -1), out_axes=-1)(row.prepared.params, u)
            gradient = drawer.along_path(row, path, samples, only_counted(counts, slope - of_q))
            return log_q, (gradient, jax.tree.map(lambda leaf: only_counted(counts, leaf**2).sum(-1), score))

        if isinstance(family, Conditional):
            return jax.vmap(functools.partial(_given, drawer, features, samples, counts))(rows, u, slope, path)
        return jax.vmap(one)(rows, u, slope, path)

    inputs = {name: (slopes_of[name], paths[name]) for name in layout.fitted}
    sums, log_q, floored = over_tables(layout, u, counts, tile, inputs)
    return (sums, floored), stored(layout.on, layout.less_log_q(elbo + layout.scale * of_groups, log_q))


def _given(
    drawer: Drawer,
    features: Features,
    samples: Array,
    counts: Array | None,
    row: Rows,
    u: Array,
    slope: Array,
    path: Any,
) -> tuple[Array, tuple[Params, Params]]:
    """Give log q(z_i | beta) of one factor at all samples, and sum its gradient and its squared score."""
    family, params = drawer.latent.family, row.prepared.params
    assert isinstance(family, Conditional) and features is not None
    shifts, own = family.shifts(params, features), family.own(params)

    def density(own: Params, shifts: Params, u: Array) -> Array:
        return family.log_prob(own | {p: own[p] + shift for p, shift in shifts.items()}, u)

    at_samples = jax.vmap(jax.value_and_grad(density, argnums=(0, 2)), in_axes=(None, -1, -1), out_axes=-1)
    log_q, (score, of_q) = at_samples(own, shifts, u)
    around, along = u - own["loc"][:, None] - shifts["loc"], only_counted(counts, slope - of_q)
    # a draw is a place, which moves with loc and by the features with tilt, and what is around it, which is stretched
    gradient = drawer.along_path(row, path, samples, along * jnp.exp(shifts["scale"]))
    gradient |= {"loc": along.sum(-1), "tilt": along @ features.T, "swell": (along * around) @ features.T}
    squares = {p: only_counted(counts, leaf**2) for p, leaf in score.items()}
    fisher = {p: leaf.sum(-1) for p, leaf in squares.items()}
    return log_q, (
        gradient,
        fisher | {by: squares[p] @ features.T**2 for p, by in (("loc", "tilt"), ("scale", "swell"))},
    )
