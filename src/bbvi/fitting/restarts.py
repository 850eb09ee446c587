"""Several starts: short runs of the same compiled steps, of which the better half goes on each time, until one is left.

This is successive halving (Jamieson and Talwalkar 2016) by the ELBO, for the many optima of section 2's objective. In every second
run discrete latents first wait, as undecided as they start, until the others have settled: where they choose first, as in a choice of
predictors, they choose by coefficients that are still random; where they wait, as in a mixture, the others find nothing to
tell components apart by. Which is better the ELBO says. All runs end with ordinary steps, so that the one that is left is an ordinary fit.
"""

import jax.numpy as jnp
import numpy as np

from bbvi.families.abstract import Lambda
from bbvi.families.tree import NEVER
from bbvi.fitting.checkpoint import History, Restarts
from bbvi.fitting.probe import Fit, gain_of
from bbvi.fitting.run import Run
from bbvi.fitting.setbacks import find_start, set_back
from bbvi.fitting.state import State, own_copy
from bbvi.fitting.stop import Elapsed
from bbvi.model.start import starting_params
from bbvi.numerics.address import fold
from bbvi.posterior.ratios import Estimate

#: how many starts a model with discrete latents has by default
MANY = 8
_STEPS, _LAST, _LOOK = 50, 100, 10  # of a round, of the round of the last two, and to see an ELBO by
_WAIT, _LONGEST_WAIT = 20, 200  # steps of others between two looks at whether they have settled, and in all
_RISE, _BETTER = 1.0, 0.02  # nats that count as a rise while others settle, and as a better start


def best_start(run: Run, num: int) -> tuple[State, History, Restarts]:
    """Run `num` starts, the better half of them on and on; return the state and history of the best, and the ELBOs of all.

    The first start is that of a fit without restarts, and goes on unless another is clearly better. If none of them is finite it is
    returned as it was before its first step.
    """
    began, both = run.now(), _has_both(run)
    trials = [_Trial(run, number, began) for number in range(num)]
    for number, trial in enumerate(trials):
        if both and number % 2:
            trial.wait()
    left, out = list(trials), list[Estimate]()
    while len(left) > 1:
        for trial in left:
            trial.go(_LAST if len(left) == 2 else _STEPS)
        elbos = {trial: trial.elbos() for trial in left}
        ranked = sorted(left, key=lambda trial: -elbos[trial].mean())
        # of those that are as good as the best the first is kept
        best = next(one for one in left if not clearly_above(elbos[ranked[0]], elbos[one], _BETTER))
        ranked.remove(best)
        ranked.insert(0, best)
        half = len(left) // 2
        out = [_estimate(elbos[trial]) for trial in ranked[half:]] + out
        left = [trial for trial in trials if trial in ranked[:half]]
    restarts = (_estimate(elbos[best]), *out)
    if not np.isfinite(restarts[0]):
        return run.loop.init(run.params), [], ()
    return best.state, best.history, restarts


class _Trial:
    """One start: its state and the record of its steps."""

    def __init__(self, run: Run, number: int, began: float):
        params = run.params if number == 0 else _another_start(run, number)
        self._run, self._began, self.state = run, began, run.loop.init(params)
        self.history: History = []

    def go(self, steps: int) -> bool:
        """Make so many steps; tell whether all were made, and no rule fired."""
        loop, last, begin = self._run.loop, self._run.settings.last_step, int(self.state.step)
        end = begin + steps if last is None else min(begin + steps, last)
        while (step := int(self.state.step)) < end and self._can_go():
            before = self._run.now() - self._began
            self.state, record, made = loop.run(
                self.state, self._run.key, self._run.data, self._run.groups, min(loop.capacity, end - step)
            )
            count = int(made) + (int(self.state.broken) >= 0)
            arrays = {name: np.asarray(leaf)[:count] for name, leaf in record._asdict().items()}
            arrays["seconds"] = np.linspace(before, self._run.now() - self._began, count + 1)[1:]
            self.history.append(arrays)
            if int(self.state.broken) >= 0:
                self._recover()
        return int(self.state.step) == begin + steps and self._can_go()

    def _recover(self) -> None:
        """Go back after a step that was not finite, or start elsewhere if it was the first."""
        run = self._run
        fit = Fit(run.loop, run.key, run.data, run.groups)
        if int(self.state.step) > 0:
            self.state = set_back(fit, self.state)
        elif (found := find_start(fit, self.state)) is not None:
            self.state, self.history = found, []

    def _can_go(self) -> bool:
        elapsed = Elapsed(int(self.state.step), self._run.now() - self._began)
        stopped = any(rule.on_host(elapsed) for rule in self._run.settings.stops)
        return int(self.state.fired) < 0 and int(self.state.broken) < 0 and not stopped

    def wait(self) -> None:
        """Let all but the discrete latents move until their ELBO rises no more."""
        self.state = self.state._replace(waits=jnp.bool_(True))
        while self.go(_WAIT) and int(self.state.step) < _LONGEST_WAIT:
            elbo = np.concatenate([record["elbo"] for record in self.history])[-2 * _WAIT :]
            if len(elbo) == 2 * _WAIT and not clearly_above(elbo[_WAIT:], elbo[:_WAIT], _RISE):
                break
        self.state = self.state._replace(waits=jnp.bool_(False))

    def elbos(self) -> np.ndarray:
        """Estimate the ELBO here, on draws that all starts share; -inf where it is not finite."""
        run = self._run
        if int(self.state.broken) >= 0:
            return np.full(_LOOK, -np.inf)
        here = own_copy(self.state._replace(step=jnp.int32(0), fired=jnp.int32(-1)))
        _, record, made = run.loop.run(here, fold(run.key, "restarts"), run.data, run.groups, _LOOK, moving=False)
        found = np.asarray(record.elbo, np.float64)[: int(made)]
        return found if len(found) == _LOOK else np.full(_LOOK, -np.inf)


def _another_start(run: Run, number: int) -> dict[str, Lambda]:
    """Return a random start; what log p rules out stays out."""
    params, latents = (
        starting_params(run.loop.analysis.problem, fold(run.key, "restart", number)),
        run.loop.analysis.problem.globals,
    )
    for name in [name for name, latent in latents.items() if set(params["globals"][name]) == {"logits"}]:
        first, new = (own["globals"][name]["logits"] for own in (run.params, params))
        params["globals"][name] = {"logits": jnp.where(jnp.abs(first) > -NEVER / 2, first, new)}
    return params


def _has_both(run: Run) -> bool:
    """Tell whether some of the latents that are fitted are discrete, and some are not."""
    analysis = run.loop.analysis
    fitted = analysis.fitted(run.groups is not None)
    return len({analysis.problem.latents[name].family.chart.is_discrete for name in fitted}) == 2


def clearly_above(one: np.ndarray, other: np.ndarray, least: float) -> bool:
    """Tell whether ELBOs are above others by `least` nats and two standard errors; all that is finite is above what is not."""
    if not np.all(np.isfinite(other)):
        return bool(np.all(np.isfinite(one)))
    gain = gain_of(one - other)
    return gain.mean > max(least, 2 * gain.error)


def _estimate(elbos: np.ndarray) -> Estimate:
    return Estimate(
        float(elbos.mean()), float(elbos.std(ddof=1) / np.sqrt(len(elbos))) if np.isfinite(elbos).all() else 0.0
    )
