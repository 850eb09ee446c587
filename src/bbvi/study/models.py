"""Section 5.2 and "Exploring Models": the four models of the study and one that its labs ask for, each a function, and the table that names them.

A patient p has labs l at visits v. K positive factors x_pv sum up a visit; W are their weights, o_p a patient's offsets.
The second argument of Normal is a standard deviation, that of GammaE a variance.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpyro.distributions as dist

import bbvi
from bbvi.study.settings import Settings


def gamma_normal_ts(num_labs: int, s: Settings) -> bbvi.HierarchicalModel:
    """x_pv ~ GammaE(x_pv-1, sigma_x), l_pv ~ Normal(W x_pv + o_p, sigma_l), W and o_p normal (section 5.2)."""

    def log_local(beta, z, row):
        start = jnp.full((1, s.num_factors), s.alpha_0)
        before = jnp.concatenate([start, z["x"][:-1]])
        drift = bbvi.GammaE(jnp.maximum(before, s.floor), s.sigma_x).log_prob(z["x"])
        return {"o": dist.Normal(s.level, s.sigma_o).log_prob(z["o"]), "x": visited(row, drift)}

    def log_likelihood(beta, z, row):
        return measured(row, dist.Normal(z["x"] @ beta["W"].T + z["o"], s.sigma_l))

    return bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, s.sigma_w).log_prob(beta["W"]),
        log_local=log_local,
        log_likelihood=log_likelihood,
        globals={"W": bbvi.real(num_labs, s.num_factors)},
        joint=(),
        locals={"o": bbvi.real(num_labs, init={"loc": s.level}), "x": bbvi.positive("visit", s.num_factors)},
    )


def gamma_normal(num_labs: int, s: Settings) -> bbvi.HierarchicalModel:
    """x_pv ~ Gamma(alpha_x, beta_x), l_pv ~ Normal(W x_pv + o_p, sigma_l), W and o_p normal."""

    def log_local(beta, z, row):
        static = dist.Gamma(s.alpha_x, s.beta_x).log_prob(z["x"])
        return {"o": dist.Normal(s.level, s.sigma_o).log_prob(z["o"]), "x": visited(row, static)}

    def log_likelihood(beta, z, row):
        return measured(row, dist.Normal(z["x"] @ beta["W"].T + z["o"], s.sigma_l))

    return bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, s.sigma_w).log_prob(beta["W"]),
        log_local=log_local,
        log_likelihood=log_likelihood,
        globals={"W": bbvi.real(num_labs, s.num_factors)},
        joint=(),
        locals={"o": bbvi.real(num_labs, init={"loc": s.level}), "x": bbvi.positive("visit", s.num_factors)},
    )


def gamma(num_labs: int, s: Settings) -> bbvi.HierarchicalModel:
    """x_pv ~ Gamma(alpha_x, beta_x), l_pv ~ GammaE(W x_pv + o_p, observation_variance), W and o_p gamma."""

    def log_local(beta, z, row):
        static = dist.Gamma(s.alpha_x, s.beta_x).log_prob(z["x"])
        return {"o": dist.Gamma(s.alpha_o, s.beta_o).log_prob(z["o"]), "x": visited(row, static)}

    def log_likelihood(beta, z, row):
        return measured(row, bbvi.GammaE(z["x"] @ beta["W"].T + z["o"], s.observation_variance))

    return bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Gamma(s.alpha_w, s.beta_w).log_prob(beta["W"]),
        log_local=log_local,
        log_likelihood=log_likelihood,
        globals={"W": bbvi.positive(num_labs, s.num_factors)},
        joint=(),
        locals={
            "o": bbvi.positive(num_labs, init={"mean": s.alpha_o / s.beta_o}),
            "x": bbvi.positive("visit", s.num_factors),
        },
    )


def gamma_ts(num_labs: int, s: Settings) -> bbvi.HierarchicalModel:
    """x_p1 ~ Gamma(alpha_x, beta_x), then x_pv ~ GammaE(x_pv-1, sigma_v); the rest as in `gamma`."""

    def log_local(beta, z, row):
        first = dist.Gamma(s.alpha_x, s.beta_x).log_prob(z["x"][:1])
        drift = bbvi.GammaE(jnp.maximum(z["x"][:-1], s.floor), s.sigma_v).log_prob(z["x"][1:])
        x = jnp.concatenate([first, drift])
        return {"o": dist.Gamma(s.alpha_o, s.beta_o).log_prob(z["o"]), "x": visited(row, x)}

    def log_likelihood(beta, z, row):
        return measured(row, bbvi.GammaE(z["x"] @ beta["W"].T + z["o"], s.observation_variance))

    return bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Gamma(s.alpha_w, s.beta_w).log_prob(beta["W"]),
        log_local=log_local,
        log_likelihood=log_likelihood,
        globals={"W": bbvi.positive(num_labs, s.num_factors)},
        joint=(),
        locals={
            "o": bbvi.positive(num_labs, init={"mean": s.alpha_o / s.beta_o}),
            "x": bbvi.positive("visit", s.num_factors),
        },
    )


def log_t_ts(num_labs: int, s: Settings) -> bbvi.HierarchicalModel:
    """x_pv ~ Normal(x_pv-1, walk), log l_pv ~ StudentT(degrees, W x_pv + o_p, noise of the lab), all else normal (not in the paper)."""
    log_level = math.log(s.level) if s.level > 0 else 0.0

    def log_local(beta, z, row):
        before = jnp.concatenate([jnp.zeros((1, s.num_factors)), z["x"][:-1]])
        walk = dist.Normal(before, s.walk).log_prob(z["x"])
        return {"o": dist.Normal(log_level, s.sigma_o).log_prob(z["o"]), "x": visited(row, walk)}

    def log_likelihood(beta, z, row):
        log_lab = dist.StudentT(s.degrees, z["x"] @ beta["W"].T + z["o"], beta["noise"])
        return measured(row, dist.TransformedDistribution(log_lab, dist.transforms.ExpTransform()))

    return bbvi.HierarchicalModel(
        log_prior=lambda beta: {
            "W": dist.Normal(0, s.sigma_w).log_prob(beta["W"]),
            "noise": dist.HalfNormal(s.sigma_noise).log_prob(beta["noise"]),
        },
        log_local=log_local,
        log_likelihood=log_likelihood,
        globals={"W": bbvi.real(num_labs, s.num_factors), "noise": bbvi.positive(num_labs)},
        joint=(),
        locals={"o": bbvi.real(num_labs, init={"loc": log_level}), "x": bbvi.real("visit", s.num_factors)},
    )


def visited(row: Any, terms: Any) -> Any:
    """Return terms of visits by factors, with 0 at visits that are padding."""
    return jnp.where(row["mask"]["visit"][:, None], terms, 0)


def measured(row: Any, lab: Any) -> Any:
    """Return log densities of visits by labs, 0 where nothing was measured (where labs hold 0, which no gamma allows)."""
    seen = row["observed"] & row["mask"]["visit"][:, None]
    return jnp.where(seen, lab.log_prob(jnp.where(seen, row["labs"], 1)), 0)


class Entry(NamedTuple):
    """A model of the study.

    Attributes:
        build: makes the model from a number of labs and settings.
        eta: AdaGrad's scale, the paper's.
        paper: the predictive likelihood of the paper's Table 1, None for a model that is not there.
        needs_positive: whether labs must be above 0.
        paper_name: what Table 1 calls it.
        of_logs: whether W x + o is that of the labs' logarithms.
    """

    build: Callable[[int, Settings], bbvi.HierarchicalModel]
    eta: float
    paper: float | None = None
    needs_positive: bool = False
    paper_name: str | None = None
    of_logs: bool = False


MODELS: dict[str, Entry] = {
    "Gamma-Normal-TS": Entry(gamma_normal_ts, eta=1.0, paper=-32.7, paper_name="Gamma-Normal-TS"),
    "Gamma-Normal": Entry(gamma_normal, eta=1.0, paper=-33.9, paper_name="Gamma-Normal"),
    "Gamma-TS": Entry(gamma_ts, eta=0.5, paper=-174, needs_positive=True, paper_name="Gamma-Gamma-TS"),
    "Gamma": Entry(gamma, eta=0.5, paper=-175, needs_positive=True, paper_name="Gamma-Gamma"),
    "Log-T-TS": Entry(log_t_ts, eta=0.5, needs_positive=True, of_logs=True),
}
