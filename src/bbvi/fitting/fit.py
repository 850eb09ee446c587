"""Algorithms 1 and 2: from a model and data to a posterior."""

import contextlib
import itertools
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array

from bbvi.blankets.analysis import Analysis, analyse
from bbvi.blankets.check import check_blankets
from bbvi.blankets.priors import without_prior
from bbvi.draws.batch import check_batch_size
from bbvi.draws.draws import AbstractDraws
from bbvi.fitting.cache import compiled, functions_known_by
from bbvi.fitting.checkpoint import Checkpoint, History, fingerprint
from bbvi.fitting.choose import Choosing
from bbvi.fitting.converged import Converged
from bbvi.fitting.devices import check_mesh, check_sees_all
from bbvi.fitting.loop import Method
from bbvi.fitting.natural import natural
from bbvi.fitting.optimizers import adagrad, behaviour, check_optimizer
from bbvi.fitting.recheck import Recheck
from bbvi.fitting.restarts import MANY, best_start
from bbvi.fitting.run import Run, drain
from bbvi.fitting.setbacks import frequent
from bbvi.fitting.settings import Settings, checked_settings
from bbvi.fitting.stop import AbstractStop
from bbvi.fitting.terminal import deferred_interrupt, progress_bar
from bbvi.fitting.warm_start import warm_start
from bbvi.gradients.abstract import AbstractGradient
from bbvi.gradients.auto import AbstractChoice
from bbvi.gradients.impossible import without_impossible_values
from bbvi.gradients.local_expectation import LocalExpectation
from bbvi.gradients.pathwise import Pathwise
from bbvi.gradients.score import Score
from bbvi.gradients.structure import choose_structure
from bbvi.gradients.tree_expectation import TreeExpectation, without_impossible
from bbvi.gradients.values_and_paths import ValuesAndPaths
from bbvi.model.groups import Stream
from bbvi.model.joint import Block
from bbvi.model.model import AnyModel, Model, structured
from bbvi.model.problem import Problem, bind
from bbvi.model.records import identity_of, probes
from bbvi.model.start import starting_params
from bbvi.numerics.address import seed_key
from bbvi.posterior.outcome import Outcome
from bbvi.posterior.posterior import Posterior

_CAPACITY = 1000
_FLAT = 4  # times as many without batches, which are drawn for all steps of a call at once
_STREAM_CAPACITY = 16
_STREAM_BYTES = 1 << 24


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
    restarts: int | None = None,
    mesh: Mesh | None = None,
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
        restarts: how many random starts to try, in short runs of which the best goes on; default 8 for a flat model with binary or
            categorical latents, if its estimators, step sizes and stopping rule are the defaults, and 1 otherwise.
        mesh: devices that share out the groups of a hierarchical model: `jax.make_mesh((2,), ("groups",))`.

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
    settings = checked_settings(
        gradient=gradient, draws=draws, optimizer=optimizer, stop=stop, batch_size=batch_size, seed=seed,
        checkpoint=checkpoint, checkpoint_seconds=checkpoint_seconds, start=start, hold=hold, fast_lgamma=fast_lgamma,
        restarts=restarts, mesh=mesh,
    )  # fmt: skip
    run = _iterate(model, data, settings)
    with progress_bar(progress, settings.last_step) as report:
        first = next(run)
        with deferred_interrupt():
            for posterior in itertools.chain([first], run):
                elbo = np.concatenate([record["elbo"] for record in posterior._records[-10:]] or [np.zeros(0)])
                elbo = elbo[np.isfinite(elbo)]
                report(posterior._num_steps(), float(elbo[-100:].mean()) if len(elbo) else float("nan"))
    looks = any(rule.outcome is Outcome.CONVERGED for rule in settings.stops)
    if posterior.outcome is Outcome.NON_FINITE:
        warnings.warn(posterior.stopped, RuntimeWarning, stacklevel=2)
    elif posterior.outcome is Outcome.INTERRUPTED or (posterior.outcome is Outcome.BUDGET and looks):
        warnings.warn(f"{posterior._ending()}; {posterior.outcome.advice}", RuntimeWarning, stacklevel=2)
    records = [record["setbacks"] for record in posterior._records]
    if (often := frequent(np.concatenate([np.zeros(0, int), *records]))) is not None:
        warnings.warn(often, RuntimeWarning, stacklevel=2)
    return posterior


def iterate(model: AnyModel, data: Any = None, **options: Any) -> Iterator[Posterior]:
    """Run the loop of `fit` as a generator that yields the posterior so far, once for each compiled chunk of steps.

    The options are those of `fit` but for `progress`.

    Examples:
        >>> import bbvi, numpyro.distributions as dist
        >>> model = bbvi.Model(lambda z, y: dist.Normal(0, 1).log_prob(z["mu"]), mu=bbvi.real())
        >>> for posterior in bbvi.iterate(model, stop=bbvi.Budget(steps=20)):
        ...     pass
        >>> len(posterior.history)
        20
    """
    return _iterate(model, data, checked_settings(**options))


def _iterate(model: AnyModel, data: Any, settings: Settings) -> Iterator[Posterior]:
    run = _prepare(model, data, settings)
    history: History = []
    state, saved, num = run.loop.init(run.params), None, _num_starts(run)
    with contextlib.nullcontext() if run.checkpoint is None else run.checkpoint.locked():
        if run.checkpoint is not None:
            saved = run.checkpoint.load(run.loop.gathered(state))
        if saved is not None:
            state, history, estimators, restarts = saved
            run = run.resumed(int(state.step), estimators)._replace(restarts=restarts)
            state = run.loop.shared(state)
        elif num > 1:
            state, history, restarts = best_start(run, num)
            run = run._replace(restarts=restarts)
        yield from drain(run, state, history)


def _num_starts(run: Run) -> int:
    """Return how many starts to try: as many as are asked for, or as pay where discrete latents have many optima."""
    settings, problem = run.settings, run.loop.analysis.problem
    if settings.last_step == 0:
        return 1
    if settings.restarts is not None:
        if settings.restarts > 1 and problem.opaque:
            raise ValueError(
                "restarts= runs compiled steps only, and this model has opaque functions: call fit with several seeds"
            )
        return settings.restarts
    by_hand = settings.start or settings.hold or settings.optimizer or problem.num_groups or problem.opaque
    by_hand = by_hand or run.choosing is None or not any(rule.goes_on for rule in settings.stops)
    if by_hand or any(latent.init is not None for latent in problem.latents.values()):
        return 1
    estimators = run.loop.gradient.by_latent(run.loop.analysis).values()
    return (
        MANY if any(isinstance(own, (LocalExpectation, TreeExpectation, ValuesAndPaths)) for own in estimators) else 1
    )


def _prepare(model: AnyModel, data: Any, settings: Settings) -> Run:
    """Bind the model to its data, check what depends on both, and choose the estimators of the first steps."""
    if isinstance(model, Model) and settings.batch_size is not None:
        raise ValueError(
            "batch_size needs groups to choose from: a flat Model has none. Write the model as a "
            "bbvi.HierarchicalModel with a likelihood per row"
        )
    problem, flat, groups = bind(model, data)
    if settings.mesh is not None:
        check_mesh(settings.mesh, problem, groups)
        check_sees_all(settings.stops, problem, settings.draws.init())
    analysis = analyse(problem, flat, groups, fit_globals=settings.hold is None, fast_lgamma=settings.fast_lgamma)
    if settings.hold is None:
        for words in without_prior(analysis.blankets):
            warnings.warn(words, UserWarning, stacklevel=4)
    all_finite = check_blankets(problem, analysis.blankets, flat, groups)
    problem.raise_failure()
    if structure := _structure(analysis, settings):
        model = structured(model, structure)
        labels, problem = problem.labels, Problem(model, problem.lengths, problem.num_groups)
        problem.labels = labels
        analysis = analyse(
            problem, flat, groups, fit_globals=settings.hold is None, fast_lgamma=settings.fast_lgamma, apart=analysis
        )
    size = 0 if groups is None else check_batch_size(settings.batch_size, problem.num_groups)
    key = seed_key(settings.seed)
    params = starting_params(problem, key)
    if settings.start is not None:
        params = warm_start(model, params, settings.start, "start", ("globals", "locals"))
    params["globals"] = without_impossible(analysis, params["globals"], flat, key)
    if not all_finite:
        params = without_impossible_values(analysis, params, flat, key)
    if settings.hold is not None:
        if isinstance(model, Model) or not problem.locals:
            raise ValueError("hold= keeps the globals and fits locals: the model needs locals")
        params = warm_start(model, params, settings.hold, "hold", ("globals",))
    capacity = _CAPACITY if groups is not None else _FLAT * _CAPACITY
    if isinstance(groups, Stream):
        capacity = max(_STREAM_CAPACITY, min(_CAPACITY, groups.steps_within(_STREAM_BYTES, size)))
    choosing, estimator = None, settings.gradient
    if isinstance(estimator, AbstractChoice):
        choosing = Choosing(estimator, analysis, flat, groups, size, key)
        estimator = estimator.first(choosing.pilot(params, {}))
    estimator.check(settings.draws)
    optimizer = settings.optimizer or _default_optimizer(estimator.by_latent(analysis), problem)
    check_optimizer(optimizer, {name: latent.family for name, latent in problem.locals.items()})
    method = Method(
        estimator, settings.draws, optimizer, settings.stops, size, capacity, _watch(settings), settings.mesh
    )
    recheck = Recheck(problem, groups, key) if problem.opaque else None
    run = Run(settings, compiled(analysis, method), params, flat, groups, key, recheck, choosing)
    return run if settings.checkpoint is None else run._replace(checkpoint=_checkpoint(run))


def _structure(analysis: Analysis, settings: Settings) -> Sequence[Block]:
    """Choose the blocks of latents, if that is left to the library: those of a posterior that is given, or read off the function.

    Estimators that do not follow paths keep factors apart: theirs is the noise of a whole block.
    """
    model, given = analysis.problem.model, settings.start or settings.hold
    if not model.is_open:
        return ()
    if given is not None:  # what is no posterior is refused where it is used
        return given.structure if isinstance(given, Posterior) else ()
    return choose_structure(analysis) if isinstance(settings.gradient, (AbstractChoice, Pathwise)) else ()


def _watch(settings: Settings) -> AbstractStop | None:
    """Return what has to follow the steps beside the rules, so that a claim of convergence, or a choice, knows how they went."""
    claims = any(rule.outcome is Outcome.CONVERGED for rule in settings.stops)
    follows = any(isinstance(rule, Converged) for rule in settings.stops)
    return Converged() if (claims or isinstance(settings.gradient, AbstractChoice)) and not follows else None


def _checkpoint(run: Run) -> Checkpoint:
    """Name the file of a run and what a call must share with it to go on from it."""
    settings, problem = run.settings, run.loop.analysis.problem
    source = identity_of(run.groups.source) if isinstance(run.groups, Stream) else None
    chosen = {
        "source": source, "gradient": settings.gradient, "draws": settings.draws, "stop": [rule.identity() for rule in settings.stops],
        "batch_size": run.loop.batch_size, "restarts": settings.restarts, "seed": [int(word) for word in run.key], "hold": settings.hold is not None,
    }  # fmt: skip
    some = run.groups.take(probes(len(run.groups))) if isinstance(run.groups, Stream) else None
    steps = behaviour(run.loop.optimizer, {name: latent.family for name, latent in problem.latents.items()})
    shared = fingerprint(chosen, data=(run.data, run.groups, some), start=run.params, optimizer=steps)
    shared["log joint"] = functions_known_by(run.loop.analysis, run.data, run.groups)
    return Checkpoint(settings.checkpoint, settings.checkpoint_seconds, problem.model, shared)


def _default_optimizer(estimators: dict[str, AbstractGradient], problem: Problem) -> optax.GradientTransformation:
    """Choose `natural()`, or `adagrad(1.0)` if a discrete latent uses the score, where natural steps amplify noise.

    As q gives up a value, its Fisher information vanishes, and a natural step divides noise by it.
    """
    by_score = [name for name, gradient in estimators.items() if isinstance(gradient, Score)]
    return adagrad(1.0) if any(problem.latents[name].family.chart.chooses for name in by_score) else natural()
