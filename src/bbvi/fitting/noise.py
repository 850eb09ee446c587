"""Repeat an estimator at a fixed lambda and see how noisy it is."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from bbvi.draws.batch import Batch
from bbvi.families.abstract import Lambda
from bbvi.fitting.loop import Loop
from bbvi.gradients.abstract import Estimate
from bbvi.numerics.address import Key


def mean_and_spread(
    loop: Loop, params: dict[str, Lambda], key: Key, data: Any,
    *, repeats: int, batch: Callable[[Array], Batch | None], value: Callable[[Estimate, Batch | None], Any],
) -> tuple[Any, Any]:  # fmt: skip
    """Estimate the gradient `repeats` times and return the mean of `value`, and the sum of squared distances to it."""

    def one(repeat: Array) -> Any:
        own = batch(repeat)
        estimate = loop.gradient.estimate(
            loop.analysis, params["globals"], data, own, draws=loop.draws, key=loop.draws_key(key, repeat)
        )
        return value(estimate, own)

    def body(carry: tuple[Any, Any], repeat: Array) -> tuple[tuple[Any, Any], None]:
        # Welford's recursion: no large sums are subtracted
        mean, spread = carry
        found = one(repeat)
        new = jax.tree.map(lambda m, x: m + (x - m) / (repeat + 1), mean, found)
        spread = jax.tree.map(lambda s, x, m, n: s + (x - m) * (x - n), spread, found, mean, new)
        return (new, spread), None

    shapes = jax.eval_shape(one, jnp.int32(0))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return jax.lax.scan(body, (zeros, zeros), jnp.arange(repeats))[0]


def noise_of_latents(
    loop: Loop, params: dict[str, Lambda], key: Key, data: Any, source: Any, repeats: int
) -> dict[str, Array]:
    """Measure the variance of each latent's gradient on one batch, in units of the Fisher information."""
    batch = loop.batch(params, key, jnp.int32(0), source, jnp.int32(0))

    def gradient_and_fisher(estimate: Estimate, _: Batch | None) -> tuple[Lambda, Lambda]:
        return {**estimate.globals, **estimate.rows}, {**estimate.fisher["globals"], **estimate.fisher["rows"]}

    (_, fisher), (spread, _) = mean_and_spread(
        loop, params, key, data, repeats=repeats, batch=lambda _: batch, value=gradient_and_fisher
    )

    def ratio(squares: Array, f: Array) -> Array:
        return jnp.where(f > 0, squares / (repeats - 1) / jnp.where(f > 0, f, 1), 0).mean()

    return {
        name: sum(jax.tree.leaves(jax.tree.map(ratio, spread[name], fisher[name])), jnp.zeros(())) for name in spread
    }
