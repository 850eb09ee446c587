"""Choose the number of draws by the norm test of Byrd, Chin, Nocedal and Wu 2012.

With g the gradient of a step, v its variance from one draw and S draws, noise does not hide the way as long as
v / S <= |g|**2, both in the Fisher metric, sum g**2 / F. Every few steps make two independent estimates g1 and g2 and take
their mean; then <g1, g2> measures |g|**2, and S |g1 - g2|**2 / 2 measures v, without bias. Such measurements, averaged,
choose the number of draws of later steps, never of their own.
"""

import functools
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from bbvi.draws.draws import AbstractDraws, MonteCarlo, check_numbers
from bbvi.gradients.abstract import Estimate
from bbvi.numerics.address import fold

_FACTOR = 8  # from level to level: each takes a program of its own, and few do
_EVERY = 10  # steps from one measurement to the next
_KEPT = 0.8  # of the weight of earlier measurements, at each
_MARGIN = 2.0  # fewer draws only where so many times the noise would pass the test


class Measured(NamedTuple):
    """Which number of draws is in use, and discounted sums of measurements of |g|**2 and of v."""

    level: Int[Array, ""]
    signal: Float[Array, ""]
    noise: Float[Array, ""]


class AdaptiveDraws(AbstractDraws):
    """Draw more independent samples where noise hides the gradient, fewer where it does not: `least` to `most`.

    Each number is eight times the one before. A fit begins with `least`; every tenth step draws twice as many to measure,
    and the steps after it go by what was measured so far. `posterior.history["draws"]` has the number of each step.

    Examples:
        >>> import bbvi, numpyro.distributions as dist
        >>> model = bbvi.Model(lambda z, y: dist.Gamma(3, 1).log_prob(z["x"]), x=bbvi.positive())
        >>> posterior = bbvi.fit(model, draws=bbvi.AdaptiveDraws(16, 128), stop=bbvi.Budget(steps=10))
        >>> posterior.history["draws"].tolist()
        [16, 16, 16, 16, 16, 16, 16, 16, 16, 32]
    """

    #: the fewest, with which a fit begins
    num: int = 16
    most: int = 1024
    chunk: int | None = None
    reads_names: ClassVar[bool] = False

    def __init__(self, least: int = 16, most: int = 1024, *, chunk: int | None = None):
        check_numbers("AdaptiveDraws", least, chunk)
        check_numbers("AdaptiveDraws", most, chunk)
        if most <= least:
            raise ValueError(
                f"AdaptiveDraws: most must be above least, got least = {least} and most = {most}; "
                f"use draws=bbvi.MonteCarlo({most}) for a number that stays"
            )
        self.num, self.most, self.chunk = int(least), int(most), chunk

    @property
    def levels(self) -> tuple[MonteCarlo, ...]:
        """The numbers of draws among which a step chooses."""
        nums = [self.num]
        while nums[-1] < self.most:
            nums.append(min(_FACTOR * nums[-1], self.most))
        return tuple(MonteCarlo(num, chunk=self.chunk) for num in nums)

    def sample(self, name, family, params, address):
        return family.sample(params, address)

    def init(self):
        return Measured(jnp.int32(0), jnp.zeros(()), jnp.zeros(()))

    def buffers(self, buffers_of):
        return tuple(buffers_of(draws) for draws in self.levels)

    def estimate(self, by, state, step, *, key, buffers):
        measuring = (step + 1) % _EVERY == 0
        num_parts = jnp.where(measuring, 2, 1)

        def both(level: int, draws: MonteCarlo, all_buffers: tuple[Any, ...]) -> tuple[Estimate, Estimate, Any]:
            def part(number: Array, carry: tuple[Estimate, Estimate, Any]) -> tuple[Estimate, Estimate, Any]:
                one, _, own = carry
                new = by(draws, jnp.where(number == 0, key, fold(key, "again")), own)
                own, new = new.buffers, new._replace(buffers=None)
                return jax.tree.map(lambda a, b: jnp.where(number == 0, a, b), new, one), new, own

            shapes = jax.eval_shape(lambda: by(draws, key, all_buffers[level])._replace(buffers=None))
            zero = jax.tree.map(jnp.zeros_like, shapes)
            one, other, own = jax.lax.fori_loop(0, num_parts, part, (zero, zero, all_buffers[level]))
            return one, other, (*all_buffers[:level], own, *all_buffers[level + 1 :])

        branches = [functools.partial(both, level, draws) for level, draws in enumerate(self.levels)]
        one, other, buffers = jax.lax.switch(state.level, branches, buffers)
        nums = jnp.array([draws.num for draws in self.levels])
        num = nums[state.level]
        new = next_level(state, nums, *measured(one, other, num))
        new = jax.tree.map(lambda a, b: jnp.where(measuring, a, b), new, state)
        return new, _mean(one, other, measuring)._replace(buffers=buffers), num_parts * num


def next_level(state: Measured, nums: Int[Array, " levels"], signal: Array, noise: Array) -> Measured:
    """Add one more measurement, and move the level of draws by at most one."""
    signal, noise = _KEPT * state.signal + signal, _KEPT * state.noise + noise

    def enough(noise: Array) -> Array:
        return jnp.sum(nums[:-1] * signal < noise)

    wanted = jnp.clip(state.level, enough(noise), enough(_MARGIN * noise))
    return Measured((state.level + jnp.sign(wanted - state.level)).astype(jnp.int32), signal, noise)


def measured(one: Estimate, other: Estimate, num: Array) -> tuple[Array, Array]:
    """Measure |g|**2 and v by two independent estimates from `num` draws each."""
    fisher = (ravel_pytree(one.fisher)[0] + ravel_pytree(other.fisher)[0]) / 2
    g1, g2 = (ravel_pytree({"globals": found.globals, "rows": found.rows})[0] for found in (one, other))
    inverse = jnp.where(fisher > 0, 1 / jnp.where(fisher > 0, fisher, 1), 0)
    return jnp.sum(g1 * g2 * inverse), num * jnp.sum((g1 - g2) ** 2 * inverse) / 2


def _mean(one: Estimate, other: Estimate, are_two: Array) -> Estimate:
    """Average two estimates, or return the only one."""
    mean = jax.tree.map(lambda a, b: (a + b) / 2, one, other)
    error = jnp.where(are_two, jnp.hypot(one.elbo_error, other.elbo_error) / 2, one.elbo_error)
    return mean._replace(elbo_error=error, floored=one.floored + jnp.where(are_two, other.floored, 0))
