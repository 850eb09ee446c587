"""Part of verdicts.py: targets with a trap: funnels and hierarchies, heavy tails, and q that starts where it is blind."""

import dataclasses
import functools
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import gammaln
from twelve_elbos import ELBOS, HALF_LOG_TWO_PI, Categorical, Normal, normal
from twelve_models import MODELS
from verdict_gaussians import beta_bernoulli, gamma_poisson, normals
from verdict_target import Bernoulli, Case, Target, best_lambda, gamma_at, normal_at, rounded

import bbvi

BLIND = float(np.log(1e5))  # logits at which a probability is 1e-5
# a fine grid for means over a standard Normal: log(1 + z**2 / df) has singularities near the real line
GRID = np.linspace(-9.0, 9.0, 20_001)
MASS = np.exp(-0.5 * GRID**2) / np.exp(-0.5 * GRID**2).sum()


def funnel(n: int, width: float, centre: float) -> Case:
    """Build Neal's funnel, v around a centre; under mean field the best q is known."""

    def log_joint(z, data):
        return dist.Normal(centre, width).log_prob(z["v"]) + dist.Normal(0, jnp.exp(z["v"] / 2)).log_prob(z["x"]).sum()

    def elbo(params):
        v, x = Normal(params["v"]), Normal(params["x"])
        inside = -0.5 * x.square * jnp.exp(-v.mean + 0.5 * v.variance) - 0.5 * v.mean - HALF_LOG_TWO_PI
        return normal((v.mean - centre) ** 2 + v.variance, width) + inside.sum() + v.entropy + x.entropy

    variance = 1 / (width**-2 + n / 2)
    best = {
        "v": normal_at(centre, variance**0.5),
        "x": normal_at(np.zeros(n), np.exp(centre / 2 - variance / 4)),
    }
    return Case(bbvi.Model(log_joint, joint=(), v=bbvi.real(), x=bbvi.real(n)), None, elbo, best)


def schools(name: str) -> Case:
    """Take eight schools from the twelve models."""
    model, data = MODELS[name]()
    data32, data64 = zip(*map(rounded, data), strict=True)
    effect = "theta" if name == "schools_centred" else "eta"
    near = {"mu": normal_at(4.0, 2.0), "tau": gamma_at(18.0, 6.0)}
    near[effect] = normal_at(np.full(8, 5.0 if effect == "theta" else 0.1), 5.0 if effect == "theta" else 0.9)
    elbo = functools.partial(ELBOS[name], data=data64)
    apart = bbvi.Model(model.log_joint, joint=(), **model.globals)
    return Case(apart, data32, elbo, best_lambda(elbo, near, (0.0, 0.1, 0.3)))


def hierarchy(n: int, spread: float) -> Case:
    """Build n effects around a common mean, their spread a LogNormal latent, each seen once with noise."""
    rng = np.random.default_rng(n)
    y32, y = rounded(rng.normal(rng.normal(1.0, spread, n), 0.5))

    def log_joint(z, y):
        return (
            dist.Normal(0, 5).log_prob(z["mu"])
            + dist.LogNormal(0, 1).log_prob(z["tau"])
            + dist.Normal(z["mu"], z["tau"]).log_prob(z["theta"]).sum()
            + dist.Normal(z["theta"], 0.5).log_prob(y).sum()
        )

    def elbo(params):
        mu, log_tau, theta = Normal(params["mu"]), Normal(params["tau"]), Normal(params["theta"])
        apart = (theta.mean - mu.mean) ** 2 + theta.variance + mu.variance
        inverse_square = jnp.exp(-2 * log_tau.mean + 2 * log_tau.variance)
        inside = -0.5 * apart * inverse_square - log_tau.mean - HALF_LOG_TWO_PI
        likelihood = normal((y - theta.mean) ** 2 + theta.variance, 0.5)
        # the Jacobians of tau in its prior and in its entropy cancel
        prior = normal(mu.square, 5.0) + normal(log_tau.square, 1.0)
        return prior + inside.sum() + likelihood + mu.entropy + log_tau.entropy + theta.entropy

    near = {"mu": normal_at(1.0, n**-0.5), "tau": normal_at(np.log(spread), 0.2), "theta": normal_at(y, 0.4)}
    latents = {"mu": bbvi.real(), "tau": bbvi.positive(q=dist.LogNormal), "theta": bbvi.real(n)}
    return Case(bbvi.Model(log_joint, joint=(), **latents), y32, elbo, best_lambda(elbo, near))


def student(df: float, loc: float, d: int) -> Case:
    """Build independent Student's t under Normal factors: means by quadrature over one variable."""

    def log_joint(z, data):
        return dist.StudentT(df, loc, 1.0).log_prob(z["x"]).sum()

    def elbo(params):
        q = Normal(params["x"])
        z = q.mean[:, None] + jnp.sqrt(q.variance)[:, None] * GRID
        kernel = jnp.log1p((z - loc) ** 2 / df) @ MASS
        constant = gammaln((df + 1) / 2) - gammaln(df / 2) - 0.5 * np.log(np.pi * df)
        return (constant - 0.5 * (df + 1) * kernel).sum() + q.entropy

    one = best_lambda(elbo, {"x": normal_at(np.full(1, loc), 1.0)})
    best = {"x": {p: np.repeat(value, d) for p, value in one["x"].items()}}
    return Case(bbvi.Model(log_joint, joint=(), x=bbvi.real(d)), None, elbo, best)


def bits(logits: tuple[float, ...], start: float) -> Case:
    """Build independent bits."""
    b32, b = rounded(logits)

    def elbo(params):
        q = Bernoulli(params["x"])
        return b @ q.mean + q.entropy

    model = bbvi.Model(lambda z, b: b * z["x"], joint=(), x=bbvi.binary(len(b), init={"logits": start}))
    return Case(model, b32, elbo, {"x": {"logits": b}})


def product(n: int, field: float, weight: float) -> Case:
    """Build n bits with a field each and one term in the product of all; both up, so that there is one optimum."""

    def log_joint(z, data):
        return field * z["x"].sum() + weight * z["x"].prod()

    def elbo(params):
        q = Bernoulli(params["x"])
        return field * q.mean.sum() + weight * q.mean.prod() + q.entropy

    p = 1.0
    for _ in range(1000):
        p = 1 / (1 + np.exp(-field - weight * p ** (n - 1)))
    best = {"x": {"logits": np.full(n, np.log(p / (1 - p)))}}
    return Case(bbvi.Model(log_joint, joint=(), x=bbvi.binary(n, init={"logits": -BLIND})), None, elbo, best)


def ladder(n: int, field: float, coupling: float) -> Case:
    """Build a chain of bits that pull their neighbours up."""

    def log_joint(z, data):
        return {"field": field * z["x"], "pairs": coupling * z["x"][1:] * z["x"][:-1]}

    def elbo(params):
        q = Bernoulli(params["x"])
        return field * q.mean.sum() + coupling * q.mean[1:] @ q.mean[:-1] + q.entropy

    best = best_lambda(elbo, {"x": {"logits": np.full(n, field + coupling)}})
    return Case(bbvi.Model(log_joint, joint=(), x=bbvi.binary(n, init={"logits": -BLIND})), None, elbo, best)


def categories(k: int, n: int) -> Case:
    """Build n categories that start sure of one that is wrong."""
    odds = np.random.default_rng(k).normal(0, 1, (n, k))
    odds[:, 0] = -1.0
    odds32, odds = rounded(odds)
    wrong = np.where(np.arange(k) == 0, BLIND, 0.0)

    def log_joint(z, odds):
        return jnp.where(z["c"][:, None] == jnp.arange(k), odds, 0)

    def elbo(params):
        q = Categorical(params["c"])
        return (q.probs * odds).sum() + q.entropy

    model = bbvi.Model(log_joint, joint=(), c=bbvi.categorical(k, n, init={"logits": wrong}))
    return Case(model, odds32, elbo, {"c": {"logits": odds}})


def tied(n: int) -> Case:
    """Build bits that each shift a Normal, which is seen with noise."""
    y32, y = rounded(np.linspace(2.2, 4.0, n))

    def log_joint(z, y):
        up = z["x"] * 1.0
        return {
            "x": dist.Bernoulli(0.5).log_prob(z["x"]),
            "z": dist.Normal(3 * up, 1).log_prob(z["z"]),
            "y": dist.Normal(z["z"], 1).log_prob(y),
        }

    def elbo(params):
        x, z = Bernoulli(params["x"]), Normal(params["z"])
        apart = z.square - 6 * z.mean * x.mean + 9 * x.mean
        likelihood = normal((y - z.mean) ** 2 + z.variance, 1.0)
        return n * np.log(0.5) + normal(apart, 1.0) + likelihood + x.entropy + z.entropy

    best = best_lambda(elbo, {"x": {"logits": np.full(n, 3.0)}, "z": normal_at((3 + y) / 2, 0.5**0.5)})
    model = bbvi.Model(log_joint, joint=(), x=bbvi.binary(n, init={"logits": -BLIND}), z=bbvi.real(n))
    return Case(model, y32, elbo, best)


def counts(rates: tuple[float, ...], start: float) -> Case:
    """Build independent Poisson counts; where q draws nothing but 0, so does its gradient."""
    rate32, rate = rounded(rates)

    def elbo(params):
        log_rate = params["n"]["rate"]
        return (jnp.exp(log_rate) * (np.log(rate) - log_rate + 1) - rate).sum()

    model = bbvi.Model(
        lambda z, rate: dist.Poisson(rate).log_prob(z["n"]), joint=(), n=bbvi.count(len(rate), init={"rate": start})
    )
    return Case(model, rate32, elbo, {"n": {"rate": np.log(rate)}})


def begun_at(build: Callable[..., Case], arguments: tuple, **inits: dict[str, float]) -> Case:
    """Build a flat case that starts elsewhere."""
    case = build(*arguments)
    latents = {n: dataclasses.replace(latent, init=inits.get(n)) for n, latent in case.model.globals.items()}
    return dataclasses.replace(case, model=bbvi.Model(case.model.log_joint, joint=(), **latents))


FUNNELS = {
    **{f"funnel n={n} at {centre}": (funnel, n, 3.0, centre) for n in (1, 9, 50) for centre in (0.0, -6.0, 4.0)},
    "funnel n=9 of width 1": (funnel, 9, 1.0, 0.0),
    **{name: (schools, name) for name in ("schools_centred", "schools_non_centred")},
    **{f"hierarchy n={n} spread={spread}": (hierarchy, n, spread) for n, spread in ((8, 1.0), (30, 0.1), (30, 1.0), (100, 0.3))},
}  # fmt: skip
TAILS = {
    f"t df={df} at {loc} d={d}": (student, df, loc, d)
    for df in (0.1, 0.5, 1.0, 3.0)
    for loc, d in ((0.0, 1), (10.0, 1), (3.0, 5))
}
BLIND_STARTS = {
    "a bit of probability .9": (bits, (2.2,), -BLIND),
    "a bit of probability .52": (bits, (0.1,), BLIND),
    "a bit of probability .01": (bits, (-4.6,), BLIND),
    "a bit of probability .0001, at .9999": (bits, (-9.2,), 9.2),
    "20 bits": (bits, tuple(np.linspace(1, 4, 20)), -BLIND),
    "200 bits": (bits, tuple(np.linspace(-1, 4, 200)), -BLIND),
    "product of 2 bits": (product, 2, 0.5, 3.0),
    "product of 4 bits": (product, 4, 0.5, 6.0),
    "chain of 10 bits": (ladder, 10, 0.5, 1.0),
    "a category of 3": (categories, 3, 1),
    "a category of 10": (categories, 10, 1),
    "30 categories of 5": (categories, 5, 30),
    "a bit tied to a Normal": (tied, 1),
    "10 bits tied to Normals": (tied, 10),
    "a bit of probability .9, at 1e-7": (bits, (2.2,), -16.1),
    "a count of rate 5": (counts, (5.0,), 5e-5),
    "a count of rate .2": (counts, (0.2,), 1e-4),
    "10 counts of rates 1 to 30": (counts, tuple(np.linspace(1, 30, 10)), 1e-5),
    "a Normal of scale 1, at 1e-5": (begun_at, normals, ((1.0,), 3)),
    "a Normal of scale 1, at 1e5": (begun_at, normals, ((1.0,), 3)),
    "a Gamma of mean 4, at 4e-5": (begun_at, gamma_poisson, (50,)),
    "a Beta of mean .3, at 3e-6": (begun_at, beta_bernoulli, (10, 0.3)),
}
STARTS = {
    "a Normal of scale 1, at 1e-5": {"x": {"scale": 1e-5}},
    "a Normal of scale 1, at 1e5": {"x": {"scale": 1e5}},
    "a Gamma of mean 4, at 4e-5": {"rate": {"mean": 4e-5}},
    "a Beta of mean .3, at 3e-6": {"p": {"mean": 3e-6}},
}
TARGETS = [
    Target(name, kind, functools.partial(*build, **STARTS.get(name, {})))
    for kind, builds in (("funnel", FUNNELS), ("heavy tails", TAILS), ("blind start", BLIND_STARTS))
    for name, build in builds.items()
]
