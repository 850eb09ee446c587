"""Section 5.1: held-out predictive likelihood by Monte Carlo from the approximate posterior."""

import warnings
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array

from bbvi.draws.draws import MonteCarlo
from bbvi.fitting.converged import Converged
from bbvi.fitting.fit import fit
from bbvi.fitting.stop import AbstractStop, Budget
from bbvi.gradients.pathwise import Pathwise
from bbvi.model.groups import Cohort
from bbvi.model.model import AnyModel, HierarchicalModel
from bbvi.model.problem import Problem, bind
from bbvi.numerics.address import fold, seed_key
from bbvi.numerics.xla import for_many_runs
from bbvi.posterior.arviz import flat_draws
from bbvi.posterior.outcome import Outcome
from bbvi.posterior.posterior import Posterior
from bbvi.posterior.ratios import Estimate, from_samples
from bbvi.posterior.values import Ragged

_FLOATS_PER_BLOCK = 1 << 24
# of the fit of the locals: draws of a step where all follow their paths, how many sd of q an error may be, nats a group may gain
_FEW_DRAWS, _TOLERANCE, _GAIN, _MOST_STEPS = 10, 0.05, 0.02, 5_000


class PredictiveLogLikelihood(NamedTuple):
    """Held-out log predictive densities.

    Attributes:
        per_observation: mean of `pointwise`, with a standard error that takes groups as the independent units.
        per_group: mean of `joint`, with a standard error over groups.
        pointwise: log p(x_ij | fit data) of each held-out observation, group after group.
        joint: log p(x_i | fit data) of all held-out observations of each group together.
        group: the group of each entry of `pointwise`.
        pointwise_error: Monte Carlo error of each entry of `pointwise`, from the finite number of draws.
        joint_error: the same for `joint`.

    Printed, it is a short table.
    """

    per_observation: Estimate
    per_group: Estimate
    pointwise: np.ndarray
    joint: np.ndarray
    group: np.ndarray
    pointwise_error: np.ndarray
    joint_error: np.ndarray

    def __repr__(self) -> str:
        rows = [("an observation", self.per_observation, self.pointwise), ("a group", self.per_group, self.joint)]
        lines = [f"{'':16}{'mean':>12}{'standard error':>18}{'number':>12}"]
        lines += [f"{name:16}{mean:12.4g}{mean.standard_error:18.2g}{len(each):12,}" for name, mean, each in rows]
        error = float(np.sqrt(np.mean(self.pointwise_error**2)))
        return "\n".join(
            [
                "log predictive density",
                *lines,
                f"of each in .pointwise and .joint; Monte Carlo error {error:.2g} of an observation",
            ]
        )


class Settled(AbstractStop):
    """Stop where the locals are known well enough to predict, on the average of late iterates.

    It claims no convergence: a verification looks for other optima of all groups at once, in more steps than the fit has made.
    """

    outcome: ClassVar[Outcome] = Outcome.STOPPED
    rule: Converged

    def init(self, params):
        return self.rule.init(params)

    def update(self, state, before, after, info):
        return self.rule.update(state, before, after, info)

    def average(self, state, params):
        return self.rule.average(state, params)


def predictive_log_likelihood(
    posterior: Posterior | Any,
    fit_data: Any,
    held_out_data: Any,
    *,
    observed: str | Callable[[Any], Any] | None = None,
    num_draws: int = 1000,
    seed: int = 0,
    model: AnyModel | None = None,
    **fit_options: Any,
) -> PredictiveLogLikelihood:
    """Score held-out observations of groups whose locals are fitted to the rest of their data.

    `fit_data` and `held_out_data` have the same groups and differ in which observations they mark as observed.
    Locals are fitted to `fit_data` with the posterior's globals held, until the average of late iterates is within 0.05 sd of q
    (at most 5,000 steps), of 10 draws each if all locals follow their paths; `fit_options` go to `bbvi.fit`. Then the
    likelihood of `held_out_data` is averaged over draws. `observed` names the field of a row, or is a function of
    a row, that tells which elements of the likelihood's terms are observations.

    In place of a posterior it takes draws of all latents by MCMC given `fit_data`, a dict of arrays
    `(draw, ...)` and `(draw, group, ...)` or an ArviZ InferenceData, with `model=`.

    Examples:
        >>> import bbvi, jax.numpy as jnp, numpyro.distributions as dist
        >>> model = bbvi.HierarchicalModel(
        ...     log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["w"]),
        ...     log_likelihood=lambda beta, z, y: dist.Normal(beta["w"], 1).log_prob(y),
        ...     globals={"w": bbvi.real()},
        ... )
        >>> posterior = bbvi.fit(model, jnp.array([0.3, 0.9, 0.6, 0.2]))
        >>> score = bbvi.predictive_log_likelihood(posterior, None, jnp.array([0.4, 0.5]))
        >>> score.joint.shape
        (2,)
    """
    model = _model_of(posterior, model)
    problem, _, groups = bind(model, held_out_data)
    assert groups is not None
    if isinstance(groups, Cohort) and observed is None:
        raise ValueError(
            "ragged data have padding: say which elements of the likelihood are observations, "
            'for example observed="observed" or observed=lambda row: row["mask"]["visit"]'
        )
    if isinstance(posterior, Posterior):
        if model.locals:
            posterior = _fitted(posterior, fit_data, problem.num_groups, seed, fit_options)
        draws = posterior.sample(num_draws, seed)
    else:
        draws = _given(posterior, model)
    draws = problem.joined(draws)
    beta = {name: jnp.moveaxis(jnp.asarray(draws[name]), 0, -1) for name in problem.globals}
    z = {name: _groups_first(draws[name], problem, name) for name in problem.locals}
    samples = jnp.arange(jax.tree.leaves((beta, z))[0].shape[-1], dtype=jnp.uint32)
    key = fold(seed_key(seed), "predict")
    z |= jax.vmap(lambda g: problem.call_site(fold(key, g), samples, g))(jnp.arange(problem.num_groups))
    score = jax.jit(jax.vmap(lambda zi, row: _score_group(problem, beta, zi, row, observed)), **for_many_runs())
    size = sum(int(np.prod(problem.shape(name))) for name in problem.latents) + 1
    block = max(1, _FLOATS_PER_BLOCK // (len(samples) * size * 8))
    num_groups, parts = problem.num_groups, []
    block = -(-num_groups // -(-num_groups // block))
    for begin in range(0, num_groups, block):
        # the last block is filled up by the last group: all have one shape
        numbers = np.minimum(np.arange(begin, begin + block), num_groups - 1)
        local = jax.tree.map(lambda leaf, n=numbers: leaf[n], z)
        parts.append(jax.tree.map(np.asarray, score(local, groups.take(numbers))))
        problem.raise_failure()
    return _collect(jax.tree.map(lambda *leaves: np.concatenate(leaves)[:num_groups], *parts))


def _model_of(posterior: Any, model: AnyModel | None) -> HierarchicalModel:
    if isinstance(posterior, Posterior):
        if not isinstance(posterior.model, HierarchicalModel):
            raise TypeError(
                "predictive_log_likelihood needs a HierarchicalModel: a flat log joint does not say which part "
                "is the likelihood of which observation"
            )
        return posterior.model
    if not isinstance(model, HierarchicalModel):
        raise TypeError("with MCMC draws, pass model=, the HierarchicalModel they belong to")
    return model


def _given(posterior: Any, model: HierarchicalModel) -> dict[str, Any]:
    """Return draws by MCMC as arrays."""
    values = flat_draws(posterior.posterior) if hasattr(posterior, "posterior") else posterior
    if missing := [name for name in (*model.globals, *model.locals) if name not in values]:
        raise ValueError(f"the draws lack the latents {missing}")
    return {name: np.asarray(values[name]) for name in (*model.globals, *model.locals)}


def _fitted(posterior: Posterior, fit_data: Any, num_groups: int, seed: int, fit_options: dict[str, Any]) -> Posterior:
    """Fit the locals, with the globals held."""
    options = quick_fit(posterior, num_groups) | fit_options
    fitted = fit(posterior.model, fit_data, hold=posterior, seed=seed, **options)
    if "stop" not in fit_options and fitted.outcome is Outcome.BUDGET:
        warnings.warn(
            f"the locals were still moving after {_MOST_STEPS:,} steps; pass stop= for more, or optimizer=",
            RuntimeWarning,
            stacklevel=3,
        )
    return fitted


def quick_fit(posterior: Posterior, num_groups: int) -> dict[str, Any]:
    """Return options of a fit of locals that is as good as predictions need."""
    rule = Converged(_TOLERANCE, gain=_GAIN * num_groups)
    options: dict[str, Any] = {"stop": (Settled(rule), Budget(steps=_MOST_STEPS))}
    noisy = [name for name in posterior._problem.locals if posterior.estimators.get(name) != repr(Pathwise())]
    return options if noisy else options | {"draws": MonteCarlo(_FEW_DRAWS)}


def _groups_first(draws: Any, problem: Problem, name: str) -> Array:
    array = jnp.asarray(draws.padded if isinstance(draws, Ragged) else draws)
    latent = problem.locals[name]
    expected = (array.shape[0], problem.num_groups, *problem.shape(name), *latent.event)
    if array.shape != expected:
        raise ValueError(f"draws of {name!r} have shape {array.shape}, the held-out data need {expected}")
    if latent.ragged_axes:
        array = jnp.where(jnp.isnan(array), 1, array)  # ArviZ marks padding by NaN; no unmasked term reads it
    return jnp.moveaxis(array, 0, -1)


def _score_group(problem: Problem, beta: Any, z: Any, row: Any, observed: Any) -> dict[str, Any]:
    """log mean exp over draws, of each likelihood element and of their sum, with Monte Carlo errors."""
    num = jax.tree.leaves((beta, z))[0].shape[-1]
    at_one = jax.vmap(lambda b, z: problem.likelihood_terms(b, z, row), in_axes=-1, out_axes=-1, axis_size=num)
    terms = at_one(beta, z)
    flat = jnp.concatenate([term.reshape(-1, num) for term in terms.values()])
    keep = jnp.concatenate([_mask(name, term.shape[:-1], row, observed).ravel() for name, term in terms.items()])
    pointwise, error = _log_mean(flat)
    joint, joint_error = _log_mean(jnp.where(keep[:, None], flat, 0).sum(0))
    return {"pointwise": pointwise, "error": error, "keep": keep, "joint": joint, "joint_error": joint_error}


def _log_mean(log_values: Array) -> tuple[Array, Array]:
    num = log_values.shape[-1]
    mean = logsumexp(log_values, axis=-1) - jnp.log(num)
    return mean, jnp.std(jnp.exp(log_values - mean[..., None]), axis=-1) / jnp.sqrt(num)


def _mask(name: str, shape: tuple[int, ...], row: Any, observed: Any) -> Array:
    """Tell which elements of a likelihood's term of this shape are observations."""
    if observed is None:
        return jnp.ones(shape, bool)
    mask = jnp.asarray(row[observed] if isinstance(observed, str) else observed(row), bool)
    try:
        return jnp.broadcast_to(mask, shape)
    except ValueError:
        raise ValueError(
            f"observed has shape {mask.shape} but {name} has shape {shape}; return the likelihood's terms "
            "unsummed, one for each observation"
        ) from None


def _collect(parts: dict[str, np.ndarray]) -> PredictiveLogLikelihood:
    keep = parts["keep"]
    group = np.broadcast_to(np.arange(keep.shape[0])[:, None], keep.shape)[keep]
    pointwise, joint = parts["pointwise"][keep].astype(np.float64), parts["joint"].astype(np.float64)
    if not len(pointwise):
        raise ValueError("held_out_data has no observations: `observed` is false everywhere")
    mean = pointwise.mean()
    per_group = np.bincount(group, weights=pointwise - mean, minlength=keep.shape[0])
    error = np.sqrt((per_group**2).sum()) / len(pointwise)
    per_observation = Estimate(float(mean), float(error))
    errors = parts["error"][keep], parts["joint_error"]
    return PredictiveLogLikelihood(per_observation, from_samples(joint), pointwise, joint, group, *errors)
