"""Choose an estimator for each latent: by what is valid, and by variance times cost, measured in a short pilot.

A latent with few values is summed out. One that is drawn along a smooth path into a log joint that does not jump may
take the pathwise gradient; values of log p alone do for all others. The first steps of a fit are the pilot. Where the
pathwise gradient is found noisy there, the score function is tried at the lambda that was reached, and the one with the
smaller product of measured variance and counted evaluations of log p is taken.
"""

import dataclasses
import functools
import math
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

import equinox as eqx

from bbvi.blankets.analysis import Analysis
from bbvi.draws.draws import AbstractDraws
from bbvi.families import Tree
from bbvi.gradients.abstract import AbstractGradient
from bbvi.gradients.local_expectation import LocalExpectation
from bbvi.gradients.mixed import Mixed
from bbvi.gradients.pathwise import Pathwise
from bbvi.gradients.score import Score
from bbvi.gradients.slopes import smooth_latents
from bbvi.gradients.tree_expectation import TreeExpectation, find_plan
from bbvi.gradients.values_and_paths import ValuesAndPaths, num_moves, why_not
from bbvi.model.groups import AbstractGroups

#: latents with few values are summed out if no term of log p is evaluated more often than this for a draw
MOST_EVALUATIONS = 256
#: a variance from one draw, in units of the Fisher information, below which no other estimator is tried
_QUIET = 5.0


@dataclasses.dataclass(frozen=True)
class Pilot:
    """What a choice may look at: a model and its data, and how noisy estimators are at the lambda reached so far.

    `noise(gradient, names)` measures the variance of these latents' gradients from one draw, in units of the Fisher
    information; `seen` has the same of the steps made so far, for the latents of which it is known.
    """

    analysis: Analysis
    data: Any
    groups: AbstractGroups | None
    noise: Callable[[AbstractGradient, Collection[str]], Mapping[str, float]]
    seen: Mapping[str, float]

    @property
    def fitted(self) -> list[str]:
        """The latents to choose for."""
        return self.analysis.fitted(self.groups is not None)

    @functools.cached_property
    def smooth(self) -> frozenset[str]:
        """The latents that have a pathwise gradient."""
        return smooth_latents(self.analysis)


class AbstractChoice(eqx.Module):
    """A rule that chooses the estimators of a fit: for its first steps, and for all others by how the first went.

    A fit calls `check` before anything else, `first` before its first step, and `settled` once, after `pilot_steps`. Both
    return one estimator for all latents, such as a `Mixed` of `candidates`; what it returns must follow from the pilot
    alone, so that the same call is the same run.
    """

    #: how many steps the first choice makes: another estimator takes about as long to compile, and most fits end before
    pilot_steps: ClassVar[int] = 1000

    @abstractmethod
    def candidates(self) -> Sequence[AbstractGradient]:
        """Return all estimators that may be chosen for a latent, by which a checkpoint finds them again."""

    @abstractmethod
    def check(self, draws: AbstractDraws) -> None:
        """Refuse draws that an estimator it may choose cannot work with."""

    @abstractmethod
    def first(self, pilot: Pilot) -> AbstractGradient:
        """Choose the estimator of the first steps, by what is valid."""

    @abstractmethod
    def settled(self, pilot: Pilot, first: AbstractGradient) -> AbstractGradient:
        """Choose the estimator of all other steps; return `first` itself if it was the right one."""


class Auto(AbstractChoice):
    """Choose the best valid estimator for each latent, by variance times cost, measured after the first steps.

    Latents with few values are summed out, those with smooth draws and a log joint that does not jump in them may
    follow their paths, and all others take the score function. `posterior.estimators` and
    `bbvi.explain(..., posterior)` say what was chosen.

    Examples:
        >>> import bbvi, numpyro.distributions as dist
        >>> model = bbvi.Model(lambda z, y: dist.Normal(3, 1).log_prob(z["mu"]), mu=bbvi.real())
        >>> bbvi.fit(model, gradient=bbvi.Auto()).estimators
        {'mu': 'Pathwise()'}
    """

    def candidates(self):
        return LocalExpectation(), TreeExpectation(), Pathwise(), ValuesAndPaths(), Score()

    def check(self, draws):
        Score().check(draws)

    def first(self, pilot):
        few, trees, paired = _few_valued(pilot), _trees(pilot), _paired(pilot)

        def best(name: str) -> AbstractGradient:
            if name in paired or name in trees:
                return ValuesAndPaths() if name in paired else TreeExpectation()
            return LocalExpectation() if name in few else Pathwise() if name in pilot.smooth else Score()

        return Mixed(tuple((name, best(name)) for name in pilot.fitted))

    def settled(self, pilot, first):
        smooth = [name for name, gradient in first.choice if gradient == Pathwise()]
        along = {name: pilot.seen.get(name, math.inf) for name in smooth}
        noisy = [name for name in smooth if along[name] > _QUIET]
        # where q of locals depends on globals the score is of no use
        if not noisy or pilot.analysis.problem.leading is not None:
            return first
        by_score = pilot.noise(Score(), noisy)

        def better(names: Collection[str], along: Mapping[str, float]) -> list[str]:
            """Return where the score has the smaller product of variance and cost; a draw itself counts as one evaluation."""
            cost = {gradient: 1 + gradient.evaluations(pilot.analysis) for gradient in (Score(), Pathwise())}
            return [name for name in names if by_score[name] * cost[Score()] < along[name] * cost[Pathwise()]]

        worse = better(noisy, along)
        if worse:
            # what was seen on the way is more than the noise at the lambda that was reached
            worse = better(worse, pilot.noise(Pathwise(), worse))
        if not worse:
            return first
        return Mixed(tuple((name, Score() if name in worse else gradient) for name, gradient in first.choice))


def _paired(pilot: Pilot) -> list[str]:
    """Return the factors q(g_i) q(b_i | g_i) whose values can be summed over, along paths, at a bearable cost."""
    analysis = pilot.analysis
    paired = [name for name in pilot.fitted if not why_not(analysis, name)]
    cheap = not paired or num_moves(analysis._replace(wanted=frozenset(paired))) <= MOST_EVALUATIONS
    return paired if cheap else []


def _few_valued(pilot: Pilot) -> list[str]:
    """Return the latents that can be summed out at a bearable cost."""
    latents = pilot.analysis.problem.latents
    few = [name for name in pilot.fitted if latents[name].family.chart.values() is not None]
    if not few or pilot.analysis.problem.opaque:
        return []
    cost = LocalExpectation().evaluations(pilot.analysis._replace(wanted=frozenset(few)))
    return few if cost <= MOST_EVALUATIONS else []


def _trees(pilot: Pilot) -> list[str]:
    """Return the latents with a Markov tree that can be summed over at a bearable cost."""
    trees = [name for name in pilot.fitted if isinstance(pilot.analysis.problem.latents[name].family, Tree)]
    found = [name for name in trees if find_plan(pilot.analysis, name) is not None]
    cost = {name: TreeExpectation().evaluations(pilot.analysis._replace(wanted=frozenset([name]))) for name in found}
    return [name for name in found if cost[name] <= MOST_EVALUATIONS]
