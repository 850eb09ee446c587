"""Eq. 4: the variational families."""

from bbvi.families.abstract import AbstractFamily, Parameter, Params, constrain, score
from bbvi.families.beta import Beta, Dirichlet
from bbvi.families.counts import Binomial, Geometric, NegativeBinomial
from bbvi.families.discrete import Bernoulli, Categorical, OneHot, Poisson
from bbvi.families.gamma import Gamma, GammaByVariance
from bbvi.families.joined import Joined
from bbvi.families.joint import AbstractCovariance, FullRank, JointNormal, LowRank
from bbvi.families.kumaraswamy import Kumaraswamy
from bbvi.families.normal import LogNormal, Normal, TransformedNormal
from bbvi.families.numpyro import NumpyroFamily, resolve
from bbvi.families.positive import Exponential, HalfNormal, InverseGamma, Weibull
from bbvi.families.real import Laplace, Logistic, StudentT
from bbvi.families.scalar import AbstractLaw, Scalar

__all__ = [
    "AbstractCovariance", "AbstractFamily", "AbstractLaw", "Bernoulli", "Beta", "Binomial", "Categorical", "Dirichlet",
    "Exponential", "FullRank", "Gamma", "GammaByVariance", "Geometric", "HalfNormal", "InverseGamma", "Joined", "JointNormal",
    "Kumaraswamy", "Laplace", "LogNormal", "Logistic", "LowRank", "NegativeBinomial", "Normal", "NumpyroFamily", "OneHot",
    "Parameter", "Params", "Poisson", "Scalar", "StudentT", "TransformedNormal", "Weibull", "constrain", "resolve", "score",
]  # fmt: skip
