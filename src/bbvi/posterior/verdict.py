"""The line that opens every summary: how the fit ended, how near q is to the posterior, and what to do next."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bbvi.model.groups import Stream
from bbvi.model.problem import Problem
from bbvi.posterior.khat import is_cheap, khat_of
from bbvi.posterior.outcome import Outcome
from bbvi.posterior.pareto import Khat
from bbvi.posterior.ratios import Estimate

_GOOD, _FAIR = 0.5, 0.7
#: nats, and standard errors, by which the ELBOs of two starts differ that found different optima
_APART, _ERRORS = 0.5, 3.0
_NUM_GROUPS = 20


def verdict(posterior: Any) -> str:
    """Say it all in one line, with k-hat if the posterior has it or can have it soon."""
    khat, outcome = _khat(posterior), posterior.outcome
    parts = [posterior._ending()]
    if apart := disagreement(posterior.restarts):
        parts.append(apart)
    if khat is not None:
        parts.append(words(khat))
    if khat is None or outcome is not Outcome.CONVERGED:
        parts.append(outcome.advice)
    elif worst(khat) >= _GOOD:
        weights = "posterior.reweighted(), " if worst(khat) < _FAIR and posterior._groups is None else ""
        parts.append(f"try {weights}{_remedy(posterior._problem)}")
    return "; ".join(parts)


def disagreement(restarts: Sequence[Estimate]) -> str:
    """Say that the best two starts ended apart; nothing where they agree, as relabelled optima do."""
    finite = [one for one in restarts if math.isfinite(one)]
    if len(finite) < 2:
        return ""
    first, second = finite[:2]
    apart = first - second
    if not apart > max(_APART, _ERRORS * math.hypot(first.standard_error, second.standard_error)):
        return ""
    return f"restarts disagree: the best two of {len(restarts)} starts were {apart:.2g} nat apart, so there may be better optima"


def words(khat: Khat) -> str:
    """Say k-hat and what it means."""
    worst_one, found = worst(khat), []
    if not math.isnan(khat):
        found.append(f"k-hat {khat!r}{'' if khat.locals is None else ' of the globals'}")
    if khat.locals is not None:
        groups = f"{(khat.locals > _FAIR).sum()} of {len(khat.locals)} groups"
        found.append(f"{'' if found else 'k-hat '}above {_FAIR} in {groups}")
    meaning = "do not trust the intervals"
    if worst_one < _FAIR:
        meaning = "q is near the posterior" if worst_one < _GOOD else "means are fine, tails less so"
    return f"{', '.join(found)}: {meaning}"


def worst(khat: Khat) -> float:
    """Return the largest k-hat of the globals and of the groups."""
    return float(np.nanmax([khat, *([] if khat.locals is None else khat.locals)]))


def _khat(posterior: Any) -> Khat | None:
    """Return the k-hat that was computed before, or compute it now if that takes no calls of a simulator and no long time."""
    problem, groups = posterior._problem, posterior._groups
    running = posterior.outcome is Outcome.RUNNING
    dear = running or posterior._without_data or problem.opaque or isinstance(groups, Stream)
    if posterior._khat is None and not dear:
        ratios = posterior._ratios(None)
        if is_cheap(ratios):
            some = None if groups is None else np.unique(np.linspace(0, len(groups) - 1, _NUM_GROUPS).astype(int))
            posterior._khat = khat_of(posterior, ratios, None, 0, some)
    return posterior._khat


def _remedy(problem: Problem) -> str:
    """Name what can follow the posterior where this q cannot."""
    continuous = [latent for latent in problem.latents.values() if not latent.family.chart.is_discrete]
    # of one factor alone there is nothing to join
    many = any(size != 1 for latent in continuous for size in latent.shape)
    joint = "joint= or q=bbvi.FullRank()" if many or len(continuous) > 1 else "another q="
    return f"{joint}, or bbvi.metropolis_within_gibbs" if continuous else "bbvi.metropolis_within_gibbs"
