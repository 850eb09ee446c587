"""Section 3.2: control variates. f = score * (log p_i - log q_i), h = score, and f - a h in place of f.

Arrays have one axis of factors first and samples last, perhaps with an axis of folds before them: `weight`
(log p_i - log q_i) is (factors, *folds, samples), each entry of `score` is (factors, *parameter, *folds, samples).
Draws that do not count come with a score of zero. `sums`, of the `summands` over samples, are added over chunks; `revisit` sees the same
chunks again, with the sums over all others. `gradient` gets them with any axes of factors, and folds last.
"""

from abc import abstractmethod
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

Weight = Float[Array, "factors *folds samples"]
Scores = dict[str, Array]


class AbstractControlVariate(eqx.Module):
    """How a is chosen in f - a h.

    A subclass says by `summands` what it needs summed over samples, and makes the estimate from the sums by `gradient`.
    The rest has defaults: one pass over the samples, in one fold, with any number of draws.
    """

    min_draws: ClassVar[int] = 1
    #: whether adding a constant to `weight` leaves the estimate alone, so that it may be centred
    shift_invariant: ClassVar[bool] = False
    #: whether `revisit` is needed
    two_passes: ClassVar[bool] = False
    #: whether a* for a sample is taken from others of its fold, which then have to be independent of it
    independent_draws: ClassVar[bool] = False

    @property
    def num_folds(self) -> int:
        """Into how many folds the samples are cut."""
        return 1

    def on_nets(self) -> "AbstractControlVariate":
        """What takes its place where the samples of a step are a net, not independent of each other."""
        return self

    @abstractmethod
    def summands(self, weight: Weight, score: Scores) -> Any:
        """Give what has to be summed over the samples of each fold, element by element."""

    def revisit(self, elsewhere: Any, weight: Weight, score: Scores) -> Any:
        """Sum over this chunk what needs the sums of `summands` over all the other chunks."""
        return None

    @abstractmethod
    def gradient(self, sums: Any, squares: Scores, revisited: Any, num: int) -> dict[str, Array]:
        """Estimate from `num` samples; `sums` have folds last, and `squares` are the sums of h**2, as `sums`."""


class NoControlVariate(AbstractControlVariate):
    """The plain average of f: Eq. 3 and Eq. 6."""

    def summands(self, weight, score):
        return times_score(weight, score)

    def gradient(self, sums, squares, revisited, num):
        return {name: total.sum(-1) / num for name, total in sums.items()}


class AbstractFitted(AbstractControlVariate):
    """A control variate whose a is fitted to sums over samples of f, h and <f, h>, as Eq. 9's is."""

    min_draws: ClassVar[int] = 2
    shift_invariant: ClassVar[bool] = True

    def summands(self, weight, score):
        return {"f": times_score(weight, score), "h": score, "fh": _inner_products(weight, score)[0]}


class PlugIn(AbstractFitted):
    """Eq. 9's a* from the same samples, as in the paper; its bias shrinks as 1/S.

    Examples:
        >>> import bbvi
        >>> bbvi.Score(control_variate=bbvi.PlugIn()).control_variate
        PlugIn()
    """

    def gradient(self, sums, squares, revisited, num):
        f, h, fh = _total(sums["f"]), _total(sums["h"]), sums["fh"].sum(-1)
        hh = _over_parameters(_total(squares), fh.ndim)
        covariance = fh - _over_parameters(jax.tree.map(jnp.multiply, f, h), fh.ndim) / num
        variance = hh - _over_parameters(jax.tree.map(jnp.multiply, h, h), fh.ndim) / num
        a = _ratio(covariance, variance)  # Eq. 9
        return {name: (f[name] - _expand(a, f[name]) * h[name]) / num for name in f}  # Eq. 10


class CrossFit(AbstractFitted):
    """Eq. 9's a* for each fold of samples from the other folds: unbiased, in one pass, whatever the number of draws.

    a_k = sum_{t not in k} <f_t, h_t> / sum_{t not in k} <h_t, h_t>, and 0 where the denominator is 0. With as many
    folds as draws it is `LeaveOneOut`. With `QuasiMonteCarlo` a* comes from a small net of its own.

    Examples:
        >>> import bbvi
        >>> bbvi.Score().control_variate
        CrossFit()
    """

    folds: int = 5

    def __check_init__(self):
        if isinstance(self.folds, bool) or not isinstance(self.folds, (int, np.integer)) or self.folds < 2:
            raise ValueError(f"CrossFit: folds must be an integer of 2 or more, got {self.folds!r}")

    @property
    def num_folds(self):
        return self.folds

    def on_nets(self):
        return FromPilot()

    def gradient(self, sums, squares, revisited, num):
        # (*factors, *parameter, folds) to (folds, *factors, *parameter)
        sums, squares = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, -1, 0), (sums, squares))
        f, h, fh = sums["f"], sums["h"], sums["fh"]
        a = _ratio(_others(fh), _others(_over_parameters(squares, fh.ndim)))
        return {name: (f[name] - _expand(a, f[name]) * h[name]).sum(0) / num for name in f}


class FromPilot(AbstractFitted):
    """Eq. 9's a* from the first fold, which is independent of the others and is left out of the average.

    For samples that are a net: cut into folds that are independent of each other, it would lose its evenness. a* need
    not be precise, since the scores of a net have a mean next to zero.
    """

    num_folds: ClassVar[int] = 9

    def gradient(self, sums, squares, revisited, num):
        fh = sums["fh"][..., 0]
        first = {name: square[..., 0] for name, square in squares.items()}
        a = _ratio(fh, _over_parameters(first, fh.ndim))
        f, h = ({name: leaf[..., 1:].sum(-1) for name, leaf in sums[part].items()} for part in ("f", "h"))
        folds = sums["fh"].shape[-1]
        return {name: (f[name] - _expand(a, f[name]) * h[name]) / (num * (folds - 1) / folds) for name in f}


class LeaveOneOut(AbstractControlVariate):
    """Eq. 9's a* for each sample from all the others: unbiased, since it does not know its own sample.

    a_{-s} = sum_{t != s} <f_t, h_t> / sum_{t != s} <h_t, h_t>, and 0 where the denominator is 0.

    Examples:
        >>> import bbvi
        >>> bbvi.Score(control_variate=bbvi.LeaveOneOut()).control_variate
        LeaveOneOut()
    """

    min_draws: ClassVar[int] = 2
    shift_invariant: ClassVar[bool] = True
    two_passes: ClassVar[bool] = True
    independent_draws: ClassVar[bool] = True

    def summands(self, weight, score):
        fh, hh = _inner_products(weight, score)
        return {"fh": fh, "hh": hh}

    def revisit(self, elsewhere, weight, score):
        here = self.summands(weight, score)
        largest = jnp.arange(here["hh"].shape[-1]) == jnp.argmax(here["hh"], axis=-1, keepdims=True)
        others = {name: elsewhere[name][..., None] + _sum_of_others(x, largest) for name, x in here.items()}
        return _total(times_score(weight - _ratio(others["fh"], others["hh"]), score))

    def gradient(self, sums, squares, revisited, num):
        return {name: total.sum(-1) / num for name, total in revisited.items()}


def times_score(weight: Weight, score: Scores) -> Scores:
    """Multiply each score h by the weight: f = weight * h, in every parameter."""
    return {name: _insert(weight, h) * h for name, h in score.items()}


def _insert(weight: Array, like: Array) -> Array:
    """Give `weight` (factors, *folds, samples) the parameter axes of `like`."""
    return weight.reshape(weight.shape[:1] + (1,) * (like.ndim - weight.ndim) + weight.shape[1:])


def _expand(a: Array, like: Array) -> Array:
    return a.reshape(a.shape + (1,) * (like.ndim - a.ndim))


def _total(tree: Scores) -> Scores:
    return jax.tree.map(lambda leaf: leaf.sum(-1), tree)


def _inner_products(weight: Weight, score: Scores) -> tuple[Array, Array]:
    # <f, h> = weight * <h, h>, since f = weight * h in every parameter
    squares = [(h**2).sum(tuple(range(1, 1 + h.ndim - weight.ndim))) for h in score.values()]
    hh = sum(squares[1:], squares[0])
    return weight * hh, hh


def _over_parameters(of_parameters: Scores, ndim: int) -> Array:
    """Sum over a factor's parameters."""
    parts = [leaf.sum(tuple(range(ndim, leaf.ndim))) for leaf in of_parameters.values()]
    return sum(parts[1:], parts[0])


def _others(folds: Array) -> Array:
    """Sum, for each fold on the first axis, the other folds, without subtracting."""
    return jnp.tensordot(1 - jnp.eye(len(folds), dtype=folds.dtype), folds, axes=1, precision="highest")


def _sum_of_others(values: Array, largest: Array) -> Array:
    """Sum, for each sample, the others; the largest is left out of the sum, not subtracted, for accuracy."""
    without = jnp.where(largest, 0, values).sum(-1, keepdims=True)
    return jnp.where(largest, without, values.sum(-1, keepdims=True) - values)


def _ratio(numerator: Array, denominator: Array) -> Array:
    positive = denominator > 0
    return jnp.where(positive, numerator / jnp.where(positive, denominator, 1), 0)
