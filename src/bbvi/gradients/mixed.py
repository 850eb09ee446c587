"""An estimator for each latent, all from the same draws."""

from typing import Any

import jax.numpy as jnp

from bbvi.blankets.analysis import Target
from bbvi.draws.batch import Batch
from bbvi.draws.draws import AbstractDraws
from bbvi.families.abstract import Lambda
from bbvi.gradients.abstract import AbstractGradient, Estimate


class Mixed(AbstractGradient):
    """The gradient of each latent by an estimator of its own.

    Factors of a mean-field q are independent, so that the gradient of one latent needs nothing of how those of the
    others are estimated.
    """

    choice: tuple[tuple[str, AbstractGradient], ...]

    def check(self, draws):
        for _, gradient in self.choice:
            gradient.check(draws)

    def by_latent(self, target):
        fitted = target.fitted(with_groups=True)
        return {name: gradient for name, gradient in self.choice if name in fitted}

    def num_folds(self, draws):
        # a net has as many points beside it for a* as the estimator that wants most
        return max(gradient.num_folds(draws) for _, gradient in self.choice)

    def _parts(self, target: Target) -> list[tuple[AbstractGradient, Target]]:
        """The estimators, each with the latents that are its own."""
        fitted = target.fitted(bool(target.problem.num_groups))
        names: dict[AbstractGradient, list[str]] = {}
        for name, gradient in self.choice:
            if name in fitted:
                names.setdefault(gradient, []).append(name)
        return [(gradient, target._replace(wanted=frozenset(own))) for gradient, own in names.items()]

    def room(self, target: Target, params: Lambda, batch: Batch | None, draws: AbstractDraws) -> Any:
        return tuple(gradient.room(part, params, batch, draws) for gradient, part in self._parts(target))

    def estimate(self, target, params, data, batch, *, draws, key, room=None):
        parts = self._parts(target)
        rooms = room or (None,) * len(parts)
        found = [
            gradient.estimate(part, params, data, batch, draws=draws, key=key, room=own)
            for (gradient, part), own in zip(parts, rooms, strict=True)
        ]
        fisher = {where: _joined([one.fisher[where] for one in found]) for where in ("globals", "rows")}
        return Estimate(
            _joined([one.globals for one in found]), _joined([one.rows for one in found]), fisher,
            found[0].elbo, found[0].elbo_error, sum((one.floored for one in found), jnp.int32(0)),
            tuple(one.room for one in found),
        )  # fmt: skip


def _joined(parts: list[Lambda]) -> Lambda:
    return {name: leaf for part in parts for name, leaf in part.items()}
