"""Black Box Variational Inference: write log p(x, z) as a plain function, get a posterior."""

from bbvi.adaptive import AdaptiveDraws
from bbvi.auto import Auto
from bbvi.control_variates import CrossFit, LeaveOneOut, PlugIn
from bbvi.converged import Converged
from bbvi.draws import MonteCarlo
from bbvi.explain import explain
from bbvi.families import FullRank, LowRank
from bbvi.fit import fit, iterate
from bbvi.gamma_e import GammaE
from bbvi.gibbs import iterate_metropolis, metropolis_hastings, metropolis_within_gibbs
from bbvi.gradient import Score
from bbvi.groups import missing, ragged
from bbvi.latents import binary, categorical, count, interval, one_hot, ordered, positive, real, simplex, unit_interval
from bbvi.local_expectation import LocalExpectation
from bbvi.metropolis import AllAtOnce, Coordinatewise
from bbvi.mixing import mixing
from bbvi.model import HierarchicalModel, Model
from bbvi.moments import gradient_moments
from bbvi.natural import natural
from bbvi.opaque import opaque
from bbvi.optimizers import adagrad, robbins_monro
from bbvi.pathwise import Pathwise
from bbvi.posterior import Posterior, load
from bbvi.predict import predictive_log_likelihood
from bbvi.quasi import QuasiMonteCarlo
from bbvi.stop import Budget, ParameterChange

__version__ = "0.1.0"

__all__ = [
    "AdaptiveDraws", "AllAtOnce", "Auto", "Budget", "Converged", "Coordinatewise", "CrossFit", "FullRank", "GammaE",
    "HierarchicalModel", "LeaveOneOut", "LocalExpectation", "LowRank", "Model", "MonteCarlo", "ParameterChange",
    "Pathwise", "PlugIn", "Posterior", "QuasiMonteCarlo", "Score", "adagrad", "binary", "categorical", "count",
    "explain", "fit", "gradient_moments", "interval", "iterate", "iterate_metropolis", "load",
    "metropolis_hastings", "metropolis_within_gibbs", "missing", "mixing", "natural", "one_hot", "opaque",
    "ordered", "positive", "predictive_log_likelihood", "ragged", "real", "robbins_monro", "simplex",
    "unit_interval",
]  # fmt: skip
