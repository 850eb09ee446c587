"""Eq. 3, 6 and 10: noisy gradients of the ELBO from values of log p alone."""

from abc import abstractmethod
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bbvi.control_variates import AbstractControlVariate, LeaveOneOut, NoControlVariate
from bbvi.counter import Key
from bbvi.draws import AbstractDraws, chunk_size
from bbvi.evaluate import Batch, Chunk, Lambda, Target, evaluate


class Estimate(NamedTuple):
    """A noisy gradient, of the globals and of the batch's rows (without N/B), and what was seen on the way.

    `fisher` is the mean squared score of each, `{"globals": ..., "rows": ...}`.
    """

    globals: Lambda
    rows: Lambda
    fisher: dict[str, Lambda]
    elbo: Float[Array, ""]
    elbo_error: Float[Array, ""]
    floored: Int[Array, ""]


class AbstractGradient(eqx.Module):
    """An estimator of the gradient of the ELBO."""

    @abstractmethod
    def check(self, draws: AbstractDraws) -> None:
        """Refuse draws that this estimator cannot work with."""

    @abstractmethod
    def estimate(
        self, target: Target, params: Lambda, data: Any, batch: Batch | None, *, draws: AbstractDraws, key: Key
    ) -> Estimate:
        """Estimate at the globals' lambda `params` and the batch's rows, with random numbers from `key`."""


class Sums(NamedTuple):
    """Running sums of one latent: the shift of its weights, the control variate's sums, the squared scores."""

    shift: Array
    sums: Any
    squares: Lambda
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
    control_variate: AbstractControlVariate | None = LeaveOneOut()

    def __check_init__(self):
        if not (self.control_variate is None or isinstance(self.control_variate, AbstractControlVariate)):
            raise TypeError(
                f"Score: control_variate takes, for example, bbvi.LeaveOneOut() or None, got {self.control_variate!r}"
            )

    def check(self, draws):
        least = self._variate().min_draws
        if draws.num < least:
            name = type(self.control_variate).__name__
            raise ValueError(
                f"{name} needs {least} draws or more to estimate a*, got {draws.num}; "
                f"use draws=bbvi.MonteCarlo({least}) or more, or control_variate=None"
            )

    def _variate(self) -> AbstractControlVariate:
        return NoControlVariate() if self.control_variate is None else self.control_variate

    def estimate(self, target, params, data, batch, *, draws, key):
        variate = self._variate()
        size = chunk_size(draws, target.floats_per_draw)
        num_chunks = -(-draws.num // size)

        def visit(chunk: Array, consume: Any, states: Any) -> Chunk:
            samples = chunk * size + jnp.arange(size, dtype=jnp.uint32)
            return evaluate(
                target, params, data, batch,
                rao_blackwell=self.rao_blackwell, draws=draws, key=key, samples=samples,
                counts=samples < draws.num if num_chunks * size > draws.num else None,
                states=states, consume=consume,
            )  # fmt: skip

        names = {
            "globals": target.problem.globals if target.fit_globals else (),
            "rows": () if batch is None else target.problem.locals,
        }
        nothing = {part: dict.fromkeys(latents) for part, latents in names.items()}
        if num_chunks == 1:
            chunk = visit(jnp.uint32(0), lambda state, w, h: _first_visit(variate, w, h, revisit=True), nothing)
            states, elbo = chunk.states, _elbo_sums(chunk.elbo, chunk.elbo[0], draws.num)
            floored = chunk.floored
        else:
            states, elbo, floored = _in_chunks(variate, visit, num_chunks, size, draws.num, nothing)
        gradients = {
            part: {name: variate.gradient(s.sums, s.revisited, draws.num) for name, s in of_part.items()}
            for part, of_part in states.items()
        }
        squares = {part: {name: s.squares for name, s in of_part.items()} for part, of_part in states.items()}
        fisher = jax.tree.map(lambda total: total / draws.num, squares)
        shift, total, total_squares = elbo
        mean = total / draws.num
        error = jnp.sqrt(jnp.maximum(total_squares / draws.num - mean**2, 0) / max(1, draws.num - 1))
        return Estimate(gradients["globals"], gradients["rows"], fisher, shift + mean, error, floored)


def _first_visit(variate: AbstractControlVariate, weight: Array, score: Any, *, revisit: bool) -> Sums:
    shift = weight[..., :1]
    centred = weight - shift if variate.shift_invariant else weight
    sums = variate.sums(centred, score)
    elsewhere = jax.tree.map(jnp.zeros_like, sums)
    return Sums(shift, sums, _squares(score), variate.revisit(elsewhere, centred, score) if revisit else None)


def _squares(score: Any) -> Any:
    return jax.tree.map(lambda h: (h**2).sum(-1), score)


def _elbo_sums(samples: Array, shift: Array, count: Array | int) -> tuple[Array, Array, Array]:
    centred = jnp.where(jnp.arange(samples.shape[0]) < count, samples - shift, 0)
    return shift, centred.sum(), (centred**2).sum()


def _in_chunks(
    variate: AbstractControlVariate, visit: Any, num_chunks: int, size: int, num: int, nothing: Any
) -> tuple[Any, tuple[Array, Array, Array], Array]:
    """The same sums in the memory of one chunk, with a second visit where the control variate needs it."""

    def first(weight: Array, score: Any) -> Sums:
        return _first_visit(variate, weight, score, revisit=False)

    shapes = jax.eval_shape(lambda: visit(jnp.uint32(0), lambda state, w, h: first(w, h), nothing))
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    def sum_up(carry, chunk):
        states, (shift, total, squares), floored = carry

        def consume(state: Sums, weight: Array, score: Any) -> Sums:
            new = first(weight, score)
            kept = jnp.where(chunk == 0, new.shift, state.shift)
            centred = weight - kept if variate.shift_invariant else weight
            sums = jax.tree.map(jnp.add, state.sums, variate.sums(centred, score))
            return Sums(kept, sums, jax.tree.map(jnp.add, state.squares, new.squares), None)

        seen = visit(chunk, consume, states)
        shift = jnp.where(chunk == 0, seen.elbo[0], shift)
        _, more, more_squares = _elbo_sums(seen.elbo, shift, num - chunk * size)
        return (seen.states, (shift, total + more, squares + more_squares), floored + seen.floored), None

    none = jnp.zeros((), shapes.elbo.dtype)
    chunks = jnp.arange(num_chunks, dtype=jnp.uint32)
    start = (zero.states, (none, none, none), jnp.int32(0))
    (states, elbo, floored), _ = jax.lax.scan(sum_up, start, chunks)
    if variate.two_passes:
        states = _second_pass(variate, visit, chunks, states)
    return states, elbo, floored


def _second_pass(variate: AbstractControlVariate, visit: Any, chunks: Array, states: Any) -> Any:
    """Draw the same samples once more, now that the sums over all of them are known."""

    def revisited(state: Sums, weight: Array, score: Any) -> Any:
        centred = weight - state.shift if variate.shift_invariant else weight
        elsewhere = jax.tree.map(jnp.subtract, state.sums, variate.sums(centred, score))
        return variate.revisit(elsewhere, centred, score)

    def consume(state: Sums, weight: Array, score: Any) -> Sums:
        return state._replace(revisited=jax.tree.map(jnp.add, state.revisited, revisited(state, weight, score)))

    shapes = jax.eval_shape(lambda: visit(chunks[0], lambda s, w, h: s._replace(revisited=revisited(s, w, h)), states))
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes.states)

    def with_zero(state: Sums, shape: Sums) -> Sums:
        return state._replace(revisited=shape.revisited)

    begin = jax.tree.map(with_zero, states, zero, is_leaf=lambda node: isinstance(node, Sums))
    states, _ = jax.lax.scan(lambda s, chunk: (visit(chunk, consume, s).states, None), begin, chunks)
    return states
