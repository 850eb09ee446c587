"""How noisy estimators are at some lambda: what a choice of estimators is made by."""

import functools
import math
from collections.abc import Collection, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from bbvi.blankets.analysis import Analysis
from bbvi.draws.draws import MonteCarlo
from bbvi.families.abstract import Lambda
from bbvi.fitting.loop import Loop
from bbvi.fitting.optimizers import adagrad
from bbvi.gradients.abstract import AbstractGradient
from bbvi.gradients.slopes import smooth_latents
from bbvi.model.groups import AbstractGroups, Stream
from bbvi.numerics.address import Key, fold
from bbvi.numerics.xla import for_one_run

_REPEATS, _DRAWS = 32, 10


class Pilot:
    """A model, its data and a lambda at which estimators can be tried; `seen` is the noise of the steps that led there."""

    def __init__(
        self,
        analysis: Analysis,
        params: dict[str, Lambda],
        data: Any,
        groups: AbstractGroups | None,
        *,
        batch_size: int,
        key: Key,
        seen: Mapping[str, float] | None = None,
    ):
        self.analysis, self._params, self._data, self._groups = analysis, params, data, groups
        self._batch_size, self._key, self._seen = batch_size, fold(key, "pilot"), seen

    @functools.cached_property
    def smooth(self) -> frozenset[str]:
        """The latents that have a pathwise gradient."""
        return smooth_latents(self.analysis)

    @property
    def fitted(self) -> list[str]:
        """The latents to choose for."""
        return self.analysis.fitted(self._groups is not None)

    def noise_so_far(self, names: Collection[str]) -> dict[str, float]:
        """The variance of these latents' gradients in the steps made, as `noise` has it; without limit if not known."""
        return {name: (self._seen or {}).get(name, math.inf) for name in names}

    def noise(self, gradient: AbstractGradient, names: Collection[str]) -> dict[str, float]:
        """The variance of these latents' gradients from one draw, in units of the Fisher information."""
        analysis = self.analysis._replace(wanted=frozenset(names))
        loop = Loop(analysis, gradient, MonteCarlo(_DRAWS), adagrad(), (), batch_size=self._batch_size, capacity=1)
        source: Any = self._groups
        if isinstance(source, Stream):
            source = loop.prefetch(source, self._key, 0, 1)
        found = eqx.filter_jit(_variances, **for_one_run())(loop, self._params, self._key, self._data, source)
        return {name: _DRAWS * float(value) for name, value in found.items()}


def _variances(loop: Loop, params: dict[str, Lambda], key: Key, data: Any, source: Any) -> dict[str, Array]:
    batch = loop.batch(params, key, jnp.int32(0), source, jnp.int32(0))

    def one(repeat: Array) -> tuple[Lambda, Lambda]:
        estimate = loop.gradient.estimate(
            loop.analysis, params["globals"], data, batch, draws=loop.draws, key=loop.draws_key(key, repeat)
        )
        return {**estimate.globals, **estimate.rows}, {**estimate.fisher["globals"], **estimate.fisher["rows"]}

    gradients, fisher = jax.lax.map(one, jnp.arange(_REPEATS))

    def variance(name: str) -> Array:
        of_latent = jax.tree.map(
            lambda g, f: jnp.where(f.mean(0) > 0, g.var(0, ddof=1) / jnp.where(f.mean(0) > 0, f.mean(0), 1), 0).mean(),
            gradients[name], fisher[name],
        )  # fmt: skip
        return sum(jax.tree.leaves(of_latent), jnp.zeros(()))

    return {name: variance(name) for name in gradients}
