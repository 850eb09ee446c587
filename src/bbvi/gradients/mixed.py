"""An estimator for each latent, all from the same draws."""

from typing import Any

import jax.numpy as jnp

from bbvi.blankets.analysis import Analysis
from bbvi.draws.batch import Batch
from bbvi.draws.draws import AbstractDraws
from bbvi.families.abstract import Lambda
from bbvi.gradients.abstract import AbstractGradient, Estimate


class Mixed(AbstractGradient):
    """Estimate the gradient of each latent by an estimator of its own.

    Factors of a mean-field q are independent, so that the gradient of one latent needs nothing of how those of the
    others are estimated.
    """

    choice: tuple[tuple[str, AbstractGradient], ...]

    def check(self, draws):
        for _, gradient in self.choice:
            gradient.check(draws)

    def by_latent(self, analysis):
        fitted = analysis.fitted(with_groups=True)
        return {name: gradient for name, gradient in self.choice if name in fitted}

    def num_folds(self, draws):
        # a net has as many points beside it for a* as the estimator that wants most
        return max(gradient.num_folds(draws) for _, gradient in self.choice)

    def _parts(self, analysis: Analysis) -> list[tuple[AbstractGradient, Analysis]]:
        """Return the estimators, each with the latents that are its own."""
        fitted = analysis.fitted(bool(analysis.problem.num_groups))
        names: dict[AbstractGradient, list[str]] = {}
        for name, gradient in self.choice:
            if name in fitted:
                names.setdefault(gradient, []).append(name)
        return [(gradient, analysis._replace(wanted=frozenset(own))) for gradient, own in names.items()]

    def buffers(self, analysis: Analysis, params: Lambda, batch: Batch | None, draws: AbstractDraws) -> Any:
        return tuple(gradient.buffers(part, params, batch, draws) for gradient, part in self._parts(analysis))

    def estimate(self, analysis, params, data, batch, *, draws, key, buffers=None):
        parts = self._parts(analysis)
        pairs = zip(parts, buffers or (None,) * len(parts), strict=True)
        found = [g.estimate(part, params, data, batch, draws=draws, key=key, buffers=own) for (g, part), own in pairs]
        fisher = {where: _joined([one.fisher[where] for one in found]) for where in ("globals", "rows")}
        return Estimate(
            _joined([one.globals for one in found]), _joined([one.rows for one in found]), fisher,
            found[0].elbo, found[0].elbo_error, sum((one.floored for one in found), jnp.int32(0)),
            tuple(one.buffers for one in found),
        )  # fmt: skip


def _joined(parts: list[Lambda]) -> Lambda:
    return {name: leaf for part in parts for name, leaf in part.items()}
