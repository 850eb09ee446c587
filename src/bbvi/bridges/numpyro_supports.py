"""Which latent of ours has the support of a NumPyro statement; where there is none, real numbers and NumPyro's bijection."""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import biject_to, constraints

from bbvi.model import declare
from bbvi.model.latents import Latent

_SCALARS: list[tuple[Any, Callable[..., Latent]]] = [
    (constraints.real, declare.real), (constraints.positive, declare.positive), (constraints.nonnegative, declare.positive),
    (constraints.softplus_positive, declare.positive), (constraints.unit_interval, declare.unit_interval),
    (constraints.boolean, declare.binary),
]  # fmt: skip
_CATEGORIES = (dist.CategoricalProbs, dist.CategoricalLogits, dist.DiscreteUniform)


class Declared(NamedTuple):
    """A latent of ours for a statement: its declaration by shape, and the shape of its elements if these are vectors.

    The value is the latent plus `shift`. If NumPyro's bijection makes it of real numbers, `reals` is the shape of these in place of
    that of one draw of the distribution.
    """

    of_shape: Callable[..., Latent]
    event: tuple[int, ...] = ()
    shift: int = 0
    reals: tuple[int, ...] | None = None

    @property
    def transformed(self) -> bool:
        """Whether the latent is real, and the value made of it by NumPyro's bijection."""
        return self.reals is not None


def layers(fn: Any) -> Iterator[Any]:
    """List a distribution and those that it is made of by `mask`, `expand` and `to_event`, outermost first."""
    while True:
        yield fn
        if not isinstance(fn, (dist.MaskedDistribution, dist.Independent, dist.ExpandedDistribution)):
            return
        fn = fn.base_dist


def mask_of(fn: Any, shape: tuple[int, ...]) -> Any:
    """Mark the elements of a value of this shape that have a density, True if all do."""
    found: Any = True
    for layer in layers(fn):
        mask = getattr(layer, "_mask", True) if isinstance(layer, dist.MaskedDistribution) else True
        if mask is not True:
            batch = np.broadcast_to(mask, layer.batch_shape) if isinstance(mask, bool) else mask
            found = found & batch.reshape(batch.shape + (1,) * layer.event_dim)
    return found if found is True else found & np.ones(shape, bool)


def leaves_of(support: Any) -> list[Any]:
    """List the numbers that a support is bounded by."""
    return jax.tree.leaves(_base(support))


def _base(support: Any) -> Any:
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support


def declared(name: str, fn: Any, support: Any, shape: tuple[int, ...], *, moves: bool) -> Declared:
    """Find the latent for a statement whose value has this shape; the bounds of a support that `moves` depend on other latents."""
    whole, support = support, _base(support)
    if support.is_discrete:
        return _discrete(name, support, list(layers(fn))[-1], moves)
    for known, of_shape in _SCALARS:
        if type(support) is type(known):
            return Declared(of_shape)
    if not moves and isinstance(support, (constraints.interval, constraints.open_interval)):
        low, high = np.unique(support.lower_bound), np.unique(support.upper_bound)
        if len(low) == len(high) == 1:
            unit = (low[0], high[0]) == (0, 1)
            return Declared(
                declare.unit_interval if unit else functools.partial(declare.interval, float(low[0]), float(high[0]))
            )
    if type(support) is type(constraints.simplex):
        return Declared(functools.partial(declare.simplex, shape[-1]), shape[-1:])
    if type(support) is type(constraints.ordered_vector):
        return Declared(lambda *batch: declare.ordered(*batch, shape[-1]), shape[-1:])
    return Declared(declare.real, reals=bijection(name, whole).inverse_shape(shape)[len(shape) - fn.event_dim :])


def bijection(name: str, support: Any) -> Any:
    """Return NumPyro's bijection from real numbers to a support, or refuse it."""
    try:
        return biject_to(support)
    except NotImplementedError:
        raise ValueError(
            f"from_numpyro: {name!r} is on {_base(support)}, for which NumPyro has no bijection from real numbers; "
            "reparametrise it, for example by numpyro.handlers.reparam"
        ) from None


def some_value(name: str, fn: Any, shape: tuple[int, ...], generator: np.random.Generator) -> Any:
    """Draw an arbitrary value on a support, for a trial of the function."""
    support = _base(fn.support)
    if type(support) is type(constraints.boolean):
        return jnp.asarray(generator.integers(0, 2, shape))
    if support.is_discrete:
        return support.feasible_like(jnp.zeros(shape, int)).astype(int)
    transform = bijection(name, fn.support)
    return transform(jnp.asarray(generator.normal(0.0, 0.5, transform.inverse_shape(shape)), float))


def _discrete(name: str, support: Any, base: Any, moves: bool) -> Declared:
    """Find the latent for whole numbers."""
    if type(support) is type(constraints.boolean):
        return Declared(declare.binary)
    if not moves and isinstance(support, constraints.integer_interval):
        low, high = np.unique(support.lower_bound), np.unique(support.upper_bound)
        if len(low) == len(high) == 1 and high[0] > low[0]:
            first, top = int(low[0]), int(high[0] - low[0])
            if isinstance(base, _CATEGORIES):
                return Declared(functools.partial(declare.categorical, top + 1), shift=first)
            bounded = functools.partial(dist.Binomial, total_count=top)
            return Declared(lambda *shape: declare.count(*shape, q=bounded), shift=first)
    if not moves and isinstance(support, constraints.integer_greater_than) and np.unique(support.lower_bound).size == 1:
        return Declared(declare.count, shift=int(np.unique(support.lower_bound)[0]))
    raise ValueError(
        f"from_numpyro: the discrete latent {name!r} is on {support}"
        + (", whose bounds depend on other latents" if moves else "")
        + "; a discrete latent is binary, a category, or a count with the same bounds in all its elements"
    )
