"""Section 5.3: chains of draws in compiled chunks of sweeps, and what they leave."""

import functools
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from bbvi.blankets.scope import Arrays, Lanes
from bbvi.fitting.run import next_length
from bbvi.model.problem import Problem, Terms
from bbvi.numerics.address import Key, fold
from bbvi.numerics.xla import for_many_runs, program
from bbvi.posterior.arviz import coords_of, dims_of, inference_data
from bbvi.sampling.sweep import ChainState, Scene, evaluate, points, sweep, total

_MOST_IN_CHUNK = 200
_FLOATS_PER_CHUNK = 1 << 25
# step sizes: the gain of Robbins and Monro falls as t^-0.6
_GAIN_POWER = -0.6


class Options(NamedTuple):
    """How to sample: the options of `metropolis_within_gibbs`."""

    num_draws: int = 1000
    num_burn_in: int = 1000
    num_chains: int = 4
    thin: int = 1
    seed: int | Array = 0
    hold: Any = None
    keep: Sequence[str] | None = None

    def check(self) -> None:
        """Refuse numbers that are too small or no integers."""
        for name, least in {"num_burn_in": 0, "num_draws": 1, "thin": 1, "num_chains": 1}.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
                raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")

    def sweeps(self, done: int) -> int:
        """Count the sweeps of the first `done` chunks' entries: those of burn-in are one sweep each, draws are `thin`."""
        return min(done, self.num_burn_in) + max(0, done - self.num_burn_in) * self.thin


class Span(NamedTuple):
    """Which sweeps a compiled chunk makes: `num_draws` draws, each after `thin` sweeps, from the sweep `first` on.

    Random numbers come from `key`. `held` are the numbers of the globals to hold, one for each draw that a chunk has room for.
    """

    key: Key
    held: Int[Array, " capacity"]
    num_draws: Int[Array, ""]
    first: Int[Array, ""]
    thin: Int[Array, ""]


class Record(NamedTuple):
    """Draws of some sweeps, first axes chain and draw: values by scope, log p, rates of acceptance by latent."""

    values: list[Arrays]
    log_joint: Array
    acceptance: Arrays


class Chains:
    """Chains so far: `seconds` since they started, `num_sweeps`, `num_draws`, and the draws by `to_arviz()`."""

    def __init__(self, run: "Run", records: Sequence[Record], num_sweeps: int, seconds: float):
        self._run, self._records, self.num_sweeps, self.seconds = run, list(records), num_sweeps, seconds

    def __repr__(self) -> str:
        return f"Chains({self.num_draws} draws, {self.num_sweeps} sweeps, {self.seconds:.1f} s)"

    @property
    def num_draws(self) -> int:
        """Draws of each chain; 0 while step sizes are tuned."""
        return sum(record.log_joint.shape[1] for record in self._records)

    @property
    def log_joint(self) -> float:
        """Mean over the chains of log p at the last draw; NaN before the first."""
        return float(self._records[-1].log_joint[:, -1].mean()) if self._records else float("nan")

    def to_arviz(self) -> Any:
        """The draws for ArviZ, with the groups `posterior` and `sample_stats`; padding is NaN."""
        if not self._records:
            raise ValueError(f"no draws yet: {self.num_sweeps} sweeps were made, and burn-in is not over")
        whole: Record = jax.tree.map(lambda *leaves: np.concatenate(leaves, 1), *self._records)
        problem, lanes = self._run.problem, self._run.lanes
        values: dict[str, Any] = {n: whole.values[0][n][..., 0] for n in self._run.keep if n in problem.globals}
        values |= {n: _in_place(problem, n, whole.values, lanes) for n in self._run.keep if n in problem.locals}
        stats = {"lp": whole.log_joint, **{f"acceptance_{name}": rate for name, rate in whole.acceptance.items()}}
        return inference_data(
            {"posterior": values, "sample_stats": stats}, dims_of(problem.model), coords_of(problem.model)
        )


def _in_place(problem: Problem, name: str, values: list[Arrays], lanes: list[Lanes]) -> np.ndarray:
    """Join a local's draws of all buckets, groups after draws, at the longest length; NaN where a group is shorter."""
    latent, first = problem.locals[name], values[1][name]
    kind = np.float32 if latent.ragged_axes and latent.family.chart.is_discrete else first.dtype
    fill = np.nan if latent.ragged_axes else 0
    out = np.full((*first.shape[:2], problem.num_groups, *problem.shape(name), *latent.event), fill, kind)
    for of_bucket, lane in zip(values[1:], lanes[1:], strict=True):
        *shape, num = lane.real[name].shape
        real = np.asarray(lane.real[name]).reshape(*shape, *[1] * len(latent.event), num)
        corner: Any = [slice(size) for size in shape]
        drawn = np.moveaxis(np.where(real, of_bucket[name], fill), -1, 2)
        out[(slice(None), slice(None), np.asarray(lane.groups), *corner)] = drawn
    return out


class Run(NamedTuple):
    """Chains that are ready to run. `held` are draws of the globals, by chain and draw, in coordinates."""

    problem: Problem
    scene: Scene
    lanes: list[Lanes]
    state: ChainState
    held: Arrays | None
    key: Key
    keep: tuple[str, ...]
    options: Options


def drain(run: Run) -> Iterator[Chains]:
    """Run chunk after chunk. The length of a chunk depends on the clock; nothing that is computed does."""
    began, options = time.monotonic(), run.options
    size = sum(leaf.size for part in run.state.u for name, leaf in part.items() if name in run.keep)
    capacity = int(max(1, min(_MOST_IN_CHUNK, _FLOATS_PER_CHUNK // max(1, size))))
    over_chains = (0, 0, 0, None if run.held is None else 0, None, None)
    compiled = program(jax.vmap(functools.partial(_chunk, run), over_chains), **for_many_runs())
    numbers = jnp.arange(options.num_chains, dtype=jnp.uint32)
    records: list[Record] = []
    shapes = jax.eval_shape(jax.vmap(lambda u: evaluate(run.scene, points(run.scene, u), run.lanes)), run.state.u)
    terms = jax.tree.map(jnp.zeros_like, shapes)
    state, done, length = run.state, 0, 1
    while done < options.num_burn_in + options.num_draws:
        burning = done < options.num_burn_in
        left = options.num_burn_in + (0 if burning else options.num_draws) - done
        count, before = min(length, left, capacity), time.monotonic()
        thin, held = 1 if burning else options.thin, np.zeros(capacity, np.int32)
        held[:count] = [held_draw(options, done + i) for i in range(count)]
        span = Span(run.key, jnp.asarray(held), *map(jnp.int32, (count, options.sweeps(done), thin)))
        state, terms, record = compiled(state, terms, numbers, run.held, run.lanes, span)
        record = jax.tree.map(lambda leaf, count=count: np.asarray(leaf)[:, :count], record)
        if not burning:
            records = [*records, record]
        took = (time.monotonic() - before) * (options.thin if burning else 1)
        # the first call compiled: its time says nothing
        length = next_length(length, took, count) if done else 1
        done += count
        yield Chains(run, records, options.sweeps(done), time.monotonic() - began)


def _chunk(
    run: Run, state: ChainState, terms: list[Terms], chain: Array, held: Arrays | None, lanes: list[Lanes], span: Span
) -> tuple[ChainState, list[Terms], Record]:
    """Make one chain's chunk of sweeps; terms are carried from chunk to chunk, whose lengths must not show in their rounding."""
    scene, owners = run.scene, run.scene.owners(run.scene.moving)

    def terms_at(state: ChainState) -> list[Terms]:
        return evaluate(scene, points(scene, state.u), lanes)

    def rate(name: str, accepted: list[Arrays]) -> Array:
        """Give the share of a latent's elements that were accepted."""
        num = sum(lanes[n].real[name].sum() for n in owners[name])
        return sum(accepted[n][name].sum() for n in owners[name]) / jnp.maximum(num, 1)

    def one_sweep(number: Array, carry: Any) -> Any:
        state, terms, so_far = carry
        gain = jnp.where(number < run.options.num_burn_in, (number + 1.0) ** _GAIN_POWER, 0.0)
        at = fold(span.key, "sweep", number)
        state, decided = sweep(scene, lanes, state, terms, key=at, chain=chain, gain=gain)
        rates = {name: so_far[name] + rate(name, decided.accepted) / span.thin for name in owners}
        return state, decided.terms, rates

    def one_draw(i: Int[Array, ""], carry: Any) -> Any:
        state, terms, record = carry
        if held is not None:
            state = state._replace(u=[{k: leaf[span.held[i]] for k, leaf in held.items()}, *state.u[1:]])
            terms = terms_at(state)
        begin = span.first + i * span.thin
        state, terms, rates = jax.lax.fori_loop(begin, begin + span.thin, one_sweep, (state, terms, none))
        made = _record(run, state, terms, rates)
        return state, terms, jax.tree.map(lambda all_, new: all_.at[i].set(new), record, made)

    none = {name: jnp.zeros(()) for name in owners}
    terms = jax.lax.cond(span.first == 0, terms_at, lambda _: terms, state)
    shapes = jax.eval_shape(functools.partial(_record, run), state, terms, none)
    record = jax.tree.map(lambda leaf: jnp.zeros((len(span.held), *leaf.shape), leaf.dtype), shapes)
    return jax.lax.fori_loop(0, span.num_draws, one_draw, (state, terms, record))


def _record(run: Run, state: ChainState, terms: list[Terms], rates: Arrays) -> Record:
    seen = points(run.scene, state.u)
    values = [{name: value for name, value in point.values.items() if name in run.keep} for point in seen]
    return Record(values, total(terms), rates)


def held_draw(options: Options, done: int) -> int:
    """Choose the draw of the globals to hold for this draw; burn-in goes through all of them, backwards to the first."""
    if done >= options.num_burn_in:
        return done - options.num_burn_in
    return (options.num_burn_in - 1 - done) * options.num_draws // options.num_burn_in
