"""Algorithms 1 and 2 as a compiled loop: draw, estimate, step, ask the stopping rules; many steps to a call."""

import copy
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from jaxtyping import Array

from bbvi.blankets.analysis import Analysis
from bbvi.draws.batch import Batch
from bbvi.draws.draws import AbstractDraws
from bbvi.draws.tilts import informed
from bbvi.families.abstract import Lambda
from bbvi.fitting.batches import Batches
from bbvi.fitting.devices import first_on_devices, gathered, run_on_devices, shared
from bbvi.fitting.optimizers import ascend, ascend_rows, init_rows
from bbvi.fitting.state import Record, State
from bbvi.fitting.stop import AbstractStop, Info
from bbvi.gradients.abstract import AbstractGradient, Estimate
from bbvi.model.groups import AbstractGroups
from bbvi.numerics.address import Key, fold
from bbvi.numerics.mesh import Blocks, on_host
from bbvi.numerics.xla import for_one_run, program, run_time_true, stored
from bbvi.posterior.ratios import Densities

#: steps until which small programs are compiled without effort: most fits end before
EARLY = 2000
_LONGER = 2**0.5  # how much longer steps get after each good one, if a setback has shortened them


class Method(NamedTuple):
    """How a step is made, and how many steps a call can make at the most: its `capacity`."""

    gradient: AbstractGradient
    draws: AbstractDraws
    optimizer: optax.GradientTransformation
    stops: tuple[AbstractStop, ...] = ()
    batch_size: int = 0
    capacity: int = 1
    #: a rule that is followed and does not stop the loop
    watch: AbstractStop | None = None
    #: devices that share out the groups
    mesh: Mesh | None = None


class Loop:
    """The loop of one fit, compiled once for all its calls, whatever the number of steps they make."""

    def __init__(self, analysis: Analysis, method: Method):
        self.analysis, self.method = analysis, method
        self.gradient, draws, self.optimizer, stops, self.batch_size, self.capacity, watch, mesh = method
        self.stops = stops if watch is None else (*stops, watch)
        self.draws = draws.arranged(analysis.problem, analysis.blankets, self.gradient.num_folds(draws))
        num, buckets = analysis.problem.num_groups, len(analysis.buckets)
        blocks = None if mesh is None else Blocks.of(mesh, num)
        self.batches = Batches(num, self.batch_size, num_buckets=buckets, capacity=self.capacity, blocks=blocks)
        # the state's buffers are given away: a step must not copy the rows of all groups. A copy runs, so that this loop
        # is in no cycle and goes, with what was compiled, as soon as nobody needs it
        run: Callable[..., Any] = copy.copy(self)._run
        first: Callable[..., State] = copy.copy(self)._first_state
        self._first: Callable[..., State] = first
        if blocks is not None:
            run, first = run_on_devices(run, first, blocks), first_on_devices(first, blocks)
        self._compiled = program(run, runs=EARLY, donate_argnums=1)
        self._init = program(first, **for_one_run())
        #: what posteriors evaluate the ELBO and k-hat by
        prior, group = analysis.blankets
        self.densities = Densities(analysis.problem, prior.trace, group and group.trace)
        #: whether the fit is beyond its early steps
        self.is_late = False
        #: what else was compiled for this loop, and goes with it
        self.programs: dict[Hashable, Callable[..., Any]] = {}

    def at(self, analysis: Analysis) -> "Loop":
        """Return the same compiled loop with another analysis, of which all that is compiled is the same."""
        own = copy.copy(self)
        own.analysis = analysis
        own.batches = copy.copy(self.batches)  # which holds the groups of one fit
        return own

    def work(self) -> float:
        """Count the numbers that the function computes in a step; infinite where that is not known, as of opaque functions."""
        prior, group = self.analysis.blankets
        of_groups = 0.0 if group is None else self.batch_size * group.trace.work()
        return self.draws.num * (prior.trace.work() + of_groups)

    def late(self) -> "Loop":
        """Return the same loop for steps after `EARLY`, compiled with all effort."""
        own = copy.copy(self)
        own.is_late = True
        return own

    def init(self, params: dict[str, Lambda]) -> State:
        """Make the state before the first step, which shares no buffer with these parameters."""
        blocks = self.batches.blocks
        return self._init(params if blocks is None else params | {"locals": blocks.put(params["locals"])})

    def whole(self, params: dict[str, Lambda]) -> dict[str, Lambda]:
        """Return the parameters of a state as they are on one device."""
        blocks = self.batches.blocks
        if blocks is None:
            return params
        return {
            "globals": jax.tree.map(jnp.asarray, on_host(params["globals"])),
            "locals": blocks.whole(params["locals"]),
        }

    def gathered(self, state: State) -> State:
        """Return a state as it is on one device, to be written down."""
        if (blocks := self.batches.blocks) is None:
            return state
        own = copy.copy(self)
        own.batches = self.batches.on_one_device()
        return gathered(state, own._first_state(self.whole(state.params)), self._first, blocks)

    def shared(self, state: State) -> State:
        """Return a state that was written down on any number of devices as it is on these."""
        if (blocks := self.batches.blocks) is None:
            return state
        return shared(state, self.init(state.params), self._first, blocks)

    def _first_state(self, params: dict[str, Lambda]) -> State:
        fitted = self._fitted(params)
        rows = init_rows(self.optimizer, params["locals"])
        optimizer = {"globals": self.optimizer.init(fitted["globals"]), "locals": rows}
        stops = tuple(stop.init(fitted) for stop in self.stops)
        none, zero = jnp.int32(-1), jnp.int32(0)
        previous = ravel_pytree(self.moved(params))[0], jnp.arange(self.batches.places)
        draws, share = self.draws.init(), jnp.ones(())
        state = State(params, optimizer, stops, draws, zero, none, none, zero, previous, share, zero, jnp.bool_(False))
        return jax.tree.map(jnp.copy, state)

    def run(
        self, state: State, key: Key, data: Any, groups: AbstractGroups | None, steps: int, *, moving: bool = True
    ) -> tuple[State, Record, Array]:
        """Make up to `steps` steps, fewer when a rule fires; return the state, the record, and how many were made.

        The state handed in is used up. Without `moving` lambda stays where it is, no rule fires, and every step has the same
        number of draws: what is recorded and averaged is that of one lambda.
        """
        begin = int(state.step)
        source, end = self.batches.source(groups, key, begin, steps), np.array(begin + steps, np.int32)
        return self._compiled((key, data, source, end, np.array(moving)), state, long=self.is_late)

    def estimate(self, params: dict[str, Lambda], data: Any, batch: Batch | None, **how: Any) -> Estimate:
        """Estimate the gradient at this lambda; `how` are the draws, the key and the buffers."""
        return self.gradient.estimate(self.analysis, params["globals"], data, batch, **how)

    def draws_key(self, key: Key, step: Array) -> Key:
        """Return the address at which the random numbers of a step's draws begin."""
        return fold(key, "draws", step)

    def moved(self, params: dict[str, Lambda]) -> dict[str, Lambda]:
        """Return what a step moves: the globals, and rows as of the first groups."""
        rows = jax.tree.map(lambda leaf: leaf[: self.batches.places], params["locals"])
        return {"globals": self._fitted(params)["globals"], "rows": rows}

    def _fitted(self, params: dict[str, Lambda]) -> dict[str, Lambda]:
        return {"globals": params["globals"] if self.analysis.fit_globals else {}, "locals": params["locals"]}

    def _run(self, kept: tuple[Key, Any, Any, Array, Array], state: State) -> tuple[State, Record, Array]:
        key, data, source, end, moving = kept
        zeros, counts = jnp.zeros(self.capacity), jnp.zeros(self.capacity, jnp.int32)
        record = Record(zeros, zeros, zeros, counts, counts, counts)
        begin = state.step

        def buffers_of(draws: AbstractDraws) -> Any:
            batch = self.batches.gather(state.params, key, begin, source, jnp.int32(0))
            return self.gradient.buffers(self.analysis, state.params["globals"], batch, draws)

        # memory for the draws of a step, handed on from step to step
        buffers = jax.tree.map(jnp.zeros_like, jax.eval_shape(lambda: self.draws.buffers(buffers_of)))

        def go_on(carry):
            state, *_ = carry
            return (state.step < end) & (state.fired < 0) & (state.broken < 0)

        def body(carry):
            state, record, buffers = carry
            i = state.step - begin
            state, info, buffers = self._step(state, (key, data, source, moving), i, buffers)
            return state, jax.tree.map(lambda buffer, value: buffer.at[i].set(value), record, info), buffers

        state, record, _ = jax.lax.while_loop(go_on, body, (state, record, buffers))
        return state, record, state.step - begin

    def _step(self, state: State, kept: tuple[Any, ...], i: Array, buffers: Any) -> tuple[State, Record, Any]:
        key, data, source, moving = kept
        batch, peers = self.batches.gather(state.params, key, state.step, source, i), self.batches.peers

        def by(draws: AbstractDraws, key: Key, buffers: Any) -> Estimate:
            return self.estimate(state.params, data, batch, draws=draws, key=key, buffers=buffers)

        at = stored(run_time_true(key), self.draws_key(key, state.step))
        draws, estimate, num_draws = self.draws.estimate(by, state.draws, state.step, key=at, buffers=buffers)
        flat_gradient = ravel_pytree({"globals": estimate.globals, "rows": estimate.rows})[0]
        num = len(self.analysis.problem.latents)
        of_gradient = self._broken(estimate.globals, estimate.rows, flat_gradient)
        finite = _zero_unless(peers.all(of_gradient > num), estimate)
        before, after, optimizer = self._ascend(state, finite, batch)
        flat_after, (flat_before, as_tree) = ravel_pytree(after)[0], ravel_pytree(before)
        broken = jnp.minimum(of_gradient, self._broken(after["globals"], after["rows"], flat_after))
        # one beyond the last latent where only the ELBO is not finite: a term that reads no latent can do that
        broken = jnp.where(jnp.isfinite(estimate.elbo), broken, jnp.minimum(broken, num))
        good = peers.all(broken > num)
        broken = peers.least(jnp.where(good, -1, broken))
        takes = good & moving
        moved = flat_after - flat_before
        end = jnp.where(state.share < 1, flat_before + state.share * moved, flat_after)
        end = jnp.where(takes & ~(state.waits & self._discrete(before)), end, flat_before)
        after = as_tree(end)
        here = flat_before, state.previous[1] if batch is None else batch.at
        previous = jax.tree.map(lambda new, old: jnp.where(takes, new, old), here, state.previous)
        draws = jax.tree.map(lambda new, old: jnp.where(moving, new, old), draws, state.draws)
        info = Info(finite, batch, None if after["rows"] else (end, jnp.where(good, flat_gradient, 0)))
        stops, fired = [], jnp.int32(-1)
        for number, (stop, stop_state) in enumerate(zip(self.stops, state.stops, strict=True)):
            stop_state, fires = stop.update(stop_state, before, after, info)
            stops.append(stop_state)
            fires &= takes & ~state.waits & (number < len(self.method.stops))
            fired = jnp.where(fires & (fired < 0), number, fired)
        params = state.params | ({"globals": after["globals"]} if self.analysis.fit_globals else {})
        if batch is not None and after["rows"]:
            params["locals"] = put_rows(state.params["locals"], batch.at, after["rows"])
        change = jnp.where(takes, self._length(moved, before), 0)
        record = Record(estimate.elbo, estimate.elbo_error, change, estimate.floored, num_draws, jnp.int32(~good))
        new = state._replace(
            params=params, optimizer=optimizer, stops=tuple(stops), draws=draws, step=state.step + good,
            fired=fired, broken=broken, previous=previous, share=jnp.where(good, jnp.minimum(_LONGER * state.share, 1.0), state.share),
            setbacks=jnp.where(good, 0, state.setbacks),
        )  # fmt: skip
        if self.analysis.problem.opaque:
            # a call that failed can be made again: all of the state stays that of the last good step
            last = jax.tree.map(lambda one, other: jnp.where(good, one, other), new, state)
            new = last._replace(broken=broken)
        return new, record, estimate.buffers

    def _ascend(self, state: State, estimate: Estimate, batch: Batch | None):
        of_globals = self._fitted(state.params)["globals"]
        families = informed(self.analysis.problem, state.params["globals"], 1.0 if batch is None else 1 / batch.scale)
        before = {"globals": of_globals, "rows": {} if batch is None else batch.params}
        after, optimizer = dict(before), dict(state.optimizer)
        if of_globals:
            old = state.optimizer["globals"]
            after["globals"], optimizer["globals"] = ascend(self.optimizer, estimate.globals, old, of_globals, families)
        if batch is not None and batch.params:
            rows = jax.tree.map(lambda leaf: leaf[batch.at], state.optimizer["locals"])
            new, rows = ascend_rows(self.optimizer, estimate.rows, rows, batch.params, families)
            after["rows"] = jax.tree.map(batch.only_groups, new, batch.params)
            optimizer["locals"] = put_rows(state.optimizer["locals"], batch.at, rows)
        return before, after, optimizer

    def _length(self, moved: Array, before: dict[str, Lambda]) -> Array:
        """Return the root mean square of what a step moved, on all devices."""
        if self.batches.blocks is None:
            return jnp.sqrt(jnp.square(moved).sum() / max(1, moved.size))
        num = sum(map(jnp.size, jax.tree.leaves(before["globals"])))
        size = num + (moved.size - num) * self.batch_size // self.batches.places
        of_globals, of_rows = jnp.square(moved[:num]).sum(), jnp.square(moved[num:]).sum()
        return jnp.sqrt((of_globals + self.batches.peers.total(of_rows)) / max(1, size))

    def _discrete(self, moved: dict[str, Lambda]) -> np.ndarray:
        """Tell which parameters of what a step moves, as one vector, are of discrete latents."""
        latents = self.analysis.problem.latents
        parts = [own for _, part in sorted(moved.items()) for own in sorted(part.items())]
        discrete = [latents[name].family.chart.is_discrete for name, _ in parts]
        return np.repeat(discrete, [sum(map(jnp.size, params.values())) for _, params in parts])

    def _broken(self, of_globals: Lambda, rows: Lambda, flat: Array) -> Array:
        """Number the first latent, in declaration order, with an entry that is not finite; two beyond the last if all are."""
        latents = list(self.analysis.problem.latents)
        parts = [own for part in (of_globals, rows) for own in sorted(part.items())]
        owners = np.repeat([latents.index(n) for n, _ in parts], [sum(map(jnp.size, p.values())) for _, p in parts])
        none = np.int32(len(latents) + 1)
        return jnp.min(jnp.where(jnp.isfinite(flat), none, owners.astype(np.int32)), initial=none)


def _zero_unless(finite: Array, estimate: Estimate) -> Estimate:
    """Take a gradient of 0 if a part of it is not finite, lest optimisers and rules keep what is not a number."""
    gradient = jax.tree.map(lambda leaf: jnp.where(finite, leaf, 0), (estimate.globals, estimate.rows))
    return estimate._replace(globals=gradient[0], rows=gradient[1])


def put_rows(rows: Any, groups: Array, new: Any) -> Any:
    """Put new rows in the place of those of these groups."""
    return jax.tree.map(lambda leaf, value: leaf.at[groups].set(value), rows, new)
