"""Families for binary, categorical and count latents."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy  # of which scipy.stats, slow to import, is imported when first used
from jax.nn import log_softmax, sigmoid, softmax, softplus
from jax.scipy.special import gammaln
from numpyro.distributions import constraints

from bbvi.families.abstract import AbstractFamily, Parameter, constrain, smallest
from bbvi.numerics.address import Address
from bbvi.numerics.samplers import poisson


class Bernoulli(AbstractFamily):
    """Bernoulli by its logit."""

    def event_shape(self):
        return ()

    def support(self):
        return constraints.boolean

    def is_discrete(self):
        return True

    def support_values(self):
        return np.arange(2)

    def parameters(self):
        return {"logits": Parameter((), constraints.real)}

    def sample(self, params, address: Address):
        return (address.uniform() < sigmoid(params["logits"])).astype(int)

    def value(self, coordinates):
        return coordinates

    def coordinates(self, value):
        return value

    def floored(self, coordinates):
        return jnp.zeros(jnp.shape(coordinates), bool)

    def log_prob(self, params, coordinates):
        return -softplus(jnp.where(coordinates == 1, -1, 1) * params["logits"])

    def natural_gradient(self, params, gradient):
        variance = sigmoid(params["logits"]) * sigmoid(-params["logits"])
        return {"logits": gradient["logits"] / jnp.maximum(variance, smallest(variance))}

    def centred(self, value):
        return {"logits": jnp.where(value == 1, 2.0, -2.0)}

    def moments(self, params):
        p = np.asarray(sigmoid(params["logits"]))
        return p, np.sqrt(p * (1 - p))

    def quantile(self, params, p):
        return (np.asarray(sigmoid(params["logits"])) > 1 - p).astype(int)


class Categorical(AbstractFamily):
    """Categorical over 0 .. k-1 by k logits."""

    k: int

    def event_shape(self):
        return ()

    def support(self):
        return constraints.integer_interval(0, self.k - 1)

    def is_discrete(self):
        return True

    def support_values(self):
        return np.arange(self.k)

    def parameters(self):
        return {"logits": Parameter((self.k,), constraints.real_vector)}

    def sample(self, params, address: Address):
        cumulative = jnp.cumsum(jax.nn.softmax(params["logits"]))
        return (address.uniform() * cumulative[-1] >= cumulative[:-1]).sum().astype(int)

    def value(self, coordinates):
        return coordinates

    def coordinates(self, value):
        return value

    def floored(self, coordinates):
        return jnp.zeros(jnp.shape(coordinates), bool)

    def log_prob(self, params, coordinates):
        picked = jnp.arange(self.k) == coordinates
        return jnp.where(picked, log_softmax(params["logits"]), 0).sum()

    def natural_gradient(self, params, gradient):
        p = jax.nn.softmax(params["logits"])
        direction = gradient["logits"] / jnp.maximum(p, smallest(p))
        # F is blind to a shift of all logits: their mean stays
        return {"logits": direction - direction.mean()}

    def centred(self, value):
        return {"logits": jnp.where(jnp.arange(self.k) == value[..., None], 2.0, 0.0)}

    def moments(self, params):
        return None

    def quantile(self, params, p):
        return None


class Poisson(AbstractFamily):
    """Poisson by the logarithm of its rate."""

    def event_shape(self):
        return ()

    def support(self):
        return constraints.nonnegative_integer

    def is_discrete(self):
        return True

    def parameters(self):
        return {"rate": Parameter((), constraints.positive)}

    def sample(self, params, address: Address):
        return poisson(address, params["rate"])

    def value(self, coordinates):
        return coordinates

    def coordinates(self, value):
        return value

    def floored(self, coordinates):
        return jnp.zeros(jnp.shape(coordinates), bool)

    def log_prob(self, params, coordinates):
        return coordinates * params["rate"] - jnp.exp(params["rate"]) - gammaln(coordinates + 1.0)

    def natural_gradient(self, params, gradient):
        return {"rate": gradient["rate"] * jnp.exp(-params["rate"])}

    def centred(self, value):
        return {"rate": jnp.maximum(value, 0.5)}

    def _frozen(self, params):
        return scipy.stats.poisson(np.asarray(constrain(self, params)["rate"]))

    def moments(self, params):
        frozen = self._frozen(params)
        return frozen.mean(), frozen.std()

    def quantile(self, params, p):
        return self._frozen(params).ppf(p).astype(int)


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
