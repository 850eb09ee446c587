"""Any numpyro distribution as a variational family, and what `q=` may be."""

import functools
import inspect
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import biject_to, constraints

from bbvi.families.abstract import AbstractFamily, Fixed
from bbvi.families.beta import Beta, Dirichlet
from bbvi.families.charts import AbstractChart
from bbvi.families.counts import Binomial, Geometric, NegativeBinomial
from bbvi.families.discrete import Bernoulli, Categorical, Poisson
from bbvi.families.gamma import Gamma, GammaByVariance
from bbvi.families.gamma_e import GammaE
from bbvi.families.kumaraswamy import Kumaraswamy
from bbvi.families.law import Parameter, constrain
from bbvi.families.normal import LogNormal, Normal
from bbvi.families.positive import Exponential, HalfNormal, InverseGamma, Weibull
from bbvi.families.real import Laplace, Logistic, StudentT

# with a fixed parameter these are numpyro's
_WHOLE = (Normal, LogNormal, Gamma, GammaByVariance, Beta, Dirichlet, Bernoulli, Categorical, Poisson)
_NAMESAKES = (
    Normal, LogNormal, Gamma, Beta, Dirichlet, Poisson, StudentT, Laplace, Logistic, HalfNormal, Exponential, Weibull,
    InverseGamma, Kumaraswamy,
)  # fmt: skip
_OURS: dict[type[dist.Distribution], type[AbstractFamily]] = {
    **{getattr(dist, own.__name__): own for own in _NAMESAKES},
    **dict.fromkeys((dist.GeometricLogits, dist.GeometricProbs), Geometric),
    **dict.fromkeys(
        (dist.NegativeBinomial2, dist.NegativeBinomialLogits, dist.NegativeBinomialProbs), NegativeBinomial
    ),
    **{GammaE: GammaByVariance, dist.BernoulliLogits: Bernoulli, dist.CategoricalLogits: Categorical},
}


class Plain(AbstractChart):
    """Numbers on any support, held as they are: what numpyro's own samplers and densities work with."""

    support: constraints.Constraint
    shape = ()
    is_unconstrained = False


class NumpyroFamily(AbstractFamily):
    """A numpyro distribution with scalar values; arguments in `fixed` are not fitted."""

    distribution: type[dist.Distribution] = eqx.field(static=True)
    fixed: tuple[tuple[str, float], ...]

    @property
    def chart(self):
        return Plain(self._build({name: jnp.zeros(()) for name in self.parameters()}).support)

    @property
    def name(self):
        return self.distribution.__name__

    def settings(self):
        return dict(self.fixed)

    def parameters(self):
        constraint_of, held = self.distribution.arg_constraints, self.settings()
        return {name: Parameter((), constraint) for name, constraint in constraint_of.items() if name not in held}

    def _build(self, params) -> dist.Distribution:
        return self.distribution(**constrain(self, params), **self.settings(), validate_args=False)

    def sample(self, params, address):
        built, key = self._build(params), address.jax_key()
        drawn = built.icdf(address.uniform()) if key is None else built.sample(key)
        return drawn.astype(int) if self.chart.is_discrete else drawn

    def log_prob(self, params, coordinates):
        return self._build(params).log_prob(coordinates)

    def centred(self, value):
        if "loc" not in self.parameters():
            return None
        start = {name: jnp.zeros_like(value) for name in self.parameters()}
        return {**constrain(self, start), "loc": value}

    def marginals(self, params):
        built = self._build(params)
        # a heavy tail has no moments: draws cannot tell them either, and the reader should see that
        return SimpleNamespace(
            mean=lambda: np.asarray(built.mean),
            std=lambda: np.sqrt(np.asarray(built.variance)),
            ppf=lambda p: np.asarray(built.icdf(jnp.asarray(p))),
        )


def resolve(q: Any, num_categories: int) -> AbstractFamily:
    """Turn what the user gave as `q=` into a family; those of categories get their number."""
    if isinstance(q, AbstractFamily):
        return q
    fixed: dict[str, Any] = {}
    if isinstance(q, functools.partial):
        if q.args:
            raise TypeError("q=functools.partial(...) must fix its arguments by keyword")
        q, fixed = q.func, {name: _number(name, value) for name, value in q.keywords.items()}
    if inspect.isfunction(q) and getattr(dist, q.__name__, None) == q:  # it chooses a class by the argument it gets
        q = getattr(dist, f"{q.__name__}Logits", q)
    if isinstance(q, dist.Distribution):
        name = type(q).__name__
        raise TypeError(f"q={name}(...) is an instance; pass the class, q=dist.{name}: bbvi fits its parameters")
    if not (inspect.isclass(q) and issubclass(q, dist.Distribution)):
        raise TypeError(
            f"q={q!r} is not a distribution; pass a numpyro distribution class such as numpyro.distributions.Gamma, "
            "or a functools.partial of one with fixed arguments"
        )
    if issubclass(q, dist.Delta):
        raise TypeError("q=Delta has no density and no score: bbvi needs a q that spreads its mass")
    if q in _OURS and not (fixed and _OURS[q] in _WHOLE):
        own = _OURS[q](num_categories) if _OURS[q] in (Dirichlet, Categorical) else _OURS[q]()
        if set(fixed) <= set(q.arg_constraints) & set(own.parameters()):
            return Fixed(own, tuple(sorted(fixed.items()))) if fixed else own
    if q in (dist.BinomialLogits, dist.BinomialProbs) and set(fixed) == {"total_count"}:
        total_count = fixed["total_count"]
        if total_count < 1 or total_count != int(total_count):
            raise ValueError(f"Binomial's total_count must be an integer of 1 or more, got {total_count}")
        return Binomial(int(total_count))
    return _generic(q, fixed)


def _number(name: str, value: Any) -> int | float:
    if np.ndim(value) or np.asarray(value).dtype.kind not in "iuf":
        raise TypeError(f"q=functools.partial(...) fixes {name} for all elements alike, at a number; got {value!r}")
    return np.asarray(value).item()


def _generic(q: type[dist.Distribution], fixed: dict[str, Any]) -> NumpyroFamily:
    if unknown := set(fixed) - set(q.arg_constraints):
        raise TypeError(f"{q.__name__} has no argument {sorted(unknown)}; it has {sorted(q.arg_constraints)}")
    family, dependent = NumpyroFamily(q, tuple(sorted(fixed.items()))), type(constraints.dependent)
    for name, entry in family.parameters().items():
        constraint = entry.constraint
        if isinstance(q.support, dependent) and isinstance(constraint, dependent):
            raise _moving_support(q)
        if constraint.is_discrete:
            raise TypeError(
                f"{q.__name__}'s argument {name!r} is an integer and cannot be fitted: fix it, "
                f"q=functools.partial(dist.{q.__name__}, {name}=...)"
            )
        if constraint.event_dim or not _has_bijection(constraint):
            raise TypeError(
                f"{q.__name__} is not a family of independent scalars (argument {name!r} is {constraint}); "
                "mean-field q takes one scalar distribution for each element"
            )
    # the score's mean is zero only where the support does not depend on lambda
    if family.chart.support != family._build({name: jnp.ones(()) for name in family.parameters()}).support:
        raise _moving_support(q)
    return family


def _has_bijection(constraint: constraints.Constraint) -> bool:
    try:
        biject_to(constraint)
    except NotImplementedError:
        return False
    return True


def _moving_support(q: type[dist.Distribution]) -> TypeError:
    return TypeError(
        f"the support of {q.__name__} moves with its parameters, so its score does not have mean zero; "
        "fix those arguments with functools.partial or choose another family"
    )
