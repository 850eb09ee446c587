"""Section 4.1: step sizes. An optimiser is any optax transformation; those of the paper have its names.

A transformation's `update` also gets `families=`, the family of each latent in its tree, so that a natural
gradient is an ordinary transformation.
"""

import functools
import types
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bbvi.families import AbstractFamily, Parameter
from bbvi.families.abstract import Lambda
from bbvi.numerics.xla import for_one_run

Families = dict[str, AbstractFamily]


def adagrad(eta: float = 1.0) -> optax.GradientTransformation:
    """Eq. 11: each component's step is eta / sqrt(sum of its squared gradients), a sum that starts at 0.

    Examples:
        >>> import bbvi, jax.numpy as jnp
        >>> optimizer = bbvi.adagrad(0.5)
        >>> updates, _ = optimizer.update(jnp.array([-3.0]), optimizer.init(jnp.array([0.0])))
        >>> updates  # the first step is eta, whatever the size of the gradient
        Array([0.5], dtype=float32)
    """
    check_positive("adagrad", "eta", eta)
    return _adagrad(float(eta))


@functools.cache  # the same transformation each time: a compiled step is known by it
def _adagrad(eta: float) -> optax.GradientTransformation:
    return optax.chain(optax.scale_by_rss(initial_accumulator_value=0.0, eps=0.0), optax.scale_by_learning_rate(eta))


def robbins_monro(eta: float = 0.1, *, power: float = 0.75, delay: float = 1.0) -> optax.GradientTransformation:
    """A Robbins-Monro sequence (section 2): rho_t = eta (t + delay)^-power for t = 0, 1, ...

    Examples:
        >>> import bbvi
        >>> bbvi.robbins_monro(0.1, power=0.4)
        Traceback (most recent call last):
        ...
        ValueError: robbins_monro: power must be above 1/2 and at most 1 for the steps to sum as they should, got 0.4
    """
    check_positive("robbins_monro", "eta", eta)
    check_positive("robbins_monro", "delay", delay)
    if not 0.5 < power <= 1:
        raise ValueError(
            f"robbins_monro: power must be above 1/2 and at most 1 for the steps to sum as they should, got {power}"
        )
    return _robbins_monro(float(eta), float(power), float(delay))


@functools.cache
def _robbins_monro(eta: float, power: float, delay: float) -> optax.GradientTransformation:
    return optax.sgd(lambda count: eta * (count + delay) ** -power)


def ascend(
    optimizer: optax.GradientTransformation, gradient: Lambda, state: Any, params: Lambda, families: Families
) -> tuple[Lambda, Any]:
    """Make one step up the ELBO; optax descends, so the gradient is negated here and nowhere else."""
    descent = jax.tree.map(jnp.negative, gradient)
    own = {name: family for name, family in families.items() if name in params}
    updates, state = optax.with_extra_args_support(optimizer).update(descent, state, params, families=own)
    return optax.apply_updates(params, updates), state


def init_rows(optimizer: optax.GradientTransformation, rows: Lambda) -> Any:
    """Make a copy of the optimiser's state for each row, counts included."""
    return jax.vmap(optimizer.init)(rows) if rows else ()


def ascend_rows(
    optimizer: optax.GradientTransformation, gradient: Lambda, state: Any, rows: Lambda, families: Families
) -> tuple[Lambda, Any]:
    """Make one step of each row by its own copy of the optimiser."""
    return jax.vmap(lambda g, s, p: ascend(optimizer, g, s, p, families))(gradient, state, rows)


def check_optimizer(optimizer: Any, locals_: Families) -> None:
    """Refuse what is no optimiser and, for locals, one whose update of a row depends on other rows."""
    if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise TypeError(
            f"optimizer must be an optax transformation such as bbvi.adagrad(1.0) or optax.adam(0.01), "
            f"got {type(optimizer).__name__}"
        )
    if not locals_:
        return
    generator = np.random.default_rng(0)
    rows = together = _random(locals_, 3, generator)
    state_rows, state_together = init_rows(optimizer, rows), optimizer.init(rows)
    both = jax.jit(
        lambda g, a, s, b, t: (ascend_rows(optimizer, g, s, a, locals_), ascend(optimizer, g, t, b, locals_)),
        **for_one_run(),
    )
    largest = 0.0
    # gradients of many sizes: clipping shows itself on large ones only
    for size in (1.0, 1e8, 1.0):
        gradient = jax.tree.map(lambda leaf, size=size: size * leaf, _random(locals_, 3, generator))
        (rows, state_rows), (together, state_together) = both(gradient, rows, state_rows, together, state_together)
        ends = jax.device_get((rows, together))
        gaps = jax.tree.map(lambda a, b: float(np.max(np.abs(a - b) / (1 + np.abs(b)), initial=0)), *ends)
        largest = max(largest, *jax.tree.leaves(gaps))
    if not largest < 1e-4:
        raise ValueError(
            "this optimizer's update of one row depends on the other rows (a global norm, a trust ratio or shared "
            "noise does that), so it cannot step the rows of a batch on their own; use an elementwise one, such as "
            "bbvi.adagrad(1.0) or optax.adam(0.01)"
        )


def behaviour(optimizer: optax.GradientTransformation, families: Families) -> tuple[Lambda, list[float]]:
    """Show where an optimiser goes under a few fixed gradients, and the numbers it holds: it has no other name to know it by."""
    generator = np.random.default_rng(0)
    params = _random(families, 1, generator)
    state = optimizer.init(params)
    for _ in range(3):
        params, state = ascend(optimizer, _random(families, 1, generator), state, params, families)
    return params, list(_numbers_in(optimizer.update, set()))


def _numbers_in(value: Any, seen: set[int]) -> Iterator[float]:
    """List the numbers that a function holds: those of a schedule may matter after many steps only."""
    if isinstance(value, (bool, int, float)):
        yield float(value)
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _numbers_in(part, seen)
    elif isinstance(value, functools.partial):
        yield from _numbers_in([value.func, value.args, list(value.keywords.values())], seen)
    elif isinstance(value, types.FunctionType) and id(value) not in seen:
        seen.add(id(value))
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        yield from _numbers_in([value.__code__.co_consts, value.__defaults__ or (), cells], seen)


def _random(families: Families, num_rows: int, generator: np.random.Generator) -> Any:
    def drawn(entry: Parameter) -> np.ndarray:
        return generator.normal(size=(num_rows, *entry.raw_shape())).astype(jnp.result_type(float))

    return {name: {p: drawn(x) for p, x in family.parameters().items()} for name, family in families.items()}


def check_positive(where: str, name: str, value: float) -> None:
    """Refuse a setting that is not positive."""
    if not value > 0:
        raise ValueError(f"{where}: {name} must be positive, got {value}")
