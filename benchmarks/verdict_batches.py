"""Part of verdicts.py: targets fitted by minibatches, B of N groups a step: plain rows, and groups with a local each."""

import functools

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import gammaln
from twelve_elbos import HALF_LOG_TWO_PI, Normal, normal
from verdict_gaussians import logistic_data, logistic_elbo, mean_and_precision_elbo, mean_and_precision_optimum
from verdict_target import Case, Target, best_lambda, normal_at, rounded

import bbvi


def rows(log_prior, log_likelihood, **latents) -> bbvi.HierarchicalModel:
    """Make a model of rows, which have no latents of their own."""
    return bbvi.HierarchicalModel(
        log_prior=log_prior, log_likelihood=lambda beta, z, row: log_likelihood(beta, row), globals=latents, joint=()
    )


def mean_of_rows(n: int) -> Case:
    """Build the mean of n Normal rows of known variance."""
    y32, y = rounded(np.random.default_rng(n).normal(1.3, 2.0, n))
    total, square = y.sum(), y @ y

    def elbo(params):
        q = Normal(params["mu"])
        apart = square - 2 * q.mean * total + n * q.square
        likelihood = -0.125 * apart - n * (np.log(2.0) + HALF_LOG_TWO_PI)
        return normal(q.square, 10.0) + likelihood + q.entropy

    model = rows(
        lambda beta: dist.Normal(0, 10).log_prob(beta["mu"]),
        lambda beta, row: dist.Normal(beta["mu"], 2).log_prob(row["y"]),
        mu=bbvi.real(),
    )
    precision = 0.01 + n / 4
    return Case(model, {"y": y32}, elbo, {"mu": normal_at(total / 4 / precision, precision**-0.5)})


def mean_and_precision_of_rows(n: int) -> Case:
    """Build the mean and the precision of n Normal rows."""
    y32, y = rounded(np.random.default_rng(n).normal(2, 0.5, n))
    model = rows(
        lambda beta: dist.Normal(0, 10).log_prob(beta["mu"]) + dist.Exponential(1).log_prob(beta["precision"]),
        lambda beta, row: dist.Normal(beta["mu"], beta["precision"] ** -0.5).log_prob(row["y"]),
        mu=bbvi.real(),
        precision=bbvi.positive(),
    )
    return Case(model, {"y": y32}, functools.partial(mean_and_precision_elbo, y), mean_and_precision_optimum(y))


def logistic_rows(n: int, d: int) -> Case:
    (x32, x), (y32, y) = map(rounded, logistic_data(n, d))
    model = rows(
        lambda beta: dist.Normal(0, 2).log_prob(beta["w"]),
        lambda beta, row: dist.Bernoulli(logits=row["x"] @ beta["w"]).log_prob(row["y"]),
        w=bbvi.real(d),
    )
    elbo = functools.partial(logistic_elbo, x, y)
    return Case(model, {"x": x32, "y": y32}, elbo, best_lambda(elbo, {"w": normal_at(np.zeros(d), n**-0.5)}, (0.0,)))


def poisson_rows(n: int, d: int) -> Case:
    rng = np.random.default_rng(n)
    x = rng.normal(size=(n, d)) / 2
    (x32, x), (y32, y) = rounded(x), rounded(rng.poisson(np.exp(x.sum(1) / 2)))

    def elbo(params):
        w = Normal(params["w"])
        mean = x @ w.mean
        likelihood = y @ mean - jnp.exp(mean + 0.5 * x**2 @ w.variance).sum() - gammaln(y + 1).sum()
        return normal(w.square, 2.0) + likelihood + w.entropy

    model = rows(
        lambda beta: dist.Normal(0, 2).log_prob(beta["w"]),
        lambda beta, row: dist.Poisson(jnp.exp(row["x"] @ beta["w"])).log_prob(row["y"]),
        w=bbvi.real(d),
    )
    return Case(model, {"x": x32, "y": y32}, elbo, best_lambda(elbo, {"w": normal_at(np.zeros(d), n**-0.5)}, (0.0,)))


def intercepts(n: int, tau: float) -> Case:
    """Build n groups of three measurements around a level each, the levels around a common mean with a known spread."""
    rng = np.random.default_rng(n)
    y32, y = rounded(rng.normal(rng.normal(1.0, tau, (n, 1)), 1.0, (n, 3)))

    def elbo(params):
        mu, level = Normal(params["mu"]), Normal(params["level"])
        apart = (level.mean - mu.mean) ** 2 + level.variance + mu.variance
        likelihood = normal((y - level.mean[:, None]) ** 2 + level.variance[:, None], 1.0)
        return normal(mu.square, 10.0) + normal(apart, tau) + likelihood + mu.entropy + level.entropy

    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 10).log_prob(beta["mu"]),
        log_local=lambda beta, z, row: dist.Normal(beta["mu"], tau).log_prob(z["level"]),
        log_likelihood=lambda beta, z, row: dist.Normal(z["level"], 1).log_prob(row["y"]),
        globals={"mu": bbvi.real()},
        locals={"level": bbvi.real()},
        joint=(),
    )
    precision = n / (tau**2 + 1 / 3)  # of the data about mu, the levels integrated out
    mu = y.mean() * precision / (precision + 0.01)
    level = (mu / tau**2 + y.sum(1)) / (tau**-2 + 3)
    best = {"mu": normal_at(mu, (0.01 + n / tau**2) ** -0.5), "level": normal_at(level, (tau**-2 + 3) ** -0.5)}
    return Case(model, {"y": y32}, elbo, best)


def intercepts_of_unknown_spread(n: int) -> Case:
    """Build the same with the spread a LogNormal latent; for the search the best q of the levels is known."""
    rng = np.random.default_rng(n)
    y32, y = rounded(rng.normal(rng.normal(1.0, 1.0, (n, 1)), 1.0, (n, 3)))

    def elbo(params):
        mu, log_tau, level = Normal(params["mu"]), Normal(params["tau"]), Normal(params["level"])
        apart = (level.mean - mu.mean) ** 2 + level.variance + mu.variance
        inverse_square = jnp.exp(-2 * log_tau.mean + 2 * log_tau.variance)
        inside = -0.5 * apart * inverse_square - log_tau.mean - HALF_LOG_TWO_PI
        likelihood = normal((y - level.mean[:, None]) ** 2 + level.variance[:, None], 1.0)
        # the Jacobians of tau in its prior and in its entropy cancel
        prior = normal(mu.square, 10.0) + normal(log_tau.square, 1.0)
        return prior + inside.sum() + likelihood + mu.entropy + log_tau.entropy + level.entropy

    def with_levels(params):
        of_tau = jnp.exp(-2 * params["tau"]["loc"] + 2 * jnp.exp(2 * params["tau"]["scale"]))
        loc = (params["mu"]["loc"] * of_tau + y.sum(1)) / (of_tau + 3)
        return {**params, "level": {"loc": loc, "scale": jnp.broadcast_to(-0.5 * jnp.log(of_tau + 3), loc.shape)}}

    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 10).log_prob(beta["mu"]) + dist.LogNormal(0, 1).log_prob(beta["tau"]),
        log_local=lambda beta, z, row: dist.Normal(beta["mu"], beta["tau"]).log_prob(z["level"]),
        log_likelihood=lambda beta, z, row: dist.Normal(z["level"], 1).log_prob(row["y"]),
        globals={"mu": bbvi.real(), "tau": bbvi.positive(q=dist.LogNormal)},
        locals={"level": bbvi.real()},
        joint=(),
    )
    near = {"mu": normal_at(1.0, n**-0.5), "tau": normal_at(0.0, n**-0.5)}
    return Case(model, {"y": y32}, elbo, best_lambda(elbo, near, (0.0,), complete=with_levels))


def _targets() -> list[Target]:
    out = []

    def add(what, build, n, batch, *arguments, well_conditioned):
        name = f"{what} N={n} B={batch}"
        build = functools.partial(build, n, *arguments)
        out.append(Target(name, "minibatches", build, well_conditioned=well_conditioned, batch_size=batch))

    # to know a mean of N rows to within its own sd takes N rows: N / B steps, of a budget of some ten thousand
    for n, batch in ((1_000, 100), (10_000, 100), (10_000, 10), (100_000, 10), (1_000_000, 100), (1_000_000, 10)):
        add("mean", mean_of_rows, n, batch, well_conditioned=n <= 1_000 * batch)
    for n, batch in ((100, 10), (1_000, 100), (10_000, 10), (100_000, 10), (1_000_000, 10)):
        add("mean and precision", mean_and_precision_of_rows, n, batch, well_conditioned=n <= 1_000 * batch)
    for batch in (1_000, 100, 10):
        add("logistic d=3", logistic_rows, 10_000, batch, 3, well_conditioned=batch >= 100)
    for n, batch in ((1_000, 50), (10_000, 20)):
        add("poisson d=2", poisson_rows, n, batch, 2, well_conditioned=True)
    for n, batch in ((100, 10), (1_000, 10), (1_000, 100), (10_000, 100), (10_000, 10), (100_000, 10)):
        add("intercepts tau=1", intercepts, n, batch, 1.0, well_conditioned=n <= 100 * batch)
    for n, batch in ((100, 10), (1_000, 10), (1_000, 100)):
        add("intercepts tau=.1", intercepts, n, batch, 0.1, well_conditioned=False)
    for n, batch in ((100, 10), (1_000, 50)):
        add("intercepts of unknown spread", intercepts_of_unknown_spread, n, batch, well_conditioned=False)
    return out


TARGETS = _targets()
