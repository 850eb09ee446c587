"""Choose the estimators of a fit: before its first step, once more after a pilot, and again from a checkpoint."""

import functools
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from bbvi.blankets.analysis import Analysis
from bbvi.draws.draws import MonteCarlo
from bbvi.families.abstract import Lambda
from bbvi.fitting.loop import Loop, Method
from bbvi.fitting.noise import noise_of_latents
from bbvi.fitting.optimizers import adagrad
from bbvi.fitting.state import State
from bbvi.gradients.abstract import AbstractGradient
from bbvi.gradients.auto import AbstractChoice, Pilot
from bbvi.model.groups import AbstractGroups
from bbvi.numerics.address import Key, fold
from bbvi.numerics.xla import for_one_run, program

_REPEATS, _DRAWS = 32, 10
# times what batches are expected to bring, below which the noise of a global's steps may well be all theirs
_OF_BATCHES = 5.0


class Choosing(NamedTuple):
    """A choice of estimators with all it is made by: a model, its data, its batches and random numbers."""

    choice: AbstractChoice
    analysis: Analysis
    data: Any
    groups: AbstractGroups | None
    batch_size: int
    key: Key

    def pilot(self, params: dict[str, Lambda], seen: Mapping[str, float]) -> Pilot:
        """Return what a choice is made by at this lambda; `seen` is the noise of the steps made until then."""

        def noise(gradient: AbstractGradient, names: Collection[str]) -> dict[str, float]:
            analysis = self.analysis._replace(wanted=frozenset(names))
            loop = Loop(analysis, Method(gradient, MonteCarlo(_DRAWS), adagrad(), batch_size=self.batch_size))
            key = fold(self.key, "pilot")
            measured = program(functools.partial(noise_of_latents, loop, repeats=_REPEATS), **for_one_run())
            found = measured(params, key, self.data, loop.batches.source(self.groups, key, 0, 1))
            return {name: _DRAWS * float(value) for name, value in found.items()}

        return Pilot(self.analysis, self.data, self.groups, noise, seen)


def noise_so_far(loop: Loop, state: State) -> dict[str, float]:
    """Return the variance of each latent's gradient from one draw, if a stopping rule has followed it.

    Batches of B of N groups bring N / B - 1 to that of a global's steps, in units of the Fisher information, by which the terms of
    the groups vary around a posterior. Where there is hardly more, that of the draws is too small to matter, and 0 here.
    """
    if state.draws is not None:
        return {}  # where the number of draws changes, the noise of one draw cannot be told from that of the steps
    noises = (rule.noise(own) for rule, own in zip(loop.stops, state.stops, strict=True))
    problem = loop.analysis.problem
    of_batches = _OF_BATCHES * (problem.num_groups / loop.batch_size - 1) if loop.batch_size else 0.0

    def of_draws(name: str, value: float) -> float:
        return 0.0 if name in problem.globals and value <= of_batches else loop.draws.num * value

    return {name: of_draws(name, value) for name, value in next(filter(None, noises), {}).items()}
