"""Log joints that jump and log joints that do not, by class of the operation; each is a function of one real array z of shape (3,).

`JUMPING` are written down from what has been seen to mislead a pathwise gradient; `CONTINUOUS` from what users write.
`POSITIVE` ones take positive latents.
"""

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.custom_batching import custom_vmap
from jax.scipy.special import gammaln, logsumexp, ndtr

inf = jnp.inf


@custom_vmap
def stairs(z):
    return jnp.floor(z)


@stairs.def_vmap
def _(axis_size, in_batched, z):
    return stairs(z), in_batched[0]


@jax.custom_jvp
def spike(z):
    return jnp.where(z > 0, 1.0, 0.0)


spike.defjvp(lambda primals, tangents: (spike(*primals), tangents[0] * jnp.exp(-(primals[0] ** 2))))


@jax.custom_jvp
def rounded(z):
    return jnp.round(z)


rounded.defjvp(lambda primals, tangents: (rounded(*primals), tangents[0]))


def checked(z):
    """An infinity from a check, which something after it makes finite."""
    return jnp.where(z > 0.5, -(z - 0.5), -inf)


def matrix(z):
    return jnp.outer(z, z) + jnp.diag(jnp.arange(3.0)) * z[0]


def until(z):
    return jax.lax.while_loop(lambda c: c[0] < 3.0, lambda c: (c[0] + jnp.abs(c[1]) + 0.1, c[1]), (z[0], z[1]))[0]


JUMPING = {
    # infinities that are absorbed
    "logaddexp of a check": lambda z: jnp.logaddexp(checked(z), -2.0),
    "logsumexp of a check": lambda z: logsumexp(checked(z)),
    "exp of a check": lambda z: jnp.exp(checked(z)),
    "max of a check": lambda z: jnp.maximum(checked(z), -5.0),
    "clip of a check": lambda z: jnp.clip(checked(z), -5.0, 5.0),
    "nan_to_num of a check": lambda z: jnp.nan_to_num(checked(z), neginf=-4.0),
    "softmax of a check": lambda z: jax.nn.softmax(checked(z)),
    "tanh of a check": lambda z: jnp.tanh(checked(z)),
    "sigmoid of a check": lambda z: jax.nn.sigmoid(checked(z)),
    "quotient by a check": lambda z: 1.0 / checked(z),
    "power of a check": lambda z: 0.5 ** -checked(z),
    "reduce_max of a check": lambda z: jnp.max(checked(z)),
    "sort of a check": lambda z: jnp.sort(checked(z))[-1],
    "arctan of a check": lambda z: jnp.arctan(checked(z)),
    "erf of a check": lambda z: jax.scipy.special.erf(checked(z)),
    "a check that is infinite in one place": lambda z: jnp.where(z > 0, z, jnp.array([0.0, -inf, 1.0])),
    "where isfinite": lambda z: jnp.where(jnp.isfinite(checked(z)), checked(z), -3.0),
    "nan that nan_to_num takes away": lambda z: jnp.nan_to_num(jnp.log(z)),
    "nanmax": lambda z: jnp.nanmax(jnp.sqrt(z)),
    "nansum": lambda z: jnp.nansum(jnp.where(z > 0, -z, jnp.nan)),
    "exp of log of what may be negative": lambda z: jnp.where(jnp.isnan(jnp.log(z)), 1.0, z),
    "plus infinity under a minimum": lambda z: jnp.minimum(jnp.where(z > 0, inf, z), 2.0),
    "exp of minus an infinity": lambda z: jnp.exp(-jnp.where(z > 0, inf, z)),
    "a uniform density in a mixture": lambda z: jnp.logaddexp(
        jnp.where((z > 0) & (z < 1), 0.0, -inf), dist.Normal(0, 1).log_prob(z)
    ),
    # branch cuts
    "arctan2": lambda z: jnp.arctan2(z, z - 1.0),
    "angle": lambda z: jnp.angle(z[0] + 1j * z[1]),
    "complex log": lambda z: jnp.log(z + 1j * z[::-1]).imag,
    "complex sqrt": lambda z: jnp.sqrt(z + 1j * z[::-1]).real,
    "complex power": lambda z: ((z + 1j * z[::-1]) ** 0.3).imag,
    "log of a negative number as complex": lambda z: jnp.log(z.astype(complex)).imag,
    # poles, and what is bounded after them
    "tanh(1/z)": lambda z: jnp.tanh(1 / z),
    "arctan(1/z)": lambda z: jnp.arctan(1 / z),
    "clip(1/z)": lambda z: jnp.clip(1 / z, -2, 2),
    "arctan(tan z)": lambda z: jnp.arctan(jnp.tan(z)),
    "exp(1/z)": lambda z: -jnp.exp(-1 / z) * 0.1,
    "sigmoid(1/z)": lambda z: jax.nn.sigmoid(1 / z),
    "tanh(z**-3)": lambda z: jnp.tanh(z**-3),
    "erf of a reciprocal": lambda z: jax.scipy.special.erf(jnp.reciprocal(z)),
    "cos of a pole": lambda z: jnp.cos(jnp.arctan(1 / (z - 0.3))),
    "sigmoid of a log gamma's pole": lambda z: jnp.tanh(jax.scipy.special.digamma(z)),
    # signs by division
    "z/|z|": lambda z: z / jnp.abs(z),
    "z/sqrt(z^2)": lambda z: z / jnp.sqrt(z**2),
    "v/norm(v)": lambda z: z[:1] / jnp.linalg.norm(z[:1]),
    "z times rsqrt(z^2)": lambda z: z * jax.lax.rsqrt(z**2),
    "|z|/z": lambda z: jnp.abs(z) / z,
    "the sign of slogdet": lambda z: jnp.linalg.slogdet(matrix(z))[0],
    "the sign of the gamma function": lambda z: jax.scipy.special.gamma(z) / jnp.exp(gammaln(z)),
    "gammasgn": lambda z: jax.scipy.special.gammasgn(z),
    "eigenvectors": lambda z: jnp.linalg.eigh(matrix(z))[1],
    "singular vectors": lambda z: jnp.linalg.svd(matrix(z))[0],
    "Q of QR": lambda z: jnp.linalg.qr(matrix(z))[0],
    "copysign": lambda z: jnp.copysign(1.0, z),
    "a trace that may be negative": lambda z: jnp.tanh(1 / (1 + jnp.einsum("ij,ji->", matrix(z), matrix(z)))),
    "infinity times z": lambda z: jnp.tanh(inf * z),
    "z over a constant with a 0": lambda z: jnp.arctan(z / jnp.array([0.0, 1.0, 2.0])),
    "betainc beyond 1": lambda z: jnp.nan_to_num(jax.scipy.special.betainc(2.0, 3.0, jnp.exp(z))),
    # choices whose sides do not meet everywhere
    "where, a factor of the comparison": lambda z: jnp.where(z[0] * jnp.sin(z[1]) > 0, z[0], 0.0),
    "where, a factor by tanh": lambda z: jnp.where(z[0] * jnp.tanh(z[1]) > 0, z[0], 0.0),
    "where, a kink far out": lambda z: jnp.where(z[0] > 0, jnp.maximum(z[1] - 20, 0), 0.0),
    "where, a clip far out": lambda z: jnp.where(z[0] > 0, jnp.clip(z[1], -10, 10), z[1]),
    "where, a small jump of a large function": lambda z: jnp.where(z > 0, -1e8 * z**2 - 3, -1e8 * z**2),
    # comparisons, rounding, order, indices
    "where": lambda z: jnp.where(z > 0, -1.0, -2.0) * z**2,
    "where of two formulas": lambda z: jnp.where(z > 0, z, z + 1e-2),
    "where, equal at one end only": lambda z: jnp.where(jnp.abs(z) < 1, z, 1.0),
    "where of a joint comparison": lambda z: jnp.where((z > 0) & (z < 1), z, 0.0),
    "times a comparison": lambda z: (z > 0) * z[0],
    "heaviside": lambda z: jnp.heaviside(z, 0.5),
    "select": lambda z: jnp.select([z < -1, z < 1], [z, z**2], 0.0),
    "piecewise": lambda z: jnp.piecewise(z, [z < 0, z >= 0], [lambda z: -z, lambda z: 1 + z]),
    "a mask of numpyro": lambda z: dist.Normal(0, 1).mask(z > 0).log_prob(1.0),
    "sign": lambda z: jnp.sign(z) * z[0],
    "floor": jnp.floor,
    "round": jnp.round,
    "remainder": lambda z: z % 1.0,
    "fmod": lambda z: jnp.fmod(z, 1.0),
    "modf": lambda z: jnp.modf(z)[0],
    "integers": lambda z: z.astype(int) * 1.0,
    "bool": lambda z: z.astype(bool) * z[0],
    "half precision": lambda z: z.astype(jnp.float16).astype(jnp.float32),
    "reduce_precision": lambda z: jax.lax.reduce_precision(z, 8, 3),
    "bits": lambda z: jax.lax.bitcast_convert_type(jax.lax.bitcast_convert_type(z, jnp.int32) & -65536, jnp.float32),
    "nextafter": lambda z: jnp.nextafter(z, 0.0),
    "argmax": lambda z: jnp.arange(3.0)[jnp.argmax(z)],
    "argsort": lambda z: z[jnp.argsort(-z)][0] * jnp.argsort(z),
    "carried by a sort": lambda z: jax.lax.sort((z, jnp.arange(3.0)), num_keys=1)[1],
    "top_k": lambda z: jax.lax.top_k(z, 1)[1] * 1.0,
    "an index": lambda z: jnp.arange(5.0)[jnp.clip(z.astype(int), 0, 4)],
    "searchsorted": lambda z: jnp.searchsorted(jnp.arange(3.0), z) * 1.0,
    "digitize": lambda z: jnp.array([0.0, 2.0, 1.0])[jnp.digitize(z, jnp.array([0.0, 1.0]))],
    "histogram": lambda z: jnp.histogram(z, bins=jnp.array([-1.0, 0.0, 1.0]))[0] * 1.0,
    "median's place": lambda z: jnp.argsort(z)[1] * z[0],
    "cond": lambda z: jax.lax.cond(z[0] > 0, lambda: 1.0, lambda: 2.0),
    "switch": lambda z: jax.lax.switch(jnp.clip(z[0], 0, 1).astype(int), [lambda: 1.0, lambda: 2.0]),
    "in a scan": lambda z: jax.lax.scan(lambda c, x: (c + jnp.floor(x), None), 0.0, z)[0],
    "a check absorbed in a scan": lambda z: jax.lax.scan(lambda c, x: (jnp.logaddexp(c, checked(x)), None), 0.0, z)[0],
    "while": until,
    "stop_gradient": lambda z: jax.lax.stop_gradient(z) * z,
    "in a compiled function": jax.jit(lambda z: jnp.ceil(z)),
    "under remat": jax.checkpoint(lambda z: jnp.sign(z) * z[0]),
    "under custom_vmap": lambda z: jax.vmap(stairs)(z),
    "a derivative made up for a step": spike,
    "a straight-through derivative": rounded,
    "a callback": lambda z: jax.pure_callback(lambda z: z, jax.ShapeDtypeStruct((3,), jnp.float32), z),
}

CONTINUOUS = {
    "relu": jax.nn.relu,
    "abs": jnp.abs,
    "clip": lambda z: jnp.clip(z, -1, 1),
    "max": lambda z: jnp.maximum(z, z[::-1]),
    "min of a maximum": lambda z: jnp.minimum(jnp.max(z), 2.0),
    "softplus": jax.nn.softplus,
    "logaddexp": lambda z: jnp.logaddexp(z, z[::-1]),
    "logsumexp": lambda z: logsumexp(z),
    "logsumexp of a fixed mask": lambda z: logsumexp(jnp.where(jnp.array([True, False, True]), z, -inf)),
    "logsumexp with weights": lambda z: logsumexp(z, b=jnp.array([0.2, 0.3, 0.5])),
    "softmax": lambda z: jnp.log(jax.nn.softmax(z)),
    "where as relu": lambda z: jnp.where(z > 0, z, 0.0),
    "where as leaky relu": lambda z: jnp.where(z >= 0, z, 0.1 * z),
    "where as a maximum": lambda z: (lambda a, b: jnp.where(a > b, a, b))(z[:2], z[1:]),
    "hinge": lambda z: jnp.where(z > 0.7, 3 * (z - 0.7), 0.0),
    "Huber": lambda z: jnp.where(jnp.abs(z) <= 1, z**2 / 2, jnp.abs(z) - 0.5),
    "Huber of residuals": lambda z: jnp.where(jnp.abs(z - 1.5) < 2, (z - 1.5) ** 2, 4 * jnp.abs(z - 1.5) - 4),
    "elu": jax.nn.elu,
    "gelu, silu, log_sigmoid": lambda z: jax.nn.gelu(z) + jax.nn.silu(z) + jax.nn.log_sigmoid(z),
    "support by hand": lambda z: jnp.where(z > -9, -z, -inf),
    "logarithm of a real, which is nan below 0": lambda z: dist.Normal(0.0, z + 9.0).log_prob(1.0),
    "a scale by exp": lambda z: dist.Normal(z, jnp.exp(z)).log_prob(1.0),
    "a scale by softplus": lambda z: dist.Normal(z, jax.nn.softplus(z)).log_prob(1.0),
    "a variance by squares": lambda z: dist.Normal(0.0, jnp.sqrt(1.0 + z**2)).log_prob(1.0),
    "probabilities": lambda z: dist.Bernoulli(probs=jax.nn.sigmoid(z)).log_prob(1) + jnp.log1p(-jax.nn.sigmoid(z)),
    "probit": lambda z: jnp.log(ndtr(z)) + jax.scipy.special.log_ndtr(-z),
    "logits": lambda z: dist.Categorical(logits=z).log_prob(1),
    "StudentT": lambda z: dist.StudentT(3.0, z, 1.0).log_prob(0.4),
    "a mixture": lambda z: dist.MixtureSameFamily(dist.Categorical(logits=z), dist.Normal(z, 1.0)).log_prob(0.4),
    "truncated": lambda z: dist.TruncatedNormal(z, 1.0, low=0.0).log_prob(0.4),
    "von Mises": lambda z: dist.VonMises(z, 1.0).log_prob(0.4),
    "multivariate Normal": lambda z: dist.MultivariateNormal(z, jnp.eye(3) * jnp.exp(z[0])).log_prob(jnp.ones(3)),
    "Gaussian process": lambda z: dist.MultivariateNormal(
        0.0, jnp.exp(-((jnp.arange(3.0)[:, None] - jnp.arange(3.0)) ** 2) * jnp.exp(z[0])) + jnp.exp(z[1]) * jnp.eye(3)
    ).log_prob(jnp.ones(3)),
    "solve": lambda z: -(jnp.ones(3) @ jnp.linalg.solve(jnp.eye(3) + jnp.outer(z, z), jnp.ones(3))),
    "log determinant": lambda z: jnp.linalg.slogdet(jnp.eye(3) + jnp.outer(z, z))[1],
    "eigenvalues": lambda z: jnp.linalg.eigvalsh(matrix(z)),
    "sort": lambda z: jnp.sort(z) * jnp.arange(3.0),
    "norm": lambda z: jnp.linalg.norm(z),
    "a sinusoid": lambda z: jnp.sin(3 * z[0] * jnp.arange(4.0) + z[1]),
    "tanh and arctan": lambda z: jnp.tanh(z) + jnp.arctan(z),
    "quotient by what is positive": lambda z: z / (1 + z**2),
    "a power of what is positive": lambda z: jnp.exp(z) ** 1.5 + jnp.exp(z) ** z,
    "scan": lambda z: jax.lax.scan(lambda c, x: (0.5 * c + x, jnp.log(1 + c**2)), 0.0, z)[1],
    "stochastic volatility": lambda z: dist.Normal(0, jnp.exp(jnp.cumsum(z) / 2)).log_prob(0.3),
    "an ordinary differential equation": lambda z: jax.lax.fori_loop(
        0, 9, lambda i, x: x + 0.1 * z * x * (1 - x), jnp.ones(3) / 3
    ),
    "under vmap and jit": jax.jit(jax.vmap(lambda x: jnp.maximum(x, 0.0) - jax.nn.softplus(x))),
    "under remat": jax.checkpoint(lambda z: jnp.exp(-jnp.abs(z))),
    "whole powers": lambda z: (
        z[:1] ** jnp.arange(4) + jnp.tanh(z[0]) ** jnp.abs(jnp.arange(3)[:, None] - jnp.arange(3))[0].sum()
    ),
    "hypot and interp": lambda z: jnp.hypot(z, 1.0) + jnp.interp(z, jnp.arange(3.0), jnp.arange(3.0) ** 2),
    "a large power": lambda z: jnp.clip(z, -3e38, 3e38) ** 9,
    "a fixed index": lambda z: z[jnp.array([2, 0, 0, 1])],
}

POSITIVE = {
    "a support check that holds": lambda z: jnp.logaddexp(dist.HalfNormal(1.0).log_prob(z), -2.0),
    "gamma density": lambda z: dist.Gamma(z, z).log_prob(z),
    "gamma mixture": lambda z: logsumexp(
        jnp.stack([dist.Gamma(2.0, 1.0).log_prob(z), dist.LogNormal(0.0, 1.0).log_prob(z)])
    ),
    "z/|z| of a positive z": lambda z: z / jnp.abs(z) * jnp.log(z),
    "v/norm(v)": lambda z: z / jnp.linalg.norm(z),
    "rates": lambda z: dist.Poisson(z).log_prob(3) + dist.Exponential(1 / z).log_prob(2.0) + jnp.log(z) + z**-2.0,
    "scales": lambda z: (
        dist.Normal(0, z).log_prob(0.3) + dist.HalfCauchy(z).log_prob(z) + dist.InverseGamma(z, z).log_prob(z)
    ),
    "arctan2 in the right half": lambda z: jnp.arctan2(jnp.log(z), z),
    "sign": lambda z: jnp.sign(z) * z,
    "inverse": lambda z: jnp.tanh(1 / z),
}

#: functions of positive latents, or of real ones, and of data of which the trace does not know the sign, nor whether one is 0
CONTINUOUS_WITH_DATA = {
    "Weibull by hand": lambda z, y: jnp.log(z) + z * jnp.log(y) - jnp.exp(z * jnp.log(y)),
    "Weibull": lambda z, y: dist.Weibull(z, z[::-1]).log_prob(y),
    "a ratio to a scale": lambda z, y: jnp.exp(-z * jnp.log(y / z[0])),
    "a power of a ratio": lambda z, y: jnp.exp(-((y / z[0]) ** z)),
    "a scale times data": lambda z, y: dist.Normal(0, z * y).log_prob(0.3) + jnp.tanh(1 / (z * y)),
    "a root of data and a latent": lambda z, y: jnp.exp(-jnp.sqrt(z * y) - jax.lax.rsqrt(y / z)),
    "lognormal counts": lambda z, y: jnp.logaddexp(dist.LogNormal(jnp.log(z), z).log_prob(y), -3.0),
    "minus an infinite constant": lambda z, y: jnp.exp(-z * jnp.log(-jnp.abs(y))),
}

CONTINUOUS_REAL_WITH_DATA = {
    "a field by Cholesky": lambda z, y: jnp.exp(jnp.linalg.cholesky(jnp.outer(y, y) * z[0] + jnp.eye(3)) @ z),
    "an offset": lambda z, y: jnp.exp(z + jnp.log(y)),
    "logarithms as predictors": lambda z, y: z @ jnp.log(y),
}

JUMPING_WITH_DATA = {
    "tanh of a quotient by data": lambda z, y: jnp.tanh(z / y),
    "a mixture whose scales are data": lambda z, y: jnp.logaddexp(dist.Normal(z, y).log_prob(0.3), -2.0),
    "0 ** z": lambda z, y: jnp.exp(z * jnp.log(y)),
    "0 ** z with a power": lambda z, y: jnp.tanh(jnp.abs(y) ** z),
    "tanh of an infinite predictor": lambda z, y: jnp.tanh(z @ jnp.log(y)),
    "a difference from data": lambda z, y: jnp.tanh(1 / (z - y)),
    "an infinite constant whose sign turns": lambda z, y: jnp.exp((jnp.exp(z) - 1) * jnp.log(y)),
    "a logarithm of a product of reals": lambda z, y: jnp.exp(jnp.log(jnp.abs(z * y)) * z),
    "a sign of data and latents": lambda z, y: jnp.sign(y * z) * y,
    "a comparison with a constant that may be infinite": lambda z, y: jnp.where(z > jnp.log(y), 1.0, 0.0),
    "what is chosen by a latent keeps no sign": lambda z, y: jnp.tanh(1 / jnp.where(z > 0, y, -y)),
}
