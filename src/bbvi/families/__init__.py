"""Eq. 4: the variational families."""

from bbvi.families.abstract import AbstractFamily, Fixed, alike
from bbvi.families.beta import Beta, Dirichlet
from bbvi.families.charts import (
    AbstractChart,
    Binary,
    Categories,
    Counts,
    OneHotVectors,
    Positive,
    Real,
    Simplex,
    Through,
    Unit,
)
from bbvi.families.counts import Binomial, Geometric, NegativeBinomial
from bbvi.families.discrete import Bernoulli, Categorical, OneHot, Poisson
from bbvi.families.gamma import Gamma, GammaByVariance
from bbvi.families.joined import Joined
from bbvi.families.joint import AbstractCovariance, FullRank, JointNormal, LowRank
from bbvi.families.kumaraswamy import Kumaraswamy
from bbvi.families.law import AbstractLaw, Parameter, Params, by_factors, constrain, positive_parameter, score
from bbvi.families.normal import LogNormal, Normal, TransformedNormal, location_and_scale
from bbvi.families.numpyro import NumpyroFamily, resolve
from bbvi.families.per_value import Paired, PerValue
from bbvi.families.positive import Exponential, HalfNormal, InverseGamma, Weibull
from bbvi.families.real import Laplace, Logistic, StudentT
from bbvi.families.sparse import Order, SparsePrecision
from bbvi.families.tilted import Conditional, Framed, Moments
from bbvi.families.tree import CodeVectors, MarkovTree, Tree
