"""Black Box Variational Inference: write log p(x, z) as a plain function, get a posterior."""

import importlib
from typing import TYPE_CHECKING, Any

from bbvi.families import (
    AbstractCovariance,
    AbstractFamily,
    AbstractLaw,
    FullRank,
    LowRank,
    MarkovTree,
    SparsePrecision,
)
from bbvi.families.gamma_e import GammaE
from bbvi.model.declare import (
    binary,
    categorical,
    count,
    interval,
    one_hot,
    ordered,
    positive,
    real,
    simplex,
    unit_interval,
)
from bbvi.model.groups import missing, ragged
from bbvi.model.model import HierarchicalModel, Model
from bbvi.model.opaque.function import opaque
from bbvi.model.records import stream

if TYPE_CHECKING:
    from bbvi.blankets.rules import rule
    from bbvi.bridges.from_numpyro import from_numpyro
    from bbvi.bridges.from_pymc import from_pymc
    from bbvi.diagnostics.explain import explain
    from bbvi.diagnostics.moments import gradient_moments
    from bbvi.diagnostics.predict import predictive_log_likelihood
    from bbvi.draws.draws import AbstractDraws, MonteCarlo
    from bbvi.draws.quasi import QuasiMonteCarlo
    from bbvi.fitting.converged import Converged
    from bbvi.fitting.distributed import distributed
    from bbvi.fitting.fit import fit, iterate
    from bbvi.fitting.natural import natural
    from bbvi.fitting.optimizers import adagrad, robbins_monro
    from bbvi.fitting.stop import AbstractStop, Budget, ParameterChange
    from bbvi.gradients.abstract import AbstractGradient
    from bbvi.gradients.adaptive import AdaptiveDraws
    from bbvi.gradients.auto import AbstractChoice, Auto
    from bbvi.gradients.control_variates import AbstractControlVariate, CrossFit, LeaveOneOut, PlugIn
    from bbvi.gradients.local_expectation import LocalExpectation
    from bbvi.gradients.pathwise import Pathwise
    from bbvi.gradients.score import Score
    from bbvi.gradients.tree_expectation import TreeExpectation
    from bbvi.gradients.values_and_paths import ValuesAndPaths
    from bbvi.model.opaque.clusters import on_dask, on_ray
    from bbvi.numerics.address import AbstractNet
    from bbvi.posterior.load import load
    from bbvi.posterior.outcome import Outcome
    from bbvi.posterior.posterior import Posterior
    from bbvi.posterior.predictions import predict
    from bbvi.sampling.mixing import mixing
    from bbvi.sampling.sample import iterate_metropolis, metropolis_hastings, metropolis_within_gibbs
    from bbvi.sampling.sweep import AbstractKernel, AllAtOnce, Coordinatewise

__version__ = "0.1.0"

__all__ = [
    "AbstractChoice", "AbstractControlVariate", "AbstractCovariance", "AbstractDraws", "AbstractFamily",
    "AbstractGradient", "AbstractKernel", "AbstractLaw", "AbstractNet", "AbstractStop", "AdaptiveDraws", "AllAtOnce",
    "Auto", "Budget", "Converged", "Coordinatewise", "CrossFit", "FullRank", "GammaE", "HierarchicalModel",
    "LeaveOneOut", "LocalExpectation", "LowRank", "MarkovTree", "Model", "MonteCarlo", "Outcome", "ParameterChange",
    "Pathwise", "PlugIn", "Posterior", "QuasiMonteCarlo", "Score", "SparsePrecision", "TreeExpectation",
    "ValuesAndPaths", "adagrad", "binary", "categorical", "count", "distributed", "explain", "fit", "from_numpyro", "from_pymc",
    "gradient_moments", "interval", "iterate", "iterate_metropolis", "load", "metropolis_hastings",
    "metropolis_within_gibbs", "missing", "mixing", "natural", "on_dask", "on_ray", "one_hot", "opaque", "ordered",
    "positive", "predict", "predictive_log_likelihood", "ragged", "real", "robbins_monro", "rule", "simplex",
    "stream", "unit_interval",
]  # fmt: skip

#: what models are written without, by module: imported when first asked for
_LATER = {
    "blankets.rules": "rule", "bridges.from_numpyro": "from_numpyro", "bridges.from_pymc": "from_pymc", "diagnostics.explain": "explain", "diagnostics.moments": "gradient_moments",
    "diagnostics.predict": "predictive_log_likelihood", "draws.draws": "AbstractDraws MonteCarlo",
    "draws.quasi": "QuasiMonteCarlo", "fitting.converged": "Converged", "fitting.distributed": "distributed", "fitting.fit": "fit iterate",
    "fitting.natural": "natural", "fitting.optimizers": "adagrad robbins_monro",
    "fitting.stop": "AbstractStop Budget ParameterChange", "gradients.abstract": "AbstractGradient",
    "gradients.adaptive": "AdaptiveDraws", "gradients.auto": "AbstractChoice Auto",
    "gradients.control_variates": "AbstractControlVariate CrossFit LeaveOneOut PlugIn",
    "gradients.local_expectation": "LocalExpectation", "gradients.pathwise": "Pathwise", "gradients.score": "Score",
    "gradients.tree_expectation": "TreeExpectation",
    "gradients.values_and_paths": "ValuesAndPaths",
    "model.opaque.clusters": "on_dask on_ray", "numerics.address": "AbstractNet", "posterior.outcome": "Outcome", "posterior.posterior": "Posterior", "posterior.load": "load", "posterior.predictions": "predict",
    "sampling.mixing": "mixing", "sampling.sample": "iterate_metropolis metropolis_hastings metropolis_within_gibbs",
    "sampling.sweep": "AbstractKernel AllAtOnce Coordinatewise",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    for module, names in _LATER.items():
        if name in names.split():
            globals()[name] = getattr(importlib.import_module(f"bbvi.{module}"), name)
            return globals()[name]
    raise AttributeError(f"module 'bbvi' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
