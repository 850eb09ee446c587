"""The supplement's gamma by mean and variance: shape = mean**2 / variance, rate = mean / variance."""

import jax.numpy as jnp
import numpyro.distributions as dist
from jax import random
from numpyro.distributions import constraints


class GammaE(dist.Gamma):
    """A gamma distribution given by its mean and its variance.

    Usable in a log joint and as `q=`. The second argument is a variance, not a standard deviation.

    Examples:
        >>> import bbvi
        >>> d = bbvi.GammaE(2.0, 0.5)
        >>> float(d.mean), float(d.variance)
        (2.0, 0.5)
    """

    arg_constraints = {"mean": constraints.positive, "variance": constraints.positive}  # noqa: RUF012
    pytree_data_fields = ("_mean", "_variance")

    def __init__(self, mean=1.0, variance=1.0, *, validate_args=None):
        self._mean, self._variance = jnp.asarray(mean), jnp.asarray(variance)
        super().__init__(self._mean**2 / self._variance, self._mean / self._variance, validate_args=validate_args)

    @property
    def mean(self):
        return jnp.broadcast_to(self._mean, self.batch_shape)

    @property
    def variance(self):
        return jnp.broadcast_to(self._variance, self.batch_shape)

    def sample(self, key, sample_shape=()):
        return super().sample(random.fold_in(key, 0), sample_shape)
