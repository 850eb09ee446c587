"""A category as a vector of zeros and a one."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import log_softmax, softmax
from numpyro.distributions import constraints

from bbvi.families.abstract import AbstractFamily
from bbvi.families.discrete import Categorical
from bbvi.numerics.address import Address


class _OneHot(constraints.ParameterFreeConstraint):
    """Vectors with a single 1 among zeros: numpyro has no such constraint."""

    is_discrete = True
    event_dim = 1

    def __call__(self, x):
        return jnp.all((x == 0) | (x == 1), axis=-1) & (jnp.sum(x, axis=-1) == 1)


_ONE_HOT = _OneHot()


class OneHot(AbstractFamily):
    """Categorical over k values by k logits; a value is a vector of k integers, and one factor of q."""

    k: int

    def event_shape(self):
        return (self.k,)

    def support(self):
        return _ONE_HOT

    def is_discrete(self):
        return True

    def support_values(self):
        return np.eye(self.k, dtype=int)

    def parameters(self):
        return Categorical(self.k).parameters()

    def sample(self, params, address: Address):
        return jax.nn.one_hot(Categorical(self.k).sample(params, address), self.k, dtype=int)

    def value(self, coordinates):
        return coordinates

    def coordinates(self, value):
        return value

    def floored(self, coordinates):
        return jnp.zeros(jnp.shape(coordinates)[:-1], bool)

    def log_prob(self, params, coordinates):
        return jnp.where(coordinates == 1, log_softmax(params["logits"]), 0).sum()

    def natural_gradient(self, params, gradient):
        return Categorical(self.k).natural_gradient(params, gradient)

    def centred(self, value):
        return {"logits": jnp.where(value == 1, 2.0, 0.0)}

    def moments(self, params):
        p = np.asarray(softmax(params["logits"]))
        return p, np.sqrt(p * (1 - p))

    def quantile(self, params, p):
        return (np.asarray(softmax(params["logits"])) > 1 - p).astype(int)
