"""Posteriors of accuracy.py without time or groups: regressions, mixtures and rates, each with data of a fixed seed.

`REGRESSIONS[name]()` is (model, data).
"""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import bbvi

# failures of ten pumps, and the thousands of hours that they ran (Gaver and O'Muircheartaigh 1987)
PUMPS = {
    "failures": np.array([5.0, 1.0, 5.0, 14.0, 3.0, 19.0, 1.0, 1.0, 4.0, 22.0]),
    "hours": np.array([94.3, 15.7, 62.9, 126.0, 5.24, 31.4, 1.05, 1.05, 2.1, 10.5]),
}


def correlated(rng, rows, columns, rho):
    """Predictors of which each two have the correlation rho."""
    return np.sqrt(rho) * rng.normal(size=(rows, 1)) + np.sqrt(1 - rho) * rng.normal(size=(rows, columns))


def regression():
    """Five predictors, each two with correlation 0.95."""
    rng = np.random.default_rng(1)
    x = correlated(rng, 100, 5, 0.95)
    y = 1 + x @ np.array([1.0, -0.5, 0.0, 2.0, 0.5]) + rng.normal(size=100)

    def log_joint(z, data):
        return (
            dist.Normal(0, 10).log_prob(z["level"])
            + dist.Normal(0, 10).log_prob(z["slope"]).sum()
            + dist.HalfNormal(5).log_prob(z["sigma"])
            + dist.Normal(z["level"] + data["x"] @ z["slope"], z["sigma"]).log_prob(data["y"]).sum()
        )

    return bbvi.Model(log_joint, level=bbvi.real(), slope=bbvi.real(5), sigma=bbvi.positive()), {"x": x, "y": y}


def uncentred_regression():
    """Test scores on an uncentred predictor of mean 100, its interaction with a group, and wide priors."""
    rng = np.random.default_rng(2)
    iq, school = rng.normal(100, 15, 120), rng.integers(0, 2, 120).astype(float)
    y = 20 + 5 * school + 0.6 * iq + rng.normal(0, 18, 120)

    def log_joint(z, data):
        b = z["b"]
        mean = b[0] + b[1] * data["school"] + b[2] * data["iq"] + b[3] * data["school"] * data["iq"]
        return (
            dist.Normal(0, jnp.array([100.0, 50.0, 2.0, 2.0])).log_prob(b).sum()
            + dist.HalfCauchy(10).log_prob(z["sigma"])
            + dist.Normal(mean, z["sigma"]).log_prob(data["y"]).sum()
        )

    return bbvi.Model(log_joint, b=bbvi.real(4), sigma=bbvi.positive()), {"iq": iq, "school": school, "y": y}


def robust_regression():
    """Noise of a Student t whose degrees of freedom are unknown, and some outliers."""
    rng = np.random.default_rng(3)
    x = correlated(rng, 80, 3, 0.5)
    y = 2 + x @ np.array([1.0, -1.0, 0.5]) + 0.7 * rng.standard_t(3, size=80)

    def log_joint(z, data):
        return (
            dist.Normal(0, 5).log_prob(z["level"])
            + dist.Normal(0, 5).log_prob(z["slope"]).sum()
            + dist.HalfNormal(2).log_prob(z["sigma"])
            + dist.Gamma(2, 0.1).log_prob(z["df"])
            + dist.StudentT(z["df"], z["level"] + data["x"] @ z["slope"], z["sigma"]).log_prob(data["y"]).sum()
        )

    latents = {"level": bbvi.real(), "slope": bbvi.real(3), "sigma": bbvi.positive(), "df": bbvi.positive()}
    return bbvi.Model(log_joint, **latents), {"x": x, "y": y}


def logistic():
    """A logistic regression on four correlated predictors."""
    rng = np.random.default_rng(4)
    x = correlated(rng, 150, 4, 0.7)
    y = rng.binomial(1, 1 / (1 + np.exp(0.5 - x @ np.array([1.0, -1.0, 0.5, 0.0])))).astype(float)

    def log_joint(z, data):
        return (
            dist.Normal(0, 2.5).log_prob(z["level"])
            + dist.Normal(0, 2.5).log_prob(z["slope"]).sum()
            + dist.Bernoulli(logits=z["level"] + data["x"] @ z["slope"]).log_prob(data["y"]).sum()
        )

    return bbvi.Model(log_joint, level=bbvi.real(), slope=bbvi.real(4)), {"x": x, "y": y}


def poisson():
    """Counts with an exposure and three correlated predictors."""
    rng = np.random.default_rng(5)
    x, exposure = correlated(rng, 100, 3, 0.8), rng.uniform(0.5, 3, 100)
    y = rng.poisson(exposure * np.exp(0.3 + x @ np.array([0.4, -0.3, 0.2])))

    def log_joint(z, data):
        rate = data["exposure"] * jnp.exp(z["level"] + data["x"] @ z["slope"])
        return (
            dist.Normal(0, 5).log_prob(z["level"])
            + dist.Normal(0, 2).log_prob(z["slope"]).sum()
            + dist.Poisson(rate).log_prob(data["y"]).sum()
        )

    return bbvi.Model(log_joint, level=bbvi.real(), slope=bbvi.real(3)), {"x": x, "exposure": exposure, "y": y}


def negative_binomial():
    """Overdispersed counts on predictors that are not centred."""
    rng = np.random.default_rng(6)
    x = 2 + correlated(rng, 120, 2, 0.6)
    y = rng.poisson(np.exp(0.2 + x @ np.array([0.5, -0.2])) * rng.gamma(1.5, 1 / 1.5, 120))

    def log_joint(z, data):
        mean = jnp.exp(z["level"] + data["x"] @ z["slope"])
        return (
            dist.Normal(0, 5).log_prob(z["level"])
            + dist.Normal(0, 2).log_prob(z["slope"]).sum()
            + dist.Gamma(2, 0.5).log_prob(z["size"])
            + dist.NegativeBinomial2(mean, z["size"]).log_prob(data["y"]).sum()
        )

    return bbvi.Model(log_joint, level=bbvi.real(), slope=bbvi.real(2), size=bbvi.positive()), {"x": x, "y": y}


def horseshoe():
    """Ten predictors, two at work; widths of a half t with 3 degrees of freedom, so that they have a variance."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=(60, 10))
    y = x[:, :2] @ np.array([2.0, -1.0]) + rng.normal(size=60)

    def log_joint(z, data):
        return (
            dist.HalfCauchy(0.5).log_prob(z["tau"])
            + (dist.StudentT(3, 0, 1).log_prob(z["width"]) + jnp.log(2)).sum()
            + dist.Normal(0, 1).log_prob(z["raw"]).sum()
            + dist.HalfNormal(2).log_prob(z["sigma"])
            + dist.Normal(data["x"] @ (z["tau"] * z["width"] * z["raw"]), z["sigma"]).log_prob(data["y"]).sum()
        )

    latents = {"tau": bbvi.positive(), "width": bbvi.positive(10), "raw": bbvi.real(10), "sigma": bbvi.positive()}
    return bbvi.Model(log_joint, **latents), {"x": x, "y": y}


def weibull():
    """Times to an event on two predictors, of which those after a time of 3 are not seen."""
    rng = np.random.default_rng(8)
    x = correlated(rng, 100, 2, 0.5)
    time = np.exp(0.5 + x @ np.array([0.6, -0.4])) * rng.weibull(1.5, 100)
    data = {"x": x, "time": np.minimum(time, 3), "seen": time < 3}

    def log_joint(z, data):
        log_ratio = z["shape"] * (jnp.log(data["time"]) - z["level"] - data["x"] @ z["slope"])
        hazard = jnp.log(z["shape"]) - jnp.log(data["time"]) + log_ratio
        return (
            dist.Normal(0, 2).log_prob(z["level"])
            + dist.Normal(0, 1).log_prob(z["slope"]).sum()
            + dist.LogNormal(0, 1).log_prob(z["shape"])
            + (jnp.where(data["seen"], hazard, 0) - jnp.exp(log_ratio)).sum()
        )

    return bbvi.Model(log_joint, level=bbvi.real(), slope=bbvi.real(2), shape=bbvi.positive()), data


def ordinal():
    """Answers on a scale of five, with ordered cutpoints."""
    rng = np.random.default_rng(9)
    x = correlated(rng, 150, 3, 0.5)
    y = np.digitize(x @ np.array([1.0, -0.5, 0.5]) + rng.logistic(size=150), [-2.0, -0.5, 0.8, 2.0])

    def log_joint(z, data):
        return (
            dist.Normal(0, 2).log_prob(z["slope"]).sum()
            + dist.Normal(0, 3).log_prob(z["cut"]).sum()
            + dist.OrderedLogistic(data["x"] @ z["slope"], z["cut"]).log_prob(data["y"]).sum()
        )

    return bbvi.Model(log_joint, slope=bbvi.real(3), cut=bbvi.ordered(4)), {"x": x, "y": y}


def mixture():
    """A mixture of two Normals that overlap, the components summed out and their means in order."""
    rng = np.random.default_rng(10)
    y = np.where(rng.uniform(size=150) < 0.35, rng.normal(-1.5, 1, 150), rng.normal(1.5, 0.8, 150))

    def log_joint(z, y):
        parts = jnp.log(z["weight"]) + dist.Normal(z["mean"], z["sd"]).log_prob(y[:, None])
        return (
            dist.Dirichlet(jnp.full(2, 2.0)).log_prob(z["weight"])
            + dist.Normal(0, 3).log_prob(z["mean"]).sum()
            + dist.LogNormal(0, 0.5).log_prob(z["sd"]).sum()
            + jnp.logaddexp(parts[:, 0], parts[:, 1]).sum()
        )

    return bbvi.Model(log_joint, weight=bbvi.simplex(2), mean=bbvi.ordered(2), sd=bbvi.positive(2)), y


def shares():
    """Counts of four kinds in 20 samples, more spread than multinomial: common shares and their concentration."""
    rng = np.random.default_rng(11)
    y = np.stack([rng.multinomial(20, p) for p in rng.dirichlet(8 * np.array([0.5, 0.3, 0.15, 0.05]), 20)])

    def log_joint(z, y):
        return (
            dist.Dirichlet(jnp.ones(4)).log_prob(z["share"])
            + dist.Gamma(2, 0.1).log_prob(z["concentration"])
            + dist.DirichletMultinomial(z["concentration"] * z["share"], 20).log_prob(y).sum()
        )

    return bbvi.Model(log_joint, share=bbvi.simplex(4), concentration=bbvi.positive()), y


def gamma_poisson():
    """Failures of ten pumps, whose rates come from one Gamma."""

    def log_joint(z, data):
        return (
            dist.Exponential(1).log_prob(z["a"])
            + dist.Gamma(0.1, 1).log_prob(z["b"])
            + dist.Gamma(z["a"], z["b"]).log_prob(z["rate"]).sum()
            + dist.Poisson(z["rate"] * data["hours"]).log_prob(data["failures"]).sum()
        )

    return bbvi.Model(log_joint, a=bbvi.positive(), b=bbvi.positive(), rate=bbvi.positive(10)), PUMPS


def beta_binomial():
    """Tumours of rats in 20 groups, whose probabilities come from one Beta."""
    rng = np.random.default_rng(12)
    rats = rng.integers(10, 30, 20)
    data = {"rats": rats, "tumours": rng.binomial(rats, rng.beta(2, 8, 20))}

    def log_joint(z, data):
        a, b = z["mean"] * z["size"], (1 - z["mean"]) * z["size"]
        return (
            dist.Beta(1, 1).log_prob(z["mean"])
            + dist.Gamma(2, 0.1).log_prob(z["size"])
            + dist.Beta(a, b).log_prob(z["p"]).sum()
            + dist.Binomial(data["rats"], z["p"]).log_prob(data["tumours"]).sum()
        )

    return bbvi.Model(log_joint, mean=bbvi.unit_interval(), size=bbvi.positive(), p=bbvi.unit_interval(20)), data


REGRESSIONS = {
    function.__name__: function
    for function in (
        regression, uncentred_regression, robust_regression, logistic, poisson, negative_binomial, horseshoe, weibull,
        ordinal, mixture, shares, gamma_poisson, beta_binomial,
    )
}  # fmt: skip
