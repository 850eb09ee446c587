"""The gradient of factors q(g) q(b | g): exact sums over the values of g, and along the path of b given each of them.

With w_k the mean of log p_i - log q_i over draws of b given g = k and of all other latents, and z(k) such draws,

    d ELBO / d logits = sum_k q(k) w_k d log q(k) / d logits,
    d ELBO / d lambda_k = q(k) E[(d log p_i / dz - d log q(b | k) / dz) dz(k) / d lambda_k].

Titsias and Lázaro-Gredilla (2011) have both in closed form for regression. The draws at all values have the standard normals of the
draw in common. The score of q(b | k) has mean zero and is left out, as in `Pathwise`.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bbvi.blankets.analysis import Analysis
from bbvi.draws.draws import cut_samples, only_counted
from bbvi.draws.layout import lay_out, zero_padding
from bbvi.draws.rows import Table
from bbvi.families import Params, PerValue, score
from bbvi.gradients.abstract import AbstractGradient, Estimate
from bbvi.gradients.evaluate import sum_chunks
from bbvi.gradients.every_value import EveryValue
from bbvi.gradients.slopes import Smooth


class ValuesAndPaths(AbstractGradient):
    """The gradient of discrete latents that share factors with continuous ones: by sums over values, and along paths given each.

    For factors q(g_i) q(b_i | g_i), as of `joint=[("g", "b")]` with a binary or categorical g. An element is set to each of its values in
    turn, elements that share no term at the same time, with draws of all others; a regression with p switched predictors takes p + 1
    evaluations of the log joint and its derivative. What is left to chance does not grow as q gives up a value. Log joints that jump in b given g
    are refused.

    Examples:
        >>> import bbvi, jax.numpy as jnp, numpyro.distributions as dist
        >>> def log_joint(z, y):
        ...     prior = dist.Bernoulli(0.5).log_prob(z["g"]) + dist.Normal(0, 2).log_prob(z["b"])
        ...     return prior.sum() + dist.Normal(z["g"] * z["b"], 1).log_prob(y).sum()
        >>> model = bbvi.Model(log_joint, joint=[("g", "b")], g=bbvi.binary(2), b=bbvi.real(2))
        >>> posterior = bbvi.fit(model, jnp.array([0.3, 3.0]), gradient=bbvi.ValuesAndPaths())
        >>> print(posterior.probs()["g"][:, 1].round(1))
        [0.3 0.9]
    """

    def evaluations(self, analysis):
        # a value, and its derivative in reverse
        return 4 * num_moves(analysis)

    def estimate(self, analysis, params, data, batch, *, draws, key, buffers=None):
        names = analysis.fitted(batch is not None)
        for name in names:
            if why := why_not(analysis, name):
                raise ValueError(f"ValuesAndPaths: {name!r} {why}; use gradient=bbvi.Score()")
        every = EveryValue(analysis, data, names, joint=False)
        cut = cut_samples(draws, analysis.floats_per_draw)
        layout = lay_out(analysis, draws, params, batch, key, cut, paths=False)
        log_q = {
            name: jax.vmap(_family(table).log_q)(table.rows.prepared.params) for name, table in layout.fitted.items()
        }

        def visit(samples: Array, counts: Array | None):
            u = {name: layout.drawn(name, samples) for name in layout.tables}
            elbo, of_groups, totals = every(layout, u, log_q, samples, counts)
            of_q = {name: _of_q(table, u[name], counts) for name, table in layout.fitted.items()}
            own = {name: layout.total_log_q(name, u[name]) for name in layout.tables}
            return (totals, of_q), layout.less_log_q(elbo + layout.scale * of_groups, own)

        sums, elbo, error = sum_chunks(cut, visit)
        totals, of_q = jax.tree.map(lambda leaf: leaf / cut.num, sums)
        rows = {n: _gradient(table, log_q[n], totals[n], of_q[n]) for n, table in layout.fitted.items()}
        fisher = layout.in_shape({n: _squared_score(table, log_q[n]) for n, table in layout.fitted.items()})
        return Estimate(**layout.in_shape(rows), fisher=fisher, elbo=elbo, elbo_error=error, floored=jnp.int32(0))


def num_moves(analysis: Analysis) -> int:
    """Count the evaluations of log p that the values of all elements take, for one draw."""
    names = analysis.fitted(bool(analysis.problem.num_groups))
    return EveryValue(analysis, None, names, joint=False).num_evaluations


def why_not(analysis: Analysis, name: str) -> str:
    """Say why the gradient of a latent cannot be estimated so; empty if it can."""
    if not isinstance(analysis.problem.latents[name].family, PerValue):
        return "shares no factor with a discrete latent"
    jumps = (Smooth(scope).jump([name]) for scope in analysis.blankets.scopes)
    jump = next((jump for jump in jumps if jump is not None), None)
    if jump is None:
        return ""
    return f"is read by {jump.operation}{jump.line and f' ({jump.line})'}, which is not shown to be continuous given its discrete part"


def _family(table: Table) -> PerValue:
    family = table.drawer.latent.family
    assert isinstance(family, PerValue)
    return family


def _of_q(table: Table, u: Array, counts: Array | None) -> Float[Array, "rows values sums"]:
    """Sum over samples what `EveryValue` sums of log p, of -log q(b | k): its values and its slopes along paths."""
    family = _family(table)

    def one(params: Params, u: Array) -> Float[Array, "values sums samples"]:
        _, noise, paths = family.taken_apart(jax.vmap(functools.partial(family.every_path, params), -1, -1)(u))
        log_slopes = jax.vmap(family.chart.log_slopes, -1, -1)
        slopes, bend = jax.jvp(log_slopes, (paths,), (jnp.ones_like(paths),))
        scale = params["scale"][..., None]
        # -log q is noise**2 / 2, the same for all values, with the scale and the slope of the support's bijection
        value = (scale + slopes).sum(1, keepdims=True)
        along = noise * jnp.exp(-scale) + bend
        return jnp.concatenate([value, along, along * noise], 1)

    return only_counted(counts, jax.vmap(one)(table.rows.prepared.params, u)).sum(-1)


def _gradient(table: Table, log_q: Array, of_p: Array, of_q: Array) -> Params:
    """Estimate the gradient from q(k) times the mean sums of log p_i and from those of -log q(b | k)."""
    family, params, q = _family(table), table.rows.prepared.params, jnp.exp(log_q)
    whole = of_p + q[..., None] * of_q
    weight = whole[..., 0] - q * log_q
    # the score has mean zero, so that a constant is free: without the mean, rounding stays small
    weight = weight - q * weight.sum(-1, keepdims=True)
    found = {p: jnp.einsum("rk,rk...->r...", weight, h) for p, h in _scores(table).items()}
    loc, scale = jnp.split(whole[..., 1:], 2, axis=-1)
    found |= {"loc": loc, "scale": jnp.exp(params["scale"]) * scale}
    assert set(found) == set(family.parameters())
    return {p: zero_padding(table.rows.real, leaf) for p, leaf in found.items()}


def _squared_score(table: Table, log_q: Array) -> Params:
    params, q = table.rows.prepared.params, jnp.exp(log_q)
    found = {p: jnp.einsum("rk,rk...->r...", q, h**2) for p, h in _scores(table).items()}
    found |= {
        "loc": q[..., None] * jnp.exp(-2 * params["scale"]),
        "scale": jnp.broadcast_to(2 * q[..., None], params["scale"].shape),
    }
    return {p: zero_padding(table.rows.real, leaf) for p, leaf in found.items()}


def _scores(table: Table) -> Params:
    """Return the score of q(g) at each of its values, (rows, values, *parameter)."""
    family = _family(table)
    many = jax.vmap(jax.vmap(lambda p, value: score(family.choice, p, value)[1], (None, 0)), (0, None))
    return many(family.of_choice(table.rows.prepared.params), jnp.asarray(family.values))
