"""The supplement's gamma by mean and variance: shape = mean**2 / variance, rate = mean / variance."""

import jax.numpy as jnp
import numpyro.distributions as dist
from jax import random
from numpyro.distributions import constraints
from numpyro.distributions.util import promote_shapes, validate_sample


class GammaE(dist.Distribution):
    """A gamma distribution given by its mean and its variance.

    Usable in a log joint and as `q=`. The second argument is a variance, not a standard deviation.

    Examples:
        >>> import bbvi
        >>> d = bbvi.GammaE(2.0, 0.5)
        >>> float(d.mean), float(d.variance)
        (2.0, 0.5)
    """

    arg_constraints = {"mean": constraints.positive, "variance": constraints.positive}  # noqa: RUF012
    support = constraints.positive
    pytree_data_fields = ("_mean", "_variance")

    def __init__(self, mean=1.0, variance=1.0, *, validate_args=None):
        mean, variance = promote_shapes(jnp.asarray(mean), jnp.asarray(variance))
        self._mean, self._variance = mean, variance
        batch_shape = jnp.broadcast_shapes(jnp.shape(mean), jnp.shape(variance))
        super().__init__(batch_shape=batch_shape, validate_args=validate_args)

    @property
    def mean(self):
        return jnp.broadcast_to(self._mean, self.batch_shape)

    @property
    def variance(self):
        return jnp.broadcast_to(self._variance, self.batch_shape)

    @property
    def _gamma(self):
        return dist.Gamma(self._mean**2 / self._variance, self._mean / self._variance)

    def sample(self, key, sample_shape=()):
        return self._gamma.sample(random.fold_in(key, 0), sample_shape)

    @validate_sample
    def log_prob(self, value):
        return self._gamma.log_prob(value)

    def cdf(self, value):
        return self._gamma.cdf(value)

    def icdf(self, q):
        return self._gamma.icdf(q)
