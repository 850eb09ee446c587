"""Section 5.3: Metropolis-Hastings within Gibbs, the paper's baseline, on the same model object as `fit`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bbvi.blankets.analysis import Analysis, analyse
from bbvi.blankets.check import check_blankets
from bbvi.blankets.colouring import by_latent, colour, cut, global_reads, local_reads, moves
from bbvi.blankets.scope import Arrays, Lanes
from bbvi.draws.draws import OfGroup, draw_values, over_factors
from bbvi.families.abstract import Lambda
from bbvi.fitting.terminal import progress_bar
from bbvi.model.groups import AbstractGroups, ArrayGroups, Stream
from bbvi.model.latents import Latent
from bbvi.model.model import AnyModel, structured
from bbvi.model.problem import Problem, bind
from bbvi.model.start import starting_params
from bbvi.numerics.address import Key, fold, seed_key
from bbvi.numerics.xla import for_one_run, program
from bbvi.posterior.arviz import flat_draws
from bbvi.sampling.chains import Chains, Options, Run, drain
from bbvi.sampling.lanes import all_lanes
from bbvi.sampling.proposals import AbstractProposal, proposal
from bbvi.sampling.sweep import AbstractKernel, AllAtOnce, ChainState, Coordinatewise, Scene, evaluate, points

_FIRST_LOG_STEP = float(np.log(0.3))
# below this many terms, padding included, a sweep is short anyway: buckets would only take time to compile
_WORTH_BUCKETS = 1 << 17


def metropolis_within_gibbs(
    model: AnyModel,
    data: Any = None,
    *,
    num_draws: int = 1000,
    num_burn_in: int = 1000,
    num_chains: int = 4,
    thin: int = 1,
    seed: int | Array = 0,
    hold: Any = None,
    keep: Sequence[str] | None = None,
    progress: bool | None = None,
) -> Any:
    """Draw from the posterior by Metropolis-Hastings steps within Gibbs sampling, as an ArviZ InferenceData.

    Each element of each latent is moved by a proposal centred on its value, of its support's family (a gamma for a
    positive one, with the Hastings correction), and accepted by the terms that read it. Elements that share no
    term move together. Step sizes are tuned in burn-in and fixed afterwards. `bbvi.mixing` tells how well the chains
    mixed.

    Args:
        num_draws: draws kept of each chain, one every `thin` sweeps.
        num_burn_in: sweeps before the first draw, in which step sizes are tuned.
        hold: draws of the globals, as an InferenceData or a dict of arrays `(draw, ...)`; each is held in turn while
            the locals of new groups move, from where they were: draws of p(globals | other data) p(locals | globals, data).
        keep: latents whose draws are kept; default all.
        progress: show a bar; default on a terminal.

    Examples:
        >>> import bbvi, jax.numpy as jnp, numpyro.distributions as dist
        >>> def log_joint(z, y):
        ...     return dist.Gamma(2, 1).log_prob(z["rate"]) + dist.Poisson(z["rate"]).log_prob(y).sum()
        >>> model = bbvi.Model(log_joint, rate=bbvi.positive())
        >>> draws = bbvi.metropolis_within_gibbs(model, jnp.array([3, 5, 4]))
        >>> print(f"{float(draws.posterior['rate'].mean()):.1f}")  # the posterior is Gamma(14, 4)
        3.5
    """
    options = Options(num_draws, num_burn_in, num_chains, thin, seed, hold, keep)
    return _draws(model, data, Coordinatewise(), options, progress)


def metropolis_hastings(model: AnyModel, data: Any = None, *, progress: bool | None = None, **options: Any) -> Any:
    """Draw by plain Metropolis-Hastings, which proposes and decides on all latents at once.

    It is here because the paper compares with it: in many dimensions it fails. Options and result are those of
    `metropolis_within_gibbs`.

    Examples:
        >>> import bbvi, numpyro.distributions as dist
        >>> model = bbvi.Model(lambda z, y: dist.Normal(0, 1).log_prob(z["mu"]), mu=bbvi.real())
        >>> bbvi.metropolis_hastings(model, num_draws=100, num_burn_in=100).posterior["mu"].shape
        (4, 100)
    """
    return _draws(model, data, AllAtOnce(), Options(**options), progress)


def _draws(model: AnyModel, data: Any, kernel: AbstractKernel, options: Options, progress: bool | None) -> Any:
    total = options.num_burn_in + options.num_draws * options.thin
    with progress_bar(progress, total, shown="log p") as report:
        for chains in drain(_prepare(model, data, kernel, options)):
            report(chains.num_sweeps, chains.log_joint)
    return chains.to_arviz()


def iterate_metropolis(
    model: AnyModel, data: Any = None, *, kernel: AbstractKernel | None = None, **options: Any
) -> Iterator[Chains]:
    """Run `metropolis_within_gibbs` as a generator: yield the chains so far, once for each compiled chunk of sweeps.

    `kernel` is `Coordinatewise()` by default; `AllAtOnce()` is plain Metropolis-Hastings. The other options are those of
    `metropolis_within_gibbs` but for `progress`.

    Examples:
        >>> import bbvi, numpyro.distributions as dist
        >>> model = bbvi.Model(lambda z, y: dist.Normal(0, 1).log_prob(z["mu"]), mu=bbvi.real())
        >>> for chains in bbvi.iterate_metropolis(model, num_draws=50, num_burn_in=50):
        ...     pass  # look at chains.seconds, break when it is enough
        >>> chains.num_draws
        50
    """
    yield from drain(_prepare(model, data, kernel or Coordinatewise(), Options(**options)))


def _prepare(model: AnyModel, data: Any, kernel: AbstractKernel, options: Options) -> Run:
    options.check()
    if not isinstance(kernel, AbstractKernel):
        raise TypeError(f"kernel= takes bbvi.Coordinatewise() or bbvi.AllAtOnce(), got {kernel!r}")
    problem, flat, groups = bind(structured(model, ()), data)
    if problem.opaque:
        raise ValueError(
            f"{', '.join(problem.opaque)} is opaque: Metropolis-Hastings calls the log joint at every move of every chain, "
            "compiled; write the function in JAX, or use bbvi.fit"
        )
    if isinstance(groups, Stream):
        groups = ArrayGroups(jax.tree.map(jnp.asarray, groups.take(np.arange(len(groups)))))
    keep, hold, key = options.keep, options.hold, seed_key(options.seed)
    if unknown := [name for name in keep or () if name not in problem.latents]:
        raise ValueError(f"keep= names {unknown}; the latents are {list(problem.latents)}")
    analysis = analyse(problem, flat, groups)
    if analysis.floats_per_draw * problem.num_groups < _WORTH_BUCKETS:
        analysis = analysis._replace(buckets=())
    check_blankets(problem, analysis.blankets, flat, groups)
    lanes = all_lanes(analysis, flat, groups)
    scene = _scene(kernel, analysis, groups, hold is None)
    held = None if hold is None else _held(problem, scene, hold, options.num_chains, options.num_draws)
    state = _start(scene, problem, lanes, key, options.num_chains)
    if held is not None:
        state = state._replace(u=[{name: leaf[:, 0] for name, leaf in held.items()}, *state.u[1:]])
    _check_start(scene, state, lanes)
    kept = tuple(name for name in problem.latents if keep is None or name in keep)
    return Run(problem, scene, lanes, state, held, fold(key, "metropolis"), kept, options)


def _scene(kernel: AbstractKernel, analysis: Analysis, groups: AbstractGroups | None, move_globals: bool) -> Scene:
    problem = analysis.problem
    colours: list[Any] = [{}]
    if move_globals:
        rows = None
        if groups is not None and analysis.blankets.of_group.look_ups:
            rows = groups.take(np.arange(len(groups)))
        colours = [by_latent(problem, problem.globals, colour(global_reads(problem, analysis.blankets, rows)))]
    if problem.num_groups:
        longest = by_latent(problem, problem.locals, colour(local_reads(analysis.blankets.of_group)))
        colours += [cut(longest, scope) if longest else {} for scope in analysis.scopes[1:]]
    proposals = {name: proposal(latent) for name, latent in problem.latents.items()}
    moving = range(0 if move_globals else 1, len(analysis.scopes))
    return Scene(kernel, analysis.scopes, proposals, colours, [moves(c) for c in colours], moving)


def _start(scene: Scene, problem: Problem, lanes: list[Lanes], key: Key, num_chains: int) -> ChainState:
    """Draw each chain's start from the q from which a fit would start."""
    params, samples, at = starting_params(problem, key), jnp.arange(num_chains, dtype=jnp.uint32), fold(key, "chains")

    def of_group(group: Array, params: Lambda) -> Arrays:
        return draw_values(problem, problem.locals, params, key=fold(at, group), samples=samples, of=OfGroup(group))[0]

    def coordinates(params: Any) -> Arrays:
        beta, _ = draw_values(problem, problem.globals, params["globals"], key=at, samples=samples)
        values = {name: value[..., None] for name, value in beta.items()}
        if problem.locals:
            values |= jax.vmap(of_group, out_axes=-1)(jnp.arange(problem.num_groups), params["locals"])
        first = {name: jnp.moveaxis(value, -2, 0) for name, value in values.items()}
        return {name: _coordinates(scene.proposals[name], x, first[name]) for name, x in problem.latents.items()}

    made = jax.jit(coordinates, **for_one_run())(params)
    u, log_step = [], []
    for lane in lanes:
        corners = {name: tuple(map(slice, real.shape[:-1])) for name, real in lane.real.items()}
        u.append({name: made[name][(slice(None), *corner)][..., lane.groups] for name, corner in corners.items()})
        shapes = {name: (num_chains, *real.shape) for name, real in lane.real.items()}
        log_step.append({name: jnp.full(shape, _FIRST_LOG_STEP, float) for name, shape in shapes.items()})
    return ChainState(u, log_step)


def _coordinates(of_latent: AbstractProposal, latent: Latent, values: Array) -> Array:
    """Turn values `(chain, *factors, *event, lanes)` into coordinates."""
    return jax.vmap(over_factors(latent, of_latent.chart.coordinates, -1, 0))(values)


def _held(problem: Problem, scene: Scene, hold: Any, num_chains: int, num_draws: int) -> Arrays:
    """Deal draws of the globals out to the chains, `(chain, draw, *factors, *event, 1)`, in coordinates."""
    if not problem.locals:
        raise ValueError("hold= keeps the globals and moves locals: the model needs locals")
    values = flat_draws(hold.posterior) if hasattr(hold, "posterior") else hold
    if not isinstance(values, Mapping):
        raise TypeError(
            f"hold= takes draws as ArviZ has them or a dict of draws of the globals, got {type(hold).__name__}"
        )
    out = {}
    for name, latent in problem.globals.items():
        if name not in values:
            raise ValueError(f"hold= lacks the global {name!r}; it has {sorted(values)}")
        drawn = jnp.asarray(values[name])
        shape = problem.shape(name) + latent.event
        if drawn.ndim == 0 or drawn.shape[1:] != shape or not len(drawn):
            raise ValueError(f"hold= has draws of {name!r} of shape {drawn.shape}, expected (draws, *{shape})")
        dealt = np.arange(num_chains * num_draws) * len(drawn) // (num_chains * num_draws)
        u = _coordinates(scene.proposals[name], latent, drawn[dealt][..., None])
        out[name] = u.reshape(num_chains, num_draws, *u.shape[1:])
    return out


def _check_start(scene: Scene, state: ChainState, lanes: list[Lanes]) -> None:
    """Raise unless the log joint is finite where the chains start."""
    terms_at = jax.vmap(lambda u, lanes: evaluate(scene, points(scene, u), lanes), in_axes=(0, None))
    terms = program(terms_at, **for_one_run())(state.u, lanes)
    if broken := [name for part in terms for name, term in part.items() if not np.isfinite(term).all()]:
        raise ValueError(
            f"{broken[0]} is not finite where the chains start; give init= with a value inside the posterior's support, "
            "and check the function for values that overflow"
        )
