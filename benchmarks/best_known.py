"""Part of defaults.py: the highest ELBO known of each of the twelve models under its default q."""

from typing import Any

import jax
import numpy as np
import optax
import scipy.optimize
from jax.flatten_util import ravel_pytree
from twelve_elbos import ELBOS
from twelve_models import MODELS

import bbvi

STARTS = 40


def best_known(name: str) -> dict[str, Any]:
    """The best ELBO, and how it was found: quasi-Newton ascent from many starts, in double precision."""
    model, data = MODELS[name]()
    params, num = bbvi.fit(model, data, stop=bbvi.Budget(steps=0)).params, STARTS
    if name == "gamma_factors":
        params, num = long_run(model, data), 1
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
        if name == "scales":
            params = least_squares(data)
        flat, unravel = ravel_pytree(params)
        descent = jax.jit(jax.value_and_grad(lambda x: -ELBOS[name](unravel(x), data)))
        spreads = [(0.0, 0.1, 0.3, 1.0)[start % 4] for start in range(num)]
        ends = [ascend(descent, np.asarray(flat) + spread * rng.normal(size=flat.shape)) for spread in spreads]
    same = sum(end > max(ends) - 0.001 for end in ends)
    return {"elbo": max(ends), "how": f"L-BFGS on the exact ELBO; {same} of {num} starts end within 0.001 of it"}


def ascend(descent: Any, start: np.ndarray) -> float:
    """The ELBO at the end of an ascent, begun anew until that brings no more."""

    def value(x: np.ndarray) -> tuple[float, np.ndarray]:
        loss, slope = descent(x)
        if not np.isfinite(loss):  # where the ELBO is -inf: a wall for the line search
            return 1e10, np.zeros_like(x)
        return float(loss), np.asarray(slope)

    x, best = start, -np.inf
    for _ in range(20):
        found = scipy.optimize.minimize(
            value,
            x,
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 5_000, "maxfun": 20_000, "maxcor": 30, "ftol": 1e-14, "gtol": 1e-8},
        )
        if -found.fun < best + 1e-6:
            break
        x, best = found.x, -found.fun
    return float(best) if best > -1e9 else -np.inf


def least_squares(data: Any) -> Any:
    """A start at the solution by least squares: its scales are too far apart for a search from elsewhere."""
    x, y = data["x"], data["y"]
    design = np.column_stack([np.ones(len(y)), x])
    solution = np.linalg.lstsq(design, y, rcond=None)[0]
    sigma = np.std(y - design @ solution)
    scale = np.log(sigma / np.sqrt((design**2).sum(0)))
    return {
        "level": {"loc": solution[0], "scale": scale[0]},
        "slope": {"loc": solution[1:], "scale": scale[1:]},
        "sigma": {"concentration": np.log(2.0 * len(y)), "mean": np.log(sigma)},
    }


def long_run(model: bbvi.Model, data: Any) -> Any:
    """Lambda after pathwise gradients from several seeds, of which the best goes on with smaller steps."""

    def go_on(start: Any, seed: int, draws: int, rate: float, steps: int) -> bbvi.Posterior:
        return bbvi.fit(
            model, data, gradient=bbvi.Pathwise(), draws=bbvi.MonteCarlo(draws), optimizer=optax.adam(rate),
            stop=bbvi.Budget(steps=steps), start=start, seed=seed, progress=False,
        )  # fmt: skip

    fits = [go_on(None, seed, 10, 0.05, 2_000) for seed in range(10)]
    best = max(fits, key=lambda fit: fit.elbo(10_000))
    for draws, rate, steps in ((30, 0.01, 2_000), (100, 0.001, 2_000)):
        best = go_on(best, 0, draws, rate, steps)
    return best.params
