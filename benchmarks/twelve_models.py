"""Twelve models of different kinds, each with its data, written as a user would: `MODELS[name]()` is (model, data).

Data are small: real ones where they fit on a few lines, and otherwise simulated from the model with a fixed seed.
"""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import bbvi

SCHOOLS = (
    np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0]),  # effects (Rubin 1981)
    np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0]),  # standard errors
)

# British coal-mining disasters a year, 1851 to 1962 (Jarrett 1979)
DISASTERS = np.array(
    """4 5 4 1 0 4 3 4 0 6 3 3 4 0 2 6 3 3 5 4 5 3 1 4 4 1 5 5 3 4 2 5 2 2 3 4 2 1 3 2 2 1 1 1 1 3 0 0 1 0 1 1 0 0 3 1 0 3
    2 2 0 1 1 1 0 1 0 1 0 0 0 2 1 0 0 0 1 1 0 2 3 3 1 1 2 1 1 1 1 2 4 2 0 0 0 1 4 0 0 0 1 0 0 0 0 0 1 0 0 1 0 1""".split(),
    float,
)

STAY = np.array([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]])
LEVELS = np.array([-2.0, 0.0, 2.0])
COUPLING = 0.35


def schools_centred():
    """Eight schools, each effect around the common mean."""

    def log_joint(z, data):
        y, sigma = data
        return (
            dist.Normal(0, 5).log_prob(z["mu"])
            + dist.HalfCauchy(5).log_prob(z["tau"])
            + dist.Normal(z["mu"], z["tau"]).log_prob(z["theta"]).sum()
            + dist.Normal(z["theta"], sigma).log_prob(y).sum()
        )

    return bbvi.Model(log_joint, joint=(), mu=bbvi.real(), tau=bbvi.positive(), theta=bbvi.real(8)), SCHOOLS


def schools_non_centred():
    """Eight schools, each effect in units of tau."""

    def log_joint(z, data):
        y, sigma = data
        return (
            dist.Normal(0, 5).log_prob(z["mu"])
            + dist.HalfCauchy(5).log_prob(z["tau"])
            + dist.Normal(0, 1).log_prob(z["eta"]).sum()
            + dist.Normal(z["mu"] + z["tau"] * z["eta"], sigma).log_prob(y).sum()
        )

    return bbvi.Model(log_joint, joint=(), mu=bbvi.real(), tau=bbvi.positive(), eta=bbvi.real(8)), SCHOOLS


def funnel():
    """Neal's funnel in ten dimensions (Neal 2003)."""

    def log_joint(z, data):
        return dist.Normal(0, 3).log_prob(z["v"]) + dist.Normal(0, jnp.exp(z["v"] / 2)).log_prob(z["x"]).sum()

    return bbvi.Model(log_joint, joint=(), v=bbvi.real(), x=bbvi.real(9)), None


def horseshoe():
    """Sparse regression with a horseshoe prior (Carvalho et al. 2010): 100 rows, 30 predictors, 5 of them at work."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(100, 30))
    y = x[:, :5] @ np.array([3.0, -2.0, 1.5, 1.0, -0.5]) + rng.normal(size=100)

    def log_joint(z, data):
        coefficients = z["tau"] * z["width"] * z["raw"]
        return (
            dist.HalfCauchy(1).log_prob(z["tau"])
            + dist.HalfCauchy(1).log_prob(z["width"]).sum()
            + dist.Normal(0, 1).log_prob(z["raw"]).sum()
            + dist.HalfNormal(2).log_prob(z["sigma"])
            + dist.Normal(data["x"] @ coefficients, z["sigma"]).log_prob(data["y"]).sum()
        )

    latents = {"tau": bbvi.positive(), "width": bbvi.positive(30), "raw": bbvi.real(30), "sigma": bbvi.positive()}
    return bbvi.Model(log_joint, joint=(), **latents), {"x": x, "y": y}


def mixture():
    """A mixture of three Gaussians, the component of each of 300 points a latent."""
    rng = np.random.default_rng(5)
    component = rng.choice(3, 300, p=[0.3, 0.5, 0.2])
    y = rng.normal(np.array([-4.0, 0.0, 5.0])[component], np.array([1.0, 0.7, 1.5])[component])

    def log_joint(z, y):
        mine = z["component"][:, None] == jnp.arange(3)
        return {
            "weight": dist.Dirichlet(jnp.full(3, 2.0)).log_prob(z["weight"]),
            "centre": dist.Normal(0, 10).log_prob(z["centre"]),
            "spread": dist.LogNormal(0, 1).log_prob(z["spread"]),
            "component": jnp.log(z["weight"])[z["component"]],
            "y": jnp.where(mine, dist.Normal(z["centre"], z["spread"]).log_prob(y[:, None]), 0),
        }

    latents = {"centre": bbvi.real(3), "spread": bbvi.positive(3), "component": bbvi.categorical(3, 300)}
    return bbvi.Model(log_joint, joint=(), weight=bbvi.simplex(3), **latents), y


def hidden_markov():
    """A hidden Markov chain of 100 steps through three states of known levels."""
    rng = np.random.default_rng(6)
    states = [0]
    for _ in range(99):
        states.append(rng.choice(3, p=STAY[states[-1]]))
    y = rng.normal(LEVELS[np.array(states)], 1.0)

    def log_joint(z, y):
        return {
            "first": dist.Categorical(jnp.ones(3) / 3).log_prob(z["state"][0]),
            "next": jnp.log(STAY)[z["state"][:-1], z["state"][1:]],
            "y": dist.Normal(jnp.array(LEVELS)[z["state"]], 1).log_prob(y),
        }

    return bbvi.Model(log_joint, joint=(), state=bbvi.categorical(3, 100)), y


def ising():
    """A noisy image of 20 x 20 black and white pixels under an Ising prior (whose constant is left out)."""
    rng = np.random.default_rng(7)
    row, column = np.indices((20, 20)) - 9.5
    image = np.where((np.hypot(row, column) < 7) & (np.hypot(row, column) > 3), 1.0, -1.0)
    y = rng.normal(image, 1.0)

    def log_joint(z, y):
        spin = 2.0 * z["pixel"] - 1.0
        return {
            "down": COUPLING * spin[1:] * spin[:-1],
            "across": COUPLING * spin[:, 1:] * spin[:, :-1],
            "y": dist.Normal(spin, 1).log_prob(y),
        }

    return bbvi.Model(log_joint, joint=(), pixel=bbvi.binary(20, 20)), y


def crossed_effects():
    """Counts in 30 x 20 cells: a Poisson regression with random effects of rows and of columns."""
    rng = np.random.default_rng(8)
    row, column = (index.ravel() for index in np.indices((30, 20)))
    x = rng.normal(size=600)
    rate = np.exp(0.5 + 0.4 * x + 0.7 * rng.normal(size=30)[row] + 0.4 * rng.normal(size=20)[column])
    data = {"row": row, "column": column, "x": x, "y": rng.poisson(rate)}

    def log_joint(z, data):
        log_rate = z["level"] + z["slope"] * data["x"] + z["row"][data["row"]] + z["column"][data["column"]]
        return (
            dist.Normal(0, 2).log_prob(z["level"])
            + dist.Normal(0, 1).log_prob(z["slope"])
            + dist.HalfNormal(1).log_prob(z["row_sd"])
            + dist.HalfNormal(1).log_prob(z["column_sd"])
            + dist.Normal(0, z["row_sd"]).log_prob(z["row"]).sum()
            + dist.Normal(0, z["column_sd"]).log_prob(z["column"]).sum()
            + dist.Poisson(jnp.exp(log_rate)).log_prob(data["y"]).sum()
        )

    fixed = {"level": bbvi.real(), "slope": bbvi.real(), "row_sd": bbvi.positive(), "column_sd": bbvi.positive()}
    return bbvi.Model(log_joint, joint=(), **fixed, row=bbvi.real(30), column=bbvi.real(20)), data


def gamma_factors():
    """Counts of 60 x 40 as a product of nonnegative matrices of rank 4."""
    rng = np.random.default_rng(9)
    y = rng.poisson(rng.gamma(0.7, 1 / 0.7, (60, 4)) @ rng.gamma(0.7, 1 / 0.7, (4, 40)))

    def log_joint(z, y):
        return (
            dist.Gamma(0.7, 0.7).log_prob(z["w"]).sum()
            + dist.Gamma(0.7, 0.7).log_prob(z["h"]).sum()
            + dist.Poisson(z["w"] @ z["h"]).log_prob(y).sum()
        )

    return bbvi.Model(log_joint, joint=(), w=bbvi.positive(60, 4), h=bbvi.positive(4, 40)), y


def switchpoint():
    """The year in which coal mining became safer, and the rates of disasters before it and from it on."""

    def log_joint(z, y):
        before = jnp.arange(len(y)) < z["year"]
        return (
            dist.Exponential(1).log_prob(z["early"])
            + dist.Exponential(1).log_prob(z["late"])
            - jnp.log(len(y))
            + dist.Poisson(jnp.where(before, z["early"], z["late"])).log_prob(y).sum()
        )

    latents = {"year": bbvi.categorical(len(DISASTERS)), "early": bbvi.positive(), "late": bbvi.positive()}
    return bbvi.Model(log_joint, joint=(), **latents), DISASTERS


def topics():
    """Latent Dirichlet allocation (Blei et al. 2003): 30 documents of 20 words, 50 words to choose from, 3 topics."""
    rng = np.random.default_rng(10)
    document = np.repeat(np.arange(30), 20)
    share, words = rng.dirichlet(np.full(3, 0.3), 30), rng.dirichlet(np.full(50, 0.1), 3)
    word = np.array([rng.choice(50, p=share[d] @ words) for d in document])

    def log_joint(z, data):
        mine = z["topic"][:, None] == jnp.arange(3)
        return {
            "share": dist.Dirichlet(jnp.full(3, 0.3)).log_prob(z["share"]),
            "words": dist.Dirichlet(jnp.full(50, 0.1)).log_prob(z["words"]),
            "topic": jnp.where(mine, jnp.log(z["share"])[data["document"]], 0),
            "word": jnp.where(mine, jnp.log(z["words"])[:, data["word"]].T, 0),
        }

    latents = {"share": bbvi.simplex(3, 30), "words": bbvi.simplex(50, 3), "topic": bbvi.categorical(3, len(word))}
    return bbvi.Model(log_joint, joint=(), **latents), {"document": document, "word": word}


def scales():
    """A regression whose six predictors are on scales of 0.001, 1 and 1,000, two of each."""
    rng = np.random.default_rng(11)
    scale = np.repeat([1e-3, 1.0, 1e3], 2)
    x = (rng.normal(size=(100, 6)) + 0.5 * rng.normal(size=(100, 1))) * scale
    y = 20 + x @ (np.array([30.0, -20.0, 15.0, 25.0, -30.0, 10.0]) / scale) + 10 * rng.normal(size=100)

    def log_joint(z, data):
        return (
            dist.Normal(0, 100).log_prob(z["level"])
            + dist.Normal(0, 1e5).log_prob(z["slope"]).sum()
            + dist.HalfNormal(30).log_prob(z["sigma"])
            + dist.Normal(z["level"] + data["x"] @ z["slope"], z["sigma"]).log_prob(data["y"]).sum()
        )

    return bbvi.Model(log_joint, joint=(), level=bbvi.real(), slope=bbvi.real(6), sigma=bbvi.positive()), {
        "x": x,
        "y": y,
    }


MODELS = {
    function.__name__: function
    for function in (
        schools_centred, schools_non_centred, funnel, horseshoe, mixture, hidden_markov, ising, crossed_effects,
        gamma_factors, switchpoint, topics, scales,
    )
}  # fmt: skip

#: the labels of components, factors and topics can be exchanged: a random start, and the best of several seeds counts
EXCHANGEABLE = ("mixture", "gamma_factors", "topics")

#: differentiable in all latents: `bbvi.Pathwise` takes these
CONTINUOUS = (
    "schools_centred", "schools_non_centred", "funnel", "horseshoe", "crossed_effects", "gamma_factors", "scales",
)  # fmt: skip
