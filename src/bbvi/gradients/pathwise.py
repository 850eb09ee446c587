"""The gradient along the path of a draw: Kingma and Welling 2014, implicit as in Figurnov et al. 2018.

A draw by inversion is a function z(lambda) of the parameters at fixed random numbers. With l = log q(z | lambda) the
gradient of log p(x, z) - l along it is

    (d log p / dz - dl / dz) dz / dlambda - dl / dlambda,

of which the last term, the score, has mean zero and is left out (Roeder, Wu and Duvenaud 2017).
"""

import functools
from typing import Any, ClassVar

import jax
from jaxtyping import Array

from bbvi.draws.drawer import Rows
from bbvi.draws.draws import cut_samples, only_counted
from bbvi.draws.layout import Layout, lay_out
from bbvi.draws.tilts import features_of, pulled_back, shift_of, tilted
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
    slopes_of = pulled_back(layout, u, slopes_of)

    def tile(name: str, rows: Rows, u: Array, slope: Array, path: Any) -> tuple[Array, tuple[Params, Params]]:
        drawer = layout.tables[name].drawer
        family, moves = drawer.latent.family, isinstance(drawer.latent.family, Conditional)

        def log_prob(params: Params, shift: Any, u: Array) -> Array:
            return family.log_prob({**params, "loc": params["loc"] + shift} if moves else params, u)

        density = jax.vmap(jax.value_and_grad(log_prob, argnums=(0, 2)), in_axes=(None, -1, -1), out_axes=-1)

        def one(row: Rows, u: Array, slope: Array, path: Any) -> Any:
            params = dict(row.prepared.params)
            shift = shift_of({"tilt": params.pop("tilt")}, features) if moves else None
            log_q, (score, of_q) = density(params, shift, u)
            of_noise = only_counted(counts, slope - of_q)
            gradient = drawer.along_path(row, path, samples, of_noise)
            squares = {p: only_counted(counts, leaf**2) for p, leaf in score.items()}
            fisher = {p: leaf.sum(-1) for p, leaf in squares.items()}
            if moves:
                # what moves the location, at each sample by its features, moves along with these
                gradient |= {"tilt": of_noise @ features.T}
                fisher |= {"tilt": squares["loc"] @ features.T**2}
            return log_q, (gradient, fisher)

        return jax.vmap(one)(rows, u, slope, path)

    inputs = {name: (slopes_of[name], paths[name]) for name in layout.fitted}
    sums, log_q, floored = over_tables(layout, u, counts, tile, inputs)
    return (sums, floored), stored(layout.on, layout.less_log_q(elbo + layout.scale * of_groups, log_q))
