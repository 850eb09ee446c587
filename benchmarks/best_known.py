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
DRAWS = 1_000_000


def best_known(name: str) -> dict[str, Any]:
    """The best ELBO, its standard error, and how it was found."""
    return climbed(name) if name in ELBOS else long_runs(name)


def climbed(name: str) -> dict[str, Any]:
    """Quasi-Newton ascent of the exact ELBO from many starts, in double precision."""
    model, data = MODELS[name]()
    params = bbvi.fit(model, data, stop=bbvi.Budget(steps=0)).params
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
        if name == "scales":
            params = least_squares(params, data)
        flat, unravel = ravel_pytree(params)
        descent = jax.jit(jax.value_and_grad(lambda x: -ELBOS[name](unravel(x), data)))
        ends = []
        for start in range(STARTS):
            spread = (0.0, 0.1, 0.3, 1.0)[start % 4]
            ends.append(ascend(descent, np.asarray(flat) + spread * rng.normal(size=flat.shape)))
    ends = sorted((end for end in ends if np.isfinite(end)), reverse=True)
    same = sum(end > ends[0] - 0.001 for end in ends)
    how = f"L-BFGS on the exact ELBO, the best of {STARTS} starts; {same} of them within 0.001 of it"
    return {"elbo": ends[0], "standard_error": 0.0, "how": how}


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


def least_squares(params: Any, data: Any) -> Any:
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


def long_runs(name: str) -> dict[str, Any]:
    """Pathwise gradients from several seeds; the best goes on with more draws and smaller steps."""
    model, data = MODELS[name]()

    def go_on(start: Any, seed: int, draws: int, rate: float, steps: int) -> bbvi.Posterior:
        return bbvi.fit(
            model, data, gradient=bbvi.Pathwise(), draws=bbvi.MonteCarlo(draws), optimizer=optax.adam(rate),
            stop=bbvi.Budget(steps=steps), start=start, seed=seed, progress=False,
        )  # fmt: skip

    fits = [go_on(None, seed, 10, 0.05, 3_000) for seed in range(10)]
    best = max(fits, key=lambda fit: fit.elbo(10_000))
    for draws, rate, steps in ((100, 0.01, 3_000), (100, 0.001, 3_000), (1000, 0.0003, 1_000)):
        best = go_on(best, 0, draws, rate, steps)
    elbo = best.elbo(DRAWS)
    how = "pathwise gradients, the best of 10 seeds, continued with up to 1,000 draws and steps down to 0.0003"
    return {"elbo": float(elbo), "standard_error": elbo.standard_error, "how": how}
