"""Algorithms 1 and 2: from a model and data to a posterior."""

import itertools
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import optax
from jaxtyping import Array

from bbvi.blankets.analysis import analyse
from bbvi.blankets.check import check_blankets, check_padding
from bbvi.draws.batch import check_batch_size
from bbvi.draws.draws import AbstractDraws, MonteCarlo
from bbvi.fitting.cache import compiled
from bbvi.fitting.checkpoint import History, fingerprint, load_checkpoint
from bbvi.fitting.converged import Converged
from bbvi.fitting.loop import Loop
from bbvi.fitting.natural import natural
from bbvi.fitting.noise import Pilot
from bbvi.fitting.optimizers import adagrad, behaviour, check_optimizer
from bbvi.fitting.recheck import Recheck
from bbvi.fitting.run import Choosing, Run, drain, limits
from bbvi.fitting.stop import AbstractStop, Budget
from bbvi.fitting.terminal import deferred_interrupt, progress_bar
from bbvi.fitting.warm_start import warm_start
from bbvi.gradients.abstract import AbstractGradient
from bbvi.gradients.auto import AbstractChoice, Auto
from bbvi.gradients.score import Score
from bbvi.model.groups import Cohort, Stream
from bbvi.model.model import AnyModel, Model
from bbvi.model.problem import Problem, bind
from bbvi.model.start import starting_params
from bbvi.numerics.address import seed_key
from bbvi.posterior.posterior import Posterior

_CAPACITY = 1000
_STREAM_CAPACITY = 16


def fit(
    model: AnyModel,
    data: Any = None,
    *,
    gradient: AbstractGradient | AbstractChoice | None = None,
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
    fast_lgamma: bool = True,
) -> Posterior:
    """Fit q(z | lambda) to the posterior of a model.

    Args:
        gradient: the estimator of the ELBO's gradient; default `Auto()`, the best for each latent.
        draws: how many samples a step draws; default `MonteCarlo(100)`.
        optimizer: any optax transformation; default `natural()`, which needs no tuning, or `adagrad(1.0)` where a discrete
            latent takes the score.
        stop: one stopping rule or several, of which the first to fire wins; default `Converged()` with a
            budget of 50,000 steps.
        batch_size: how many groups a step looks at; default all.
        progress: show a bar; default on a terminal.
        checkpoint: a path; the state is written there every `checkpoint_seconds`, and the same call again goes
            on where it stopped.
        start: a posterior to start from.
        hold: a posterior whose globals are kept while the locals of new groups are fitted.
        fast_lgamma: replace lgamma and digamma in the model's functions by faster ones, right to 1e-6; False keeps
            JAX's own.

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
        checkpoint=checkpoint, checkpoint_seconds=checkpoint_seconds, start=start, hold=hold, fast_lgamma=fast_lgamma,
    )  # fmt: skip
    steps, _ = limits(_stops(stop))
    with progress_bar(progress, steps) as report:
        first = next(run)
        with deferred_interrupt():
            for posterior in itertools.chain([first], run):
                elbo = np.concatenate([record["elbo"] for record in posterior._records[-10:]] or [np.zeros(0)])
                report(posterior._num_steps(), float(elbo[-100:].mean()) if len(elbo) else float("nan"))
    if posterior.stopped.startswith("non-finite"):
        warnings.warn(posterior.stopped, RuntimeWarning, stacklevel=2)
    return posterior


def iterate(
    model: AnyModel,
    data: Any = None,
    *,
    gradient: AbstractGradient | AbstractChoice | None = None,
    draws: AbstractDraws | None = None,
    optimizer: optax.GradientTransformation | None = None,
    stop: AbstractStop | Sequence[AbstractStop] | None = None,
    batch_size: int | None = None,
    seed: int | Array = 0,
    checkpoint: Any = None,
    checkpoint_seconds: float = 30.0,
    start: Posterior | None = None,
    hold: Posterior | None = None,
    fast_lgamma: bool = True,
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
    gradient, draws = gradient or Auto(), draws or MonteCarlo(100)
    _check_slots(gradient, draws)
    run = _prepare(
        model, data, gradient, draws, optimizer, stops,
        batch_size=batch_size, seed=seed, start=start, hold=hold, fast_lgamma=fast_lgamma,
    )  # fmt: skip
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
        families = {name: latent.family for name, latent in run.loop.analysis.problem.latents.items()}
        settings = fingerprint(
            chosen, data=(run.data, run.groups), start=run.params, optimizer=behaviour(run.loop.optimizer, families)
        )
        earlier = load_checkpoint(checkpoint, model, settings, state)
        if earlier is not None:
            state, history, estimators = earlier
            if run.choosing is not None and int(state.step) > run.choosing.choice.pilot_steps:
                loop = run.choosing.loop_for(run.choosing.choice.again(estimators))
                run = run._replace(loop=loop, choosing=None)
    yield from drain(run, state, history, stops, checkpoint, checkpoint_seconds, settings)


def _prepare(
    model: AnyModel,
    data: Any,
    gradient: AbstractGradient | AbstractChoice,
    draws: AbstractDraws,
    optimizer: optax.GradientTransformation | None,
    stops: Sequence[AbstractStop],
    *,
    batch_size: int | None,
    seed: int | Array,
    start: Posterior | None,
    hold: Posterior | None,
    fast_lgamma: bool,
) -> Run:
    if isinstance(model, Model) and batch_size is not None:
        raise ValueError(
            "batch_size needs groups to choose from: a flat Model has none. Write the model as a "
            "bbvi.HierarchicalModel with a likelihood per row"
        )
    problem, flat, groups = bind(model, data)
    size = 0 if groups is None else check_batch_size(batch_size, problem.num_groups)
    key = seed_key(seed)
    params = starting_params(problem, key)
    if start is not None:
        params = warm_start(model, params, start, "start", ("globals", "locals"))
    if hold is not None:
        if isinstance(model, Model) or not problem.locals:
            raise ValueError("hold= keeps the globals and fits locals: the model needs locals")
        params = warm_start(model, params, hold, "hold", ("globals",))
    analysis = analyse(problem, flat, groups, fit_globals=hold is None, fast_lgamma=fast_lgamma)
    check_blankets(problem, analysis.blankets, flat, groups)
    if isinstance(groups, Cohort):
        check_padding(problem, analysis.blankets, groups)
    problem.raise_failure()
    capacity = _STREAM_CAPACITY if isinstance(groups, Stream) else _CAPACITY
    if isinstance(gradient, AbstractChoice):
        first = gradient.first(Pilot(analysis, params, flat, groups, batch_size=size, key=key))
    else:
        first = gradient
    first.check(draws)
    steps = optimizer or _optimizer(first.by_latent(analysis), problem)
    check_optimizer(steps, {name: latent.family for name, latent in problem.locals.items()})

    def loop_for(estimator: AbstractGradient) -> Loop:
        return compiled(analysis, flat, estimator, draws, steps, stops, batch_size=size, capacity=capacity)

    recheck = Recheck(problem, groups, key) if problem.opaque else None
    choosing = Choosing(gradient, loop_for) if isinstance(gradient, AbstractChoice) else None
    return Run(loop_for(first), params, flat, groups, key, recheck, choosing)


def _optimizer(estimators: dict[str, AbstractGradient], problem: Problem) -> optax.GradientTransformation:
    """Natural steps, but not for discrete latents by the score: where q all but gives up a value, F vanishes and noise rules."""
    by_score = [name for name, gradient in estimators.items() if isinstance(gradient, Score)]
    return adagrad(1.0) if any(problem.latents[name].family.is_discrete() for name in by_score) else natural()


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
    if not isinstance(gradient, (AbstractGradient, AbstractChoice)):
        raise TypeError(f"gradient= takes an estimator such as bbvi.Score(), got {gradient!r}")
    if not isinstance(draws, AbstractDraws):
        raise TypeError(f"draws= takes, for example, bbvi.MonteCarlo(100), got {draws!r}")
    gradient.check(draws)
