"""Look at a lambda and at others around it: gradients and ELBOs on common random numbers, by the compiled steps of a fit."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from bbvi.families.abstract import Lambda
from bbvi.fitting.converged import Converged, shaped
from bbvi.fitting.loop import Loop
from bbvi.fitting.state import State, own_copy
from bbvi.model.groups import AbstractGroups
from bbvi.numerics.address import Key, fold
from bbvi.numerics.mesh import on_host

_LEAST_DRAWS, _LEAST_STEPS = 2_000, 10
#: steps after which what is left of a random move points along ridges
_SETTLE = 100
#: of the steps that may be made an estimate takes one in so many, and a run that settles the other
_ESTIMATES, _RUNS, _FEWEST = 40, 8, 3
#: Fisher information of a discrete factor that hardly draws other values
SATURATED = 0.01
#: parameters; where there are more, rows of locals are left alone
_MOST_UNKNOWNS = 20_000

Params = dict[str, Lambda]


class Fit(NamedTuple):
    """A compiled fit and what its steps take: random numbers, data, groups."""

    loop: Loop
    key: Key
    data: Any
    groups: AbstractGroups | None


class Gain(NamedTuple):
    """A difference of two ELBOs, or a slope, and its standard error."""

    mean: float
    error: float


def gain_of(differences: np.ndarray) -> Gain:
    """Average paired differences; a loss without bound where one is not finite."""
    if not np.all(np.isfinite(differences)):
        return Gain(-np.inf, 0.0)
    return Gain(float(differences.mean()), float(differences.std(ddof=1) / np.sqrt(len(differences))))


class Probe:
    """Estimates at lambdas around one, the origin, by steps that do not move; `left` is how many may still be made.

    For each suspicion as many more may be made as the `reserve` has.

    A lambda is given by a vector: how far each parameter is from the origin, in units of 1 / sqrt(Fisher information), which
    for the location of a Normal is its standard deviation. `words` name the random numbers.
    """

    def __init__(self, fit: Fit, state: State, origin: Params, *, left: int, reserve: int = 0):
        self.fit, self.origin, self.left, self.reserve = fit, origin, left, reserve
        self._still = fit.loop.init(state.params)._replace(optimizer=state.optimizer, draws=state.draws)
        self._number, self.watch = next((i, x) for i, x in enumerate(fit.loop.stops) if isinstance(x, Converged))
        self._along_the_way = state.stops[self._number]
        self._plan()

    def _plan(self) -> None:
        """Share out the steps: to an estimate, and to a run that settles."""
        most = max(_LEAST_STEPS, -(-_LEAST_DRAWS // self.fit.loop.draws.num))
        self.steps = max(_FEWEST, min(most, self.left // _ESTIMATES))
        self.settle = max(_FEWEST, min(_SETTLE, self.left // _RUNS))

    @contextlib.contextmanager
    def looking_closer(self) -> Iterator[bool]:
        """Take steps of the reserve first, because something is suspected; tell whether there are any."""
        left, lent = self.left, self.reserve
        self.left, self.reserve = left + lent, 0
        self._plan()
        yield lent > 0
        self.left, self.reserve = min(left, self.left), lent
        self._plan()

    @functools.cached_property
    def fisher(self) -> Params:
        """The Fisher information of all that is fitted."""
        fisher = self._averages("fisher", self.origin, self.steps, "unit")
        num = sum(np.size(leaf) for leaf in jax.tree.leaves(fisher))
        return fisher if num <= _MOST_UNKNOWNS else fisher | {"locals": {}}

    @functools.cached_property
    def unit(self) -> np.ndarray:
        """What a vector's elements are multiplied by; 0 for parameters that nothing depends on, or hardly any draw.

        Of a discrete latent that is a value given up: no step in these units is small.
        """
        fisher, latents = _vector(self.fisher), self.fit.loop.analysis.problem.latents
        discrete = [name for name, latent in latents.items() if latent.family.chart.is_discrete]
        seen = fisher > np.where(np.isin(self.names(), discrete), SATURATED, 0)
        return np.where(seen, 1 / np.sqrt(np.where(seen, fisher, 1)), 0)

    def elbos(self, at: np.ndarray, steps: int, *words: str | int) -> np.ndarray:
        """Estimate the ELBO there in each of so many steps; -inf in all if one was not finite."""
        return self._run(self.moved(at), steps, *words)[1]

    def gradient(self, at: np.ndarray, steps: int, *words: str | int) -> np.ndarray:
        """Estimate the gradient there, in these units."""
        return self.unit * self._fitted(self._averages("gradient", self.moved(at), steps, *words))

    def settled(self, at: np.ndarray, steps: int, *words: str | int) -> np.ndarray:
        """Return where a run from there ends."""
        end = self._fitted(self._run(self.moved(at), steps, *words, moving=True)[0].params)
        return np.divide(end - self._fitted(self.origin), self.unit, where=self.unit > 0, out=np.zeros_like(end))

    def averaged(self, params: Params, steps: int, *words: str | int, waiting: int = 0) -> Params:
        """Return the average lambda of a run from this one; before it discrete latents wait for so many steps."""
        if waiting:
            params = self._run(params, waiting, *words, "waiting", moving=True, waits=True)[0].params
        state, _ = self._run(params, steps, *words, moving=True)
        average = self.watch.average(state.stops[self._number], state.params)
        return average if self.fit.loop.analysis.fit_globals else {**average, "globals": state.params["globals"]}

    def compare(self, params: Params, other: Params, steps: int, *words: str | int) -> Gain:
        """Compare the ELBOs of two lambdas on the same draws."""
        return gain_of(self._run(params, steps, *words)[1] - self._run(other, steps, *words)[1])

    def seen(self, direction: np.ndarray) -> Gain:
        """Return the slope along a direction, and its standard error, as the averages of the run have it."""
        mean, variance = (self._fitted(self._by_part(self._along_the_way, what)) for what in ("gradient", "variance"))
        return Gain(float(direction @ (self.unit * mean)), float(np.sqrt(direction**2 @ (self.unit**2 * variance))))

    def moved(self, at: np.ndarray) -> Params:
        """Return the lambda at a vector."""
        leaves, structure = jax.tree.flatten({part: self.origin[part] for part in self._parts})
        parts = np.split(self.unit * at, np.cumsum([np.size(leaf) for leaf in leaves])[:-1])
        pairs = zip(leaves, parts, strict=True)
        new = [np.reshape(_vector(leaf) + by, np.shape(leaf)).astype(leaf.dtype) for leaf, by in pairs]
        return self.origin | jax.tree.unflatten(structure, new)

    def names(self) -> np.ndarray:
        """Return the latent of each element of a vector."""
        named = {
            part: {name: jax.tree.map(lambda leaf, n=name: np.full(np.shape(leaf), n), own) for name, own in of.items()}
            for part, of in self.fisher.items()
        }
        return np.concatenate([np.zeros(0, str), *map(np.ravel, jax.tree.leaves(named))])

    @property
    def _parts(self) -> list[str]:
        return [part for part, own in self.fisher.items() if own]

    def _fitted(self, params: Params) -> np.ndarray:
        return _vector({part: params[part] for part in self._parts})

    def _averages(self, what: str, params: Params, steps: int, *words: str | int) -> Params:
        return self._by_part(self._run(params, steps, *words)[0].stops[self._number], what)

    def _by_part(self, averages: Any, what: str) -> Params:
        pairs = [(part, on_host(own)) for part, own in (("globals", averages.globals), ("locals", averages.rows))]
        return {part: shaped(getattr(own, what), self.origin[part]) if own.columns else {} for part, own in pairs}

    def _run(
        self, params: Params, steps: int, *words: str | int, moving: bool = False, waits: bool = False
    ) -> tuple[State, np.ndarray]:
        loop, key, data, groups = self.fit
        elbos: list[np.ndarray] = []
        state = own_copy(self._still._replace(params=params, waits=jax.device_put(np.bool_(waits))))
        for word in words:
            key = fold(key, word)
        self.left -= steps
        while (left := steps - sum(len(part) for part in elbos)) > 0:
            state, record, made = loop.run(state, key, data, groups, min(loop.capacity, left), moving=moving)
            elbos.append(np.asarray(record.elbo)[: int(made)])
            if int(state.broken) >= 0:
                return state, np.full(steps, -np.inf)
            state = state._replace(fired=jax.device_put(np.int32(-1)))
        return state, np.concatenate(elbos)


def _vector(tree: Any) -> np.ndarray:
    return np.concatenate([np.zeros(0), *(np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(tree))])
