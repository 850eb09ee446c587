"""Section 3.2: control variates. f = score * (log p_i - log q_i), h = score, and f - a h in place of f.

Arrays have samples last: `weight` (log p_i - log q_i) is (*factors, samples), each entry of `score` is
(*factors, *parameter, samples). Draws that do not count come with a score of zero. `sums` are added over
chunks of samples; `revisit` sees the same chunks again, with the sums over all others.
"""

from abc import abstractmethod
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Weight = Float[Array, "*factors samples"]
Scores = dict[str, Array]


class AbstractControlVariate(eqx.Module):
    """How a is chosen in f - a h."""

    min_draws: ClassVar[int]
    #: whether adding a constant to `weight` leaves the estimate alone, so that it may be centred
    shift_invariant: ClassVar[bool]
    #: whether `revisit` is needed
    two_passes: ClassVar[bool]

    @abstractmethod
    def sums(self, weight: Weight, score: Scores) -> Any:
        """Sums over the samples of this chunk."""

    @abstractmethod
    def revisit(self, elsewhere: Any, weight: Weight, score: Scores) -> Any:
        """Sums over this chunk that need `sums` of all the other chunks."""

    @abstractmethod
    def gradient(self, sums: Any, revisited: Any, num: int) -> dict[str, Array]:
        """The estimate from `num` samples."""


class NoControlVariate(AbstractControlVariate):
    """The plain average of f: Eq. 3 and Eq. 6."""

    min_draws: ClassVar[int] = 1
    shift_invariant: ClassVar[bool] = False
    two_passes: ClassVar[bool] = False

    def sums(self, weight, score):
        return _total(_product(weight, score))

    def revisit(self, elsewhere, weight, score):
        return None

    def gradient(self, sums, revisited, num):
        return {name: total / num for name, total in sums.items()}


class PlugIn(AbstractControlVariate):
    """Eq. 9's a* from the same samples, as in the paper; its bias shrinks as 1/S.

    Examples:
        >>> import bbvi
        >>> bbvi.Score(control_variate=bbvi.PlugIn()).control_variate
        PlugIn()
    """

    min_draws: ClassVar[int] = 2
    shift_invariant: ClassVar[bool] = True
    two_passes: ClassVar[bool] = False

    def sums(self, weight, score):
        fh, hh = _inner_products(weight, score)
        return {
            "f": _total(_product(weight, score)),
            "h": _total(score),
            "fh": fh.sum(-1),
            "hh": hh.sum(-1),
        }

    def revisit(self, elsewhere, weight, score):
        return None

    def gradient(self, sums, revisited, num):
        f, h = sums["f"], sums["h"]
        covariance = sums["fh"] - _over_parameters(f, h, sums["fh"].ndim) / num
        variance = sums["hh"] - _over_parameters(h, h, sums["hh"].ndim) / num
        a = _ratio(covariance, variance)  # Eq. 9
        return {name: (f[name] - _expand(a, f[name]) * h[name]) / num for name in f}  # Eq. 10


class LeaveOneOut(AbstractControlVariate):
    """Eq. 9's a* for each sample from all the others: unbiased, since it does not know its own sample.

    a_{-s} = sum_{t != s} <f_t, h_t> / sum_{t != s} <h_t, h_t>, and 0 where the denominator is 0.

    Examples:
        >>> import bbvi
        >>> bbvi.Score().control_variate
        LeaveOneOut()
    """

    min_draws: ClassVar[int] = 2
    shift_invariant: ClassVar[bool] = True
    two_passes: ClassVar[bool] = True

    def sums(self, weight, score):
        fh, hh = _inner_products(weight, score)
        return {"fh": fh.sum(-1), "hh": hh.sum(-1)}

    def revisit(self, elsewhere, weight, score):
        fh, hh = _inner_products(weight, score)
        largest = jnp.arange(hh.shape[-1]) == jnp.argmax(hh, axis=-1, keepdims=True)
        a = _ratio(
            elsewhere["fh"][..., None] + _sum_of_others(fh, largest),
            elsewhere["hh"][..., None] + _sum_of_others(hh, largest),
        )
        return _total(_product(weight - a, score))

    def gradient(self, sums, revisited, num):
        return {name: total / num for name, total in revisited.items()}


def _product(weight: Weight, score: Scores) -> Scores:
    return {name: _insert(weight, h) * h for name, h in score.items()}


def _insert(weight: Array, like: Array) -> Array:
    """Give `weight` (..., samples) the parameter axes of `like` (..., *parameter, samples)."""
    extra = (1,) * (like.ndim - weight.ndim)
    return weight.reshape(weight.shape[:-1] + extra + weight.shape[-1:])


def _expand(a: Array, like: Array) -> Array:
    return a.reshape(a.shape + (1,) * (like.ndim - a.ndim))


def _total(tree: Scores) -> Scores:
    return jax.tree.map(lambda leaf: leaf.sum(-1), tree)


def _inner_products(weight: Weight, score: Scores) -> tuple[Array, Array]:
    # <f, h> = weight * <h, h>, since f = weight * h in every parameter
    squares = [
        (h**2).sum(tuple(range(weight.ndim - 1, h.ndim - 1))) if h.ndim > weight.ndim else h**2 for h in score.values()
    ]
    hh = sum(squares[1:], squares[0])
    return weight * hh, hh


def _over_parameters(one: dict[str, Array], other: dict[str, Array], ndim: int) -> Array:
    parts = [(one[name] * other[name]).sum(tuple(range(ndim, one[name].ndim))) for name in one]
    return sum(parts[1:], parts[0])


def _sum_of_others(values: Array, largest: Array) -> Array:
    """For each sample the sum of the others; the largest is left out of the sum, not subtracted, for accuracy."""
    without = jnp.where(largest, 0, values).sum(-1, keepdims=True)
    return jnp.where(largest, without, values.sum(-1, keepdims=True) - values)


def _ratio(numerator: Array, denominator: Array) -> Array:
    positive = denominator > 0
    return jnp.where(positive, numerator / jnp.where(positive, denominator, 1), 0)
