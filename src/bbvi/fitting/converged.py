"""The default stopping rule: stop when the averaged gradient says that nothing is left to gain.

Along the run, polynomial-decay averages (Shamir and Zhang 2013) follow lambda, its gradient g, the noise of g and the
Fisher information F of q. For a stationary run the averaged gradient is that at the averaged lambda, so
sqrt((mean(g)**2 + se(g)**2) / F) bounds how far lambda still is from the optimum, in standard deviations of q
for a location and the like for other parameters, and half the sum of its squares is the gain in the ELBO that is still
to be had, where parameters do not depend on each other. Where they do, lambda creeps along a ridge: a later average has
moved on from the earlier one, and the averaged gradient tells what going on along that way would gain. The rule fires when the root mean square of the distance over the parameters of every latent is below `tolerance`, and both gains
are below `gain` nats. A step size too small to move, noise too large to see through or a drift that goes on all keep it
from firing.
"""

import collections
import itertools
import math
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bbvi.fitting.optimizers import check_positive
from bbvi.fitting.stop import AbstractStop
from bbvi.numerics.mesh import on_host
from bbvi.numerics.xla import for_one_run

_POWER, _LATE = 3.0, 15.0
# under a steady drift the averages of powers 3 and 15 lag t/5 and t/17 steps behind; half of t steps may be to go
_AHEAD = 0.5 / (1 / (_POWER + 2) - 1 / (_LATE + 2))
# of the gain that may be left, what may be left along that way once a claim was verified: 0.001 nat is a location off by 0.045
# of its standard deviation. It is not asked for sooner: a run that creeps along a ridge is carried on by its verification
_DRIFT = 0.05
_OFTEN = 20
# averages begin anew after a step of more standard deviations of q, and when they say that lambda is more than one away
# while the last two gradients are so many times shorter than the averaged one
_JUMP, _SHORTER = 10.0, 30.0
#: how many times its usual value the tolerance, and the gain that may be left, can be under subsampling
_WIDEST, _MOST_GAIN = 15.0, 10.0


class Averages(eqx.Module):
    """Averages of one set of parameters, all in one vector for each row, and how many steps went into them.

    The noise is half the squared difference of successive gradients, whatever these drift; `last` is the last one.
    `late` is an average of fewer, later parameters, and `previous` are the last ones.
    """

    steps: Int[Array, "*rows"]
    params: Float[Array, "*rows columns"]
    gradient: Float[Array, "*rows columns"]
    noise: Float[Array, "*rows columns"]
    fisher: Float[Array, "*rows columns"]
    last: Float[Array, "*rows columns"]
    late: Float[Array, "*rows columns"]
    previous: Float[Array, "*rows columns"]
    #: of each parameter its latent and the number of its columns
    columns: tuple[tuple[str, int], ...] = eqx.field(static=True)

    @property
    def variance(self) -> Float[Array, "*rows columns"]:
        """The squared standard error of the averaged gradient, whose weights' squares sum to (power + 1)**2 / (2 power + 1) / steps."""
        share = (_POWER + 1) ** 2 / (2 * _POWER + 1) / self.steps[..., None]
        return share.clip(max=1) * self.noise

    def by_latent(self, values: Float[Array, "... columns"]) -> Float[Array, "... latents"]:
        """Sum over the columns of each latent; neighbours of one size are summed together."""
        sizes: dict[str, int] = collections.Counter()
        for name, size in self.columns:
            sizes[name] += size
        found, begin = [], 0
        for size, equal in itertools.groupby(sizes.values()):
            num = len(list(equal))
            own = values[..., begin : begin + num * size]
            found.append(own.reshape(*own.shape[:-1], num, size).sum(-1))
            begin += num * size
        return jnp.concatenate(found, -1)


class State(NamedTuple):
    """Averages of the globals, of all rows, and of the rows' distances as the batches show them."""

    steps: Array
    globals: Averages
    rows: Averages
    rows_distance: Float[Array, "3 latents"]
    #: what would be gained along the way of the averages, as a share of the gain that may be left, and how much of it may be
    ahead: Float[Array, ""]
    allowed: Float[Array, ""]


class Converged(AbstractStop):
    """Stop when every latent's parameters are known to `tolerance` standard deviations of q, and the ELBO to `gain`.

    Under subsampling, where noise cannot fall as fast, the tolerance is multiplied by sqrt(N / B), up to 15, and the gain by
    N / B, up to 10.
    When the rule fires, the average of late iterates replaces the last one, unless its ELBO is clearly lower.

    Examples:
        >>> import bbvi
        >>> bbvi.Converged(tolerance=0.05).min_steps
        100
    """

    goes_on: ClassVar[bool] = True
    on_mesh: ClassVar[bool] = True
    tolerance: float = 0.02
    gain: float = 0.02
    min_steps: int = 100

    def __check_init__(self):
        check_positive("Converged", "tolerance", self.tolerance)
        check_positive("Converged", "gain", self.gain)

    def init(self, params):
        num_rows = {leaf.shape[0] for leaf in jax.tree.leaves(params["locals"])}
        rows = _start(params["locals"], (next(iter(num_rows), 0),))
        distance = jnp.zeros((3, len(params["locals"])))
        return State(jnp.int32(0), _start(params["globals"], ()), rows, distance, jnp.zeros(()), jnp.ones(()))

    def update(self, state, before, after, info):
        estimate, steps = info.estimate, state.steps + 1
        scale = 1.0 if info.batch is None else info.batch.scale
        new_globals, new_rows, rows_distance = state.globals, state.rows, state.rows_distance
        distances = []
        if after["globals"]:
            params, gradient = info.flat or (after["globals"], estimate.globals)
            new_globals = _follow(state.globals, params, gradient, estimate.fisher["globals"])
            steps = jnp.minimum(steps, new_globals.steps)
            distances.append(new_globals.by_latent(_distances(new_globals)))
        if after["rows"]:
            batch = jax.tree.map(lambda leaf: leaf[info.batch.at], state.rows)
            batch = _follow(batch, after["rows"], estimate.rows, estimate.fisher["rows"])
            of_groups = jax.vmap(info.batch.only_groups)(_distances(batch))
            seen = scale * batch.by_latent(info.batch.peers.total(of_groups.sum(1)))
            rows_distance = toward(rows_distance, seen, steps)
            distances.append(rows_distance)
            new_rows = jax.tree.map(lambda leaf, rows: leaf.at[info.batch.at].set(rows), state.rows, batch)
        total, num, ahead = jnp.concatenate(distances, -1)
        tolerance, gain = self.tolerance * min(scale**0.5, _WIDEST), self.gain * min(scale, _MOST_GAIN)
        share = ahead.sum() / 2 / gain
        done = (steps >= self.min_steps) & jnp.all(total <= tolerance**2 * num)
        done &= (total.sum() / 2 <= gain) & (share <= state.allowed)
        # with batches it is the noise of these that decides
        seen = share if scale == 1 else jnp.zeros_like(share)
        return State(steps, new_globals, new_rows, rows_distance, seen, state.allowed), done

    def goes_on_verified(self, state):
        allowed = np.full_like(state.allowed, _DRIFT)
        return state._replace(allowed=jax.device_put(allowed)) if float(state.ahead) > _DRIFT else None

    def doubt(self, state):
        if int(state.steps) < self.min_steps:
            return ""
        parts = [(state.rows, np.asarray(state.rows_distance))]
        if state.globals.columns:
            found = jax.jit(lambda own: own.by_latent(_distances(own)), **for_one_run())(state.globals)
            parts.append((state.globals, np.asarray(found)))
        apart: dict[str, float] = {}
        for averages, (total, num, _) in parts:
            names = dict.fromkeys(name for name, _ in averages.columns)
            apart |= dict(zip(names, np.sqrt(total / np.maximum(num, 1)).tolist(), strict=True))
        name = max(apart, key=lambda n: apart[n])
        total = sum(float(distance[0].sum()) for _, distance in parts) / 2
        return f"{name!r} is known to {apart[name]:.2g} sd of q, all together to {total:.2g} nat"

    def most_gain(self, num_groups: int, batch_size: int) -> float:
        """Return how many nats may be left to gain."""
        return self.gain * min(num_groups / batch_size if batch_size else 1.0, _MOST_GAIN)

    def noise(self, state):
        out: dict[str, float] = {}
        for averages in (state.globals, state.rows):
            averages = on_host(averages)
            often, begin = averages.steps >= _OFTEN, 0
            for name, size in averages.columns if often.any() else ():
                own, begin = slice(begin, begin + size), begin + size
                noise, fisher = (part[often][..., own] for part in (averages.noise, averages.fisher))
                mean = float((noise[fisher > 0] / fisher[fisher > 0]).mean()) if (fisher > 0).any() else 0.0
                out[name] = out.get(name, 0.0) + mean
        return out

    def average(self, state, params):
        def seen(averages, last):
            return np.where(averages.steps[..., None] > 0, averages.params, _flat(last, averages.steps.ndim, np))

        # on the host: nothing is compiled for it
        pairs = on_host(((state.globals, params["globals"]), (state.rows, params["locals"])))
        own = [shaped(seen(averages, last), last) if averages.columns else last for averages, last in pairs]
        return jax.device_put(dict(zip(("globals", "locals"), own, strict=True)))


def shaped(vectors: Float[np.ndarray, "*rows columns"], like: Any) -> Any:
    """Cut a vector of all parameters, or one for each row, into a tree like this one."""
    leaves, structure = jax.tree.flatten(like)
    sizes = [np.size(leaf) // math.prod(vectors.shape[:-1]) for leaf in leaves]
    cut = zip(np.split(vectors, np.cumsum(sizes)[:-1], axis=-1), leaves, strict=True)
    return jax.tree.unflatten(structure, [own.reshape(leaf.shape) for own, leaf in cut])


def _flat(tree: Any, num_axes: int, module: Any = jnp) -> Float[Array, "*rows columns"]:
    """Write all parameters into one vector, or into one for each row if there is an axis of rows."""
    return module.concatenate([leaf.reshape(*leaf.shape[:num_axes], -1) for leaf in jax.tree.leaves(tree)], -1)


def _start(params: Any, rows: tuple[int, ...]) -> Averages:
    size = math.prod(rows) or 1
    columns = tuple((name, params[name][p].size // size) for name in sorted(params) for p in sorted(params[name]))
    zeros = jnp.zeros((*rows, sum(num for _, num in columns)))
    return Averages(jnp.zeros(rows, jnp.int32), zeros, zeros, zeros, zeros, zeros, zeros, zeros, columns)


def toward(mean: Any, value: Any, count: Any, power: float = _POWER) -> Any:
    """Average with polynomial decay: the weight of iterate t grows as t**power, so that the start is forgotten."""
    return mean + (power + 1) / (count + power) * (value - mean)


def _follow(averages: Averages, *trees: Any) -> Averages:
    """Add one step's parameters, gradient and Fisher information."""
    params, gradient, fisher = (_flat(tree, averages.steps.ndim) for tree in trees)
    old = averages
    # what was averaged before a long step, or where the ELBO was much steeper, says nothing of where it led
    jumped = (fisher * (params - old.previous) ** 2).sum(-1) > _JUMP**2
    averaged, last, now = (
        (g**2 / jnp.where(fisher > 0, fisher, jnp.inf)).sum(-1) for g in (old.gradient, old.last, gradient)
    )
    arrived = (averaged > 1) & (averaged > _SHORTER**2 * jnp.maximum(last, now))
    # and what a float cannot hold would never be forgotten
    lost = ~jnp.isfinite((old.noise + old.fisher + old.gradient).sum(-1))
    anew = jumped | arrived | lost
    old = jax.tree.map(lambda leaf: jnp.where(anew.reshape(anew.shape + (1,) * (leaf.ndim - anew.ndim)), 0, leaf), old)
    steps = old.steps + 1
    count = steps[..., None]
    # before the first gradient there is none to differ from: its own square stands in, and is soon forgotten
    noise = jnp.where(count > 1, (gradient - old.last) ** 2 / 2, gradient**2)
    return Averages(
        steps, toward(old.params, params, count), toward(old.gradient, gradient, count),
        toward(old.noise, noise, count, _LATE), toward(old.fisher, fisher, count), gradient,
        toward(old.late, params, count, _LATE), params, old.columns,
    )  # fmt: skip


def _distances(averages: Averages) -> Float[Array, "3 *rows columns"]:
    """Return (mean(g)**2 + se(g)**2) / F, whether it is known, and the gain of drifting on, for each parameter."""
    mean, fisher = averages.gradient, averages.fisher
    known = fisher > 0
    ratio = jnp.where(known, (mean**2 + averages.variance) / jnp.where(known, fisher, 1), 0)
    return jnp.stack([ratio, known.astype(ratio.dtype), _AHEAD * mean * (averages.late - averages.params)])
