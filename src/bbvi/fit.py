"""Algorithms 1 and 2: from a model and data to a posterior."""

import contextlib
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from bbvi.batches import check_batch_size
from bbvi.blankets import find_blankets
from bbvi.calls import OpaqueError
from bbvi.check import check_blankets, check_padding, raise_if_not_finite
from bbvi.checkpoint import History, fingerprint, load_checkpoint, save_checkpoint
from bbvi.converged import Converged
from bbvi.counter import Key, fold, seed_key
from bbvi.draws import AbstractDraws, MonteCarlo
from bbvi.elbo import Ratios, elbo_samples
from bbvi.evaluate import Lambda, Target
from bbvi.gradient import AbstractGradient, Score
from bbvi.groups import AbstractGroups, Cohort, Stream
from bbvi.interrupt import deferred_interrupt
from bbvi.model import AnyModel, Model, bind
from bbvi.optimizers import adagrad, behaviour, check_optimizer
from bbvi.posterior import Posterior, first_row, own_lengths
from bbvi.progress import progress_bar
from bbvi.recheck import RECHECK_STEPS, Recheck, keeping_posterior
from bbvi.start import starting_params, warm_start
from bbvi.step import Loop, State, own_copy
from bbvi.stop import AbstractAveragingStop, AbstractStop, Budget

_SECONDS_PER_CHUNK = 0.3
_CAPACITY = 1000
_STREAM_CAPACITY = 16
_DRAWS_TO_COMPARE = 2000
_GROUPS_TO_COMPARE = 500


def fit(
    model: AnyModel,
    data: Any = None,
    *,
    gradient: AbstractGradient | None = None,
    draws: AbstractDraws | None = None,
    optimizer: optax.GradientTransformation | None = None,
    stop: AbstractStop | Sequence[AbstractStop] | None = None,
    batch_size: int | None = None,
    seed: int | Array = 0,
    progress: bool | None = None,
    checkpoint: Any = None,
    checkpoint_seconds: float = 30.0,
    start: Posterior | None = None,
    hold: Posterior | None = None,
) -> Posterior:
    """Fit q(z | lambda) to the posterior of a model.

    Args:
        gradient: the estimator of the ELBO's gradient; default `Score()`.
        draws: how many samples a step draws; default `MonteCarlo(100)`.
        optimizer: any optax transformation; default `adagrad(1.0)`.
        stop: one stopping rule or several, of which the first to fire wins; default `Converged()` with a
            budget of 50,000 steps.
        batch_size: how many groups a step looks at; default all.
        progress: show a bar; default on a terminal.
        checkpoint: a path; the state is written there every `checkpoint_seconds`, and the same call again goes
            on where it stopped.
        start: a posterior to start from.
        hold: a posterior whose globals are kept while the locals of new groups are fitted.

    Examples:
        >>> import bbvi, numpyro.distributions as dist, jax.numpy as jnp
        >>> def log_joint(z, y):
        ...     return dist.Normal(0, 10).log_prob(z["mu"]) + dist.Normal(z["mu"], 1).log_prob(y).sum()
        >>> posterior = bbvi.fit(bbvi.Model(log_joint, mu=bbvi.real()), jnp.array([1.0, 2.0, 3.0]))
        >>> posterior.converged
        True
        >>> print(round(float(posterior.mean()["mu"]), 2), round(float(posterior.sd()["mu"]), 2))
        1.99 0.58
    """
    run = iterate(
        model, data, gradient=gradient, draws=draws, optimizer=optimizer, stop=stop, batch_size=batch_size, seed=seed,
        checkpoint=checkpoint, checkpoint_seconds=checkpoint_seconds, start=start, hold=hold,
    )  # fmt: skip
    steps, _ = _limits(_stops(stop))
    with progress_bar(progress, steps) as report:
        for posterior in run:
            elbo = np.concatenate([record["elbo"] for record in posterior._records[-10:]] or [np.zeros(0)])
            report(posterior._num_steps(), float(elbo[-100:].mean()) if len(elbo) else float("nan"))
    if posterior.stopped.startswith("non-finite"):
        warnings.warn(posterior.stopped, RuntimeWarning, stacklevel=2)
    return posterior


def iterate(
    model: AnyModel,
    data: Any = None,
    *,
    gradient: AbstractGradient | None = None,
    draws: AbstractDraws | None = None,
    optimizer: optax.GradientTransformation | None = None,
    stop: AbstractStop | Sequence[AbstractStop] | None = None,
    batch_size: int | None = None,
    seed: int | Array = 0,
    checkpoint: Any = None,
    checkpoint_seconds: float = 30.0,
    start: Posterior | None = None,
    hold: Posterior | None = None,
) -> Iterator[Posterior]:
    """The loop of `fit` as a generator: the posterior so far, once for each compiled chunk of steps.

    Examples:
        >>> import bbvi, numpyro.distributions as dist
        >>> model = bbvi.Model(lambda z, y: dist.Normal(0, 1).log_prob(z["mu"]), mu=bbvi.real())
        >>> for posterior in bbvi.iterate(model, stop=bbvi.Budget(steps=20)):
        ...     pass
        >>> len(posterior.history)
        20
    """
    stops = _stops(stop)
    gradient, draws, optimizer = gradient or Score(), draws or MonteCarlo(100), optimizer or adagrad(1.0)
    _check_slots(gradient, draws)
    run = _prepare(
        model, data, gradient, draws, optimizer, stops, batch_size=batch_size, seed=seed, start=start, hold=hold
    )
    history: History = []
    state = run.loop.init(run.params)
    settings: dict[str, Any] = {}
    if checkpoint is not None:
        # a budget may be another one when a run goes on, but not stand elsewhere among the rules
        rules = [Budget if isinstance(rule, Budget) else rule for rule in stops]
        chosen = {
            "gradient": gradient, "draws": draws, "stop": rules, "batch_size": run.loop.batch_size,
            "seed": [int(word) for word in run.key], "hold": hold is not None,
        }  # fmt: skip
        families = {name: latent.family for name, latent in run.loop.target.problem.latents.items()}
        settings = fingerprint(
            chosen, data=(run.data, run.groups), start=run.params, optimizer=behaviour(optimizer, families)
        )
        earlier = load_checkpoint(checkpoint, model, settings, state)
        if earlier is not None:
            state, history = earlier
            if int(state.fired) >= 0 and isinstance(stops[int(state.fired)], Budget):
                state = state._replace(fired=jnp.int32(-1))
    yield from _drain(run, state, history, stops, checkpoint, checkpoint_seconds, settings)


class _Run(NamedTuple):
    """A fit that is ready to go."""

    loop: Loop
    params: dict[str, Lambda]
    data: Any
    groups: AbstractGroups | None
    key: Key
    ratios: Ratios
    recheck: Recheck | None


def _prepare(
    model: AnyModel,
    data: Any,
    gradient: AbstractGradient,
    draws: AbstractDraws,
    optimizer: optax.GradientTransformation,
    stops: Sequence[AbstractStop],
    *,
    batch_size: int | None,
    seed: int | Array,
    start: Posterior | None,
    hold: Posterior | None,
) -> _Run:
    if isinstance(model, Model) and batch_size is not None:
        raise ValueError(
            "batch_size needs groups to choose from: a flat Model has none. Write the model as a "
            "bbvi.HierarchicalModel with a likelihood per row"
        )
    problem, flat, groups = bind(model, data)
    size = 0 if groups is None else check_batch_size(batch_size, problem.num_groups)
    check_optimizer(optimizer, {name: latent.family for name, latent in problem.locals.items()})
    key = seed_key(seed)
    params = starting_params(problem, key)
    if start is not None:
        params = warm_start(model, params, start, "start", ("globals", "locals"))
    if hold is not None:
        if isinstance(model, Model) or not problem.locals:
            raise ValueError("hold= keeps the globals and fits locals: the model needs locals")
        params = warm_start(model, params, hold, "hold", ("globals",))
    blankets, floats = find_blankets(problem, flat, None if groups is None else first_row(groups))
    check_blankets(problem, blankets, flat, groups)
    if isinstance(groups, Cohort):
        check_padding(problem, groups)
    problem.raise_failure()
    target = Target(problem, blankets, floats, fit_globals=hold is None)
    capacity = _STREAM_CAPACITY if isinstance(groups, Stream) else _CAPACITY
    loop = Loop(target, gradient, draws, optimizer, stops, batch_size=size, capacity=capacity)
    recheck = Recheck(problem, groups, key) if problem.opaque else None
    return _Run(loop, params, flat, groups, key, Ratios(problem, floats), recheck)


def _stops(stop: AbstractStop | Sequence[AbstractStop] | None) -> tuple[AbstractStop, ...]:
    if stop is None:
        return (Converged(), Budget(steps=50_000))
    stops = tuple(stop) if isinstance(stop, (list, tuple)) else (stop,)
    for rule in stops:
        if not isinstance(rule, AbstractStop):
            raise TypeError(
                f"stop= takes stopping rules such as bbvi.Converged() or bbvi.Budget(steps=1000), got {rule!r}"
            )
    if not stops:
        raise ValueError("stop=[] would never stop; give at least one rule")
    return stops


def _check_slots(gradient: Any, draws: Any) -> None:
    if not isinstance(gradient, AbstractGradient):
        raise TypeError(f"gradient= takes an estimator such as bbvi.Score(), got {gradient!r}")
    if not isinstance(draws, AbstractDraws):
        raise TypeError(f"draws= takes, for example, bbvi.MonteCarlo(100), got {draws!r}")
    gradient.check(draws)


def _limits(stops: Sequence[AbstractStop]) -> tuple[int | None, float | None]:
    budgets = [rule for rule in stops if isinstance(rule, Budget)]
    steps = [rule.steps for rule in budgets if rule.steps is not None]
    seconds = [rule.seconds for rule in budgets if rule.seconds is not None]
    return min(steps, default=None), min(seconds, default=None)


def _drain(
    run: _Run,
    state: State,
    history: History,
    stops: Sequence[AbstractStop],
    checkpoint: Any,
    checkpoint_seconds: float,
    settings: dict[str, Any],
) -> Iterator[Posterior]:
    """Run chunk after chunk. How long a chunk is depends on the clock, and nothing that is computed does."""
    limit, seconds = _limits(stops)
    began = saved = time.monotonic()
    earlier = float(history[-1]["seconds"][-1]) if history else 0.0
    steps, first, stopped = 1, True, _why(run, state, stops, limit, seconds, began)
    while not stopped:
        room = _room(run, state, limit)
        before = time.monotonic()
        with deferred_interrupt() as interrupt:
            state, arrays = _chunk(run, state, min(steps, room))
            took, count = time.monotonic() - before, len(arrays["elbo"])
            arrays["seconds"] = earlier + np.linspace(before - began, before - began + took, count + 1)[1:]
            history = [*history, arrays]
        try:
            if run.recheck is not None:
                _after_opaque(run, state, _good_steps(history, state), checkpoint, settings)
            if int(state.broken) >= 0 and int(state.step) == 0:
                _explain_start(run)
            # the first call compiled: its time says nothing
            steps = 10 if first and run.recheck is None else _next_length(steps, took, max(1, count))
            first = False
            if checkpoint is not None and int(state.broken) < 0 and time.monotonic() - saved >= checkpoint_seconds:
                save_checkpoint(checkpoint, run.loop.target.problem.model, settings, state, history)
                saved = time.monotonic()
            stopped = _why(run, state, stops, limit, seconds, began) or ("interrupted" if interrupt.is_set() else "")
            if not stopped:
                yield _posterior(run, own_copy(state.params), history, False, "still running")
        except KeyboardInterrupt:
            stopped = _why(run, state, stops, limit, seconds, began) or "interrupted"
    if checkpoint is not None and int(state.broken) < 0:
        save_checkpoint(checkpoint, run.loop.target.problem.model, settings, state, history)
    fired = int(state.fired)
    converged = fired >= 0 and stops[fired].means_converged
    params = state.params
    if converged:
        with _keeping_posterior(run, state, history, checkpoint):
            params = _final_params(run, state, stops[fired], state.stops[fired])
    yield _posterior(run, params, history, converged, stopped)


def _chunk(run: _Run, state: State, steps: int) -> tuple[State, dict[str, np.ndarray]]:
    """The state after up to `steps` steps, and the record of those that were made."""
    state, record, made = run.loop.run(state, run.key, run.data, run.groups, steps)
    count = int(made) + (int(state.broken) >= 0)
    return state, {name: np.asarray(leaf)[:count] for name, leaf in record._asdict().items()}


def _room(run: _Run, state: State, limit: int | None) -> int:
    """How many steps may follow before something has to be looked at."""
    room = run.loop.capacity if limit is None else min(run.loop.capacity, limit - int(state.step))
    return room if run.recheck is None else min(room, RECHECK_STEPS - int(state.step) % RECHECK_STEPS)


def _after_opaque(run: _Run, state: State, history: History, checkpoint: Any, settings: dict[str, Any]) -> None:
    """Raise if an opaque function failed, with the last good step in the checkpoint; re-check what its terms read."""
    assert run.recheck is not None
    problem = run.loop.target.problem
    with _keeping_posterior(run, state, history, checkpoint):
        try:
            problem.raise_failure()
        except OpaqueError:
            if checkpoint is not None:
                save_checkpoint(checkpoint, problem.model, settings, state._replace(broken=jnp.int32(-1)), history)
            raise
        if int(state.broken) < 0 and int(state.step) % RECHECK_STEPS == 0:
            run.recheck(state.params, int(state.step))


def _good_steps(history: History, state: State) -> History:
    """The history without a last step that failed."""
    *earlier, last = history
    good = len(last["elbo"]) - (int(state.broken) >= 0)
    return [*earlier, {name: column[:good] for name, column in last.items()}] if good else earlier


def _keeping_posterior(run: _Run, state: State, history: History, checkpoint: Any) -> contextlib.AbstractContextManager:
    def reached(why: str) -> Posterior:
        return _posterior(run, own_copy(state.params), history, False, why)

    return keeping_posterior(reached, int(state.step), checkpoint)


def _explain_start(run: _Run) -> None:
    """The very first step failed: say which term is to blame, if a term is."""
    step = jnp.int32(0)
    source: Any = run.groups
    if isinstance(run.groups, Stream):
        source = run.loop.prefetch(run.groups, run.key, 0, 1)
    batch = run.loop.batch(run.params, run.key, step, source, step)
    raise_if_not_finite(
        run.loop.target.problem, run.params["globals"], run.data, batch,
        draws=run.loop.draws, key=run.loop.draws_key(run.key, step),
    )  # fmt: skip


def _next_length(steps: int, took: float, made: int) -> int:
    return max(1, min(10 * steps, int(_SECONDS_PER_CHUNK * made / max(took, 1e-6))))


def _why(
    run: _Run, state: State, stops: Sequence[AbstractStop], limit: int | None, seconds: float | None, began: float
) -> str:
    """Why the fit has to stop now; empty if it goes on."""
    if int(state.broken) >= 0:
        names = [f"gradient of {name!r}" for name in run.loop.target.problem.latents]
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


def _final_params(run: _Run, state: State, rule: AbstractStop, rule_state: Any) -> dict[str, Lambda]:
    """The average of late iterates if the rule has one and its ELBO is higher on common draws, else the last."""
    if not isinstance(rule, AbstractAveragingStop):
        return state.params
    fitted = {"globals": state.params["globals"], "locals": state.params["locals"]}
    average = rule.average(rule_state, fitted)
    if not run.loop.target.fit_globals:
        average["globals"] = state.params["globals"]
    numbers = None
    if run.groups is not None and len(run.groups) > _GROUPS_TO_COMPARE:
        numbers = np.random.default_rng(0).choice(len(run.groups), _GROUPS_TO_COMPARE, replace=False)
    key = fold(run.key, "compare")
    of = [
        elbo_samples(run.ratios, params, run.data, run.groups, _DRAWS_TO_COMPARE, key, numbers=numbers)
        for params in (average, state.params)
    ]
    return average if np.mean(of[0] - of[1]) > 0 else state.params


def _posterior(run: _Run, params: Any, history: History, converged: bool, stopped: str) -> Posterior:
    return Posterior(
        run.loop.target.problem, params, data=run.data, groups=run.groups, lengths=own_lengths(run.groups),
        history=history, converged=converged, stopped=stopped,
    )  # fmt: skip
