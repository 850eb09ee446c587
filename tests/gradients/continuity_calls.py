"""Log joints that call other functions: derivatives, loops, complex numbers, libraries; each of one real array z of shape (3,).

`JUMPING` ones jump somewhere, most of them inside of a function that is trusted elsewhere; `CONTINUOUS` ones do not.
"""

import jax
import jax.numpy as jnp
import jax.scipy.special as special
import jax.scipy.stats as stats
import numpyro.distributions as dist
from jax import lax
from jax.experimental.ode import odeint
from jax.scipy.special import logsumexp, xlogy
from numpyro.distributions import constraints

inf, key, knots = jnp.inf, jax.random.key(0), jnp.arange(3.0)


@jax.custom_jvp
def halvings(z):
    """Count in floats how often a number must be halved."""
    return lax.while_loop(lambda c: c[1] > 0.1, lambda c: (c[0] + 1.0, c[1] * 0.5), (0.0, jnp.abs(z[0])))[0]


halvings.defjvp(lambda primals, tangents: (halvings(*primals), tangents[0][0]))


@jax.custom_jvp
def rounded_in_a_loop(z):
    return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] + jnp.floor(c[1])), (0, z))[1]


rounded_in_a_loop.defjvp(lambda primals, tangents: (rounded_in_a_loop(*primals), tangents[0]))


@jax.custom_jvp
def root(z):
    """Newton's method by hand, with the derivative of what it finds."""
    return lax.while_loop(
        lambda c: jnp.any(jnp.abs(c**3 + c - z) > 1e-5), lambda c: c - (c**3 + c - z) / (3 * c**2 + 1), z
    )


root.defjvp(lambda primals, tangents: (root(*primals), tangents[0] / (3 * root(*primals) ** 2 + 1)))


@jax.custom_vjp
def ceiling(z):
    return jnp.ceil(z)


ceiling.defvjp(lambda z: (ceiling(z), None), lambda _, g: (g,))


def each_slope(function):
    return jax.vmap(jax.grad(function))


JUMPING = {
    # derivatives of continuous functions
    "derivative of relu": each_slope(jax.nn.relu),
    "derivative of abs": each_slope(jnp.abs),
    "derivative of clip": each_slope(lambda x: jnp.clip(x, -1, 1)),
    "derivative of a maximum": jax.grad(jnp.max),
    "derivative of a sort": jax.grad(lambda z: jnp.sort(z)[0]),
    "derivative of a norm": lambda z: jax.grad(lambda x: jnp.linalg.norm(x))(z[:1]),
    "derivative of an interpolation": each_slope(lambda x: jnp.interp(x, knots, knots**2)),
    "second derivative": each_slope(jax.grad(lambda x: jnp.maximum(x, 0) ** 2)),
    # interpolation
    "interp with a value on the left": lambda z: jnp.interp(z, knots, knots, left=-10.0),
    "interp with a value on the right": lambda z: jnp.interp(z, knots, knots, right=9.0),
    "interp at a step": lambda z: jnp.interp(z, jnp.array([0.0, 1.0, 1.0, 2.0]), jnp.array([0.0, 1.0, 5.0, 6.0])),
    "interp with a period": lambda z: jnp.interp(z, knots, knots, period=2.5),
    "interp between latents": lambda z: jnp.interp(0.5, z, knots),
    # loops
    "a count of halvings": halvings,
    "rounded in a loop": rounded_in_a_loop,
    "a loop of unknown length": lambda z: lax.fori_loop(0, z[0].astype(int), lambda i, c: c + 1.0, 0.0),
    "cond in a scan": lambda z: lax.scan(lambda c, x: (lax.cond(x > 0, lambda: c + 1.0, lambda: c), None), 0.0, z)[0],
    "cond under vmap": jax.vmap(lambda x: lax.cond(x > 0, lambda: 1.0, lambda: -1.0)),
    "map": lambda z: lax.map(jnp.floor, z),
    "associative_scan": lambda z: lax.associative_scan(lambda a, b: jnp.where(a > 0, a, b), z),
    "a reduction by hand": lambda z: lax.reduce(z, jnp.float32(0), lambda a, b: jnp.where(a > b, a, b * 2), (0,)),
    "a field that turns": lambda z: odeint(lambda x, t: jnp.where(z > 0, 1.0, -1.0) * x, jnp.ones(3), knots)[-1],
    "custom_vjp": ceiling,
    # complex numbers
    "a maximum by real parts": lambda z: jnp.maximum(z[0] + 1j * z[1], 0j).imag,
    "a sort by real parts": lambda z: jnp.sort(z + 1j * z[::-1]).imag,
    "the largest by real parts": lambda z: jnp.max(z + 1j * z[::-1]).imag,
    "a square that is negative": lambda z: jnp.sign(jnp.square(1j * z).real + 1.0),
    "angles of a spectrum": lambda z: jnp.angle(jnp.fft.fft(z)),
    # not a number, or infinite, and absorbed
    "gammainc at a shape of 0": lambda z: jnp.nan_to_num(special.gammainc(jax.nn.relu(z), 1.0)),
    "gammaincc at a shape of 0": lambda z: jnp.nan_to_num(special.gammaincc(jax.nn.relu(z), 1.0), nan=3.0),
    "betainc at a shape of 0": lambda z: jnp.nan_to_num(special.betainc(jax.nn.relu(z), 1.0, 0.4), nan=-1.0),
    "erfinv beyond its ends": lambda z: jnp.nan_to_num(special.erfinv(z)),
    "logit beyond its ends": lambda z: jnp.nan_to_num(special.logit(z)),
    "xlogy at 0": lambda z: jnp.tanh(xlogy(z, 0.0)),
    "xlog1py at -1": lambda z: jnp.tanh(special.xlog1py(z, -1.0)),
    "infinite constants by a pole": lambda z: jnp.tanh(z * special.gammaln(jnp.zeros(3))),
    "a Cholesky factor that is not there": lambda z: jnp.nan_to_num(jnp.linalg.cholesky(jnp.outer(z, z) - jnp.eye(3))),
    "an inverse under tanh": lambda z: jnp.tanh(jnp.linalg.inv(jnp.diag(z))),
    "entropy of what is negative": lambda z: jnp.tanh(special.entr(z)),
    "fmax of what is not a number": lambda z: jnp.fmax(jnp.log(z), -2.0),
    "cumulative logsumexp of a check": lambda z: lax.cumlogsumexp(jnp.where(z > 0, z, -inf)),
    # numbers that float32 rounds to the end of a range
    "exp that is 0": lambda z: jnp.where(jnp.exp(-50 * z**2) > 0, -1.0, -2.0),
    "tanh that is 1": lambda z: jnp.where(jnp.tanh(20 * z) < 1, -1.0, -2.0),
    "a probability that is 1": lambda z: jnp.where(1 - jax.nn.sigmoid(40 * z) > 0, -1.0, -2.0),
    # densities and draws
    "a mask by a support": lambda z: dist.Normal(0, 1).mask(dist.Uniform(0.0, 1.0).support(z)).log_prob(1.0),
    "a mask by a constraint": lambda z: dist.Normal(0, 1).mask(constraints.positive(z)).log_prob(3.0),
    "a mask by a draw": lambda z: dist.Normal(0, 1).mask(dist.Bernoulli(logits=z).sample(key)).log_prob(3.0),
    "a choice by a constraint": lambda z: jnp.where(constraints.interval(0.0, 1.0)(z), -1.0, -2.0),
    "logsumexp of those that a constraint admits": lambda z: jax.nn.logsumexp(knots + 0 * z, where=constraints.positive(z)),
    "a uniform density of scipy": lambda z: jnp.logaddexp(stats.uniform.logpdf(z), -3.0),
    "a cumulative probability of counts": lambda z: dist.Poisson(2.0).cdf(z),
    "a draw of bits": lambda z: jax.random.bernoulli(key, jax.nn.sigmoid(z)).astype(jnp.float32),
    "a draw of counts": lambda z: jax.random.poisson(key, jnp.exp(z)) * 1.0,
    "a draw of categories": lambda z: jax.random.categorical(key, z) * 1.0,
    "a key that is a latent": lambda z: jax.random.normal(jax.random.fold_in(key, z[0].astype(int))),
    # linear algebra, order, sums of comparisons
    "a norm that counts": lambda z: jnp.linalg.norm(jax.nn.relu(z), ord=0),
    "pinv": lambda z: jnp.linalg.pinv(jnp.outer(z, z)),
    "matrix_rank": lambda z: jnp.linalg.matrix_rank(jnp.diag(z)) * 1.0,
    "lstsq": lambda z: jnp.linalg.lstsq(jnp.diag(z), jnp.ones(3))[0],
    "the sign of a determinant": lambda z: jnp.sign(jnp.linalg.det(jnp.outer(z, z) + jnp.diag(z))),
    "a mean of comparisons": lambda z: jnp.mean(z > 0),
    "a cumulative sum of comparisons": lambda z: jnp.cumsum(z > 0) / 3.0,
    "one_hot of an argmax": lambda z: jax.nn.one_hot(jnp.argmax(z), 3) @ z[::-1],
    "ranks": lambda z: stats.rankdata(z),
    "scattered by a latent": lambda z: jnp.zeros(3).at[z.astype(int)].add(z),
    "a segment by a latent": lambda z: jax.ops.segment_sum(z, (z > 0).astype(int), 2),
    "shifted bits": lambda z: (lax.bitcast_convert_type(z, jnp.uint32) >> 20).astype(jnp.float32),
    "frexp": lambda z: jnp.frexp(z)[0],
    "eight bits": lambda z: (z * 10).astype(jnp.int8).astype(jnp.float32) / 10,
    "straight through": lambda z: z + lax.stop_gradient(jnp.round(z) - z),
    "cosine of an angle": lambda z: z @ jnp.ones(3) / jnp.linalg.norm(z),
}  # fmt: skip

CONTINUOUS = {
    "quantile and median": lambda z: jnp.quantile(z, 0.3) + jnp.median(z) + jnp.ptp(z),
    "activations": lambda z: jax.nn.hard_sigmoid(z) + jax.nn.relu6(z) + jax.nn.squareplus(z) + jax.nn.mish(z),
    "a power of a matrix": lambda z: jnp.linalg.matrix_power(jnp.outer(z, z), 3),
    "a spectrum": lambda z: jnp.abs(jnp.fft.rfft(z)) ** 2,
    "convolution": lambda z: jnp.convolve(z, z),
    "segments by data": lambda z: jax.ops.segment_sum(z, jnp.array([0, 1, 0]), 2),
    "interpolation": lambda z: jnp.interp(z, knots, knots**2),
    "a root by Newton's method": root,
    "a differential equation": lambda z: odeint(lambda x, t: -jnp.exp(z) * x, jnp.ones(3), knots)[-1],
    "counts": lambda z: (
        dist.Poisson(jnp.exp(z)).log_prob(4) + dist.NegativeBinomial2(jnp.exp(z), jnp.exp(z)).log_prob(2)
        + dist.ZeroInflatedPoisson(jax.nn.sigmoid(z), jnp.exp(z)).log_prob(0)
        + dist.BetaBinomial(jnp.exp(z), jnp.exp(z), 10).log_prob(3) + dist.Binomial(10, logits=z).log_prob(3)
    ),
    "an ordered outcome": lambda z: dist.OrderedLogistic(z[0], jnp.array([-1.0, 0.0, 1.0])).log_prob(1),
    "two slopes": lambda z: dist.Laplace(z, 1.0).log_prob(0.3) + dist.AsymmetricLaplace(z, 1.0, 2.0).log_prob(0.3),
    "shapes": lambda z: dist.Beta(jnp.exp(z), 2.0).log_prob(0.3) + dist.StudentT(jnp.exp(z), 0.0, 1.0).log_prob(0.3),
    "a simplex": lambda z: dist.Dirichlet(jnp.exp(z)).log_prob(jnp.array([0.2, 0.3, 0.5])),
    "a guard against what is not finite": lambda z: (lambda p: jnp.where(jnp.isfinite(p), p, -1e10))(-jnp.exp(z)),
    "a guard by nan_to_num": lambda z: jnp.nan_to_num(z**2),
    "a floor under a logarithm": lambda z: jnp.log(jnp.clip(jax.nn.sigmoid(z), 1e-6, 1 - 1e-6)) + jnp.log(jax.nn.relu(z) + 1e-3),
    "hinges": lambda z: jnp.maximum(z[:, None] - knots, 0) ** 3,
    "broken sticks": lambda z: (lambda v: v * jnp.concatenate([jnp.ones(1), jnp.cumprod(1 - v)[:-1]]))(jax.nn.sigmoid(z)),
    "a hidden Markov model": lambda z: logsumexp(
        lax.scan(lambda a, y: (logsumexp(a[:, None] + jax.nn.log_softmax(jnp.outer(z, z)), 0) + dist.Normal(z, 1.0).log_prob(y), None),
        jnp.zeros(3), knots)[0]
    ),
    "an inverse of what stays inside": lambda z: special.erfinv(0.99 * jnp.tanh(z)),
}  # fmt: skip
