"""Eq. 3, 6 and 10: noisy gradients of the ELBO from values of log p alone."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from bbvi.draws.draws import AbstractDraws, Cut, cut_samples, only_counted
from bbvi.draws.layout import Buffers, lay_out
from bbvi.families import Params
from bbvi.gradients.abstract import AbstractGradient, Estimate
from bbvi.gradients.control_variates import AbstractControlVariate, CrossFit, NoControlVariate
from bbvi.gradients.evaluate import evaluate
from bbvi.numerics.loops import accumulate
from bbvi.numerics.xla import sum_over_samples


class Sums(NamedTuple):
    """Sums over samples of one table, with folds last: the control variate's, before and after, and the squared scores."""

    sums: Any
    squares: Params
    revisited: Any


class _Carry(NamedTuple):
    """What a chunk hands on: the shifts of the weights, memory, the running sums of the ELBO, and of draws floored."""

    shifts: dict[str, Array]
    buffers: Buffers
    elbo_shift: Array
    elbo: Array
    elbo_squares: Array
    floored: Array


class Score(AbstractGradient):
    """The score-function gradient.

    `Score(False, None)` is Eq. 3, `Score(True, None)` is Eq. 6 and `Score(True, PlugIn())` is Eq. 10;
    the default is Eq. 10 with the bias of a* removed.

    Examples:
        >>> import bbvi
        >>> bbvi.Score(rao_blackwell=False, control_variate=None)
        Score(rao_blackwell=False, control_variate=None)
    """

    rao_blackwell: bool = True
    control_variate: AbstractControlVariate | None = CrossFit()

    def __check_init__(self):
        given = self.control_variate
        if not (given is None or isinstance(given, AbstractControlVariate)):
            raise TypeError(f"Score: control_variate takes, for example, bbvi.LeaveOneOut() or None, got {given!r}")

    def check(self, draws):
        variate = self._variate(draws)
        least = variate.min_draws
        if draws.num < least:
            name = type(self.control_variate).__name__
            raise ValueError(
                f"{name} needs {least} draws or more to estimate a*, got {draws.num}; "
                f"use draws=bbvi.{type(draws).__name__}({least}) or more, or control_variate=None"
            )
        if variate.independent_draws and not draws.independent:
            raise ValueError(
                f"{type(self.control_variate).__name__} takes a* for a sample from the others, which know it where draws are "
                f"not independent, as those of {type(draws).__name__}: the gradient would be biased. Use "
                "control_variate=bbvi.CrossFit(), which then takes a* from draws of their own"
            )

    def num_folds(self, draws):
        return self._variate(draws).num_folds

    def buffers(self, analysis, params, batch, draws):
        cut = cut_samples(draws, analysis.floats_per_draw, self.num_folds(draws))
        no_key = jnp.zeros(2, jnp.uint32)
        return lay_out(analysis, draws, params, batch, no_key, cut, paths=False).buffers(cut.chunk)

    def _variate(self, draws: AbstractDraws) -> AbstractControlVariate:
        variate = NoControlVariate() if self.control_variate is None else self.control_variate
        return variate if draws.independent else variate.on_nets()

    def estimate(self, analysis, params, data, batch, *, draws, key, buffers=None):
        variate = self._variate(draws)
        cut = cut_samples(draws, analysis.floats_per_draw, variate.num_folds)
        layout = lay_out(analysis, draws, params, batch, key, cut, paths=False)
        visit = functools.partial(evaluate, layout, data, rao_blackwell=self.rao_blackwell)

        def add(chunk: int | Array, carry: _Carry, totals: Any = None) -> tuple[dict[str, Sums], _Carry]:
            def consume(state: tuple[Array, Any], weight: Array, score: Params) -> tuple[Array, Sums]:
                shift = jnp.where(chunk == 0, weight[..., :1], state[0])
                centred = weight - shift if variate.shift_invariant else weight
                return shift, _sums(variate, cut, state[1], centred, score)

            samples, counts = cut.samples(chunk)
            states = {name: (shift, totals[name].sums if totals else None) for name, shift in carry.shifts.items()}
            found, buffers, elbo, floored = visit(samples, counts, states, carry.buffers, consume)
            shifts, sums = ({name: state[part] for name, state in found.items()} for part in (0, 1))
            elbo_shift = jnp.where(chunk == 0, elbo[0], carry.elbo_shift)
            centred = only_counted(counts, elbo - elbo_shift)
            total, squares = carry.elbo + centred.sum(), carry.elbo_squares + (centred**2).sum()
            return sums, _Carry(shifts, buffers, elbo_shift, total, squares, carry.floored + floored)

        buffers = layout.buffers(cut.chunk) if buffers is None else buffers
        shifts, none = {n: jnp.zeros((len(t.rows.elements), 1)) for n, t in layout.fitted.items()}, jnp.zeros(())
        sums, last = _over_folds(cut, add, _Carry(shifts, buffers, none, none, none, jnp.int32(0)))
        if variate.two_passes and cut.num_chunks > 1:
            # draw the same samples once more, now that the sums over all of them are known
            sums, _ = _over_folds(cut, functools.partial(add, totals=sums), last)
        rows = {n: variate.gradient(s.sums, s.squares, s.revisited, draws.num) for n, s in sums.items()}
        squares = {n: {p: square.sum(-1) / draws.num for p, square in s.squares.items()} for n, s in sums.items()}
        mean = last.elbo / draws.num
        error = jnp.sqrt(jnp.maximum(last.elbo_squares / draws.num - mean**2, 0) / max(1, draws.num - 1))
        gradients, fisher = (layout.in_shape(part) for part in (rows, squares))
        elbo = last.elbo_shift + mean
        return Estimate(gradients["globals"], gradients["rows"], fisher, elbo, error, last.floored, last.buffers)


def _sums(variate: AbstractControlVariate, cut: Cut, totals: Any, weight: Array, score: Params) -> Sums:
    """Sum over one chunk, with the folds that it holds last; `totals` are the sums over all chunks, once they are known."""
    # an axis of folds if there are several: with an axis of size 1, sums on CPU take three times as long
    last = (cut.folds_in_chunk, cut.chunk // cut.folds_in_chunk) if cut.folds_in_chunk > 1 else (cut.chunk,)
    weight, score = jax.tree.map(lambda leaf: leaf.reshape(*leaf.shape[:-1], *last), (weight, score))
    sums, squares = sum_over_samples(lambda w, h: (variate.summands(w, h), jax.tree.map(jnp.square, h)), weight, score)
    revisited = None
    if cut.num_chunks == 1:
        revisited = variate.revisit(jax.tree.map(jnp.zeros_like, sums), weight, score)
    elif totals is not None:
        elsewhere = jax.tree.map(lambda total, own: total.reshape(own.shape) - own, totals, sums)
        revisited = variate.revisit(elsewhere, weight, score)
    found = Sums(sums, squares, revisited)
    return found if cut.folds_in_chunk > 1 else jax.tree.map(lambda leaf: leaf[..., None], found)


def _over_folds(cut: Cut, add: Callable[..., tuple[Any, _Carry]], carry: _Carry) -> tuple[Any, _Carry]:
    """Sum over the chunks of each fold, in the memory of one."""
    if cut.num_chunks == 1 or cut.folds == 1:
        return accumulate(add, cut.num_chunks, carry)
    per_fold = cut.num_chunks // cut.folds

    def fold(carry: _Carry, number: Array) -> tuple[_Carry, Any]:
        sums, carry = accumulate(lambda part, carry: add(number * per_fold + part, carry), per_fold, carry)
        return carry, sums

    carry, sums = jax.lax.scan(fold, carry, jnp.arange(cut.folds))
    return jax.tree.map(lambda leaf: jnp.moveaxis(leaf[..., 0], 0, -1), sums), carry
