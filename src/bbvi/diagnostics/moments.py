"""How noisy is the gradient: its mean and variance over repeats, at a fixed lambda (Figure 2)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bbvi.blankets.analysis import analyse
from bbvi.draws.batch import Batch, check_batch_size
from bbvi.draws.draws import AbstractDraws, MonteCarlo
from bbvi.families.abstract import Lambda
from bbvi.fitting.cache import compiled
from bbvi.fitting.choose import Choosing
from bbvi.fitting.loop import Loop, Method
from bbvi.fitting.noise import mean_and_spread
from bbvi.fitting.optimizers import adagrad
from bbvi.gradients.abstract import AbstractGradient, Estimate
from bbvi.gradients.auto import AbstractChoice
from bbvi.gradients.pathwise import Pathwise
from bbvi.gradients.score import Score
from bbvi.model.groups import ArrayGroups, Stream
from bbvi.model.model import AnyModel, structured
from bbvi.model.problem import bind
from bbvi.numerics.address import Key, fold, seed_key
from bbvi.numerics.xla import program
from bbvi.posterior.posterior import Posterior


class GradientMoments(NamedTuple):
    """Moments of the full-data ELBO's gradient, each in the structure of `Posterior.params`."""

    mean: Lambda
    variance: Lambda
    standard_error: Lambda


def gradient_moments(
    model: AnyModel,
    data: Any,
    posterior: Posterior,
    *,
    gradient: AbstractGradient | AbstractChoice | None = None,
    draws: AbstractDraws | None = None,
    repeats: int = 1000,
    batch_size: int | None = None,
    seed: int | Array = 0,
) -> GradientMoments:
    """Repeat the noisy gradient at a posterior's lambda and report its moments.

    Rows of locals carry N/B here, so that every entry estimates the gradient of the full-data ELBO.

    Examples:
        >>> import bbvi, numpyro.distributions as dist
        >>> model = bbvi.Model(lambda z, y: dist.Normal(3, 1).log_prob(z["mu"]), mu=bbvi.real(init=0.0))
        >>> start = bbvi.fit(model, stop=bbvi.Budget(steps=0))
        >>> moments = bbvi.gradient_moments(model, None, start, draws=bbvi.MonteCarlo(10), repeats=2000)
        >>> round(float(moments.mean["mu"]["loc"]), 1)  # the exact gradient is 3
        3.0
    """
    if repeats < 2:
        raise ValueError(f"gradient_moments needs 2 repeats or more to see a variance, got {repeats}")
    if model.is_open:
        model = structured(model, posterior.structure)
    problem, flat, groups = bind(model, data)
    # where q of locals depends on globals only paths are followed
    gradient = gradient or (Score() if problem.leading is None else Pathwise())
    draws = draws or MonteCarlo(100)
    gradient.check(draws)
    if isinstance(groups, Stream):
        groups = ArrayGroups(jax.tree.map(jnp.asarray, groups.take(np.arange(len(groups)))))
    size = 0 if groups is None else check_batch_size(batch_size, problem.num_groups)
    analysis = analyse(problem, flat, groups)
    params = {part: {name: posterior.params[name] for name in own} for part, own in model.factors.items()}
    if isinstance(gradient, AbstractChoice):
        pilot = Choosing(gradient, analysis, flat, groups, size, seed_key(seed)).pilot(params, {})
        gradient = gradient.settled(pilot, gradient.first(pilot))
    loop = compiled(analysis, Method(gradient, draws, adagrad(), batch_size=size))
    # at another lambda nothing is compiled again
    moments = loop.programs.setdefault(("moments", repeats), _program(loop, repeats))
    mean, spread = jax.block_until_ready(moments(fold(seed_key(seed), "moments"), params, flat, groups))
    problem.raise_failure()
    variance = jax.tree.map(lambda s: s / (repeats - 1), spread)
    return GradientMoments(mean, variance, jax.tree.map(lambda v: jnp.sqrt(v / repeats), variance))


def _program(loop: Loop, repeats: int) -> Callable[..., tuple[Lambda, Lambda]]:
    """Compile the mean of the repeated full-data gradients and the sum of their squared distances to it."""

    def moments(key: Key, params: dict[str, Lambda], flat: Any, groups: Any) -> Any:
        def one(repeat: Array) -> Lambda:
            batch = loop.batches.gather(params, key, repeat, groups, jnp.int32(0))
            estimate = loop.estimate(params, flat, batch, draws=loop.draws, key=loop.draws_key(key, repeat))
            return full_gradient(estimate, batch, params["locals"])

        return mean_and_spread(one, repeats)

    return program(moments, runs=1)


def full_gradient(estimate: Estimate, batch: Batch | None, rows: Lambda) -> Lambda:
    """Make one noisy gradient of the full-data ELBO: the batch's rows times N/B, the others 0."""

    def at_all_groups(leaf: Array, gradient: Array) -> Array:
        assert batch is not None, "a flat model has no rows"
        return jnp.zeros_like(leaf).at[batch.groups].set(batch.scale * gradient)

    return {**estimate.globals, **jax.tree.map(at_all_groups, dict(rows), estimate.rows)}
