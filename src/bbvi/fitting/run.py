"""Algorithms 1 and 2 in compiled chunks of steps: how long a chunk is, why a fit stops, and what it keeps."""

import contextlib
import threading
import time
import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bbvi.families.abstract import Lambda
from bbvi.fitting.cache import compiled
from bbvi.fitting.checkpoint import Checkpoint, History, Restarts
from bbvi.fitting.choose import Choosing, noise_so_far
from bbvi.fitting.finite import PrecisionError, narrower_than_rounding, raise_if_not_finite
from bbvi.fitting.frames import in_new_frame, steps_left
from bbvi.fitting.loop import EARLY, Loop
from bbvi.fitting.probe import Fit
from bbvi.fitting.recheck import RECHECK_STEPS, Recheck
from bbvi.fitting.setbacks import find_start, set_back, without_impossible
from bbvi.fitting.settings import Settings
from bbvi.fitting.state import State, own_copy
from bbvi.fitting.stop import Elapsed
from bbvi.fitting.terminal import deferred_interrupt
from bbvi.fitting.verify import allowance, candidate, verify
from bbvi.gradients.abstract import AbstractGradient
from bbvi.gradients.mixed import Mixed
from bbvi.gradients.score import Score
from bbvi.model.groups import AbstractGroups
from bbvi.model.opaque.calls import OpaqueError
from bbvi.numerics.address import Key, fold
from bbvi.numerics.mesh import on_host
from bbvi.posterior.outcome import Outcome
from bbvi.posterior.posterior import Posterior
from bbvi.posterior.values import own_lengths

_BEGAN, _SECONDS_PER_CHUNK = time.monotonic(), 0.3
#: how much of its scale the location of a Normal may be rounded by
_ROUNDED = 0.1


class Run(NamedTuple):
    """A fit that is ready to go; `choosing` is the choice of estimators that is still to be settled."""

    settings: Settings
    loop: Loop
    params: dict[str, Lambda]
    data: Any
    groups: AbstractGroups | None
    key: Key
    recheck: Recheck | None
    choosing: Choosing | None
    checkpoint: Checkpoint | None = None
    restarts: Restarts = ()

    def now(self) -> float:
        """Return the time of a clock that all processes go by."""
        blocks, time_here = self.loop.batches.blocks, time.monotonic() - _BEGAN
        return time_here if blocks is None else blocks.agreed(time_here)

    def is_set(self, interrupt: threading.Event) -> bool:
        """Tell whether any process was interrupted."""
        blocks = self.loop.batches.blocks
        return interrupt.is_set() if blocks is None else blocks.anywhere(interrupt.is_set())

    def with_estimator(self, gradient: AbstractGradient) -> "Run":
        """Go on with this estimator, which is not chosen again."""
        method = self.loop.method._replace(gradient=gradient)
        loop = self.loop if gradient is self.loop.gradient else compiled(self.loop.analysis, method)
        return self._replace(loop=loop.late() if self.loop.is_late else loop, choosing=None)

    def at(self, state: State) -> "Run":
        """Go on with steps that are compiled with all effort, if the early ones are over."""
        return self if self.loop.is_late or int(state.step) < EARLY else self._replace(loop=self.loop.late())

    def resumed(self, step: int, estimators: Mapping[str, str]) -> "Run":
        """Go on with the estimators that a checkpoint names."""
        analysis, choice = self.loop.analysis, self.choosing and self.choosing.choice
        before = self.loop.gradient.by_latent(analysis)
        if estimators == self.loop.gradient.named(analysis):
            return self if choice is not None and step <= choice.pilot_steps else self._replace(choosing=None)
        known = {repr(own): own for own in (Score(), *before.values(), *(choice.candidates() if choice else ()))}
        return self.with_estimator(Mixed(tuple((name, known[words]) for name, words in estimators.items())))


class End(NamedTuple):
    """How a fit ended, in words too, and the number of the rule that ended it."""

    outcome: Outcome
    words: str
    rule: int = -1


_INTERRUPTED = End(Outcome.INTERRUPTED, Outcome.INTERRUPTED.value)
_RUNNING = End(Outcome.RUNNING, Outcome.RUNNING.value)


def drain(run: Run, state: State, history: History) -> Iterator[Posterior]:
    """Run chunk after chunk. How long a chunk is depends on the clock, and nothing that is computed does."""
    began = saved = run.now()
    earlier = float(history[-1]["seconds"][-1]) if history else 0.0
    steps, first = 1, True
    end, run, state = _verified(run, state, history, began)
    while end is None:
        with deferred_interrupt() as interrupt:
            if run.choosing is not None and int(state.step) >= run.choosing.choice.pilot_steps:
                try:
                    pilot = run.choosing.pilot(run.loop.whole(state.params), noise_so_far(run.loop, state))
                    run = run.with_estimator(run.choosing.choice.settled(pilot, run.loop.gradient))
                    first = True
                except KeyboardInterrupt:
                    interrupt.set()
                if run.is_set(interrupt):
                    end = _INTERRUPTED
                    break
            before = run.now()
            length = min(steps, _most_steps(run, state))
            state, record, made = run.loop.run(state, run.key, run.data, run.groups, length)
            count = int(made) + (int(state.broken) >= 0)
            arrays = {name: np.asarray(leaf)[:count] for name, leaf in record._asdict().items()}
            took = run.now() - before
            arrays["seconds"] = earlier + np.linspace(before - began, before - began + took, count + 1)[1:]
            history = [*history, arrays]
            try:
                state, history = _recovered(run, state, history)
                state = in_new_frame(run.loop, state)
                saved = _save_in_time(run, state, history, saved)
            except KeyboardInterrupt:
                interrupt.set()
        # the first call compiled: its time says nothing
        steps = 10 if first and run.recheck is None else next_length(steps, took, max(1, count))
        first = False
        end = _INTERRUPTED if run.is_set(interrupt) else None
        if end is None:
            end, run, state = _verified(run, state, history, began)
        if end is None:
            try:
                yield _posterior(run, own_copy(state.params), history, _RUNNING)
            except KeyboardInterrupt:
                end = _INTERRUPTED
    if int(state.broken) < 0:
        _save(run, state, history, end.outcome)
    _raise_if_too_coarse(run, state, history, end)
    yield _posterior(run, state.params, history, end)


def _raise_if_too_coarse(run: Run, state: State, history: History, end: End) -> None:
    """Raise if floats cannot hold where this fit ended: a claim may be a little nearer to rounding than what never settled."""
    share = _ROUNDED if end.outcome is Outcome.CONVERGED else _ROUNDED / 2
    names = [narrower_than_rounding(on_host(part), share) for part in state.params.values()]
    name = next(filter(None, names), None)
    if name is None or end.outcome is Outcome.INTERRUPTED:
        return
    words = (
        f"q of {name!r} is nearly as narrow as the rounding of {jnp.result_type(float)} around its mean, so that its numbers cannot be "
        f"trusted (after {int(state.step)} steps; {end.words}): centre or rescale the data, or declare the latent relative to its "
        "order of magnitude, or set jax_enable_x64"
    )
    error = PrecisionError(f"{words}. What was reached is in this error's .posterior")
    error.posterior = _posterior(run, state.params, history, End(Outcome.STOPPED, words))
    raise error


def _end(run: Run, state: State, began: float) -> End | None:
    """Find out why the fit has to stop now; None if it goes on."""
    if int(state.broken) >= 0:
        names = [f"gradient of {name!r}" for name in run.loop.analysis.problem.latents]
        what = [*names, "ELBO"][int(state.broken)]
        return End(
            Outcome.NON_FINITE,
            f"non-finite {what} at step {int(state.step) + 1}, {max(1, int(state.setbacks))} times in a row; lambda is that of the "
            "last good step. "
            "Check the log joint for values that can overflow or leave p's support, or take smaller steps",
        )
    elapsed = Elapsed(int(state.step), run.now() - began)
    for number, rule in enumerate(run.settings.stops):
        if number == int(state.fired) or (int(state.fired) < 0 and rule.on_host(elapsed)):
            words = [repr(rule)]
            if rule.outcome is Outcome.BUDGET:
                doubts = [other.doubt(own) for other, own in zip(run.settings.stops, state.stops, strict=False)]
                words += filter(None, doubts)
            return End(rule.outcome, "; ".join(words), number)
    return None


def _recovered(run: Run, state: State, history: History) -> tuple[State, History]:
    """Look at what only the host can see, and go back if the last step was not finite."""
    good = int(state.broken) < 0
    before = history if good else _without_last_step(history)
    if run.recheck is not None:
        _after_opaque(run, state, before)
    if good:
        return state, history
    fit = Fit(run.loop, run.key, run.data, run.groups)
    with _keeping_posterior(run, state, before):
        if int(state.step) > 0:
            is_first = sum(int(record["setbacks"].sum()) for record in history) == 1
            state = set_back(fit, state)
            return without_impossible(fit, state) if is_first else state, history
        if (found := find_start(fit, state)) is not None:
            return found, before
        raise_if_not_finite(run.loop, run.params, run.key, run.data, run.groups)
    return state, history


def _save_in_time(run: Run, state: State, history: History, saved: float) -> float:
    """Write a checkpoint if it is time, and return when the last one was written."""
    if int(state.broken) >= 0 or run.checkpoint is None or run.now() - saved < run.checkpoint.seconds:
        return saved
    _save(run, state, history, Outcome.RUNNING)
    return run.now()


def _save(run: Run, state: State, history: History, outcome: Outcome) -> None:
    if run.checkpoint is not None:
        run.checkpoint.save(
            run.loop.gathered(state), history, run.loop.gradient.named(run.loop.analysis), outcome, run.restarts
        )


def _most_steps(run: Run, state: State) -> int:
    """Return how many steps may follow before something has to be looked at."""
    step, last = int(state.step), run.settings.last_step
    most = run.loop.capacity if last is None else min(run.loop.capacity, last - step)
    if not run.loop.is_late:
        most = min(most, EARLY - step)
    most = min(most, steps_left(run.loop, step) or most)
    if run.choosing is not None:
        most = min(most, run.choosing.choice.pilot_steps - step)
    return most if run.recheck is None else min(most, RECHECK_STEPS - step % RECHECK_STEPS)


def _after_opaque(run: Run, state: State, history: History) -> None:
    """Raise if an opaque function failed, with the last good step in the checkpoint; re-check what its terms read."""
    assert run.recheck is not None
    with _keeping_posterior(run, state, history):
        try:
            run.loop.analysis.problem.raise_failure()
        except OpaqueError:
            _save(run, state._replace(broken=jnp.int32(-1)), history, Outcome.OPAQUE_FAILED)
            raise
        if int(state.broken) < 0 and int(state.step) % RECHECK_STEPS == 0:
            run.recheck(state.params, int(state.step))


def _without_last_step(history: History) -> History:
    *earlier, last = history
    return [*earlier, {name: column[:-1] for name, column in last.items()}] if len(last["elbo"]) > 1 else earlier


@contextlib.contextmanager
def _keeping_posterior(run: Run, state: State, history: History) -> Iterator[None]:
    """Hand what was reached so far to the error of an opaque function, and say in it where that is."""
    try:
        yield
    except OpaqueError as error:
        end = End(Outcome.OPAQUE_FAILED, f"an opaque function failed: {error}")
        error.posterior = _posterior(run, own_copy(state.params), history, end)
        where = f"The {int(state.step)} steps made until then are in this error's .posterior"
        if run.checkpoint is not None:
            where += f", and in {run.checkpoint.path}: the same call again goes on from there"
        error.args = (f"{error}. {where}",)
        raise


def next_length(steps: int, took: float, made: int) -> int:
    """Choose how many steps the next chunk makes, given that the last one of `steps` made so many in `took` seconds."""
    return max(1, min(10 * steps, int(_SECONDS_PER_CHUNK * made / max(took, 1e-6))))


def _verified(run: Run, state: State, history: History, began: float) -> tuple[End | None, Run, State]:
    """Find out why the fit has to stop; it claims to have converged only if that withstands a verification.

    If not, the fit goes on from a better lambda, or with other estimators, where its rule lets it.
    """
    run, end = run.at(state), _end(run, state, began)
    if end is None or end.outcome is not Outcome.CONVERGED:
        if end is not None and end.outcome is Outcome.STOPPED and end.rule >= 0:
            average = run.settings.stops[end.rule].average(state.stops[end.rule], state.params)
            state = state if average is None else state._replace(params=average)
        return end, run, state
    rule, loop, claimed = run.settings.stops[end.rule], run.loop, int(state.claimed)
    fit = Fit(loop, fold(run.key, "verify", claimed), run.data, run.groups)
    with _keeping_posterior(run, state, history):
        probe = candidate(fit, state, end.rule, allowance(loop, int(state.step) - claimed))
        params, found = probe.origin, verify(probe)
        loop.analysis.problem.raise_failure()
    if found.better is None and not found.biased:
        if (own := rule.goes_on_verified(state.stops[end.rule])) is None:
            return end, run, state._replace(params=params)
        stops = (*state.stops[: end.rule], own, *state.stops[end.rule + 1 :])
        return None, run, state._replace(stops=stops, fired=jax.device_put(np.int32(-1)), claimed=jnp.copy(state.step))
    words, going = f"{rule!r} fired, but {found.sentence}", run if rule.goes_on else None
    if going is not None and found.biased:
        going = _by_score(run, found.biased)
    if going is None:
        return End(Outcome.STOPPED, words), run, state
    if found.biased:
        warnings.warn(f"{words}. The fit goes on with Score() there", RuntimeWarning, stacklevel=2)
    fresh = going.loop.init(params if found.better is None else found.better)
    state = fresh._replace(optimizer=state.optimizer, step=state.step, claimed=jnp.copy(state.step))
    return _end(going, state, began), going, state


def _by_score(run: Run, names: Collection[str]) -> Run | None:
    """Go on with the score function for these latents; None if it is theirs already."""
    before, problem = run.loop.gradient.by_latent(run.loop.analysis), run.loop.analysis.problem
    if problem.leading is not None or any(isinstance(before[name], Score) for name in names):
        return None
    return run.with_estimator(Mixed(tuple((n, Score() if n in names else own) for n, own in before.items())))


def _posterior(run: Run, params: Any, history: History, end: End) -> Posterior:
    return Posterior(
        run.loop.analysis.problem, run.loop.whole(params), data=run.data, groups=run.groups, lengths=own_lengths(run.groups),
        history=history, outcome=end.outcome, stopped=end.words, estimators=run.loop.gradient.named(run.loop.analysis),
        densities=run.loop.densities, restarts=run.restarts,
    )  # fmt: skip
