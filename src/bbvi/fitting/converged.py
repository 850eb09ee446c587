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

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bbvi.fitting.optimizers import check_positive
from bbvi.fitting.stop import AbstractStop

_POWER, _LATE = 3.0, 15.0
# under a steady drift the averages of powers 3 and 15 lag t/5 and t/17 steps behind; half of t steps may be to go
_AHEAD = 0.5 / (1 / (_POWER + 2) - 1 / (_LATE + 2))
_OFTEN = 20
#: N / B, by which the gain that may be left is multiplied, counts no more than this
_WIDEST = 10.0


class Averages(NamedTuple):
    """Averages of one set of parameters, and how many steps went into them.

    The noise is half the squared difference of successive gradients, whatever these drift; `last` is the last one.
    `late` is an average of fewer, later parameters.
    """

    steps: Array
    params: Any
    gradient: Any
    noise: Any
    fisher: Any
    last: Any
    late: Any


class Distance(NamedTuple):
    """The sum over a latent's parameters of (mean(g)**2 + se(g)**2) / F, their number, and the gain of drifting on."""

    total: Array
    num: Array
    ahead: Array


class State(NamedTuple):
    """Averages of the globals, of all rows, and of the rows' distances as the batches show them."""

    steps: Array
    globals: Averages
    rows: Averages
    rows_distance: Any


class Converged(AbstractStop):
    """Stop when every latent's parameters are known to `tolerance` standard deviations of q, and the ELBO to `gain`.

    Under subsampling, where noise cannot fall as fast, the tolerance is multiplied by sqrt(N / B) and the gain by N / B, up to 10.
    When the rule fires, the average of late iterates replaces the last one, unless its ELBO is clearly lower.

    Examples:
        >>> import bbvi
        >>> bbvi.Converged(tolerance=0.05).min_steps
        100
    """

    goes_on: ClassVar[bool] = True
    tolerance: float = 0.02
    gain: float = 0.02
    min_steps: int = 100

    def __check_init__(self):
        check_positive("Converged", "tolerance", self.tolerance)
        check_positive("Converged", "gain", self.gain)

    def init(self, params):
        num_rows = {leaf.shape[0] for leaf in jax.tree.leaves(params["locals"])}
        counts = jnp.zeros(next(iter(num_rows), 0), jnp.int32)
        return State(
            jnp.int32(0),
            _start(params["globals"], jnp.int32(0)),
            _start(params["locals"], counts),
            {name: Distance(*jnp.zeros(3)) for name in params["locals"]},
        )

    def update(self, state, before, after, info):
        estimate, steps = info.estimate, state.steps + 1
        scale = 1.0 if info.batch is None else info.batch.scale
        new_globals = state.globals
        distances: dict[str, Distance] = {}
        if after["globals"]:
            new_globals = _follow(state.globals, after["globals"], estimate.globals, estimate.fisher["globals"])
            distances |= _distances(new_globals)
        new_rows, rows_distance = state.rows, state.rows_distance
        if after["rows"]:
            batch = jax.tree.map(lambda leaf: leaf[info.batch.groups], state.rows)
            batch = jax.vmap(_follow)(batch, after["rows"], estimate.rows, estimate.fisher["rows"])
            seen = jax.tree.map(lambda leaf: scale * leaf.sum(0), jax.vmap(_distances)(batch))
            rows_distance = jax.tree.map(lambda old, new: toward(old, new, steps), rows_distance, seen)
            distances |= rows_distance
            new_rows = jax.tree.map(lambda leaf, rows: leaf.at[info.batch.groups].set(rows), state.rows, batch)
        done, wider = steps >= self.min_steps, min(scale, _WIDEST)
        for distance in distances.values():
            done &= distance.total <= self.tolerance**2 * wider * distance.num
        done &= sum(distance.total for distance in distances.values()) / 2 <= self.gain * wider
        done &= sum(distance.ahead for distance in distances.values()) / 2 <= self.gain * wider
        return State(steps, new_globals, new_rows, rows_distance), done

    def most_gain(self, num_groups: int, batch_size: int) -> float:
        """Return how many nats may be left to gain."""
        return self.gain * min(num_groups / batch_size if batch_size else 1.0, _WIDEST)

    def noise(self, state):
        out = {}
        for averages in (state.globals, state.rows):
            often = np.asarray(averages.steps) >= _OFTEN
            for name in averages.params if often.any() else ():
                total = 0.0
                for p in averages.params[name]:
                    noise, fisher = (np.asarray(part[name][p])[often] for part in (averages.noise, averages.fisher))
                    total += float((noise[fisher > 0] / fisher[fisher > 0]).mean()) if (fisher > 0).any() else 0.0
                out[name] = total
        return out

    def average(self, state, params):
        def rows(mean, last):
            seen = state.rows.steps.reshape(-1, *[1] * (last.ndim - 1)) > 0
            return jnp.where(seen, mean, last)

        return {
            "globals": state.globals.params if state.globals.params else params["globals"],
            "locals": jax.tree.map(rows, state.rows.params, params["locals"]),
        }


def _start(params: Any, count: Array) -> Averages:
    return Averages(count, *[jax.tree.map(jnp.zeros_like, params)] * 6)


def toward(mean: Any, value: Any, count: Any, power: float = _POWER) -> Any:
    """Average with polynomial decay: the weight of iterate t grows as t**power, so that the start is forgotten."""
    return mean + (power + 1) / (count + power) * (value - mean)


def _follow(averages: Averages, params: Any, gradient: Any, fisher: Any) -> Averages:
    steps = averages.steps + 1

    def follow(means: Any, values: Any, power: float = _POWER) -> Any:
        return jax.tree.map(lambda mean, value: toward(mean, value, steps, power), means, values)

    # before the first gradient there is none to differ from: its own square stands in, and is soon forgotten
    noise = jax.tree.map(lambda g, last: jnp.where(steps > 1, (g - last) ** 2 / 2, g**2), gradient, averages.last)
    return Averages(
        steps, follow(averages.params, params), follow(averages.gradient, gradient), follow(averages.noise, noise, _LATE),
        follow(averages.fisher, fisher), gradient, follow(averages.late, params, _LATE),
    )  # fmt: skip


def _distances(averages: Averages) -> dict[str, Distance]:
    """Return the distance of each latent."""
    # the sum of squared weights of the average is (power + 1)**2 / (2 power + 1) / count
    share = jnp.minimum((_POWER + 1) ** 2 / (2 * _POWER + 1) / averages.steps, 1)

    def of_parameter(params: Array, mean: Array, noise: Array, fisher: Array, late: Array) -> Distance:
        known = fisher > 0
        ratio = jnp.where(known, (mean**2 + share * noise) / jnp.where(known, fisher, 1), 0)
        return Distance(ratio.sum(), known.sum(), jnp.vdot(mean, late - params))

    trees = (averages.params, averages.gradient, averages.noise, averages.fisher, averages.late)
    out = {}
    for name in averages.params:
        parts = [of_parameter(*(tree[name][p] for tree in trees)) for p in averages.params[name]]
        total, num, ahead = (sum(part, jnp.zeros(())) for part in zip(*parts, strict=True))
        out[name] = Distance(total, num, _AHEAD * ahead)
    return out
