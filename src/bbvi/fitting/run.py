"""Algorithms 1 and 2 in compiled chunks of steps: how long a chunk is, why a fit stops, and what it keeps."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from bbvi.families.abstract import Lambda
from bbvi.fitting.checkpoint import History, save_checkpoint
from bbvi.fitting.converged import Converged
from bbvi.fitting.finite import raise_if_not_finite
from bbvi.fitting.loop import Loop, State, own_copy
from bbvi.fitting.noise import Pilot
from bbvi.fitting.recheck import RECHECK_STEPS, Recheck, keeping_posterior
from bbvi.fitting.stop import AbstractAveragingStop, AbstractStop, Budget
from bbvi.fitting.terminal import deferred_interrupt
from bbvi.gradients.abstract import AbstractGradient
from bbvi.gradients.auto import AbstractChoice
from bbvi.model.groups import AbstractGroups, Stream
from bbvi.model.opaque.calls import OpaqueError
from bbvi.numerics.address import Key, fold
from bbvi.posterior.posterior import Posterior, own_lengths

_SECONDS_PER_CHUNK = 0.3
_DRAWS_TO_COMPARE = 2000
_STEPS_TO_COMPARE = 10
_GROUPS_TO_COMPARE = 500


class Run(NamedTuple):
    """A fit that is ready to go."""

    loop: Loop
    params: dict[str, Lambda]
    data: Any
    groups: AbstractGroups | None
    key: Key
    recheck: Recheck | None
    choosing: "Choosing | None" = None


class Choosing(NamedTuple):
    """The choice of estimators that is still to be made, and how to go on with another one."""

    choice: AbstractChoice
    loop_for: Callable[[AbstractGradient], Loop]

    def settle(self, run: Run, state: State) -> Run:
        """The same run with the estimators that were found best."""
        loop = run.loop
        noise = next(
            (rule.noise(s) for rule, s in zip(loop.stops, state.stops, strict=True) if isinstance(rule, Converged)), {}
        )
        # where the number of draws changes, the noise of one draw cannot be told from that of the steps
        seen = {name: loop.draws.num * value for name, value in noise.items() if state.draws is None}
        pilot = Pilot(
            loop.analysis, state.params, run.data, run.groups,
            batch_size=loop.batch_size, key=run.key, seen=seen,
        )  # fmt: skip
        settled = self.choice.settled(pilot, loop.gradient)
        return run._replace(loop=loop if settled is loop.gradient else self.loop_for(settled), choosing=None)


def limits(stops: Sequence[AbstractStop]) -> tuple[int | None, float | None]:
    budgets = [rule for rule in stops if isinstance(rule, Budget)]
    steps = [rule.steps for rule in budgets if rule.steps is not None]
    seconds = [rule.seconds for rule in budgets if rule.seconds is not None]
    return min(steps, default=None), min(seconds, default=None)


def drain(
    run: Run,
    state: State,
    history: History,
    stops: Sequence[AbstractStop],
    checkpoint: Any,
    checkpoint_seconds: float,
    settings: dict[str, Any],
) -> Iterator[Posterior]:
    """Run chunk after chunk. How long a chunk is depends on the clock, and nothing that is computed does."""
    limit, seconds = limits(stops)
    began = saved = time.monotonic()
    earlier = float(history[-1]["seconds"][-1]) if history else 0.0
    steps, first, stopped = 1, True, _why(run, state, stops, limit, seconds, began)
    while not stopped:
        with deferred_interrupt() as interrupt:
            if run.choosing is not None and int(state.step) >= run.choosing.choice.pilot_steps:
                try:
                    run, first = run.choosing.settle(run, state), True
                except KeyboardInterrupt:
                    interrupt.set()
                if interrupt.is_set():
                    stopped = "interrupted"
                    break
            before = time.monotonic()
            state, arrays = _chunk(run, state, min(steps, _most_steps(run, state, limit)))
            took, count = time.monotonic() - before, len(arrays["elbo"])
            arrays["seconds"] = earlier + np.linspace(before - began, before - began + took, count + 1)[1:]
            history = [*history, arrays]
            try:
                if run.recheck is not None:
                    _after_opaque(run, state, _good_steps(history, state), checkpoint, settings)
                if int(state.broken) >= 0 and int(state.step) == 0:
                    _explain_start(run)
                if checkpoint is not None and int(state.broken) < 0 and time.monotonic() - saved >= checkpoint_seconds:
                    save_checkpoint(
                        checkpoint, run.loop.analysis.problem.model, settings, state, history, _estimators(run)
                    )
                    saved = time.monotonic()
            except KeyboardInterrupt:
                interrupt.set()
        # the first call compiled: its time says nothing
        steps = 10 if first and run.recheck is None else _next_length(steps, took, max(1, count))
        first = False
        stopped = _why(run, state, stops, limit, seconds, began) or ("interrupted" if interrupt.is_set() else "")
        if not stopped:
            try:
                yield _posterior(run, own_copy(state.params), history, False, "still running")
            except KeyboardInterrupt:
                stopped = "interrupted"
    if checkpoint is not None and int(state.broken) < 0:
        save_checkpoint(checkpoint, run.loop.analysis.problem.model, settings, state, history, _estimators(run))
    fired = int(state.fired)
    converged = fired >= 0 and stops[fired].means_converged
    params = state.params
    if converged:
        with _keeping_posterior(run, state, history, checkpoint):
            params = _final_params(run, state, stops[fired], state.stops[fired])
    yield _posterior(run, params, history, converged, stopped)


def _estimators(run: Run) -> dict[str, str]:
    return run.loop.gradient.named(run.loop.analysis)


def _chunk(run: Run, state: State, steps: int) -> tuple[State, dict[str, np.ndarray]]:
    """The state after up to `steps` steps, and the record of those that were made."""
    state, record, made = run.loop.run(state, run.key, run.data, run.groups, steps)
    count = int(made) + (int(state.broken) >= 0)
    return state, {name: np.asarray(leaf)[:count] for name, leaf in record._asdict().items()}


def _most_steps(run: Run, state: State, limit: int | None) -> int:
    """How many steps may follow before something has to be looked at."""
    most = run.loop.capacity if limit is None else min(run.loop.capacity, limit - int(state.step))
    if run.choosing is not None:
        most = min(most, run.choosing.choice.pilot_steps - int(state.step))
    return most if run.recheck is None else min(most, RECHECK_STEPS - int(state.step) % RECHECK_STEPS)


def _after_opaque(run: Run, state: State, history: History, checkpoint: Any, settings: dict[str, Any]) -> None:
    """Raise if an opaque function failed, with the last good step in the checkpoint; re-check what its terms read."""
    assert run.recheck is not None
    problem = run.loop.analysis.problem
    with _keeping_posterior(run, state, history, checkpoint):
        try:
            problem.raise_failure()
        except OpaqueError:
            if checkpoint is not None:
                good = state._replace(broken=jnp.int32(-1))
                save_checkpoint(checkpoint, problem.model, settings, good, history, _estimators(run))
            raise
        if int(state.broken) < 0 and int(state.step) % RECHECK_STEPS == 0:
            run.recheck(state.params, int(state.step))


def _good_steps(history: History, state: State) -> History:
    """The history without a last step that failed."""
    *earlier, last = history
    good = len(last["elbo"]) - (int(state.broken) >= 0)
    return [*earlier, {name: column[:good] for name, column in last.items()}] if good else earlier


def _keeping_posterior(run: Run, state: State, history: History, checkpoint: Any) -> contextlib.AbstractContextManager:
    def reached(why: str) -> Posterior:
        return _posterior(run, own_copy(state.params), history, False, why)

    return keeping_posterior(reached, int(state.step), checkpoint)


def _explain_start(run: Run) -> None:
    """The very first step failed: say which term is to blame, if a term is."""
    step = jnp.int32(0)
    source: Any = run.groups
    if isinstance(run.groups, Stream):
        source = run.loop.prefetch(run.groups, run.key, 0, 1)
    batch = run.loop.batch(run.params, run.key, step, source, step)
    raise_if_not_finite(
        run.loop.analysis.problem, run.params["globals"], run.data, batch,
        draws=run.loop.draws, key=run.loop.draws_key(run.key, step),
    )  # fmt: skip


def _next_length(steps: int, took: float, made: int) -> int:
    return max(1, min(10 * steps, int(_SECONDS_PER_CHUNK * made / max(took, 1e-6))))


def _why(
    run: Run, state: State, stops: Sequence[AbstractStop], limit: int | None, seconds: float | None, began: float
) -> str:
    """Why the fit has to stop now; empty if it goes on."""
    if int(state.broken) >= 0:
        names = [f"gradient of {name!r}" for name in run.loop.analysis.problem.latents]
        what = [*names, "ELBO"][int(state.broken)]
        return (
            f"non-finite {what} at step {int(state.step) + 1}; lambda is that of the last good step. "
            "Check the log joint for values that can overflow or leave p's support, or take smaller steps"
        )
    if int(state.fired) >= 0:
        return repr(stops[int(state.fired)])
    for rule in stops:
        if isinstance(rule, Budget) and (
            (rule.steps is not None and rule.steps == limit and int(state.step) >= limit)
            or (rule.seconds is not None and time.monotonic() - began >= rule.seconds)
        ):
            return repr(rule)
    return ""


def _final_params(run: Run, state: State, rule: AbstractStop, rule_state: Any) -> dict[str, Lambda]:
    """The average of late iterates if the rule has one, unless its ELBO on common draws is clearly below the last one's."""
    if not isinstance(rule, AbstractAveragingStop):
        return state.params
    fitted = {"globals": state.params["globals"], "locals": state.params["locals"]}
    average = rule.average(rule_state, fitted)
    if not run.loop.analysis.fit_globals:
        average["globals"] = state.params["globals"]
    loop = run.loop
    steps = max(_STEPS_TO_COMPARE, math.ceil(_DRAWS_TO_COMPARE / loop.draws.num))
    if run.groups is not None:
        steps = max(steps, math.ceil(min(_GROUPS_TO_COMPARE, len(run.groups)) / loop.batch_size))
    key = fold(run.key, "compare")
    one, other = (
        loop.elbos(state._replace(params=params), key, run.data, run.groups, steps)
        for params in (average, state.params)
    )
    gain = one - other
    error = gain.std(ddof=1) / np.sqrt(steps)
    return average if gain.mean() > -2 * error else state.params


def _posterior(run: Run, params: Any, history: History, converged: bool, stopped: str) -> Posterior:
    return Posterior(
        run.loop.analysis.problem, params, data=run.data, groups=run.groups, lengths=own_lengths(run.groups),
        history=history, converged=converged, stopped=stopped, estimators=_estimators(run),
    )  # fmt: skip
