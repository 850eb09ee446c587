"""Section 5.3: proposals centred on the current value, from the family of a latent's support, for one factor of q.

A state is held as the coordinates of that family, in which nothing underflows: log z of a positive latent. Each
proposal returns the coordinates of z' and log q(z | z') - log q(z' | z), the Hastings correction, both densities in z.
"""

from abc import abstractmethod
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from numpyro.distributions import biject_to

from bbvi.families import (
    AbstractChart,
    AbstractFamily,
    Bernoulli,
    Beta,
    Binary,
    Categorical,
    Categories,
    Counts,
    Dirichlet,
    Gamma,
    JointNormal,
    Normal,
    OneHot,
    OneHotVectors,
    Poisson,
    Positive,
    Real,
    Simplex,
    Through,
    TransformedNormal,
    Unit,
)
from bbvi.model.latents import Latent
from bbvi.numerics.address import Address
from bbvi.numerics.quantiles import log_ratio_to_mean
from bbvi.numerics.samplers import inverse_normal, log_gamma, standard_normal
from bbvi.numerics.special import lgamma, polynomial

#: the part of an address that decides on acceptance; parts 0, 1, ... are the proposal's
DECISION = 1 << 30
# always to propose another value could make a sweep deterministic: with nothing to choose between, all bits would flip
_STAY = 0.1


class AbstractProposal(eqx.Module):
    """A proposal for one factor of q. `family` says what the coordinates are."""

    family: eqx.AbstractVar[AbstractFamily]
    largest_log_step: ClassVar[float] = 20.0
    is_tuned: ClassVar[bool] = True

    @abstractmethod
    def __call__(self, u: Array, log_step: Float[Array, ""], address: Address) -> tuple[Array, Float[Array, ""]]:
        """Propose: the coordinates of z', and the Hastings correction."""


class NormalStep(AbstractProposal):
    """z' of Normal(z, step): symmetric."""

    family: AbstractFamily = Normal()

    def __call__(self, u, log_step, address):
        return u + jnp.exp(log_step) * inverse_normal(address.uniform()), jnp.zeros(())


class GammaStep(AbstractProposal):
    """z' of the gamma whose mean is z and whose sd is step times z.

    With a = 1 / step^2 and r = log z' - log z, q(z' | z) = Gamma(z'; a, a / z) gives
    log q(z | z') - log q(z' | z) = -(2a - 1) r + 2a sinh r.
    """

    family: AbstractFamily = Gamma()
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

    family: AbstractFamily = Beta()

    def __call__(self, u, log_step, address):
        def around(u: Array) -> dict[str, Array]:
            return {"concentration": -2 * log_step, "mean": u}

        new = self.family.sample(around(u), address)
        return new, self.family.log_prob(around(new), u) - self.family.log_prob(around(u), new)


class DirichletStep(AbstractProposal):
    """z' of the Dirichlet whose mean is z and whose total concentration is 1 / step^2."""

    family: AbstractFamily

    def __call__(self, u, log_step, address):
        total = jnp.exp(-2 * log_step)
        parts = jnp.arange(len(u), dtype=jnp.uint32)
        draws = jax.vmap(lambda log_z, i: log_gamma(address, total * jnp.exp(log_z), part=i))(u, parts)
        new = draws - jax.scipy.special.logsumexp(draws)

        def log_q(to: Array, at: Array) -> Array:  # up to lgamma(total), which both have
            a = total * jnp.exp(at)
            return ((a - 1) * to - lgamma(a)).sum()

        return new, log_q(u, new) - log_q(new, u)


class TransformedStep(AbstractProposal):
    """A normal step in the coordinates of a support's bijection; the correction is the ratio of its Jacobians."""

    family: TransformedNormal

    def __call__(self, u, log_step, address):
        size = u.size
        numbers = address.element * jnp.uint32(size) + jnp.arange(size, dtype=jnp.uint32)
        noise = jax.vmap(lambda e: standard_normal(Address(address.key, address.group, e, address.sample)))(numbers)
        new, transform = u + jnp.exp(log_step) * noise.reshape(u.shape), biject_to(self.family.chart.support)

        def log_jacobian(at: Array) -> Array:
            return jnp.sum(transform.log_abs_det_jacobian(at, transform(at)))

        return new, log_jacobian(new) - log_jacobian(u)


class Flip(AbstractProposal):
    """z' is the other of two values, now and then the same: symmetric."""

    family: AbstractFamily = Bernoulli()
    is_tuned: ClassVar[bool] = False

    def __call__(self, u, log_step, address):
        return jnp.where(address.uniform() < _STAY, u, 1 - u), jnp.zeros(())


class OtherCategory(AbstractProposal):
    """z' is one of the k - 1 other values, all equally likely, now and then the same: symmetric.

    A vector of zeros and a one is turned round by 1 to k - 1 places.
    """

    family: Categorical | OneHot
    is_tuned: ClassVar[bool] = False

    def __call__(self, u, log_step, address):
        k, (which, stay) = self.family.k, address.uniforms()
        by = 1 + jnp.minimum((which * (k - 1)).astype(int), k - 2)
        other = jnp.roll(u, by) if u.ndim else (u + by.astype(u.dtype)) % k
        return jnp.where(stay < _STAY, u, other), jnp.zeros(())


class CountStep(AbstractProposal):
    """z plus or minus 1 + floor(step times an exponential): symmetric; what falls below 0 or above `top` is rejected.

    A Poisson with mean z, the paper's rule, could never leave 0.
    """

    family: AbstractFamily = Poisson()
    top: int | None = None

    def __call__(self, u, log_step, address):
        size, sign = address.uniforms()
        by = 1 + jnp.minimum(-jnp.log(size) * jnp.exp(log_step), 1e6).astype(u.dtype)
        new = jnp.where(sign < 0.5, u - by, u + by)
        inside = jnp.clip(new, 0, self.top)
        return inside, jnp.where(new == inside, 0.0, -jnp.inf)


def proposal(latent: Latent) -> AbstractProposal:
    """Choose the proposal by a latent's support, whatever its family of q."""
    support, chart = latent.family.chart.support, latent.chart
    if isinstance(latent.family, JointNormal) and not isinstance(chart, Simplex):
        return TransformedStep(TransformedNormal(Through(support, latent.event)))
    made: dict[type[AbstractChart], Any] = {
        Real: NormalStep, Positive: GammaStep, Unit: BetaStep, Binary: Flip,
        Counts: lambda: CountStep(top=getattr(support, "upper_bound", None)),
        OneHotVectors: lambda: OtherCategory(OneHot(chart.num_categories)),
        Simplex: lambda: DirichletStep(Dirichlet(chart.num_categories)),
        Through: lambda: TransformedStep(TransformedNormal(Through(support, chart.shape))),
        Categories: lambda: OtherCategory(Categorical(int(support.upper_bound) + 1)),
    }  # fmt: skip
    return made[type(chart)]()
