"""Latent variables as users declare them, by their support: `bbvi.real(8)`, `bbvi.positive("visit")`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpyro.distributions import constraints

from bbvi.families import (
    AbstractChart,
    AbstractCovariance,
    AbstractFamily,
    Bernoulli,
    Beta,
    Categorical,
    Dirichlet,
    Gamma,
    JointNormal,
    MarkovTree,
    Normal,
    OneHot,
    Poisson,
    Through,
    TransformedNormal,
    resolve,
)
from bbvi.families.charts import agree, vectors
from bbvi.model.joint import tree_over
from bbvi.model.latents import Latent, Shape

#: the entries along named axes, or how many there are
Coords = Mapping[Any, Any] | None


def real(*shape: int | str, q: Any = None, init: Any = None, coords: Coords = None) -> Latent:
    """Declare real latents; q is Normal by default.

    An axis is a number or a name. A name with `coords`, which list the entries along the axis or say how many there are, names
    the axis in `summary()` and in ArviZ; a name without is an axis that differs in length between groups.

    Examples:
        >>> import bbvi
        >>> bbvi.real(8)
        real(8,) ~ Normal
        >>> bbvi.real("school", coords={"school": ["Choate", "Deerfield"]})
        real(2,) ~ Normal
    """
    return _declare("real", shape, Normal(), q, init, coords)


def positive(*shape: int | str, q: Any = None, init: Any = None, coords: Coords = None) -> Latent:
    """Declare positive latents; q is Gamma by default.

    Examples:
        >>> import bbvi, numpyro.distributions as dist
        >>> bbvi.positive("visit", 5, q=dist.LogNormal)
        positive('visit', 5) ~ LogNormal
    """
    return _declare("positive", shape, Gamma(), q, init, coords)


def unit_interval(*shape: int | str, q: Any = None, init: Any = None, coords: Coords = None) -> Latent:
    """Declare latents between 0 and 1; q is Beta by default.

    Examples:
        >>> import bbvi
        >>> bbvi.unit_interval(init=0.3)
        unit_interval() ~ Beta
    """
    return _declare("unit_interval", shape, Beta(), q, init, coords)


def binary(*shape: int | str, q: Any = None, init: Any = None, coords: Coords = None) -> Latent:
    """Declare latents that are 0 or 1; q is Bernoulli by default.

    Examples:
        >>> import bbvi
        >>> bbvi.binary(3)
        binary(3,) ~ Bernoulli
    """
    return _declare("binary", shape, Bernoulli(), q, init, coords)


def count(*shape: int | str, q: Any = None, init: Any = None, coords: Coords = None) -> Latent:
    """Declare latents in 0, 1, 2, ...; q is Poisson by default.

    With a family of 0, ..., n as q, such as a Binomial of n trials, the latent has that bound.

    Examples:
        >>> import bbvi, functools, numpyro.distributions as dist
        >>> bbvi.count(2)
        count(2,) ~ Poisson
        >>> bbvi.count(q=functools.partial(dist.Binomial, total_count=10))
        count() ~ Binomial
    """
    return _declare("count", shape, Poisson(), q, init, coords)


def interval(
    low: float, high: float, *shape: int | str, q: Any = None, init: Any = None, coords: Coords = None
) -> Latent:
    """Declare latents between `low` and `high`; q is a Normal squeezed into the interval by default.

    Examples:
        >>> import bbvi
        >>> bbvi.interval(-1.0, 1.0, 2)
        interval(2,) ~ TransformedNormal
    """
    if not low < high:
        raise ValueError(f"bbvi.interval: low must be below high, got {low} and {high}")
    target = constraints.interval(float(low), float(high))
    return _declare("interval", shape, TransformedNormal(Through(target)), q, init, coords)


def ordered(*shape: int | str, q: Any = None, init: Any = None, coords: Coords = None) -> Latent:
    """Declare vectors whose entries increase along the last axis; a vector is one factor of q.

    Examples:
        >>> import bbvi
        >>> bbvi.ordered(4)
        ordered() ~ TransformedNormal
    """
    size = shape[-1] if shape else ""
    size = _length((coords or {}).get(size, size))
    if isinstance(size, str):
        raise ValueError("bbvi.ordered needs the vector's length as its last axis, for example bbvi.ordered(4)")
    family = TransformedNormal(Through(constraints.ordered_vector, (int(size),)))
    return _declare("ordered", shape[:-1], family, q, init, coords, shape[-1:])


def simplex(k: int | str, *shape: int | str, q: Any = None, init: Any = None, coords: Coords = None) -> Latent:
    """Declare vectors of k positive entries that sum to 1, as arrays of shape `(*shape, k)`.

    Examples:
        >>> import bbvi
        >>> bbvi.simplex(3, 10)
        simplex(10,) ~ Dirichlet
    """
    size = _length((coords or {}).get(k, k))
    _at_least_two("simplex", size)
    return _declare("simplex", shape, Dirichlet(size), q, init, coords, (k,))


def categorical(k: int, *shape: int | str, q: Any = None, init: Any = None, coords: Coords = None) -> Latent:
    """Declare latents in 0, ..., k-1; q is Categorical by default.

    Examples:
        >>> import bbvi
        >>> bbvi.categorical(3, 100)
        categorical(100,) ~ Categorical
    """
    _at_least_two("categorical", k)
    return _declare("categorical", shape, Categorical(k), q, init, coords)


def one_hot(k: int | str, *shape: int | str, q: Any = None, init: Any = None, coords: Coords = None) -> Latent:
    """Declare vectors of k integers, one of them 1 and the others 0, as arrays of shape `(*shape, k)`.

    They are categories, held so that `z["which"] @ means` chooses a mean; q is a Categorical, and a vector is one factor
    of q.

    Examples:
        >>> import bbvi
        >>> bbvi.one_hot(3, 100)
        one_hot(100,) ~ OneHot
    """
    size = _length((coords or {}).get(k, k))
    _at_least_two("one_hot", size)
    return _declare("one_hot", shape, OneHot(size), q, init, coords, (k,))


def _at_least_two(name: str, k: Any) -> None:
    if isinstance(k, (bool, str)) or int(k) != k or k < 2:
        raise ValueError(f"bbvi.{name}: the first argument is the number of categories, 2 or more, got {k!r}")


def _declare(
    support: str, axes: Shape, default: AbstractFamily, q: Any, init: Any, coords: Coords, event: Shape = ()
) -> Latent:
    """Make a latent of what the user gave to `bbvi.<support>`, or refuse it; `event` is the axis of a vector's entries."""
    named = dict(coords or {})
    shape = tuple(_length(named[x]) if x in named else x for x in axes)
    for name, entries in named.items():
        if name not in (*axes, *event):
            raise ValueError(f"bbvi.{support}: coords names {name!r}, which is no axis; the axes are {(*axes, *event)}")
        if isinstance(entries, str) or not isinstance(_length(entries), int):
            raise TypeError(f"bbvi.{support}: coords[{name!r}] lists the entries or is their number, got {entries!r}")
    for size in shape:
        if isinstance(size, bool) or not isinstance(size, (int, np.integer, str)):
            raise TypeError(f"bbvi.{support}: an axis is an int or the name of a ragged axis, got {size!r}")
        if not isinstance(size, str) and size < 1:
            raise ValueError(f"bbvi.{support}: an axis must have length 1 or more, got {size}")
    chart = default.chart
    if isinstance(q, AbstractCovariance):
        family: AbstractFamily = JointNormal(_vectors(support, shape, chart, type(q).__name__), q)
        shape = shape if chart.shape else shape[:-1]
    elif isinstance(q, MarkovTree):
        if chart.shape or chart.values() is None or not shape or isinstance(shape[-1], str):
            raise ValueError(
                f"bbvi.{support}: q=MarkovTree is over the last axis, of a fixed length, of binary or categorical latents; "
                f"got the shape {shape}"
            )
        family, shape = tree_over(chart, q.over(int(shape[-1]))), shape[:-1]
    else:
        family = default if q is None else resolve(q, chart.num_categories)
        if not agree(family.chart, chart):
            raise ValueError(
                f"bbvi.{support}: the family {family.name} lives on {family.chart.support}, but this latent lives on "
                f"{chart.support}; choose a family of that support, such as the default, {default.name}"
            )
    unknown = set(init) - set(family.parameters()) if isinstance(init, dict) else ()
    if unknown:
        raise ValueError(
            f"bbvi.{support}: init has no parameter {sorted(unknown)}; {family.name} has {sorted(family.parameters())}"
        )
    dims = tuple(x if isinstance(x, str) else None for x in (*axes, *event))  # of the array, vectors' entries last
    return Latent(support, shape, chart, family, q, init, dims, named)


def _length(entries: Any) -> Any:
    return len(entries) if hasattr(entries, "__len__") and not isinstance(entries, str) else entries


def _vectors(support: str, shape: Shape, chart: AbstractChart, q: str) -> AbstractChart:
    """Return the chart of the vectors that one Normal is over: those on the last axis, if the latent is not of vectors."""
    if chart.is_discrete:
        raise ValueError(f"bbvi.{support}: q={q} is a Normal, and this latent is discrete; leave q= out")
    lengths = chart.shape or shape[-1:]
    if not lengths or isinstance(lengths[0], str) or lengths[0] < 2:
        raise ValueError(
            f"bbvi.{support}: q={q} joins the entries of the last axis, whose length must be a number, 2 or more; "
            f"got the shape {shape}"
        )
    return chart.unconstrained if chart.shape else vectors(chart, int(lengths[0]))
