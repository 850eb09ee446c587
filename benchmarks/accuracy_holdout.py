"""Ten more posteriors for accuracy.py, of the same kinds as the thirty; no rule was chosen by them.

`HOLDOUT[name]()` is (model, data). Each was fitted once, after the rules for structure were written.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import bbvi


def probit():
    """A probit regression with an interaction, on predictors that are not centred."""
    rng = np.random.default_rng(101)
    x = 1 + rng.normal(size=(120, 2))
    x = np.column_stack([x, x[:, 0] * x[:, 1]])
    y = (x @ np.array([0.8, -0.6, 0.3]) - 0.4 + rng.normal(size=120) > 0).astype(float)

    def log_joint(z, data):
        p = jnp.clip(dist.Normal(0, 1).cdf(z["level"] + data["x"] @ z["slope"]), 1e-6, 1 - 1e-6)
        return (
            dist.Normal(0, 2).log_prob(z["level"])
            + dist.Normal(0, 1).log_prob(z["slope"]).sum()
            + dist.Bernoulli(p).log_prob(data["y"]).sum()
        )

    return bbvi.Model(log_joint, level=bbvi.real(), slope=bbvi.real(3)), {"x": x, "y": y}


def gamma_regression():
    """Positive outcomes whose spread grows with their mean."""
    rng = np.random.default_rng(102)
    x = rng.normal(size=(90, 3))
    y = rng.gamma(2.0, np.exp(0.5 + x @ np.array([0.4, 0.0, -0.3])) / 2.0)

    def log_joint(z, data):
        mean = jnp.exp(z["level"] + data["x"] @ z["slope"])
        return (
            dist.Normal(0, 3).log_prob(z["level"])
            + dist.Normal(0, 1).log_prob(z["slope"]).sum()
            + dist.Gamma(2, 0.5).log_prob(z["shape"])
            + dist.Gamma(z["shape"], z["shape"] / mean).log_prob(data["y"]).sum()
        )

    return bbvi.Model(log_joint, level=bbvi.real(), slope=bbvi.real(3), shape=bbvi.positive()), {"x": x, "y": y}


def changing_variance():
    """A regression whose log standard deviation is linear, too."""
    rng = np.random.default_rng(103)
    x = rng.uniform(-1, 1, 100)
    y = 1 + 2 * x + np.exp(-0.5 + 0.8 * x) * rng.normal(size=100)

    def log_joint(z, data):
        mean, scale = z["b"][0] + z["b"][1] * data["x"], jnp.exp(z["c"][0] + z["c"][1] * data["x"])
        return (
            dist.Normal(0, 5).log_prob(z["b"]).sum()
            + dist.Normal(0, 2).log_prob(z["c"]).sum()
            + dist.Normal(mean, scale).log_prob(data["y"]).sum()
        )

    return bbvi.Model(log_joint, b=bbvi.real(2), c=bbvi.real(2)), {"x": x, "y": y}


def batches():
    """Yields of 12 batches of dye, five each: variance components (Davies 1949), made up."""
    rng = np.random.default_rng(104)
    y = 15 + 0.5 * rng.normal(size=(12, 1)) + rng.normal(size=(12, 5))

    def log_joint(z, y):
        return (
            dist.Normal(0, 20).log_prob(z["mu"])
            + dist.HalfCauchy(1).log_prob(z["between"])
            + dist.HalfCauchy(1).log_prob(z["within"])
            + dist.Normal(z["mu"], z["between"]).log_prob(z["batch"]).sum()
            + dist.Normal(z["batch"][:, None], z["within"]).log_prob(y).sum()
        )

    scales = {"between": bbvi.positive(), "within": bbvi.positive()}
    return bbvi.Model(log_joint, mu=bbvi.real(), batch=bbvi.real(12), **scales), y


def crossed():
    """Ratings of 20 things by 15 people: two crossed effects with a scale each."""
    rng = np.random.default_rng(105)
    y = 3 + 0.8 * rng.normal(size=(20, 1)) + 0.5 * rng.normal(size=15) + 0.7 * rng.normal(size=(20, 15))

    def log_joint(z, y):
        mean = z["level"] + z["thing"][:, None] + z["person"]
        return (
            dist.Normal(0, 5).log_prob(z["level"])
            + dist.HalfNormal(1).log_prob(z["scale"]).sum()
            + dist.HalfNormal(1).log_prob(z["sigma"])
            + dist.Normal(0, z["scale"][0]).log_prob(z["thing"]).sum()
            + dist.Normal(0, z["scale"][1]).log_prob(z["person"]).sum()
            + dist.Normal(mean, z["sigma"]).log_prob(y).sum()
        )

    scales = {"scale": bbvi.positive(2), "sigma": bbvi.positive()}
    return bbvi.Model(log_joint, level=bbvi.real(), thing=bbvi.real(20), person=bbvi.real(15), **scales), y


def exposures():
    """Claims of 15 insurers, few each, whose rates come from one Gamma with a known shape."""
    rng = np.random.default_rng(106)
    exposure = rng.uniform(0.5, 4.0, 15)
    data = {"exposure": exposure, "claims": rng.poisson(exposure * rng.gamma(1.5, 1.0, 15))}

    def log_joint(z, data):
        return (
            dist.Gamma(2, 1).log_prob(z["inverse_scale"])
            + dist.Gamma(1.5, z["inverse_scale"]).log_prob(z["rate"]).sum()
            + dist.Poisson(z["rate"] * data["exposure"]).log_prob(data["claims"]).sum()
        )

    return bbvi.Model(log_joint, inverse_scale=bbvi.positive(), rate=bbvi.positive(15)), data


def conversion():
    """Conversions of 12 pages, most of few visitors, whose logits share a mean and a scale."""
    rng = np.random.default_rng(107)
    visitors = rng.integers(5, 60, 12)
    data = {"visitors": visitors, "bought": rng.binomial(visitors, 1 / (1 + np.exp(2 - 0.8 * rng.normal(size=12))))}

    def log_joint(z, data):
        return (
            dist.Normal(-2, 2).log_prob(z["mu"])
            + dist.HalfNormal(1).log_prob(z["tau"])
            + dist.Normal(z["mu"], z["tau"]).log_prob(z["logit"]).sum()
            + dist.Binomial(data["visitors"], logits=z["logit"]).log_prob(data["bought"]).sum()
        )

    return bbvi.Model(log_joint, mu=bbvi.real(), tau=bbvi.positive(), logit=bbvi.real(12)), data


def moving_average():
    """100 values of a moving average of order one, whose noise is followed from the first value on."""
    rng = np.random.default_rng(108)
    noise = 0.6 * rng.normal(size=101)
    y = 2 + noise[1:] + 0.5 * noise[:-1]

    def log_joint(z, y):
        def advance(before, own):
            noise = own - z["level"] - z["theta"] * before
            return noise, noise

        noise = jax.lax.scan(advance, jnp.zeros(()), y)[1]
        return (
            dist.Normal(0, 5).log_prob(z["level"])
            + dist.HalfNormal(1).log_prob(z["sigma"])
            + dist.Uniform(-1, 1).log_prob(z["theta"])
            + dist.Normal(0, z["sigma"]).log_prob(noise).sum()
        )

    return bbvi.Model(log_joint, level=bbvi.real(), theta=bbvi.interval(-1, 1), sigma=bbvi.positive()), y


def growth():
    """Weights that grow towards a limit: a curve with three positive parameters."""
    rng = np.random.default_rng(109)
    age = np.linspace(0.5, 8, 30)
    y = 10 * (1 - 0.9 * np.exp(-0.4 * age)) + 0.4 * rng.normal(size=30)

    def log_joint(z, data):
        mean = z["limit"] * (1 - z["share"] * jnp.exp(-z["rate"] * data["age"]))
        return (
            dist.LogNormal(2, 1).log_prob(z["limit"])
            + dist.Beta(2, 1).log_prob(z["share"])
            + dist.LogNormal(-1, 1).log_prob(z["rate"])
            + dist.HalfNormal(1).log_prob(z["sigma"])
            + dist.Normal(mean, z["sigma"]).log_prob(data["y"]).sum()
        )

    positive = {name: bbvi.positive() for name in ("limit", "rate", "sigma")}
    return bbvi.Model(log_joint, share=bbvi.unit_interval(), **positive), {"age": age, "y": y}


def zero_inflated():
    """Counts with more zeros than a Poisson has, and one predictor."""
    rng = np.random.default_rng(110)
    x = rng.normal(size=120)
    y = rng.poisson(np.exp(0.6 + 0.5 * x)) * (rng.uniform(size=120) < 0.7)

    def log_joint(z, data):
        counts = dist.Poisson(jnp.exp(z["b"][0] + z["b"][1] * data["x"])).log_prob(data["y"])
        zero = jnp.where(data["y"] == 0, jnp.log(z["never"]), -jnp.inf)
        return (
            dist.Beta(1, 1).log_prob(z["never"])
            + dist.Normal(0, 2).log_prob(z["b"]).sum()
            + jnp.logaddexp(jnp.log1p(-z["never"]) + counts, zero).sum()
        )

    return bbvi.Model(log_joint, never=bbvi.unit_interval(), b=bbvi.real(2)), {"x": x, "y": y}


HOLDOUT = {
    function.__name__: function
    for function in (
        probit, gamma_regression, changing_variance, batches, crossed, exposures, conversion, moving_average, growth,
        zero_inflated,
    )
}  # fmt: skip
