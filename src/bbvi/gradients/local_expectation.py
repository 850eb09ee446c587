"""Local expectation gradients (Titsias and Lazaro-Gredilla 2015), for latents with few values.

For a factor i of q with the values k, the gradient of the ELBO is that of

    E_{q_-i} [ sum_k q_i(k) (log p_i(z_i = k, z_-i) - log q_i(k)) ],

of which the sum is exact, and the expectation over the other latents is by draws. Where it is cheap, the expectation of
each term of log p over all such latents that it reads is exact, too.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bbvi.draws.drawer import Rows
from bbvi.draws.draws import MonteCarlo, cut_samples
from bbvi.draws.layout import lay_out, zero_padding
from bbvi.families import AbstractFamily, Params, PerValue, score
from bbvi.gradients.abstract import AbstractGradient, Estimate
from bbvi.gradients.evaluate import sum_chunks
from bbvi.gradients.every_value import EveryValue
from bbvi.gradients.value_sums import Totals


class LocalExpectation(AbstractGradient):
    """The gradient by exact sums over the values of binary and categorical latents.

    Each term of log p is summed over all values of these latents that it reads, with draws of the other latents alone;
    a model that has no others gets its exact gradient. Where that takes more than twice the evaluations, or with
    `joint=False`, the sum is over one element at a time, with draws of all others. Elements that share no term are
    summed over at the same time: a grid of bits takes 4 evaluations of the log joint together, 3 for each draw one
    element at a time, and the assignments to K components of a mixture take K. Latents that are continuous or unbounded
    counts are refused.

    Examples:
        >>> import bbvi, jax.numpy as jnp
        >>> def log_joint(z, field):
        ...     return {"field": field * z["x"], "pairs": 2.0 * (z["x"][1:] == z["x"][:-1])}
        >>> model = bbvi.Model(log_joint, x=bbvi.binary(3))
        >>> field = jnp.array([3.0, 0.0, 0.5])
        >>> posterior = bbvi.fit(model, field, gradient=bbvi.LocalExpectation(), draws=bbvi.MonteCarlo(1))
        >>> posterior.converged
        True
        >>> print(posterior.mean()["x"].round(2))
        [0.99 0.97 0.92]
    """

    joint: bool = True

    def evaluations(self, analysis):
        names = analysis.fitted(bool(analysis.problem.num_groups))
        return EveryValue(analysis, None, names, joint=self.joint).num_evaluations

    def estimate(self, analysis, params, data, batch, *, draws, key, buffers=None):
        names = analysis.fitted(batch is not None)
        if paired := [name for name in names if isinstance(analysis.problem.latents[name].family, PerValue)]:
            raise ValueError(
                f"LocalExpectation: {paired[0]!r} has continuous numbers beside discrete ones; use gradient=bbvi.ValuesAndPaths()"
            )
        every = EveryValue(analysis, data, names, joint=self.joint)
        cut = cut_samples(MonteCarlo(1) if every.is_exact else draws, analysis.floats_per_draw)
        layout = lay_out(analysis, draws, params, batch, key, cut, paths=False)
        tables = {name: ValueTable(table.drawer.latent.family, table.rows) for name, table in layout.fitted.items()}
        exact = {name: table.minus_entropy() for name, table in tables.items()} if every.is_joint else {}
        log_q = {name: table.log_q for name, table in tables.items()}

        def visit(samples: Array, counts: Array | None) -> tuple[Totals, Float[Array, " samples"]]:
            u = {name: layout.drawn(name, samples) for name in layout.tables}
            elbo, of_groups, totals = every(layout, u, log_q, samples, counts)
            own = {n: exact[n] if n in exact else layout.total_log_q(n, u[n]) for n in layout.tables}
            return totals, layout.less_log_q(elbo + layout.scale * of_groups, own)

        totals, elbo, error = sum_chunks(cut, visit)
        rows = {name: table.gradient(totals[name] / cut.num) for name, table in tables.items()}
        fisher = layout.in_shape({name: table.squared_score() for name, table in tables.items()})
        return Estimate(**layout.in_shape(rows), fisher=fisher, elbo=elbo, elbo_error=error, floored=jnp.int32(0))


class ValueTable:
    """The probabilities of all values of the factors in one table, by rows, and their scores."""

    def __init__(self, family: AbstractFamily, rows: Rows):
        many = jax.vmap(jax.vmap(lambda p, value: score(family, p, value), in_axes=(None, 0)), in_axes=(0, None))
        self.log_q, self._score = many(rows.prepared.params, jnp.asarray(family.chart.values()))
        self._q, self._real = jnp.exp(self.log_q), rows.real

    def minus_entropy(self) -> Float[Array, ""]:
        return zero_padding(self._real, (self._q * self.log_q).sum(-1)).sum()

    def gradient(self, log_p: Float[Array, "rows values"]) -> Params:
        """Estimate the gradient from q_i(k) times the mean of log p_i at k, up to a constant."""
        weight = log_p - self._q * self.log_q
        # the score has mean zero, so that a constant is free: without the mean, rounding stays small
        return self._times_score(weight - self._q * weight.sum(-1, keepdims=True), 1)

    def squared_score(self) -> Params:
        return self._times_score(self._q, 2)

    def _times_score(self, weight: Array, power: int) -> Params:
        def one(h: Array) -> Array:
            return zero_padding(self._real, (weight.reshape(*weight.shape, *[1] * (h.ndim - 2)) * h**power).sum(1))

        return {p: one(h) for p, h in self._score.items()}
