"""Section 5.3: one sweep of Metropolis-Hastings, by complete conditionals (within Gibbs) or all latents at once.

Written for one chain. A coordinate moves once in a sweep, and its proposal depends on its own value alone: so all
proposals of a sweep are drawn before its first move, and a state within a sweep is which of them were accepted.
"""

import functools
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bbvi.blankets.colouring import Colours, Move
from bbvi.blankets.scope import Arrays, Lanes, Point, Scope
from bbvi.draws.draws import over_factors
from bbvi.model.latents import Latent
from bbvi.model.problem import Terms
from bbvi.numerics.address import Address, Key, fold, fold_names
from bbvi.numerics.xla import materialise, run_time_true
from bbvi.sampling.proposals import DECISION, AbstractProposal

Scalar = Float[Array, ""]


class ChainState(NamedTuple):
    """What the next sweep of a chain needs, by scope: coordinates of the latents and logarithms of their step sizes."""

    u: list[Arrays]
    log_step: list[Arrays]


class Offer(NamedTuple):
    """All proposals of a sweep: by scope, coordinates, old and new points, Hastings corrections, log uniforms."""

    u: list[Arrays]
    old: list[Point]
    new: list[Point]
    correction: list[Arrays]
    log_uniform: list[Arrays]


class Scene(NamedTuple):
    """What a chain moves in: its kernel, scopes, the latents' proposals, and the colours of each scope and their moves.

    `moving` are the numbers of the scopes whose latents move: all, or all but the globals'.
    """

    kernel: "AbstractKernel"
    scopes: Sequence[Scope]
    proposals: dict[str, AbstractProposal]
    colours: Sequence[Colours]
    moves: Sequence[Sequence[Move]]
    moving: range

    def owners(self, numbers: range) -> dict[str, list[int]]:
        """Map each latent to those of these scopes that it belongs to."""
        latents = {n: self.scopes[n].latents for n in numbers}
        return {name: [n for n in numbers if name in latents[n]] for own in latents.values() for name in own}


class Decided(NamedTuple):
    """By scope, which proposals are accepted, with what probability, and the terms that follow."""

    accepted: list[Arrays]
    chances: list[Arrays]
    terms: list[Terms]


class AbstractKernel(eqx.Module):
    """A way to move a chain that leaves the posterior as it is."""

    @abstractmethod
    def target_acceptance(self, latent: Latent) -> float:
        """The rate of acceptance to which step sizes are tuned."""

    @abstractmethod
    def decide(
        self, scene: Scene, lanes: list[Lanes], offer: Offer, terms: list[Terms], key: Key, chain: Array
    ) -> Decided:
        """Decide which proposals of a sweep are accepted, given the terms at the old values."""


class Coordinatewise(AbstractKernel):
    """Metropolis-Hastings within Gibbs: each element is accepted by its own blanket, a colour at a time.

    Examples:
        >>> import bbvi
        >>> bbvi.Coordinatewise()
        Coordinatewise()
    """

    def target_acceptance(self, latent):
        return 0.3 if latent.event else 0.44  # Roberts and Rosenthal (2001): 0.44 for one coordinate

    def decide(self, scene, lanes, offer, terms, key, chain):
        accepted = jax.tree.map(lambda x: jnp.zeros(x.shape, bool), offer.correction)
        decided = Decided(accepted, jax.tree.map(jnp.zeros_like, offer.correction), terms)
        for number in scene.moving:
            for move in scene.moves[number]:
                decided = _move(scene, lanes, offer, number, move, decided, run_time_true(key))
        return decided


class AllAtOnce(AbstractKernel):
    """Plain Metropolis-Hastings: all latents are proposed together, and accepted or rejected together.

    Examples:
        >>> import bbvi
        >>> bbvi.AllAtOnce()
        AllAtOnce()
    """

    def target_acceptance(self, latent):
        return 0.234

    def decide(self, scene, lanes, offer, terms, key, chain):
        points = [offer.new[n] if n in scene.moving else offer.old[n] for n in range(len(scene.scopes))]
        new = evaluate(scene, points, lanes)
        log_ratio = total(new) - total(terms)
        for n in scene.moving:
            for name, correction in offer.correction[n].items():
                log_ratio = log_ratio + jnp.where(lanes[n].real[name], correction, 0).sum()
        uniform = Address(fold(key, "all at once"), jnp.uint32(0), jnp.uint32(0), chain).uniform()
        yes = jnp.log(uniform) < log_ratio
        accepted = [{k: yes & (n in scene.moving) & real for k, real in x.real.items()} for n, x in enumerate(lanes)]
        chances = jax.tree.map(lambda x: jnp.broadcast_to(_probability(log_ratio), x.shape), offer.correction)
        return Decided(accepted, chances, jax.tree.map(lambda a, b: jnp.where(yes, a, b), new, terms))


def sweep(
    scene: Scene, lanes: list[Lanes], state: ChainState, terms: list[Terms], *, key: Key, chain: Array, gain: Scalar
) -> tuple[ChainState, Decided]:
    """Move every latent of one chain once; with a `gain`, tune the step sizes (Robbins and Monro 1951)."""
    on = run_time_true(key)
    offer = materialise(on, lambda state, lanes, key: offered(scene, lanes, state, key, chain), state, lanes, key)
    decided = scene.kernel.decide(scene, lanes, offer, terms, key, chain)
    u = [_mixed(scope, decided.accepted[n], offer.u[n], state.u[n]) for n, scope in enumerate(scene.scopes)]
    log_step: list[Arrays] = [{} for _ in scene.scopes]
    for n, scope in enumerate(scene.scopes):
        for name, at in state.log_step[n].items():
            proposal, goal = scene.proposals[name], scene.kernel.target_acceptance(scope.latents[name])
            moved = at + (gain if proposal.is_tuned else 0) * (decided.chances[n][name] - goal)
            log_step[n][name] = jnp.clip(moved, -20.0, proposal.largest_log_step)
    return ChainState(u, log_step), decided


def offered(scene: Scene, lanes: list[Lanes], state: ChainState, key: Key, chain: Array) -> Offer:
    """Draw the proposals of a sweep; numbers depend on sweep, latent, group, element and chain alone."""
    u: list[Arrays] = [{} for _ in scene.scopes]
    correction: list[Arrays] = [{} for _ in scene.scopes]
    log_uniform: list[Arrays] = [{} for _ in scene.scopes]
    owners = scene.owners(range(len(scene.scopes)))
    for (name, within), own_key in zip(owners.items(), fold_names(key, list(owners)), strict=True):
        rows = [_as_rows(scene.scopes[n], name, state, lanes[n], n, own_key) for n in within]
        # the rows of all scopes at once: there is one loop to compile
        joined = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *rows)
        made = jax.vmap(functools.partial(_one, scene.proposals[name], chain))(*joined)
        ends = np.cumsum([state.log_step[n][name].size for n in within])[:-1]
        for n, *parts in zip(within, *(jnp.split(leaf, ends) for leaf in made), strict=True):
            shape = state.log_step[n][name].shape
            new, correction[n][name], log_uniform[n][name] = (leaf.reshape(*shape, *leaf.shape[1:]) for leaf in parts)
            u[n][name] = jnp.moveaxis(new, len(shape) - 1, -1)
    return Offer(u, points(scene, state.u), points(scene, u), correction, log_uniform)


def _as_rows(scope: Scope, name: str, state: ChainState, lanes: Lanes, number: int, key: Key) -> tuple[Array, ...]:
    """Make a row for each factor and lane: coordinates, step size, and where it stands (element, key, group)."""
    latent, log_step = scope.latents[name], state.log_step[number][name]
    u = jnp.moveaxis(state.u[number][name], -1, len(latent.shape)).reshape(log_step.size, *latent.event)
    of_lane = jax.vmap(lambda g: fold(key, g))(lanes.groups)
    elements = jnp.asarray(latent.elements(scope.problem.lengths)).reshape(*log_step.shape[:-1], 1)
    where = [jnp.broadcast_to(x, log_step.shape).ravel() for x in (elements, lanes.groups)]
    keys = jnp.broadcast_to(of_lane, (*log_step.shape, 2)).reshape(-1, 2)
    return u, log_step.ravel(), where[0], keys, where[1]


def _one(
    proposal: AbstractProposal, chain: Array, u: Array, log_step: Array, element: Array, key: Key, group: Array
) -> tuple[Array, Array, Array]:
    """Propose for one factor in one lane; what no float can hold is never accepted."""
    address = Address(key, group, element, chain)
    new, correction = proposal(u, log_step, address)
    correction = jnp.where(proposal.chart.floored(new), -jnp.inf, correction)
    return new, correction, jnp.log(address.uniform(DECISION))


def points(scene: Scene, u: list[Arrays]) -> list[Point]:
    """Give what the model sees of these coordinates, by scope."""
    return [_point(scene, scope, part) for scope, part in zip(scene.scopes, u, strict=True)]


def _point(scene: Scene, scope: Scope, u: Arrays) -> Point:
    charts = {name: (scene.proposals[name].chart, latent) for name, latent in scope.latents.items()}
    values = {name: over_factors(latent, chart.value, -1, 0)(u[name]) for name, (chart, latent) in charts.items()}
    logs = {name: chart.log_value(u[name]) for name, (chart, _) in charts.items()}
    return Point(values, {name: log for name, log in logs.items() if log is not None})


def evaluate(scene: Scene, points: Sequence[Point], lanes: list[Lanes]) -> list[Terms]:
    """Evaluate the terms of every scope."""
    return [scope.terms(points[0], points[n], lanes[n]) for n, scope in enumerate(scene.scopes)]


def total(terms: list[Terms]) -> Scalar:
    """Sum all terms: log p."""
    return sum((term.sum() for part in terms for term in part.values()), jnp.zeros(()))


def _move(scene: Scene, lanes: list[Lanes], offer: Offer, number: int, move: Move, now: Decided, on: Array) -> Decided:
    """Decide on the colours of a move, one after the other."""
    accepted, chances, terms = ([*part] for part in now)
    names, scopes = move.names, scene.scopes
    near = range(len(scopes)) if number == 0 else [number]
    touched = {n: reading for n in near if (reading := scopes[n].reading(names))}
    held = [_between(scopes[n], offer, n, accepted[n]) for n in range(len(scopes))]

    def step(carry: Any, colour: Array) -> tuple[Any, None]:
        so_far, chance, current = carry
        chosen = {k: (scene.colours[number][k] == colour)[..., None] & lanes[number].real[k] for k in names}
        trying = accepted[number] | {k: so_far[k] | chosen[k] for k in names}

        def at_trial(trying: Arrays) -> dict[int, Terms]:
            at = [*held]
            at[number] = materialise(on, lambda yes: _between(scopes[number], offer, number, yes), trying)
            made = {n: scopes[n].terms(at[0], at[n], lanes[n]) for n in touched}
            return {n: {t: part[t] for t in touched[n]} for n, part in made.items()}

        trial = materialise(on, at_trial, trying)
        log_ratio = {k: offer.correction[number][k] for k in names}
        for n, new in trial.items():
            change = scopes[n].log_p(names, jax.tree.map(jnp.subtract, new, current[n]), lanes[n])
            log_ratio = jax.tree.map(jnp.add, log_ratio, change)
        yes = {k: chosen[k] & (offer.log_uniform[number][k] < log_ratio[k]) for k in names}
        chance = {k: jnp.where(chosen[k], _probability(log_ratio[k]), chance[k]) for k in names}
        changed = {n: scopes[n].changed(names, yes, new, lanes[n]) for n, new in trial.items()}
        following = jax.tree.map(jnp.where, changed, trial, current)
        return (jax.tree.map(jnp.logical_or, so_far, yes), chance, following), None

    begin = {n: {t: terms[n][t] for t in reading} for n, reading in touched.items()}
    before = ({k: accepted[number][k] for k in names}, {k: chances[number][k] for k in names}, begin)
    (so_far, chance, following), _ = jax.lax.scan(step, before, jnp.asarray(move.colours))
    accepted[number], chances[number] = accepted[number] | so_far, chances[number] | chance
    for n, new in following.items():
        terms[n] = terms[n] | new
    return Decided(accepted, chances, terms)


def _between(scope: Scope, offer: Offer, number: int, accepted: Arrays) -> Point:
    """Give the point at which some proposals are taken."""
    new, old = offer.new[number], offer.old[number]
    return Point(_mixed(scope, accepted, new.values, old.values), _mixed(scope, accepted, new.logs, old.logs))


def _mixed(scope: Scope, accepted: Arrays, new: Arrays, old: Arrays) -> Arrays:
    """Take the new array where a proposal is accepted, the old one elsewhere."""
    events = {name: tuple(range(len(x.shape), len(x.shape + x.event))) for name, x in scope.latents.items()}
    yes = {name: jnp.expand_dims(accepted[name], events[name]) for name in new}
    return {name: jnp.where(yes[name], new[name], old[name]) for name in new}


def _probability(log_ratio: Array) -> Array:
    return jnp.where(jnp.isnan(log_ratio), 0, jnp.exp(jnp.minimum(log_ratio, 0)))
