"""The ELBOs of the twelve models without Monte Carlo: closed forms, and integrals over one variable on a grid.

`ELBOS[name](params, data)` is the ELBO at lambda, the `params` of a posterior, in JAX; use it in double precision.
Where 1 / z**2 has no mean under a gamma q (concentration 2 or less) the ELBO is -inf.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import log_sigmoid, log_softmax, sigmoid, softmax
from jax.scipy.special import digamma, gammaln, polygamma
from numpyro.distributions import biject_to, constraints
from twelve_models import COUPLING
from twelve_models import LEVELS as levels
from twelve_models import STAY as stay

HALF_LOG_TWO_PI = 0.5 * np.log(2 * np.pi)
# copies, since JAX knows constants by identity and has those of the models in single precision
LEVELS, STAY = levels.copy(), stay.copy()


class Normal:
    """The moments of Normal factors of q."""

    def __init__(self, params):
        self.mean, self.variance = params["loc"], jnp.exp(2 * params["scale"])
        self.square = self.mean**2 + self.variance
        self.entropy = (params["scale"] + HALF_LOG_TWO_PI + 0.5).sum()


class Gamma:
    """The moments of Gamma factors of q, by concentration and mean."""

    def __init__(self, params):
        self.a, self.mean = jnp.exp(params["concentration"]), jnp.exp(params["mean"])
        self.log = digamma(self.a) - params["concentration"] + params["mean"]
        self.square = self.mean**2 * (1 + 1 / self.a)
        self.log_square = self.log**2 + polygamma(1, self.a)
        safe = jnp.where(self.a > 2, self.a, 3.0)
        finite = safe**2 / ((safe - 1) * (safe - 2) * self.mean**2)
        self.inverse_square = jnp.where(self.a > 2, finite, jnp.inf)
        self.entropy = (self.a + self.log - self.a * digamma(self.a) + gammaln(self.a)).sum()

    def expect(self, function, num=401):
        """The mean of a function of z, on a grid that is fine at the mode and reaches far down."""
        t = jnp.linspace(-6.0, 4.0, num)
        a, mean = self.a[..., None], self.mean[..., None]
        x = jnp.sinh(t) / jnp.sqrt(a)  # log(z / mean)
        log_weight = a * (x - jnp.exp(x)) + jnp.log(jnp.cosh(t))
        return (softmax(log_weight) * function(mean * jnp.exp(x))).sum(-1)


class Dirichlet:
    """The moments of Dirichlet factors of q, by total concentration and mean."""

    def __init__(self, params):
        a = jnp.exp(params["concentration"])[..., None] * biject_to(constraints.simplex)(params["mean"])
        total = a.sum(-1, keepdims=True)
        self.log = digamma(a) - digamma(total)
        self.entropy = (gammaln(a) - (a - 1) * self.log).sum() - gammaln(total).sum()


class Categorical:
    """The probabilities of Categorical factors of q."""

    def __init__(self, params):
        self.probs = softmax(params["logits"])
        self.entropy = -(self.probs * log_softmax(params["logits"])).sum()


def normal(square, sigma):
    """The mean log density of Normals with a known sigma, from the mean of the squared deviation."""
    return (-0.5 * square / sigma**2 - jnp.log(sigma) - HALF_LOG_TWO_PI).sum()


def scaled(square, sigma):
    """The same with sigma a latent under a gamma q."""
    return (-0.5 * square * sigma.inverse_square - sigma.log - HALF_LOG_TWO_PI).sum()


def half_cauchy(z, scale):
    log_p = -z.expect(lambda value: jnp.log1p((value / scale) ** 2)) + jnp.log(2 / (np.pi * scale))
    return log_p.sum()


def half_normal(z, scale):
    return normal(z.square, scale) + z.mean.size * jnp.log(2.0)


def dirichlet(log_z, a):
    k = log_z.shape[-1]
    return (a - 1) * log_z.sum() + (gammaln(k * a) - k * gammaln(a)) * (log_z.size // k)


def poisson(y, log_rate, rate):
    return (y * log_rate - rate - gammaln(y + 1.0)).sum()


def log_of_product(w, h):
    """The mean of log(w @ h), from E log S = integral of (exp(-t) - E exp(-t S)) / t over positive t."""
    centre = w.mean @ h.mean

    @jax.checkpoint
    def integrand(log_t):
        t = jnp.exp(log_t) / centre
        rate = t[:, None, :] * (w.mean / w.a)[:, :, None]
        # with w integrated out
        transform = h.expect(lambda value: jnp.exp(-w.a[:, :, None, None] * jnp.log1p(rate[..., None] * value)), 61)
        return jnp.exp(-jnp.exp(log_t)) - transform.prod(1)

    log_t = jnp.linspace(-14.0, 26.0, 81)
    return jnp.log(centre) + 0.5 * jax.lax.map(integrand, log_t).sum(0)


def schools_centred(params, data):
    y, sigma = data
    mu, tau, theta = Normal(params["mu"]), Gamma(params["tau"]), Normal(params["theta"])
    apart = (theta.mean - mu.mean) ** 2 + theta.variance + mu.variance
    prior = normal(mu.square, 5.0) + half_cauchy(tau, 5.0) + scaled(apart, tau)
    likelihood = normal((y - theta.mean) ** 2 + theta.variance, sigma)
    return prior + likelihood + mu.entropy + tau.entropy + theta.entropy


def schools_non_centred(params, data):
    y, sigma = data
    mu, tau, eta = Normal(params["mu"]), Gamma(params["tau"]), Normal(params["eta"])
    effect = tau.mean * eta.mean
    variance = mu.variance + tau.square * eta.square - effect**2
    prior = normal(mu.square, 5.0) + half_cauchy(tau, 5.0) + normal(eta.square, 1.0)
    likelihood = normal((y - mu.mean - effect) ** 2 + variance, sigma)
    return prior + likelihood + mu.entropy + tau.entropy + eta.entropy


def funnel(params, data):
    v, x = Normal(params["v"]), Normal(params["x"])
    inside = -0.5 * x.square * jnp.exp(-v.mean + 0.5 * v.variance) - 0.5 * v.mean - HALF_LOG_TWO_PI
    return normal(v.square, 3.0) + inside.sum() + v.entropy + x.entropy


def horseshoe(params, data):
    x, y = data["x"], data["y"]
    tau, width, sigma = (Gamma(params[name]) for name in ("tau", "width", "sigma"))
    raw = Normal(params["raw"])
    mean = width.mean * raw.mean  # of the coefficients over tau
    second = jnp.sum((x @ mean) ** 2) + (x**2).sum(0) @ (width.square * raw.square - mean**2)
    square = y @ y - 2 * tau.mean * (y @ x @ mean) + tau.square * second
    prior = half_cauchy(tau, 1.0) + half_cauchy(width, 1.0) + normal(raw.square, 1.0) + half_normal(sigma, 2.0)
    likelihood = scaled(square, sigma) - (len(y) - 1) * (sigma.log + HALF_LOG_TWO_PI)
    return prior + likelihood + tau.entropy + width.entropy + raw.entropy + sigma.entropy


def mixture(params, y):
    weight, centre = Dirichlet(params["weight"]), Normal(params["centre"])
    spread, component = Gamma(params["spread"]), Categorical(params["component"])
    square = (y[:, None] - centre.mean) ** 2 + centre.variance
    log_p = -0.5 * square * spread.inverse_square - spread.log - HALF_LOG_TWO_PI
    prior = dirichlet(weight.log, 2.0) + normal(centre.square, 10.0) + normal(spread.log_square, 1.0) - spread.log.sum()
    likelihood = (component.probs * (weight.log + log_p)).sum()
    return prior + likelihood + weight.entropy + centre.entropy + spread.entropy + component.entropy


def hidden_markov(params, y):
    state = Categorical(params["state"])
    moves = (state.probs[:-1] @ jnp.log(STAY) * state.probs[1:]).sum() - jnp.log(3.0)
    likelihood = (state.probs * (-0.5 * (y[:, None] - LEVELS) ** 2 - HALF_LOG_TWO_PI)).sum()
    return moves + likelihood + state.entropy


def ising(params, y):
    logits = params["pixel"]["logits"]
    up, spin = sigmoid(logits), 2 * sigmoid(logits) - 1
    pairs = (spin[1:] * spin[:-1]).sum() + (spin[:, 1:] * spin[:, :-1]).sum()
    likelihood = normal(y**2 - 2 * y * spin + 1, 1.0)
    return COUPLING * pairs + likelihood - (up * log_sigmoid(logits) + (1 - up) * log_sigmoid(-logits)).sum()


def crossed_effects(params, data):
    level, slope, row, column = (Normal(params[name]) for name in ("level", "slope", "row", "column"))
    row_sd, column_sd = Gamma(params["row_sd"]), Gamma(params["column_sd"])
    log_rate, variance = (
        getattr(level, what) + getattr(slope, what) * x
        + getattr(row, what)[data["row"]] + getattr(column, what)[data["column"]]
        for what, x in (("mean", data["x"]), ("variance", data["x"] ** 2))
    )  # fmt: skip
    prior = normal(level.square, 2.0) + normal(slope.square, 1.0) + half_normal(row_sd, 1.0)
    prior += half_normal(column_sd, 1.0) + scaled(row.square, row_sd) + scaled(column.square, column_sd)
    likelihood = poisson(data["y"], log_rate, jnp.exp(log_rate + 0.5 * variance))
    return prior + likelihood + sum(q.entropy for q in (level, slope, row, column, row_sd, column_sd))


def gamma_factors(params, y):
    w, h = Gamma(params["w"]), Gamma(params["h"])
    size = w.mean.size + h.mean.size
    prior = -0.3 * (w.log.sum() + h.log.sum()) - 0.7 * (w.mean.sum() + h.mean.sum())
    prior += size * (0.7 * jnp.log(0.7) - gammaln(0.7))
    return prior + poisson(y, log_of_product(w, h), w.mean @ h.mean) + w.entropy + h.entropy


def switchpoint(params, y):
    early, late, year = Gamma(params["early"]), Gamma(params["late"]), Categorical(params["year"])
    before = jnp.cumsum(year.probs[::-1])[::-1] - year.probs  # q(t < year)
    likelihood = before @ (y * early.log - early.mean) + (1 - before) @ (y * late.log - late.mean)
    likelihood -= gammaln(y + 1.0).sum()
    return likelihood - early.mean - late.mean - jnp.log(len(y)) + early.entropy + late.entropy + year.entropy


def topics(params, data):
    share, words, topic = Dirichlet(params["share"]), Dirichlet(params["words"]), Categorical(params["topic"])
    log_p = share.log[data["document"]] + words.log[:, data["word"]].T
    prior = dirichlet(share.log, 0.3) + dirichlet(words.log, 0.1)
    return prior + (topic.probs * log_p).sum() + share.entropy + words.entropy + topic.entropy


def scales(params, data):
    x, y = data["x"], data["y"]
    level, slope, sigma = Normal(params["level"]), Normal(params["slope"]), Gamma(params["sigma"])
    square = (y - level.mean - x @ slope.mean) ** 2 + level.variance + x**2 @ slope.variance
    prior = normal(level.square, 100.0) + normal(slope.square, 1e5) + half_normal(sigma, 30.0)
    return prior + scaled(square, sigma) + level.entropy + slope.entropy + sigma.entropy


ELBOS = {
    function.__name__: function
    for function in (
        schools_centred, schools_non_centred, funnel, horseshoe, mixture, hidden_markov, ising, crossed_effects,
        gamma_factors, switchpoint, topics, scales,
    )
}  # fmt: skip
