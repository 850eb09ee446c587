"""Posteriors of accuracy.py with groups, time or space, each with data of a fixed seed.

`HIERARCHIES[name]()` is (model, data).
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from twelve_models import schools_centred, schools_non_centred

import bbvi

# the flow of the Nile at Aswan, 1871 to 1930, in 10^8 cubic metres (Cobb 1978)
NILE = np.array(
    """1120 1160 963 1210 1160 1160 813 1230 1370 1140 995 935 1110 994 1020 960 1180 799 958 1140 1100 1210 1150 1250 1260
    1220 1030 1100 774 840 874 694 940 833 701 916 692 1020 1050 969 831 726 456 824 702 1120 1100 832 764 821 768 845 864
    862 698 845 744 796 1040 759""".split(),
    float,
)


def radon():
    """Radon in houses of 40 counties of 1 to 10 houses: a level for each county, and the effect of a basement."""
    rng = np.random.default_rng(21)
    county = np.repeat(np.arange(40), rng.integers(1, 11, 40))
    basement = rng.binomial(1, 0.7, len(county)).astype(float)
    y = rng.normal(1, 0.4, 40)[county] + 0.7 * basement + rng.normal(0, 0.8, len(county))

    def log_joint(z, data):
        return (
            dist.Normal(0, 5).log_prob(z["mu"])
            + dist.HalfNormal(1).log_prob(z["tau"])
            + dist.Normal(z["mu"], z["tau"]).log_prob(z["level"]).sum()
            + dist.Normal(0, 2).log_prob(z["slope"])
            + dist.HalfNormal(1).log_prob(z["sigma"])
            + dist.Normal(z["level"][data["county"]] + z["slope"] * data["basement"], z["sigma"])
            .log_prob(data["y"])
            .sum()
        )

    scales = {"tau": bbvi.positive(), "sigma": bbvi.positive()}
    model = bbvi.Model(log_joint, mu=bbvi.real(), slope=bbvi.real(), level=bbvi.real(40), **scales)
    return model, {"county": county, "basement": basement, "y": y}


def random_slopes():
    """Reaction times of 15 people over ten days: a level and a slope for each."""
    rng = np.random.default_rng(22)
    person, day = np.repeat(np.arange(15), 10), np.tile(np.arange(10.0), 15)
    y = rng.normal(2.5, 0.3, 15)[person] + rng.normal(0.1, 0.06, 15)[person] * day + rng.normal(0, 0.25, 150)

    def log_joint(z, data):
        mean = z["level"][data["person"]] + z["slope"][data["person"]] * data["day"]
        return (
            dist.Normal(0, 5).log_prob(z["mu"]).sum()
            + dist.HalfNormal(1).log_prob(z["tau"]).sum()
            + dist.Normal(z["mu"][0], z["tau"][0]).log_prob(z["level"]).sum()
            + dist.Normal(z["mu"][1], z["tau"][1]).log_prob(z["slope"]).sum()
            + dist.HalfNormal(1).log_prob(z["sigma"])
            + dist.Normal(mean, z["sigma"]).log_prob(data["y"]).sum()
        )

    scales = {"tau": bbvi.positive(2), "sigma": bbvi.positive()}
    model = bbvi.Model(log_joint, mu=bbvi.real(2), level=bbvi.real(15), slope=bbvi.real(15), **scales)
    return model, {"person": person, "day": day, "y": y}


def poisson_groups():
    """Counts in 25 groups of six, with a random effect of the group around zero."""
    rng = np.random.default_rng(23)
    group, x = np.repeat(np.arange(25), 6), rng.normal(size=150)
    y = rng.poisson(np.exp(0.5 + 0.4 * x + 0.6 * rng.normal(size=25)[group]))

    def log_joint(z, data):
        rate = jnp.exp(z["level"] + z["slope"] * data["x"] + z["effect"][data["group"]])
        return (
            dist.Normal(0, 3).log_prob(z["level"])
            + dist.Normal(0, 1).log_prob(z["slope"])
            + dist.HalfNormal(1).log_prob(z["tau"])
            + dist.Normal(0, z["tau"]).log_prob(z["effect"]).sum()
            + dist.Poisson(rate).log_prob(data["y"]).sum()
        )

    latents = {"level": bbvi.real(), "slope": bbvi.real(), "tau": bbvi.positive(), "effect": bbvi.real(25)}
    return bbvi.Model(log_joint, **latents), {"group": group, "x": x, "y": y}


def logistic_groups():
    """Yes or no in 30 groups of eight, with a random effect of the group in units of its scale."""
    rng = np.random.default_rng(24)
    group, x = np.repeat(np.arange(30), 8), rng.normal(size=240)
    y = rng.binomial(1, 1 / (1 + np.exp(0.3 - 0.8 * x - 0.9 * rng.normal(size=30)[group]))).astype(float)

    def log_joint(z, data):
        logits = z["level"] + z["slope"] * data["x"] + z["tau"] * z["effect"][data["group"]]
        return (
            dist.Normal(0, 3).log_prob(z["level"])
            + dist.Normal(0, 2).log_prob(z["slope"])
            + dist.HalfNormal(1).log_prob(z["tau"])
            + dist.Normal(0, 1).log_prob(z["effect"]).sum()
            + dist.Bernoulli(logits=logits).log_prob(data["y"]).sum()
        )

    latents = {"level": bbvi.real(), "slope": bbvi.real(), "tau": bbvi.positive(), "effect": bbvi.real(30)}
    return bbvi.Model(log_joint, **latents), {"group": group, "x": x, "y": y}


def rasch():
    """300 persons answer ten questions: abilities, their spread, and difficulties."""
    rng = np.random.default_rng(25)
    y = rng.binomial(1, 1 / (1 + np.exp(np.linspace(-1.5, 1.5, 10) - 1.2 * rng.normal(size=(300, 1))))).astype(float)

    def log_joint(z, y):
        return (
            dist.HalfNormal(2).log_prob(z["spread"])
            + dist.Normal(0, z["spread"]).log_prob(z["ability"]).sum()
            + dist.Normal(0, 2).log_prob(z["difficulty"]).sum()
            + dist.Bernoulli(logits=z["ability"][:, None] - z["difficulty"]).log_prob(y).sum()
        )

    latents = {"spread": bbvi.positive(), "ability": bbvi.real(300), "difficulty": bbvi.real(10)}
    return bbvi.Model(log_joint, **latents), y


def two_parameters():
    """60 persons answer ten questions that discriminate between them more or less well."""
    rng = np.random.default_rng(26)
    steep, difficulty = rng.lognormal(0, 0.4, 10), rng.normal(size=10)
    y = rng.binomial(1, 1 / (1 + np.exp(-steep * (rng.normal(size=(60, 1)) - difficulty)))).astype(float)

    def log_joint(z, y):
        return (
            dist.Normal(0, 1).log_prob(z["ability"]).sum()
            + dist.LogNormal(0, 0.5).log_prob(z["steep"]).sum()
            + dist.Normal(0, 2).log_prob(z["difficulty"]).sum()
            + dist.Bernoulli(logits=z["steep"] * (z["ability"][:, None] - z["difficulty"])).log_prob(y).sum()
        )

    return bbvi.Model(log_joint, ability=bbvi.real(60), steep=bbvi.positive(10), difficulty=bbvi.real(10)), y


def funnel():
    """A funnel in ten dimensions (Neal 2003), half as wide as his: his has sds that no number of draws can measure."""

    def log_joint(z, data):
        return dist.Normal(0, 1.5).log_prob(z["v"]) + dist.Normal(0, jnp.exp(z["v"] / 2)).log_prob(z["x"]).sum()

    return bbvi.Model(log_joint, v=bbvi.real(), x=bbvi.real(9)), None


def spatial():
    """Cases of a disease in 8 x 8 regions: a proper conditional autoregression, with the scale of its steps."""
    rng = np.random.default_rng(27)
    row, column = np.indices((8, 8)) / 7
    data = {"cases": rng.poisson(5 * np.exp(np.sin(3 * row) - column + 0.1 * rng.normal(size=(8, 8)))), "expected": 5.0}

    def log_joint(z, data):
        field, scale = z["field"], z["scale"]
        return (
            dist.HalfNormal(1).log_prob(scale)
            + dist.Normal(0, 1).log_prob(z["level"])
            + dist.Normal(0, 3 * scale).log_prob(field).sum()
            - ((field[1:] - field[:-1]) ** 2 / (2 * scale**2)).sum()
            - ((field[:, 1:] - field[:, :-1]) ** 2 / (2 * scale**2)).sum()
            + dist.Poisson(data["expected"] * jnp.exp(z["level"] + field)).log_prob(data["cases"]).sum()
        )

    return bbvi.Model(log_joint, level=bbvi.real(), scale=bbvi.positive(), field=bbvi.real(8, 8)), data


def autoregression():
    """100 values of an autoregression of order one, near a random walk."""
    rng, y = np.random.default_rng(28), [0.0]
    for _ in range(99):
        y.append(0.3 + 0.9 * y[-1] + 0.5 * rng.normal())

    def log_joint(z, y):
        return (
            dist.Normal(0, 2).log_prob(z["level"])
            + dist.Uniform(-1, 1).log_prob(z["phi"])
            + dist.HalfNormal(1).log_prob(z["sigma"])
            + dist.Normal(z["level"] + z["phi"] * y[:-1], z["sigma"]).log_prob(y[1:]).sum()
        )

    return bbvi.Model(log_joint, level=bbvi.real(), phi=bbvi.interval(-1, 1), sigma=bbvi.positive()), np.array(y)


def second_order():
    """120 values of an autoregression of order two, whose coefficients are correlated."""
    rng, y = np.random.default_rng(29), [1.0, 1.0]
    for _ in range(118):
        y.append(0.5 + 1.2 * y[-1] - 0.4 * y[-2] + 0.5 * rng.normal())

    def log_joint(z, y):
        mean = z["level"] + z["phi"][0] * y[1:-1] + z["phi"][1] * y[:-2]
        return (
            dist.Normal(0, 2).log_prob(z["level"])
            + dist.Normal(0, 1).log_prob(z["phi"]).sum()
            + dist.HalfNormal(1).log_prob(z["sigma"])
            + dist.Normal(mean, z["sigma"]).log_prob(y[2:]).sum()
        )

    return bbvi.Model(log_joint, level=bbvi.real(), phi=bbvi.real(2), sigma=bbvi.positive()), np.array(y)


def stochastic_volatility():
    """60 returns, whose log variances follow an autoregression."""
    rng, h = np.random.default_rng(30), [-1.0]
    for _ in range(59):
        h.append(-1 + 0.9 * (h[-1] + 1) + 0.4 * rng.normal())

    def log_joint(z, y):
        h, mu, phi, sigma = z["h"], z["mu"], z["phi"], z["sigma"]
        return (
            dist.Normal(-1, 1).log_prob(mu)
            + dist.Beta(10, 2).log_prob(phi)
            + dist.HalfNormal(0.5).log_prob(sigma)
            + dist.Normal(mu, sigma / jnp.sqrt(1 - phi**2)).log_prob(h[0])
            + dist.Normal(mu + phi * (h[:-1] - mu), sigma).log_prob(h[1:]).sum()
            + dist.Normal(0, jnp.exp(h / 2)).log_prob(y).sum()
        )

    latents = {"mu": bbvi.real(), "phi": bbvi.unit_interval(), "sigma": bbvi.positive(), "h": bbvi.real(60)}
    return bbvi.Model(log_joint, **latents), np.exp(np.array(h) / 2) * rng.normal(size=60)


def local_level():
    """The Nile's flow: a level that walks, seen with noise."""

    def log_joint(z, y):
        return (
            dist.HalfNormal(1).log_prob(z["step"])
            + dist.HalfNormal(2).log_prob(z["noise"])
            + dist.Normal(10, 5).log_prob(z["level"][0])
            + dist.Normal(z["level"][:-1], z["step"]).log_prob(z["level"][1:]).sum()
            + dist.Normal(z["level"], z["noise"]).log_prob(y).sum()
        )

    return bbvi.Model(log_joint, step=bbvi.positive(), noise=bbvi.positive(), level=bbvi.real(60)), NILE / 100


def kernel(x, length, height):
    return height**2 * jnp.exp(-((x[:, None] - x) ** 2) / (2 * length**2))


def gaussian_process():
    """A Gaussian process at 30 places, summed out: its length scale, its height and the noise."""
    rng = np.random.default_rng(31)
    x = np.sort(rng.uniform(0, 10, 30))
    data = {"x": x, "y": np.sin(x) + 0.3 * rng.normal(size=30)}

    def log_joint(z, data):
        covariance = kernel(data["x"], z["length"], z["height"]) + z["noise"] ** 2 * jnp.eye(30)
        return (
            dist.InverseGamma(5, 5).log_prob(z["length"])
            + dist.HalfNormal(2).log_prob(z["height"])
            + dist.HalfNormal(1).log_prob(z["noise"])
            + dist.MultivariateNormal(jnp.zeros(30), covariance).log_prob(data["y"])
        )

    return bbvi.Model(log_joint, length=bbvi.positive(), height=bbvi.positive(), noise=bbvi.positive()), data


def process_of_counts():
    """Counts at 30 places, whose log rates are a Gaussian process."""
    rng = np.random.default_rng(32)
    x = np.linspace(0, 10, 30)
    data = {"x": x, "y": rng.poisson(np.exp(1 + np.sin(x)))}

    def log_joint(z, data):
        covariance = kernel(data["x"], z["length"], z["height"]) + 1e-4 * jnp.eye(30)
        field = jnp.linalg.cholesky(covariance) @ z["raw"]
        return (
            dist.InverseGamma(5, 5).log_prob(z["length"])
            + dist.HalfNormal(2).log_prob(z["height"])
            + dist.Normal(0, 2).log_prob(z["level"])
            + dist.Normal(0, 1).log_prob(z["raw"]).sum()
            + dist.Poisson(jnp.exp(z["level"] + field)).log_prob(data["y"]).sum()
        )

    latents = {"length": bbvi.positive(), "height": bbvi.positive(), "level": bbvi.real(), "raw": bbvi.real(30)}
    return bbvi.Model(log_joint, **latents), data


def hidden_markov():
    """A chain of two states that stay, summed out: their means in order, their noise and how often each stays."""
    rng, state = np.random.default_rng(33), [0]
    for _ in range(119):
        state.append(state[-1] if rng.uniform() < 0.9 else 1 - state[-1])
    y = rng.normal(np.array([-1.0, 1.5])[state], 1.0)

    def log_joint(z, y):
        stay = z["stay"]
        step = jnp.log(jnp.array([[stay[0], 1 - stay[0]], [1 - stay[1], stay[1]]]))
        seen = dist.Normal(z["mean"], z["sigma"]).log_prob(y[:, None])

        def advance(alpha, one):
            return jax.nn.logsumexp(alpha[:, None] + step, axis=0) + one, None

        alpha, _ = jax.lax.scan(advance, jnp.log(0.5) + seen[0], seen[1:])
        return (
            dist.Beta(4, 1).log_prob(stay).sum()
            + dist.Normal(0, 3).log_prob(z["mean"]).sum()
            + dist.HalfNormal(2).log_prob(z["sigma"])
            + jax.nn.logsumexp(alpha)
        )

    return bbvi.Model(log_joint, stay=bbvi.unit_interval(2), mean=bbvi.ordered(2), sigma=bbvi.positive()), y


HIERARCHIES = {
    function.__name__: function
    for function in (
        schools_centred, schools_non_centred, radon, random_slopes, poisson_groups, logistic_groups, rasch,
        two_parameters, funnel, spatial, autoregression, second_order, stochastic_volatility, local_level,
        gaussian_process, process_of_counts, hidden_markov,
    )
}  # fmt: skip
