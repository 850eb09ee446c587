"""Eq. 4: the variational families."""

from bbvi.families.abstract import AbstractFamily, Parameter, Params, constrain, score
from bbvi.families.beta import Beta, Dirichlet
from bbvi.families.discrete import Bernoulli, Categorical, Poisson
from bbvi.families.gamma import Gamma, GammaByVariance
from bbvi.families.normal import LogNormal, Normal, TransformedNormal
from bbvi.families.numpyro import NumpyroFamily, resolve

__all__ = [
    "AbstractFamily", "Bernoulli", "Beta", "Categorical", "Dirichlet", "Gamma", "GammaByVariance", "LogNormal",
    "Normal", "NumpyroFamily", "Parameter", "Params", "Poisson", "TransformedNormal", "constrain", "resolve", "score",
]  # fmt: skip
