"""Part of verdicts.py: targets that are Gaussian or nearly so: ridges, independent Normals, conjugate models, regressions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import gammaln, polygamma
from numpyro.distributions import biject_to, constraints
from twelve_elbos import HALF_LOG_TWO_PI, Dirichlet, Gamma, Normal, normal
from verdict_target import Beta, Case, Lambda, Target, best_lambda, gamma_at, normal_at, rounded

import bbvi

CORRELATIONS = (0.9, 0.99, 0.999, 0.9999)
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(64)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def precision_of(shape: str, rho: float, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the precision matrix of d unit variances with this correlation, and a mean two sds along the ridge from 0."""
    if shape == "even":
        covariance = (1 - rho) * np.eye(d) + rho
    else:  # that of neighbours, which falls with distance
        covariance = rho ** np.abs(np.subtract.outer(np.arange(d), np.arange(d)))
    draw = np.random.default_rng(d).normal(size=d)
    draw[0] = 1.0  # what all have in common
    return np.linalg.inv(covariance), 2 * np.linalg.cholesky(covariance) @ draw


def ridge(shape: str, rho: float, d: int, scalars: bool = False) -> Case:
    """Build a joint Gaussian, one vector latent or d scalar ones."""
    precision, mean = precision_of(shape, rho, d)
    (precision32, precision), (mean32, mean) = rounded((precision + precision.T) / 2), rounded(mean)
    names = [f"x{i}" for i in range(d)]

    def log_joint(z, data):
        x = jnp.stack([z[name] for name in names]) if scalars else z["x"]
        apart = x - data["mean"]
        return -0.5 * apart @ data["precision"] @ apart

    def elbo(params):
        q = Normal({p: jnp.stack([params[n][p] for n in names]) for p in ("loc", "scale")} if scalars else params["x"])
        apart = q.mean - mean
        return -0.5 * (apart @ precision @ apart + np.diag(precision) @ q.variance) + q.entropy

    best = normal_at(mean, np.diag(precision) ** -0.5)
    optimum = {n: {p: best[p][i] for p in best} for i, n in enumerate(names)} if scalars else {"x": best}
    latents = {name: bbvi.real() for name in names} if scalars else {"x": bbvi.real(d)}
    return Case(bbvi.Model(log_joint, joint=(), **latents), {"mean": mean32, "precision": precision32}, elbo, optimum)


def positive_ridge(family: str, rho: float, d: int) -> Case:
    """Build positive latents whose logarithms are jointly Gaussian, under LogNormal or Gamma factors."""
    precision, mean = precision_of("even", rho, d)
    (precision32, precision), (mean32, mean) = rounded((precision + precision.T) / 2), rounded(mean / 2)

    def log_joint(z, data):
        apart = jnp.log(z["x"]) - data["mean"]
        return -0.5 * apart @ data["precision"] @ apart - jnp.log(z["x"]).sum()

    def quadratic(log_mean, log_variance):
        apart = log_mean - mean
        return -0.5 * (apart @ precision @ apart + np.diag(precision) @ log_variance)

    def elbo(params):
        if family == "LogNormal":
            q = Normal(params["x"])
            return quadratic(q.mean, q.variance) + q.entropy
        gamma = Gamma(params["x"])
        return quadratic(gamma.log, polygamma(1, gamma.a)) - gamma.log.sum() + gamma.entropy

    sd = np.diag(precision) ** -0.5
    q, optimum = dist.LogNormal, {"x": normal_at(mean, sd)}
    if family == "Gamma":
        q, optimum = None, best_lambda(elbo, {"x": gamma_at(sd**-2, np.exp(mean))}, (0.0, 0.1))
    data = {"mean": mean32, "precision": precision32}
    return Case(bbvi.Model(log_joint, joint=(), x=bbvi.positive(d, q=q)), data, elbo, optimum)


def normals(scales: tuple[float, ...], away: float) -> Case:
    """Build independent Normals, `away` standard deviations from 0."""
    (scale32, scale), (mean32, mean) = rounded(scales), rounded(away * np.asarray(scales))

    def log_joint(z, data):
        return dist.Normal(data["mean"], data["scale"]).log_prob(z["x"]).sum()

    def elbo(params):
        q = Normal(params["x"])
        return normal((q.mean - mean) ** 2 + q.variance, scale) + q.entropy

    model = bbvi.Model(log_joint, joint=(), x=bbvi.real(len(scales)))
    return Case(model, {"mean": mean32, "scale": scale32}, elbo, {"x": normal_at(mean, scale)})


def normal_normal(n: int) -> Case:
    y32, y = rounded(np.random.default_rng(n).normal(2, 1, n))

    def log_joint(z, y):
        return dist.Normal(0, 10).log_prob(z["mu"]) + dist.Normal(z["mu"], 1).log_prob(y).sum()

    def elbo(params):
        q = Normal(params["mu"])
        return normal(q.square, 10.0) + normal((y - q.mean) ** 2 + q.variance, 1.0) + q.entropy

    precision = 0.01 + n
    best = {"mu": normal_at(y.sum() / precision, precision**-0.5)}
    return Case(bbvi.Model(log_joint, joint=(), mu=bbvi.real()), y32, elbo, best)


def gamma_poisson(n: int) -> Case:
    y32, y = rounded(np.random.default_rng(n).poisson(4, n))

    def log_joint(z, y):
        return dist.Gamma(2, 1).log_prob(z["rate"]) + dist.Poisson(z["rate"]).log_prob(y).sum()

    def elbo(params):
        q = Gamma(params["rate"])
        return q.log * (1 + y.sum()) - q.mean * (1 + n) - gammaln(y + 1).sum() + q.entropy

    a = 2 + y.sum()
    best = {"rate": gamma_at(a, a / (1 + n))}
    return Case(bbvi.Model(log_joint, joint=(), rate=bbvi.positive()), y32, elbo, best)


def beta_bernoulli(n: int, p: float) -> Case:
    y32, y = rounded(np.random.default_rng(n).random(n) < p)

    def log_joint(z, y):
        return dist.Beta(1, 1).log_prob(z["p"]) + dist.Bernoulli(z["p"]).log_prob(y).sum()

    def elbo(params):
        q = Beta(params["p"])
        return y.sum() * q.log + (n - y.sum()) * q.log_of_rest + q.entropy

    a, b = 1 + y.sum(), 1 + n - y.sum()
    best = {"p": {"concentration": np.log(a + b), "mean": np.log(a / b)}}
    return Case(bbvi.Model(log_joint, joint=(), p=bbvi.unit_interval()), y32, elbo, best)


def dirichlet_categorical(k: int, n: int) -> Case:
    rng = np.random.default_rng(k)
    counts32, counts = rounded(rng.multinomial(n, rng.dirichlet(np.full(k, 2.0))))

    def log_joint(z, counts):
        return dist.Dirichlet(jnp.ones(k)).log_prob(z["p"]) + (counts * jnp.log(z["p"])).sum()

    def elbo(params):
        q = Dirichlet(params["p"])
        return gammaln(float(k)) + counts @ q.log + q.entropy

    a = 1 + counts
    with jax.enable_x64(True):
        mean = np.asarray(biject_to(constraints.simplex).inv(jnp.asarray(a / a.sum())))
    best = {"p": {"concentration": np.log(a.sum()), "mean": mean}}
    return Case(bbvi.Model(log_joint, joint=(), p=bbvi.simplex(k)), counts32, elbo, best)


def mean_and_precision_optimum(y: np.ndarray) -> Lambda:
    """Iterate the two updates of mean field for a Normal sample, mu ~ N(0, 10) and precision ~ Gamma(1, 1)."""
    n, total, square, precision = len(y), y.sum(), y @ y, 1 / y.var()
    for _ in range(200):
        of_mu = 0.01 + n * precision
        mu = precision * total / of_mu
        a, b = 1 + n / 2, 1 + (square - 2 * mu * total + n * (mu**2 + 1 / of_mu)) / 2
        precision = a / b
    return {"mu": normal_at(mu, of_mu**-0.5), "precision": gamma_at(a, precision)}


def mean_and_precision_elbo(y: np.ndarray, params: Lambda):
    n, total, square = len(y), y.sum(), y @ y
    mu, tau = Normal(params["mu"]), Gamma(params["precision"])
    apart = square - 2 * mu.mean * total + n * mu.square
    likelihood = 0.5 * n * tau.log - 0.5 * tau.mean * apart - n * HALF_LOG_TWO_PI
    return normal(mu.square, 10.0) - tau.mean + likelihood + mu.entropy + tau.entropy


def mean_and_precision(n: int) -> Case:
    y32, y = rounded(np.random.default_rng(n).normal(2, 0.5, n))

    def log_joint(z, y):
        prior = dist.Normal(0, 10).log_prob(z["mu"]) + dist.Exponential(1).log_prob(z["precision"])
        return prior + dist.Normal(z["mu"], z["precision"] ** -0.5).log_prob(y).sum()

    model = bbvi.Model(log_joint, joint=(), mu=bbvi.real(), precision=bbvi.positive())
    return Case(model, y32, functools.partial(mean_and_precision_elbo, y), mean_and_precision_optimum(y))


def logistic_elbo(x: np.ndarray, y: np.ndarray, params: Lambda):
    """The predictor of each row is Normal under q, so that quadrature is over one variable."""
    w = Normal(params["w"])
    mean, sd = x @ w.mean, jnp.sqrt(x**2 @ w.variance)
    softplus = jax.nn.softplus(mean[:, None] + sd[:, None] * NODES) @ WEIGHTS
    return normal(w.square, 2.0) + y @ mean - softplus.sum() + w.entropy


def logistic_data(n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n + d)
    x = rng.normal(size=(n, d))
    return x, rng.random(n) < 1 / (1 + np.exp(-x @ np.linspace(1.0, -1.0, d + 1)[:-1]))


def logistic(n: int, d: int) -> Case:
    (x32, x), (y32, y) = map(rounded, logistic_data(n, d))

    def log_joint(z, data):
        return (
            dist.Normal(0, 2).log_prob(z["w"]).sum()
            + dist.Bernoulli(logits=data["x"] @ z["w"]).log_prob(data["y"]).sum()
        )

    elbo = functools.partial(logistic_elbo, x, y)
    best = best_lambda(elbo, {"w": normal_at(np.zeros(d), n**-0.5)})
    return Case(bbvi.Model(log_joint, joint=(), w=bbvi.real(d)), {"x": x32, "y": y32}, elbo, best)


def _ridges() -> list[Target]:
    def target(name, build, *arguments):
        return Target(f"ridge {name}", "ridge", functools.partial(build, *arguments))

    out = [target(f"even rho={rho} d={d}", ridge, "even", rho, d) for d in (2, 5, 10, 50) for rho in CORRELATIONS]
    out += [target(f"chain rho={rho} d={d}", ridge, "chain", rho, d) for d in (10, 50) for rho in CORRELATIONS]
    out += [target(f"scalars rho={rho} d={d}", ridge, "even", rho, d, True) for d in (2, 5) for rho in CORRELATIONS]
    out += [
        target(f"{family} rho={rho} d={d}", positive_ridge, family, rho, d)
        for family in ("LogNormal", "Gamma") for rho, d in ((0.9, 2), (0.99, 2), (0.999, 2), (0.99, 5))
    ]  # fmt: skip
    return out


def _well_conditioned() -> list[Target]:
    builds = {
        f"normals scale={s:g} at {away} sd": (normals, (s, s, s), away)
        for s in (1e-3, 0.1, 1.0, 10.0, 1e3)
        for away in (1, 10)
    }
    builds |= {
        "normals of six scales": (normals, (1e-3, 1e-2, 0.1, 10.0, 100.0, 1e3), 3),
        "one normal at 3 sd": (normals, (1.0,), 3),
        "fifty normals at 2 sd": (normals, (1.0,) * 50, 2),
        "Normal-Normal n=3": (normal_normal, 3), "Normal-Normal n=100": (normal_normal, 100),
        "Gamma-Poisson n=1": (gamma_poisson, 1), "Gamma-Poisson n=50": (gamma_poisson, 50),
        "Beta-Bernoulli n=10": (beta_bernoulli, 10, 0.3), "Beta-Bernoulli n=200": (beta_bernoulli, 200, 0.03),
        "Dirichlet-categorical k=3": (dirichlet_categorical, 3, 20),
        "Dirichlet-categorical k=20": (dirichlet_categorical, 20, 200),
        "mean and precision n=5": (mean_and_precision, 5), "mean and precision n=100": (mean_and_precision, 100),
        "logistic n=20 d=1": (logistic, 20, 1), "logistic n=50 d=2": (logistic, 50, 2), "logistic n=200 d=5": (logistic, 200, 5),
    }  # fmt: skip
    return [
        Target(name, "well-conditioned", functools.partial(*build), well_conditioned=True)
        for name, build in builds.items()
    ]


TARGETS = [*_ridges(), *_well_conditioned()]
