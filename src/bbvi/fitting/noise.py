"""Repeat an estimator at a fixed lambda and see how noisy it is."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from bbvi.families.abstract import Lambda
from bbvi.fitting.loop import Loop
from bbvi.numerics.address import Key


def mean_and_spread(one: Callable[[Array], Any], repeats: int) -> tuple[Any, Any]:
    """Return the mean of `one(repeat)` over the repeats, leaf by leaf, and the sum of squared distances to it."""

    one = jax.jit(one)  # traced once

    def body(carry: tuple[Any, Any], repeat: Array) -> tuple[tuple[Any, Any], None]:
        # Welford's recursion: no large sums are subtracted
        mean, spread = carry
        found = one(repeat)
        new = jax.tree.map(lambda m, x: m + (x - m) / (repeat + 1), mean, found)
        spread = jax.tree.map(lambda s, x, m, n: s + (x - m) * (x - n), spread, found, mean, new)
        return (new, spread), None

    zeros = jax.tree.map(jnp.zeros_like, jax.eval_shape(one, jnp.int32(0)))
    return jax.lax.scan(body, (zeros, zeros), jnp.arange(repeats))[0]


def noise_of_latents(
    loop: Loop, params: dict[str, Lambda], key: Key, data: Any, source: Any, repeats: int
) -> dict[str, Array]:
    """Measure the variance of each latent's gradient on one batch, in units of the Fisher information."""
    batch = loop.batches.gather(params, key, jnp.int32(0), source, jnp.int32(0))

    def gradient_and_fisher(repeat: Array) -> tuple[Lambda, Lambda]:
        estimate = loop.estimate(params, data, batch, draws=loop.draws, key=loop.draws_key(key, repeat))
        return {**estimate.globals, **estimate.rows}, {**estimate.fisher["globals"], **estimate.fisher["rows"]}

    (_, fisher), (spread, _) = mean_and_spread(gradient_and_fisher, repeats)

    def ratio(squares: Array, f: Array) -> Array:
        return jnp.where(f > 0, squares / (repeats - 1) / jnp.where(f > 0, f, 1), 0).mean()

    ratios = jax.tree.map(ratio, spread, fisher)
    return {name: sum(of_latent.values(), jnp.zeros(())) for name, of_latent in ratios.items()}
