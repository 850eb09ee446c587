"""Part of verdicts.py: the same targets under the q that `fit` structures by itself, a joint Normal where latents share terms.

Its mean and covariance are closed forms in lambda. Where parents set the scales of the others, quadrature is over these, and given
them all is Normal. The best q is the posterior itself where that is in the family (ridges, funnels), so that its ELBO is
log Z; else it is found by L-BFGS in double precision. Targets whose latents do not share terms have the q of `joint=()`.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from twelve_elbos import HALF_LOG_TWO_PI, normal
from verdict_batches import logistic_rows, mean_and_precision_of_rows, poisson_rows
from verdict_gaussians import NODES, WEIGHTS, logistic, mean_and_precision, positive_ridge, ridge
from verdict_hard import funnel, hierarchy, schools
from verdict_target import Case, Target, best_lambda, doubles

import bbvi

Block = dict[str, Any]
Elbo = Callable[[Block], Any]


def in_default_structure(target: Target) -> Target:
    """Return the target with the structure of q left to `fit`."""
    return dataclasses.replace(target, build=functools.partial(_build, target.build))


def _build(build: Any) -> Case:
    case = build()
    find = FOUND.get(build.func)
    if find is None or (found := find(case, *build.args)) is None:
        return dataclasses.replace(case, model=_opened(case.model))
    elbo, best = found
    # a scale of effects is in the block only without a q= of its own
    model = _opened(case.model, **({"tau": bbvi.positive()} if build.func is hierarchy else {}))
    name = "+".join(model.globals)
    return dataclasses.replace(case, model=model, elbo=lambda params: elbo(params[name]), optimum={name: best})


def _opened(model: Any, **latents: Any) -> Any:
    if isinstance(model, bbvi.Model):
        return bbvi.Model(model.log_joint, **(model.globals | latents))
    return bbvi.HierarchicalModel(
        log_prior=model.log_prior, log_likelihood=model.log_likelihood, log_local=model.log_local,
        globals=model.globals, locals=model.locals,
    )  # fmt: skip


class Joint:
    """The moments of a joint Normal: w = inverse e, its entries times `scale`."""

    def __init__(self, params: Block):
        self.loc, self.scale, size = params["loc"], jnp.exp(params["scale"]), len(params["loc"])
        self.inverse = jax.scipy.linalg.solve_triangular(
            jnp.eye(size).at[np.tril_indices(size, -1)].set(params["lower"]), jnp.eye(size), lower=True
        )
        self.factor = self.scale[:, None] * self.inverse
        self.covariance = self.factor @ self.factor.T
        self.square = self.loc**2 + jnp.diagonal(self.covariance)
        self.entropy = params["scale"].sum() + size * (HALF_LOG_TWO_PI + 0.5)
        self.slopes = params.get("slopes")

    def given_first(self, num: int, each: int = 48) -> tuple[Any, Any, Any, Any]:
        """Return weights and values of the first entries at nodes, and the mean and the variance of the others given these."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(each)
        e = np.stack(np.meshgrid(*[nodes] * num, indexing="ij"), -1).reshape(-1, num)
        weight = functools.reduce(np.multiply.outer, [weights / weights.sum()] * num).ravel()
        w = e @ self.inverse[:num, :num].T
        wider = jnp.zeros((len(w), len(self.loc) - num)) if self.slopes is None else w @ self.slopes.T
        mean = self.loc[num:] + self.scale[num:] * (e @ self.inverse[num:, :num].T)
        variance = self.scale[num:] ** 2 * (jnp.exp(2 * wider) @ (self.inverse[num:, num:] ** 2).T)
        return weight, self.loc[:num] + self.scale[:num] * w, mean, variance


def joint_at(mean: np.ndarray, precision: np.ndarray) -> Block:
    """Write the lambda of a joint Normal: its precision is M'M with M = L / scale, L lower triangular with a diagonal of ones."""
    upside_down = np.linalg.cholesky(precision[::-1, ::-1])
    m = upside_down.T[::-1, ::-1]
    scale, (rows, columns) = 1 / np.diag(m), np.tril_indices(len(mean), -1)
    return {"loc": mean, "scale": np.log(scale), "lower": (m * scale)[rows, columns]}


def _ridge(case: Case, *arguments: Any) -> tuple[Elbo, Block]:
    mean, precision = (doubles(case.data[name]) for name in ("mean", "precision"))
    precision = (precision + precision.T) / 2

    def elbo(params):
        q = Joint(params)
        apart = q.loc - mean
        return -0.5 * (apart @ precision @ apart + (precision * q.covariance).sum()) + q.entropy

    return elbo, joint_at(mean, precision)


def _positive_ridge(case: Case, family: str, *arguments: Any) -> tuple[Elbo, Block] | None:
    # the Jacobians of log p and of q cancel; LogNormal factors are a q= of their own
    return _ridge(case) if family == "Gamma" else None


def _predictor(link: Callable[[Any, Any], Any], case: Case, *arguments: Any) -> tuple[Elbo, Block] | None:
    """Take a regression with coefficients of prior sd 2: the predictor of a row is Normal under q."""
    x, y = doubles(case.data["x"]), doubles(case.data["y"])
    if (d := x.shape[1]) == 1:
        return None

    def elbo(params):
        q = Joint(params)
        return normal(q.square, 2.0) + link(y, (x @ q.loc, ((x @ q.factor) ** 2).sum(1))) + q.entropy

    near = joint_at(np.zeros(d), 0.1 * x.T @ x + np.eye(d))
    return elbo, best_lambda(lambda own: elbo(own["w"]), {"w": near}, (0.0, 0.1))["w"]


def _logistic(y, moments):
    mean, variance = moments
    return y @ mean - (jax.nn.softplus(mean[:, None] + jnp.sqrt(variance)[:, None] * NODES) @ WEIGHTS).sum()


def _poisson(y, moments):
    mean, variance = moments
    return y @ mean - jnp.exp(mean + variance / 2).sum() - gammaln(y + 1).sum()


def _mean_and_precision(case: Case, *arguments: Any) -> tuple[Elbo, Block]:
    y = doubles(case.data["y"] if isinstance(case.data, dict) else case.data)
    n, centre = len(y), y.mean()
    spread = ((y - centre) ** 2).sum()

    def elbo(params):
        q = Joint(params)
        (mu, log), variance = q.loc, q.covariance
        precision = jnp.exp(log + variance[1, 1] / 2)
        # under q tilted by the precision, mu has its mean moved by the covariance
        apart = spread + n * ((mu + variance[0, 1] - centre) ** 2 + variance[0, 0])
        likelihood = 0.5 * n * log - 0.5 * precision * apart - n * HALF_LOG_TWO_PI
        return normal(q.square[0], 10.0) - precision + likelihood + log + q.entropy

    log = np.log(n / spread)
    near = {"loc": np.array([centre, log]), "scale": -0.5 * np.log([n * np.exp(log), n / 2]), "lower": np.zeros(1)}
    return elbo, best_lambda(lambda own: elbo(own["q"]), {"q": near}, (0.0, 0.1))["q"]


def _funnel(case: Case, n: int, width: float, centre: float) -> tuple[Elbo, Block]:
    def elbo(params):
        q = Joint(params)
        weight, v, mean, variance = q.given_first(1)
        inside = (-0.5 * (mean**2 + variance) * jnp.exp(-v) - 0.5 * v - HALF_LOG_TWO_PI).sum(1)
        return weight @ inside + normal((q.loc[0] - centre) ** 2 + q.covariance[0, 0], width) + q.entropy

    best = {
        "loc": np.append(centre, np.zeros(n)),
        "scale": np.append(np.log(width), np.full(n, centre / 2)),
        "lower": np.zeros(n * (n + 1) // 2),
        "slopes": np.full((n, 1), width / 2),
    }
    if n > 1:
        return elbo, best  # the funnel itself
    del best["slopes"]
    return elbo, best_lambda(lambda own: elbo(own["q"]), {"q": best | {"scale": best["scale"] - 1}})["q"]


def _given_parents(inside: Callable[..., Any], near: Block) -> tuple[Elbo, Block]:
    """Take n effects that are independent given two parents: so they are in the best q."""

    def elbo(params):
        q = Joint(params)
        weight, parents, mean, variance = q.given_first(2)
        return weight @ inside(parents[:, 0], parents[:, 1], mean, variance) + q.entropy

    def complete(own):
        size = len(own["q"]["loc"])
        lower = jnp.zeros((size, size)).at[1, 0].set(own["q"]["between"]).at[2:, :2].set(own["q"]["rows"])
        kept = {name: own["q"][name] for name in ("loc", "scale", "slopes")}
        return {"q": kept | {"lower": lower[np.tril_indices(size, -1)]}}

    n = len(near["loc"]) - 2
    near = near | {"between": np.zeros(()), "rows": np.zeros((n, 2)), "slopes": np.zeros((n, 2))}
    found = best_lambda(lambda own: elbo(own["q"]), {"q": near}, (0.0, 0.1, 0.3), complete=complete)
    return elbo, found["q"]


def _log_normal(square, sd):
    return -0.5 * square / sd**2 - jnp.log(sd) - HALF_LOG_TWO_PI


def _schools(case: Case, name: str) -> tuple[Elbo, Block]:
    y, sigma = map(doubles, case.data)

    def inside(mu, log_tau, mean, variance):
        tau = jnp.exp(log_tau)
        prior = _log_normal(mu**2, 5.0) + np.log(2 / (5 * np.pi)) - jnp.log1p((tau / 5) ** 2) + log_tau
        mu, tau = mu[:, None], tau[:, None]
        if name == "schools_centred":
            effects = _log_normal((mean - mu) ** 2 + variance, tau) + _log_normal((y - mean) ** 2 + variance, sigma)
        else:
            apart = (y - mu - tau * mean) ** 2 + tau**2 * variance
            effects = _log_normal(mean**2 + variance, 1.0) + _log_normal(apart, sigma)
        return prior + effects.sum(1)

    centred = name == "schools_centred"
    loc = np.concatenate([[4.0, 1.0], np.full(8, 4.0 if centred else 0.0)])
    return _given_parents(inside, {"loc": loc, "scale": np.log([3.0, 0.7] + 8 * [3.0 if centred else 0.9])})


def _hierarchy(case: Case, n: int, spread: float) -> tuple[Elbo, Block]:
    y = doubles(case.data)

    def inside(mu, log_tau, mean, variance):
        prior = _log_normal(mu**2, 5.0) + _log_normal(log_tau**2, 1.0)  # the Jacobians of tau cancel
        effects = _log_normal((mean - mu[:, None]) ** 2 + variance, jnp.exp(log_tau)[:, None])
        return prior + (effects + _log_normal((y - mean) ** 2 + variance, 0.5)).sum(1)

    loc = np.concatenate([[1.0, np.log(spread)], (y + 1) / 2])
    return _given_parents(inside, {"loc": loc, "scale": np.log([n**-0.5, 0.3] + n * [0.3])})


FOUND: dict[Any, Callable[..., tuple[Elbo, Block] | None]] = {
    ridge: _ridge,
    positive_ridge: _positive_ridge,
    logistic: functools.partial(_predictor, _logistic),
    logistic_rows: functools.partial(_predictor, _logistic),
    poisson_rows: functools.partial(_predictor, _poisson),
    mean_and_precision: _mean_and_precision,
    mean_and_precision_of_rows: _mean_and_precision,
    funnel: _funnel,
    schools: _schools,
    hierarchy: _hierarchy,
}
