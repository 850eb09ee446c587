"""Section 5.3: proposals centred on the current value, from the family of a latent's support, for one factor of q.

A state is held in coordinates of the support, in which nothing underflows: log z of a positive latent. Each
proposal returns the coordinates of z' and log q(z | z') - log q(z' | z), the Hastings correction, both densities in z.
"""

from abc import abstractmethod
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bbvi.families import (
    AbstractChart,
    Beta,
    Binary,
    Categories,
    Counts,
    JointNormal,
    OneHotVectors,
    Positive,
    Real,
    Simplex,
    Through,
    Unit,
)
from bbvi.families.beta import draw_shares, log_shares
from bbvi.model.latents import Latent
from bbvi.numerics.address import Address
from bbvi.numerics.quantiles import log_ratio_to_mean
from bbvi.numerics.samplers import inverse_normal, standard_normal
from bbvi.numerics.special import polynomial

#: the part of an address that decides on acceptance; parts 0, 1, ... are the proposal's
DECISION = 1 << 30
# always to propose another value could make a sweep deterministic: with nothing to choose between, all bits would flip
_STAY = 0.1


class AbstractProposal(eqx.Module):
    """A proposal for one factor of q. `chart` says what the coordinates are."""

    chart: AbstractChart
    largest_log_step: ClassVar[float] = 20.0
    is_tuned: ClassVar[bool] = True

    @abstractmethod
    def __call__(self, u: Array, log_step: Float[Array, ""], address: Address) -> tuple[Array, Float[Array, ""]]:
        """Propose: the coordinates of z', and the Hastings correction."""


class GammaStep(AbstractProposal):
    """z' of the gamma whose mean is z and whose sd is step times z.

    With a = 1 / step^2 and r = log z' - log z, q(z' | z) = Gamma(z'; a, a / z) gives
    log q(z | z') - log q(z' | z) = -(2a - 1) r + 2a sinh r.
    """

    # wider gammas have their mode at zero, from where they hardly ever come back
    largest_log_step: ClassVar[float] = 0.0

    def __call__(self, u, log_step, address):
        s = jnp.exp(log_step)
        r = log_ratio_to_mean(inverse_normal(address.uniform()), s)
        return u + r, r + 2 * _sinh_beyond_r(r) / (s * s)


def _sinh_beyond_r(r: Float[Array, ""]) -> Float[Array, ""]:
    """Compute sinh(r) - r without cancellation."""
    small = r**3 * polynomial(r * r, [1 / 6, 1 / 120, 1 / 5040, 1 / 362880, 1 / 39916800])
    return jnp.where(jnp.abs(r) < 1, small, jnp.sinh(r) - r)


class BetaStep(AbstractProposal):
    """z' of the Beta whose mean is z and whose total concentration is 1 / step^2."""

    def __call__(self, u, log_step, address):
        def around(u: Array) -> dict[str, Array]:
            return {"concentration": -2 * log_step, "mean": u}

        new = Beta().sample(around(u), address)
        return new, Beta().log_prob(around(new), u) - Beta().log_prob(around(u), new)


class DirichletStep(AbstractProposal):
    """z' of the Dirichlet whose mean is z and whose total concentration is 1 / step^2."""

    def __call__(self, u, log_step, address):
        log_total = -2 * log_step
        new = draw_shares(address, u, log_total)
        return new, log_shares(new, log_total, u) - log_shares(u, log_total, new)


class NormalStep(AbstractProposal):
    """A normal step in coordinates that may be any real numbers; the correction is the ratio of the slopes of z in them."""

    def __call__(self, u, log_step, address):
        size = u.size
        numbers = address.element * jnp.uint32(size) + jnp.arange(size, dtype=jnp.uint32)
        noise = jax.vmap(lambda e: standard_normal(Address(address.key, address.group, e, address.sample)))(numbers)
        new = u + jnp.exp(log_step) * noise.reshape(u.shape)
        return new, jnp.sum(self.chart.log_slope(new)) - jnp.sum(self.chart.log_slope(u))


class Flip(AbstractProposal):
    """z' is the other of two values, now and then the same: symmetric."""

    is_tuned: ClassVar[bool] = False

    def __call__(self, u, log_step, address):
        return jnp.where(address.uniform() < _STAY, u, 1 - u), jnp.zeros(())


class OtherCategory(AbstractProposal):
    """z' is one of the k - 1 other values, all equally likely, now and then the same: symmetric.

    A vector of zeros and a one is turned round by 1 to k - 1 places.
    """

    is_tuned: ClassVar[bool] = False

    def __call__(self, u, log_step, address):
        k, (which, stay) = self.chart.num_categories, address.uniforms()
        by = 1 + jnp.minimum((which * (k - 1)).astype(int), k - 2)
        other = jnp.roll(u, by) if u.ndim else (u + by.astype(u.dtype)) % k
        return jnp.where(stay < _STAY, u, other), jnp.zeros(())


class CountStep(AbstractProposal):
    """z plus or minus 1 + floor(step times an exponential): symmetric; what falls outside of the support is rejected.

    A Poisson with mean z, the paper's rule, could never leave 0.
    """

    chart: Counts

    def __call__(self, u, log_step, address):
        size, sign = address.uniforms()
        by = 1 + jnp.minimum(-jnp.log(size) * jnp.exp(log_step), 1e6).astype(u.dtype)
        new = jnp.where(sign < 0.5, u - by, u + by)
        inside = jnp.clip(new, 0, self.chart.top)
        return inside, jnp.where(new == inside, 0.0, -jnp.inf)


def proposal(latent: Latent) -> AbstractProposal:
    """Choose the proposal by a latent's support, whatever its family of q."""
    support, chart = latent.family.chart.support, latent.chart
    if isinstance(latent.family, JointNormal) and not isinstance(chart, Simplex):
        chart = Through(support, latent.event)
    elif isinstance(chart, Counts):
        chart = Counts(getattr(support, "upper_bound", None))
    made: dict[type[AbstractChart], type[AbstractProposal]] = {
        Real: NormalStep, Through: NormalStep, Positive: GammaStep, Unit: BetaStep, Simplex: DirichletStep,
        Binary: Flip, Categories: OtherCategory, OneHotVectors: OtherCategory, Counts: CountStep,
    }  # fmt: skip
    return made[type(chart)](chart)
