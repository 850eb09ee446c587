"""Eq. 3, 6 and 10: noisy gradients of the ELBO from values of log p alone."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from bbvi.draws.drawer import drawers
from bbvi.draws.draws import AbstractDraws, Cut, cut_samples
from bbvi.draws.layout import Layout, lay_out
from bbvi.draws.rows import Rows
from bbvi.families import Params
from bbvi.gradients.abstract import AbstractGradient, Estimate
from bbvi.gradients.control_variates import AbstractControlVariate, CrossFit, NoControlVariate
from bbvi.gradients.evaluate import Chunk, evaluate
from bbvi.numerics.xla import sum_over_samples


class Sums(NamedTuple):
    """Running sums of one latent: the shift of its weights, the control variate's sums, the squared scores."""

    shift: Array
    sums: Any
    squares: Params
    revisited: Any


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
        if not (self.control_variate is None or isinstance(self.control_variate, AbstractControlVariate)):
            raise TypeError(
                f"Score: control_variate takes, for example, bbvi.LeaveOneOut() or None, got {self.control_variate!r}"
            )

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
        key = jnp.zeros(2, jnp.uint32)
        layout = lay_out(analysis, drawers(draws, analysis.problem.latents), params, batch, key, cut.chunk)
        return layout.buffers(cut.chunk)

    def _variate(self, draws: AbstractDraws) -> AbstractControlVariate:
        variate = NoControlVariate() if self.control_variate is None else self.control_variate
        return variate if draws.independent else variate.on_nets()

    def estimate(self, analysis, params, data, batch, *, draws, key, buffers=None):
        variate = self._variate(draws)
        cut = cut_samples(draws, analysis.floats_per_draw, variate.num_folds)
        latents = drawers(draws, analysis.problem.latents)
        layout = lay_out(analysis, latents, params, batch, key, cut.chunk)

        def visit(chunk: Array, consume: Any, states: Any, buffers: Any) -> Chunk:
            samples, counts = cut.samples(chunk)
            return evaluate(
                layout, data, samples, counts,
                rao_blackwell=self.rao_blackwell, states=states, buffers=buffers, consume=consume,
            )  # fmt: skip

        buffers = layout.buffers(cut.chunk) if buffers is None else buffers
        zero = _zero_states(variate, layout, cut)
        states, buffers, elbo, floored = _all_chunks(variate, visit, cut, zero, buffers)
        if variate.two_passes and cut.num_chunks > 1:
            states = _second_pass(variate, visit, cut, states, buffers)
        rows = {n: variate.gradient(s.sums, s.squares, s.revisited, draws.num) for n, s in states.items()}
        squares = {n: {p: square.sum(-1) / draws.num for p, square in s.squares.items()} for n, s in states.items()}
        gradients, fisher = (layout.in_shape(part) for part in (rows, squares))
        shift, total, total_squares = elbo
        mean = total / draws.num
        error = jnp.sqrt(jnp.maximum(total_squares / draws.num - mean**2, 0) / max(1, draws.num - 1))
        return Estimate(gradients["globals"], gradients["rows"], fisher, shift + mean, error, floored, buffers)


def _zero_states(variate: AbstractControlVariate, layout: Layout, cut: Cut) -> dict[str, Sums]:
    """Make the sums over no samples, for each fitted latent."""

    def zero(rows: Rows) -> Sums:
        num = len(rows.elements)
        weight = jax.ShapeDtypeStruct((num, cut.chunk), jnp.result_type(float))
        score = {
            p: jax.ShapeDtypeStruct((*leaf.shape, cut.chunk), leaf.dtype) for p, leaf in rows.prepared.params.items()
        }
        shapes = jax.eval_shape(lambda w, h: _sums(variate, w[..., :1], w, h, cut), weight, score)
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    return {name: zero(layout.rows[name]) for name in layout.fitted}


def _sums(variate: AbstractControlVariate, shift: Array, weight: Array, score: Any, cut: Cut) -> Sums:
    """Sum over one chunk, with folds last."""
    weight, score = _by_fold(variate, shift, weight, score, cut)
    sums, squares = sum_over_samples(lambda w, h: (variate.summands(w, h), jax.tree.map(jnp.square, h)), weight, score)
    revisited = None
    if cut.num_chunks == 1:
        revisited = variate.revisit(jax.tree.map(jnp.zeros_like, sums), weight, score)
    sums, squares, revisited = jax.tree.map(lambda leaf: _folds_last(leaf, cut), (sums, squares, revisited))
    return Sums(shift, sums, squares, revisited)


def _by_fold(variate: AbstractControlVariate, shift: Array, weight: Array, score: Any, cut: Cut) -> tuple[Array, Any]:
    """Put folds on an axis of their own if there are several: with an axis of size 1, sums on CPU take three times as long."""
    folds = (cut.folds_in_chunk,) if cut.folds_in_chunk > 1 else ()

    def flat(leaf: Array) -> Array:
        return leaf.reshape(*leaf.shape[:-1], *folds, cut.chunk // cut.folds_in_chunk)

    return flat(weight - shift if variate.shift_invariant else weight), jax.tree.map(flat, score)


def _folds_last(leaf: Array, cut: Cut) -> Array:
    return leaf if cut.folds_in_chunk > 1 else leaf[..., None]


def _all_chunks(
    variate: AbstractControlVariate, visit: Any, cut: Cut, zero: Any, buffers: Any
) -> tuple[Any, Any, tuple[Array, Array, Array], Array]:
    """Sum over all samples, for each latent and the ELBO, in the memory of one chunk."""

    def first(state: Sums, weight: Array, score: Any) -> Sums:
        return _sums(variate, weight[..., :1], weight, score, cut)

    if cut.num_chunks == 1:
        chunk = visit(jnp.uint32(0), first, zero, buffers)
        elbo = _elbo_sums(chunk.elbo, chunk.elbo[0], cut, jnp.uint32(0))
        return chunk.states, chunk.buffers, elbo, chunk.floored

    per_fold = cut.num_chunks // cut.folds

    def add_chunk(carry, chunk):
        states, buffers, (shift, total, squares), floored = carry

        def consume(state: Sums, weight: Array, score: Any) -> Sums:
            shift = jnp.where(chunk == 0, weight[..., :1], state.shift)
            new = _sums(variate, shift, weight, score, cut)
            if per_fold == 1:
                return new
            sums, squares = jax.tree.map(jnp.add, (state.sums, state.squares), (new.sums, new.squares))
            return Sums(shift, sums, squares, None)

        seen = visit(chunk, consume, states, buffers)
        shift = jnp.where(chunk == 0, seen.elbo[0], shift)
        _, more, more_squares = _elbo_sums(seen.elbo, shift, cut, chunk)
        elbo = (shift, total + more, squares + more_squares)
        return (seen.states, seen.buffers, elbo, floored + seen.floored), None

    def fold(carry, number):
        shifts, *rest = carry
        start = _map(lambda s, shift: s._replace(shift=shift), zero, shifts)
        chunks = number * per_fold + jnp.arange(per_fold, dtype=jnp.uint32)
        if per_fold == 1:
            (states, *rest), _ = add_chunk((start, *rest), chunks[0])
        else:
            (states, *rest), _ = jax.lax.scan(add_chunk, (start, *rest), chunks)
        # the shift is handed on, the sums of each fold are kept
        return (_map(lambda s: s.shift, states), *rest), _map(lambda s: s._replace(shift=None), states)

    none = jnp.zeros(())
    start = (_map(lambda s: s.shift, zero), buffers, (none, none, none), jnp.int32(0))
    numbers = jnp.arange(cut.folds, dtype=jnp.uint32)
    (shifts, buffers, elbo, floored), folds = jax.lax.scan(fold, start, numbers)
    folds = jax.tree.map(lambda leaf: jnp.moveaxis(leaf[..., 0], 0, -1), folds)
    return _map(lambda s, shift: s._replace(shift=shift), folds, shifts), buffers, elbo, floored


def _map(function: Any, states: Any, *rest: Any) -> Any:
    return jax.tree.map(function, states, *rest, is_leaf=lambda node: isinstance(node, Sums))


def _elbo_sums(samples: Array, shift: Array, cut: Cut, chunk: Array) -> tuple[Array, Array, Array]:
    _, counts = cut.samples(chunk)
    centred = samples - shift if counts is None else jnp.where(counts, samples - shift, 0)
    return shift, centred.sum(), (centred**2).sum()


def _second_pass(variate: AbstractControlVariate, visit: Any, cut: Cut, states: Any, buffers: Any) -> Any:
    """Draw the same samples once more, now that the sums over all of them are known."""

    # a revisit leaves one sum for each squared score
    begin = _map(lambda s: s._replace(revisited=jax.tree.map(jnp.zeros_like, s.squares)), states)

    def consume(state: Sums, weight: Array, score: Any) -> Sums:
        weight, score = _by_fold(variate, state.shift, weight, score, cut)
        sums = sum_over_samples(variate.summands, weight, score)
        elsewhere = jax.tree.map(lambda total, own: total.reshape(own.shape) - own, state.sums, sums)
        more = variate.revisit(elsewhere, weight, score)
        more = jax.tree.map(lambda leaf: _folds_last(leaf, cut), more)
        return state._replace(revisited=jax.tree.map(jnp.add, state.revisited, more))

    chunks = jnp.arange(cut.num_chunks, dtype=jnp.uint32)

    def again(carry, chunk):
        seen = visit(chunk, consume, *carry)
        return (seen.states, seen.buffers), None

    return jax.lax.scan(again, (begin, buffers), chunks)[0][0]
