"""Which latent stands for a free variable of PyMC: by the transform that PyMC gives it, or, of discrete ones, by the law."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpyro.distributions as dist

from bbvi.model import declare
from bbvi.model.latents import Latent


def latent_of(rv: Any, transform: Any, shape: tuple[int, ...], shape_of: Callable[[Any], Any]) -> tuple[Latent, bool]:
    """Return the latent of a variable, and whether it is the variable itself and not PyMC's transform of it."""
    law = getattr(rv.owner.op, "name", None) or type(rv.owner.op).__name__
    if not np.issubdtype(np.dtype(rv.dtype), np.floating):
        return _discrete(rv, law, shape, shape_of), True
    kind = type(transform).__name__
    if transform is None:
        return declare.real(*shape), True
    if kind == "LogTransform":
        return declare.positive(*shape), True
    if kind == "LogOddsTransform":
        return declare.unit_interval(*shape), True
    if kind == "SimplexTransform":
        # PyMC's has one number less than the vector
        return declare.simplex(shape[-1] + 1, *shape[:-1]), True
    if kind == "Ordered" and shape and shape[-1] > 1:
        return declare.ordered(*shape), True
    if kind in ("Interval", "IntervalTransform") and (ends := _ends(rv, transform)) is not None:
        low, high = ends
        if np.isfinite(low) and np.isfinite(high):
            return declare.interval(low, high, *shape), True
        if low == 0:
            return declare.positive(*shape), True
    return declare.real(*shape), False


def _ends(rv: Any, transform: Any) -> tuple[float, float] | None:
    """Return the ends of an interval, if they are constants and the same for all elements."""
    from pytensor.graph.traversal import ancestors
    from pytensor.tensor.random.op import RandomVariable

    found = []
    for end, default in zip(transform.args_fn(*rv.owner.inputs), (-np.inf, np.inf), strict=True):
        if end is None:
            found.append(default)
            continue
        if any(v.owner is not None and isinstance(v.owner.op, RandomVariable) for v in ancestors([end])):
            return None
        value = np.unique(end.eval())
        if value.size != 1:
            return None
        found.append(float(value[0]))
    return found[0], found[1]


def _discrete(rv: Any, law: str, shape: tuple[int, ...], shape_of: Callable[[Any], Any]) -> Latent:
    inputs = rv.owner.op.dist_params(rv.owner) if hasattr(rv.owner.op, "dist_params") else []
    if law == "bernoulli":
        return declare.binary(*shape)
    if law == "categorical":
        return declare.categorical(shape_of(inputs[0])[-1], *shape)
    if law in ("poisson", "nbinom", "negative_binomial"):
        return declare.count(*shape)
    if law == "binomial" and (trials := _same(inputs[0])) is not None:
        return declare.count(*shape, q=functools.partial(dist.Binomial, total_count=trials))
    if law == "discrete_uniform" and _same(inputs[0]) == 0 and (top := _same(inputs[1])):
        return declare.categorical(top + 1, *shape)
    raise ValueError(
        f"from_pymc: the discrete variable {rv.name!r} is {law}, and bbvi has no q for its support: it has Bernoulli, Categorical, "
        "Poisson, NegativeBinomial, Binomial of a known number of trials, and DiscreteUniform from 0. Sum it out, for example by "
        "pm.Mixture"
    )


def _same(variable: Any) -> int | None:
    """Return the number that all elements of a constant are."""
    from pytensor.graph.basic import Constant

    value = np.unique(variable.data) if isinstance(variable, Constant) else np.zeros(0)
    if value.size == 0 and variable.owner is not None:
        try:
            value = np.unique(variable.eval())
        except Exception:
            return None
    return int(value[0]) if value.size == 1 else None
