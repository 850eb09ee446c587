"""Setbacks: after a step that is not finite go back to the last good lambda, take shorter steps, and draw anew.

The compiled loop ends at such a step without having moved; what follows is done between two of its calls. A q that has draws
where log p is not finite at its very start is narrowed, and moved to where log p is finite.
"""

import dataclasses
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from bbvi.draws.batch import Batch, by_bucket
from bbvi.draws.draws import draw_values
from bbvi.families.abstract import Lambda
from bbvi.fitting.devices import on_devices
from bbvi.fitting.loop import put_rows
from bbvi.fitting.probe import Fit, Params
from bbvi.fitting.state import State, own_copy
from bbvi.gradients.impossible import without_impossible_values
from bbvi.model.groups import Cohort
from bbvi.model.problem import total
from bbvi.model.start import starting_params
from bbvi.numerics.address import fold
from bbvi.numerics.xla import for_one_run, program

#: a fit gives up after this many setbacks in a row
MOST_IN_A_ROW = 20
_PATIENCE = 3  # setbacks in a row before q is narrowed too
_LATE, _OFTEN = 1000, 0.05  # of the last steps, the share of setbacks that is worth a warning
_WIDTHS = (1.0, 0.25, 0.05, 0.005)
_CENTRES, _CANDIDATES = 5, 256
_SPREADS = (1.0, 0.1, 5.0, 0.01, 50.0)
#: what to add to a parameter, times the logarithm of a factor, for q to become narrower or wider by that factor
_WIDTH = {"scale": 1.0, "variance": 2.0, "concentration": -2.0}


def set_back(fit: Fit, state: State) -> State:
    """Go back after a step that was not finite; `broken` stays set if that was one too many."""
    in_a_row = int(state.setbacks) + 1
    state = state._replace(setbacks=jnp.int32(in_a_row))
    if in_a_row >= MOST_IN_A_ROW:
        return state
    loop = fit.loop

    def back(params: Params, previous: tuple[Array, Array], step: Array) -> Params:
        params, (last, at) = dict(params), previous
        before = ravel_pytree(loop.moved(params))[1](last)
        if loop.analysis.fit_globals:
            params["globals"] = before["globals"]
            if in_a_row > _PATIENCE:
                params["globals"] = narrowed(params["globals"], 0.5)
        if before["rows"]:
            params["locals"] = put_rows(params["locals"], at, before["rows"])
            # which of the groups it was is not known; those that are as they should be soon are wider again
            concerned = loop.batches.rows(fit.key, step)
            rows = jax.tree.map(lambda leaf: leaf[concerned], params["locals"])
            params["locals"] = put_rows(params["locals"], concerned, narrowed(rows, 0.5))
        return params

    params = (back if loop.batches.blocks is None else on_devices(back, loop.batches.blocks))(
        state.params, state.previous, state.step
    )
    # random numbers are a function of the step's number: the next one draws others
    return own_copy(state._replace(params=params, share=state.share / 2, step=state.step + 1, broken=jnp.int32(-1)))


def narrowed(params: Lambda, factor: float) -> Lambda:
    """Make q narrower by a factor, as far as its parameters are known to say how wide it is."""
    by = {p: number * np.log(factor) for p, number in _WIDTH.items()}
    return {name: {p: leaf + by.get(p, 0.0) for p, leaf in own.items()} for name, own in params.items()}


def find_start(fit: Fit, state: State) -> State | None:
    """Find a q to start from whose draws are finite: narrower, or at another centre; None if there seems to be none."""
    for centre, params in enumerate(_centres(fit, without_impossible(fit, state))):
        for width in _WIDTHS:
            start = {part: narrowed(own, width) for part, own in params.items()}
            if not fit.loop.analysis.fit_globals:
                start["globals"] = state.params["globals"]
            trial = fit.loop.init(start)
            after, *_ = fit.loop.run(own_copy(trial), fit.key, fit.data, fit.groups, 1)
            fit.loop.analysis.problem.raise_failure()
            if int(after.broken) < 0:
                if centre == 0 and width == 1:
                    return trial
                how = "narrowed" if centre == 0 else "moved and narrowed"
                warnings.warn(
                    f"the starting q had draws at which log p is not finite; it was {how}. Give init= to choose yourself "
                    "where to start, or declare a narrower support",
                    RuntimeWarning,
                    stacklevel=2,
                )
                return trial
    return None


def without_impossible(fit: Fit, state: State) -> State:
    """Take what log p rules out of the discrete latents of all groups."""
    if fit.groups is None or fit.loop.analysis.problem.opaque:
        return state
    loop, groups, num, state = fit.loop, fit.groups, fit.loop.analysis.problem.num_groups, own_copy(state)

    def batches() -> Iterator[Batch]:
        for first in range(0, num, loop.batch_size):
            those, counts = jnp.arange(first, first + loop.batch_size) % num, None
            if isinstance(groups, Cohort) and loop.analysis.buckets:
                those, counts = by_bucket(those, groups.bucket, len(loop.analysis.buckets))
            rows = jax.tree.map(jnp.asarray, groups.take(np.asarray(those)))
            own = jax.tree.map(lambda leaf, those=those: leaf[those], state.params["locals"])
            yield Batch(those, rows, groups.lengths(those), own, counts, num_groups=num)

    return state._replace(params=without_impossible_values(loop.analysis, state.params, fit.data, fit.key, batches()))


def _centres(fit: Fit, state: State) -> Iterator[Params]:
    """Yield lambdas to start from: the given one, one around the best of some draws, and other random ones."""
    yield state.params
    if fit.groups is None and (best := _best_draw(fit, state)) is not None:
        yield best
    for number in range(_CENTRES):
        yield starting_params(fit.loop.analysis.problem, fold(fit.key, "again", number))


def _best_draw(fit: Fit, state: State) -> Params | None:
    """Centre q on the draw with the highest log p, of q and of narrower and wider ones; None if log p is finite at none."""
    problem = fit.loop.analysis.problem
    samples = jnp.arange(_CANDIDATES, dtype=jnp.uint32)

    def drawn(params: Lambda, key: Any) -> Any:
        values, _ = draw_values(problem, problem.globals, params, key=key, samples=samples)
        return values, total(jax.vmap(lambda z: problem.prior_terms(z, fit.data), in_axes=-1, out_axes=-1)(values))

    compiled, best, found = program(drawn, **for_one_run()), -np.inf, None
    for number, spread in enumerate(_SPREADS):
        values, log_p = compiled(narrowed(state.params["globals"], spread), fold(fit.key, "centre", number))
        log_p = np.where(np.isfinite(log_p), log_p, -np.inf)
        if log_p.max() > best:
            best, which = log_p.max(), int(log_p.argmax())
            found = {name: values[name][..., which] for name in problem.globals}
    if found is None:
        return None
    start = dict(state.params["globals"])
    for name, value in found.items():
        latent = problem.globals[name]
        if latent.init is None and latent.family.centred(value) is not None:
            given = dataclasses.replace(latent, init=value).given_start(name, problem.lengths)
            start[name] = start[name] | {p: jnp.broadcast_to(leaf, start[name][p].shape) for p, leaf in given.items()}
    return {**state.params, "globals": start}


def frequent(setbacks: np.ndarray) -> str | None:
    """Say that many of the last steps were setbacks; None if few were."""
    late = setbacks[-_LATE:]
    if late.sum() <= _OFTEN * len(late):
        return None
    return (
        f"{int(late.sum())} of the last {len(late)} steps were setbacks: a gradient or the ELBO was not finite. q has mass where log p "
        "is not finite: declare a narrower support, or check the log joint for values that can overflow"
    )
