"""Verify that a fit has converged before it says so: challenge its lambda by others that the stopping rule cannot see.

A stopping rule looks at gradients along the way. Three things are hidden from it: a ridge, along which steps creep; a discrete
factor of q that has given up other values, and so never draws them; and a gradient that is biased. Challengers are the top of
each ridge, as differences of the gradient and of the ELBO on common random numbers show it, and the ends of runs that start
where such discrete factors have other values. A challenger wins if its ELBO is clearly higher on fresh draws that both share.
For the third, slopes of the ELBO by differences of its values, which no path or score enters (Kiefer and Wolfowitz 1952;
Spall 1992), are compared with the estimated gradient.
"""

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from bbvi.fitting.converged import toward
from bbvi.fitting.loop import Loop
from bbvi.fitting.moves import MOVES, discrete_latents
from bbvi.fitting.probe import Fit, Gain, Params, Probe, gain_of
from bbvi.fitting.state import State

_VECTORS, _RIDGES, _FLAT = 120, 5, 0.3  # of the Krylov space; climbed at most; curvature, where 1 is that of no ridge
_WORTH = 0.25  # of the gain that refutes a claim, what a ridge may bring for it to be climbed
_GROUPS_TO_COMPARE = 500
_APART = 0.1  # of a difference that slopes or curvature are taken from, in sds of q
_FARTHEST = 1e6
_BLOCKS, _GROUPS, _DIRECTIONS, _LOOKS, _MORE, _MOST_STEPS = 8, 3, 2, 4, 4, 100
_LEAST_LOOK = 2 * _BLOCKS * _DIRECTIONS  # steps: a first look at one group of latents
_LEAST_BIAS, _ERRORS = 0.002, 5.0  # what counts as biased, in sds of q and in standard errors


#: steps that a suspicion may take where they cost little, and numbers that may be computed for these, of the order of a few
#: seconds' work
_STEPS, _NUMBERS = 1500, 1e9


#: a direction, and the curvature along it
Ridge = tuple[np.ndarray, float]


class Finding(NamedTuple):
    """What a verification found: a better lambda with its gain, or latents whose gradients are biased, or neither."""

    better: Params | None = None
    gain: Gain = Gain(0.0, 0.0)
    biased: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """What speaks against a claim of convergence."""
        if self.biased:
            return f"the gradient of {list(self.biased)} disagrees with differences of the ELBO: it is biased"
        return f"another lambda was found whose ELBO is higher by {self.gain.mean:.2g} nat"


class Allowance(NamedTuple):
    """How many steps a verification may take: as many as the fit has made, less those of earlier ones, and more where something is suspected."""

    left: int
    reserve: int


def allowance(loop: Loop, state: State) -> Allowance:
    """Allow all verifications as many steps as the fit has made, and a suspicion some at the least where they cost little."""
    left = max(0, int(state.step) - int(state.looked))
    return Allowance(left, max(0, int(min(_STEPS, _NUMBERS / loop.work())) - left))


def candidate(fit: Fit, state: State, number: int, allowed: Allowance) -> Probe:
    """Return a probe around the average that the rule proposes, unless its ELBO on common draws is clearly below that of the last lambda."""
    loop, params = fit.loop, state.params
    if (average := loop.stops[number].average(state.stops[number], params)) is None:
        return Probe(fit, state, params, **allowed._asdict())
    if not loop.analysis.fit_globals:
        average["globals"] = params["globals"]
    probe = Probe(fit, state, average, **allowed._asdict())
    steps = probe.steps
    if fit.groups is not None:
        steps = max(steps, math.ceil(min(_GROUPS_TO_COMPARE, len(fit.groups)) / loop.batch_size))
    gain = probe.compare(average, params, steps, "candidate")
    if gain.mean > -3 * gain.error:
        return probe
    return Probe(fit, state, params, left=probe.left, reserve=probe.reserve)


def verify(probe: Probe) -> Finding:
    """Challenge the lambda that a probe is around, within the steps it has left.

    Discrete factors may always have given up a value that nothing shows, after a few steps nothing is known, and what others wrote
    may be biased: these are suspected from the start.
    """
    if probe.left <= 0:
        return Finding()
    is_early = not _can_challenge(probe)
    suspect = discrete_latents(probe) or is_early or not probe.fit.loop.is_ours()
    with probe.looking_closer() if suspect else contextlib.nullcontext():
        found = _winner(probe, _going_on) if is_early else None
        return _challenged(probe) if found is None else found


def _going_on(probe: Probe) -> Params:
    return probe.averaged(probe.origin, probe.settle, "going on")


def _challenged(probe: Probe) -> Finding:
    for challenger in MOVES:
        if (found := _winner(probe, challenger)) is not None:
            return found
    ridges = _ridges(probe) if _can_challenge(probe) and probe.unit.any() else []
    may_bring = [_may_bring(probe, *ridge) for ridge in ridges]
    if max(may_bring, default=0) > _WORTH * _least_gain(probe) or sum(may_bring) > _least_gain(probe):
        with probe.looking_closer() as with_more:
            again = _ridges(probe) if with_more else ridges
            if (found := _winner(probe, lambda probe: _top_of_ridges(probe, again))) is not None:
                return found
    return Finding(biased=_biased(probe) if probe.left >= _LEAST_LOOK else ())


def _can_challenge(probe: Probe) -> bool:
    return probe.left >= 2 * probe.settle + 4 * probe.steps


def _winner(probe: Probe, challenger: Callable[[Probe], Params | None]) -> Finding | None:
    """Return where a challenger leads, if its ELBO on fresh draws is clearly higher."""
    if not _can_challenge(probe) or (there := challenger(probe)) is None:
        return None
    found = probe.compare(there, probe.origin, 2 * probe.steps, "fresh")
    return Finding(there, found) if found.mean > max(_least_gain(probe), 3 * found.error) else None


def _may_bring(probe: Probe, direction: np.ndarray, bend: float) -> float:
    """Bound what the top of a ridge may be above here, by the slope that the run has seen."""
    slope = probe.seen(direction)
    return (slope.mean**2 + slope.error**2) / (2 * bend) if bend else math.inf


def _least_gain(probe: Probe) -> float:
    return probe.watch.most_gain(probe.fit.loop.analysis.problem.num_groups, probe.fit.loop.batch_size)


def _top_of_ridges(probe: Probe, ridges: list[Ridge]) -> Params | None:
    """Climb along the directions that may bring most, one after the other."""
    at = np.zeros_like(probe.unit)
    ranked = sorted(ridges, key=lambda ridge: -_may_bring(probe, *ridge))
    for number, (direction, _) in enumerate(ranked[:_RIDGES]):
        if probe.left < 10 * probe.steps:
            break
        at = at + _climb(probe, at, direction, number) * direction
    return probe.moved(at) if at.any() else None


def _ridges(probe: Probe) -> list[Ridge]:
    """Return directions of little curvature, with it, by Arnoldi's method with differences of the gradient on common draws.

    Two runs on the same random numbers from lambdas apart come together, first where the ELBO is steep; the difference that is
    left is where the method begins.
    """
    nowhere, generator = np.zeros_like(probe.unit), np.random.default_rng(0)
    apart = generator.normal(size=len(nowhere)) * (probe.unit > 0)
    rest = probe.settled(apart, probe.settle, "creep") - probe.settled(nowhere, probe.settle, "creep")
    if not np.all(np.isfinite(rest)) or np.linalg.norm(rest) == 0:
        rest = apart
    before = probe.left
    most = max(1, min(_VECTORS, int(np.count_nonzero(probe.unit)), before // (3 * probe.steps)))
    steps = max(probe.steps, before // (3 * most))
    slope, basis, images = probe.gradient(nowhere, steps, "slope"), np.zeros((0, len(nowhere))), []
    while True:
        basis = np.vstack([basis, rest / np.linalg.norm(rest)])
        images.append((slope - probe.gradient(_APART * basis[-1], steps, "slope")) / _APART)
        rest = images[-1]
        for _ in range(2):  # once more, for what rounding leaves
            rest = rest - basis.T @ (basis @ rest)
        if len(basis) == most or probe.left < before // 2 or not np.linalg.norm(rest) > 1e-3:
            break
    # not symmetric on few draws: a path's gradient is that of no function
    values, vectors = np.linalg.eig(basis @ np.stack(images).T)
    slow = [i for i in np.argsort(np.abs(values)) if abs(values[i]) < _FLAT]
    along = [(vectors[:, i].real @ basis, abs(values[i])) for i in slow]
    return [(direction / np.linalg.norm(direction), bend) for direction, bend in along if direction.any()]


def _climb(probe: Probe, at: np.ndarray, direction: np.ndarray, number: int) -> float:
    """Return how far to go along a line: to the best of points ever farther away, on both sides, and of the vertex of a parabola.

    The parabola is the first of those through the ELBO here and on both sides that has its vertex between them.
    """
    here, far = probe.elbos(at, probe.steps, "line", number), 1.0

    def gain(t: float) -> Gain:
        return gain_of(probe.elbos(at + t * direction, probe.steps, "line", number) - here)

    seen = {0.0: Gain(0.0, 0.0)}
    while True:
        up, down = seen[far], seen[-far] = gain(far), gain(-far)
        bend, rise = -(up.mean + down.mean), up.mean - down.mean
        if (bend > 0.1 and 2 * bend > abs(rise)) or far > _FARTHEST or probe.left < 7 * probe.steps:
            break
        far *= 3
    if np.isfinite(bend) and bend > 0:
        vertex = float(np.clip(far * rise / (2 * bend), -far, far))
        seen[vertex] = gain(vertex)
    best = max(seen, key=lambda t: seen[t].mean)
    return best if seen[best].mean > 2 * seen[best].error else 0.0


def _biased(probe: Probe, among: Sequence[str] | None = None) -> tuple[str, ...]:
    """Name the latents whose gradient disagrees with differences of the ELBO: together first, then one by one."""
    names = probe.names()
    latents = sorted(set(names[probe.unit > 0].tolist())) if among is None else among
    found: list[str] = []
    affordable = max(1, min(_GROUPS, probe.left // _LEAST_LOOK))
    for group in np.array_split(latents, min(affordable, len(latents))) if latents else ():
        own = np.isin(names, group) & (probe.unit > 0)
        if any(_disagrees(probe, own, number) for number in range(_DIRECTIONS)):
            with probe.looking_closer():
                found += group.tolist() if len(group) == 1 else _biased(probe, group.tolist()) or group.tolist()
    return tuple(found)


def _disagrees(probe: Probe, own: np.ndarray, number: int) -> bool:
    """Tell whether slopes along a random direction of some parameters disagree, and no less so when differences are halved.

    In the first look the gradient is what the run has seen of it. A suspicion is looked at with more draws, on the same for both, as
    far as steps are left, until it is gone or has been clear twice: of so few blocks the error is itself uncertain, and one look
    among many is beyond five errors by chance.
    """
    direction = np.random.default_rng(number).normal(size=len(own)) * own
    direction /= np.linalg.norm(direction)
    steps = max(1, min(_MOST_STEPS, probe.left // (_LEAST_LOOK * _GROUPS)))
    if probe.left < 2 * _BLOCKS * steps:
        return False
    slopes = [probe.seen(direction).mean] * _BLOCKS
    if not _is_suspect(_disagreement(probe, direction, steps, _APART, number, 0, slopes=slopes)[1]):
        return False
    with probe.looking_closer():
        return _is_confirmed(probe, direction, number)


def _is_confirmed(probe: Probe, direction: np.ndarray, number: int) -> bool:
    """Look at a suspicion with ever more draws, and by differences of half the size; at first with what leaves enough for another look."""
    clear: list[float] = []
    steps = max(1, probe.left // (5 * _BLOCKS * (1 + _MORE)))
    for more in range(1, _LOOKS):
        steps = min(steps, probe.left // (5 * _BLOCKS))
        if steps < 1:
            break
        slopes, wide = _disagreement(probe, direction, steps, _APART, number, more)
        if _is_clear(wide):
            _, narrow = _disagreement(probe, direction, steps, _APART / 2, number, more, slopes=slopes)
            if abs(narrow.mean) <= abs(wide.mean) / 2:
                break
            clear += [np.sign(wide.mean)] if _is_clear(narrow) else []
            if clear and clear.count(clear[-1]) == 2:
                return True
        elif not _is_suspect(wide):
            break
        steps *= _MORE
    return False


def _is_suspect(disagreement: Gain) -> bool:
    return abs(disagreement.mean) > _ERRORS / 2 * disagreement.error


def _is_clear(disagreement: Gain) -> bool:
    return abs(disagreement.mean) > max(_LEAST_BIAS, _ERRORS * disagreement.error)


def _disagreement(
    probe: Probe, direction: np.ndarray, steps: int, apart: float, *words: int, slopes: Sequence[float] = ()
) -> tuple[list[float], Gain]:
    """Compare slopes of the ELBO along a direction, by differences and by the gradient: on the same draws, block by block.

    Return the gradient's slopes too, as those of other differences are the same.
    """
    found, kept = [], list(slopes)
    for block in range(_BLOCKS):
        named: tuple[str | int, ...] = ("bias", *words, block)
        if not slopes:
            kept.append(float(direction @ probe.gradient(0 * direction, steps, *named)))
        up, down = (probe.elbos(side * apart * direction, steps, *named) for side in (1, -1))
        by_differences = 0.0
        for step, difference in enumerate((up - down) / (2 * apart)):
            by_differences = toward(by_differences, difference, step + 1)  # weighed as gradients are
        found.append(by_differences - kept[block])
    return kept, gain_of(np.array(found))
