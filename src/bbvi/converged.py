"""Our stopping rule: stop when the averaged gradient says that lambda is known to a fraction of a posterior sd.

Along the run, polynomial-decay averages (Shamir and Zhang 2013) follow lambda, its gradient g, g**2 and the
Fisher information F of q. For a stationary run the averaged gradient is that at the averaged lambda, so
sqrt((mean(g)**2 + se(g)**2) / F) bounds how far lambda still is from the optimum, in standard deviations of q
for a location and the like for other parameters. The rule fires when the root mean square of this over the
parameters of every latent is below `tolerance`. A step size too small to move, noise too large to see through
or a drift that goes on all keep it from firing.
"""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bbvi.stop import AbstractAveragingStop

_POWER = 3.0
_OFTEN = 20


class Averages(NamedTuple):
    """Averages of one set of parameters, and how many steps went into them."""

    steps: Array
    params: Any
    gradient: Any
    square: Any
    fisher: Any


class State(NamedTuple):
    """Averages of the globals, of all rows, and of the rows' distance as the batches show it."""

    steps: Array
    globals: Averages
    rows: Averages
    rows_distance: Any


class Converged(AbstractAveragingStop):
    """Stop when every latent's parameters are known to `tolerance` posterior standard deviations.

    Under subsampling, where noise cannot fall as fast, the tolerance is multiplied by sqrt(N / B). When the
    rule fires, the average of late iterates replaces the last one, unless its ELBO is clearly lower.

    Examples:
        >>> import bbvi
        >>> bbvi.Converged(tolerance=0.05).min_steps
        100
    """

    means_converged: ClassVar[bool] = True
    tolerance: float = 0.01
    min_steps: int = 100

    def __check_init__(self):
        if not self.tolerance > 0:
            raise ValueError(f"Converged: tolerance must be positive, got {self.tolerance}")

    def init(self, params):
        num_rows = {leaf.shape[0] for leaf in jax.tree.leaves(params["locals"])}
        counts = jnp.zeros(next(iter(num_rows), 0), jnp.int32)
        return State(
            jnp.int32(0),
            _start(params["globals"], jnp.int32(0)),
            _start(params["locals"], counts),
            {name: jnp.zeros(()) for name in params["locals"]},
        )

    def update(self, state, before, after, info):
        estimate, steps = info.estimate, state.steps + 1
        scale = 1.0 if info.groups is None else info.num_groups / info.groups.shape[0]
        done = steps >= self.min_steps
        new_globals = state.globals
        if after["globals"]:
            new_globals = _follow(state.globals, after["globals"], estimate.globals, estimate.fisher["globals"])
            for distance in _distances(new_globals).values():
                done &= distance <= self.tolerance**2 * scale
        new_rows, rows_distance = state.rows, state.rows_distance
        if after["rows"]:
            batch = jax.tree.map(lambda leaf: leaf[info.groups], state.rows)
            batch = jax.vmap(_follow)(batch, after["rows"], estimate.rows, estimate.fisher["rows"])
            seen = {name: values.mean() for name, values in jax.vmap(_distances)(batch).items()}
            rows_distance = jax.tree.map(lambda old, new: _toward(old, new, steps), rows_distance, seen)
            for distance in rows_distance.values():
                done &= distance <= self.tolerance**2 * scale
            new_rows = jax.tree.map(lambda leaf, rows: leaf.at[info.groups].set(rows), state.rows, batch)
        return State(steps, new_globals, new_rows, rows_distance), done

    def noise(self, state: State) -> dict[str, float]:
        """The variance of each latent's gradient in units of the Fisher information, where enough steps were seen."""
        out = {}
        for averages in (state.globals, state.rows):
            often = np.asarray(averages.steps) >= _OFTEN
            for name in averages.params if often.any() else ():
                ratios = []
                for p in averages.params[name]:
                    mean, square, fisher = (
                        np.asarray(part[name][p])[often]
                        for part in (averages.gradient, averages.square, averages.fisher)
                    )
                    ratios.append(((square - mean**2)[fisher > 0] / fisher[fisher > 0]).ravel())
                out[name] = float(sum(ratio.mean() if ratio.size else 0.0 for ratio in ratios))
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
    zeros = jax.tree.map(jnp.zeros_like, params)
    return Averages(count, zeros, zeros, zeros, zeros)


def _toward(mean: Array, value: Array, count: Array) -> Array:
    """Polynomial-decay averaging: the weight of iterate t grows as t**3, so that the start is forgotten."""
    return mean + (_POWER + 1) / (count + _POWER) * (value - mean)


def _follow(averages: Averages, params: Any, gradient: Any, fisher: Any) -> Averages:
    steps = averages.steps + 1

    def follow(means: Any, values: Any) -> Any:
        return jax.tree.map(lambda mean, value: _toward(mean, value, steps), means, values)

    square = jax.tree.map(jnp.square, gradient)
    return Averages(
        steps, follow(averages.params, params), follow(averages.gradient, gradient),
        follow(averages.square, square), follow(averages.fisher, fisher),
    )  # fmt: skip


def _distances(averages: Averages) -> dict[str, Array]:
    """For each latent, the mean over its parameters of (mean(g)**2 + se(g)**2) / F."""
    # the sum of squared weights of the average is (power + 1)**2 / (2 power + 1) / count
    share = (_POWER + 1) ** 2 / (2 * _POWER + 1) / averages.steps

    def ratio(mean: Array, square: Array, fisher: Array) -> tuple[Array, Array]:
        known = fisher > 0
        error = jnp.maximum(square - mean**2, 0) * jnp.minimum(share, 1)
        return jnp.where(known, (mean**2 + error) / jnp.where(known, fisher, 1), 0).sum(), known.sum()

    out = {}
    for name in averages.params:
        pairs = [
            ratio(averages.gradient[name][p], averages.square[name][p], averages.fisher[name][p])
            for p in averages.params[name]
        ]
        out[name] = sum(total for total, _ in pairs) / jnp.maximum(sum(count for _, count in pairs), 1)
    return out
