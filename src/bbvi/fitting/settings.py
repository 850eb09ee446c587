"""The arguments of `fit` and `iterate`, checked once and handed on as one value."""

from typing import Any, NamedTuple

import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array

from bbvi.draws.draws import AbstractDraws, MonteCarlo
from bbvi.fitting.converged import Converged
from bbvi.fitting.stop import AbstractStop, Budget
from bbvi.gradients.abstract import AbstractGradient
from bbvi.gradients.auto import AbstractChoice, Auto
from bbvi.posterior.posterior import Posterior


class Settings(NamedTuple):
    """How to fit a model: the keywords of `fit`, with defaults filled in where they do not depend on the model."""

    gradient: AbstractGradient | AbstractChoice
    draws: AbstractDraws
    stops: tuple[AbstractStop, ...]
    optimizer: optax.GradientTransformation | None = None
    batch_size: int | None = None
    seed: int | Array = 0
    checkpoint: Any = None
    checkpoint_seconds: float = 30.0
    start: Posterior | None = None
    hold: Posterior | None = None
    fast_lgamma: bool = True
    restarts: int | None = None
    mesh: Mesh | None = None

    @property
    def last_step(self) -> int | None:
        """The step at which a rule ends the run at the latest, if one does."""
        return min((last for rule in self.stops if (last := rule.last_step()) is not None), default=None)


def checked_settings(*, gradient: Any = None, draws: Any = None, stop: Any = None, **others: Any) -> Settings:
    """Fill in the defaults of `fit` and refuse what cannot work, whatever the model."""
    gradient, draws = gradient or Auto(), draws or MonteCarlo(100)
    if not isinstance(gradient, (AbstractGradient, AbstractChoice)):
        raise TypeError(f"gradient= takes an estimator such as bbvi.Score(), got {gradient!r}")
    if not isinstance(draws, AbstractDraws):
        raise TypeError(f"draws= takes, for example, bbvi.MonteCarlo(100), got {draws!r}")
    stop = (Converged(), Budget(steps=50_000)) if stop is None else stop
    stops = tuple(stop) if isinstance(stop, (list, tuple)) else (stop,)
    for rule in stops:
        if not isinstance(rule, AbstractStop):
            raise TypeError(
                f"stop= takes stopping rules such as bbvi.Converged() or bbvi.Budget(steps=1000), got {rule!r}"
            )
    if not stops:
        raise ValueError("stop=[] would never stop; give at least one rule")
    gradient.check(draws)
    restarts = others.get("restarts")
    if restarts is not None and (
        isinstance(restarts, bool) or not isinstance(restarts, (int, np.integer)) or restarts < 1
    ):
        raise ValueError(f"restarts= takes the number of starts to try, 1 or more, got {restarts!r}")
    if restarts is not None and restarts > 1 and (others.get("start") is not None or others.get("hold") is not None):
        raise ValueError(
            "restarts= begins at several random places, and start= or hold= says where to begin: leave one out"
        )
    known = {"stop", *Settings._fields} - {"stops"}
    if unknown := set(others) - known:
        raise TypeError(f"iterate() got {', '.join(map(repr, sorted(unknown)))}; it takes {', '.join(sorted(known))}")
    return Settings(gradient, draws, stops, **others)
