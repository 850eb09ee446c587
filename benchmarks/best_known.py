"""Part of defaults.py: the highest ELBO known of each of the twelve models under its default q."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.optimize
from jax.flatten_util import ravel_pytree
from twelve_elbos import ELBOS
from twelve_models import MODELS

import bbvi

STARTS = 20
#: given all else these are independent, and the best q of each is known
COLLAPSED = {"mixture": "component", "topics": "topic"}


def best_known(name: str) -> dict[str, Any]:
    """The best ELBO, and how it was found."""
    model, data = MODELS[name]()
    if name == "gamma_factors":
        return long_runs(model, data)
    params = least_squares(data) if name == "scales" else bbvi.fit(model, data, stop=bbvi.Budget(steps=0)).params
    spreads = [(0.0, 0.3, 1.0, 3.0)[start % 4] for start in range(STARTS)]
    ends = optima(name, params, data, spreads)
    if name in COLLAPSED:  # many optima, of which fits find better ones than ascents from afar
        fits = [bbvi.fit(model, data, seed=seed, progress=False) for seed in range(STARTS)]
        ends += [optima(name, fit.params, data)[0] for fit in fits]
    same = sum(end > max(ends) - 0.001 for end in ends)
    return {"elbo": max(ends), "how": f"L-BFGS on the exact ELBO; {same} of {len(ends)} starts end within 0.001 of it"}


def optima(name: str, params: Any, data: Any, spreads: Sequence[float] = (0.0,)) -> list[float]:
    """The ELBOs at the ends of ascents from these parameters, moved at random by each of the spreads."""
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        flat, unravel = ravel_pytree(doubles(params))

        def value(params: Any) -> Any:
            return ELBOS[name](params, data)

        if name in COLLAPSED:
            value = collapsed(value, COLLAPSED[name])
        descent = jax.jit(jax.value_and_grad(lambda x: -value(unravel(x))))
        return [ascend(descent, np.asarray(flat) + spread * rng.normal(size=flat.shape)) for spread in spreads]


def doubles(params: Any) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)


def collapsed(exact: Any, name: str) -> Any:
    """The ELBO with the best probabilities of the categorical `name`, a function of the other parameters alone."""

    def value(params: Any) -> Any:
        def at(logits: Any) -> Any:
            return exact({**params, name: {"logits": logits}})

        even = jnp.zeros_like(params[name]["logits"])
        # at even odds the gradient in the logits is 1 / k of the logits' best values, less their mean
        return at(jax.lax.stop_gradient(even.shape[-1] * jax.grad(at)(even)))

    return value


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
            options={"maxiter": 5_000, "maxfun": 20_000, "maxcor": 20, "ftol": 1e-11, "gtol": 1e-6},
        )
        if -found.fun < best + 1e-4:
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


def long_runs(model: bbvi.Model, data: Any) -> dict[str, Any]:
    """Pathwise gradients from several seeds, of which the best goes on with more draws and smaller steps."""
    with jax.enable_x64(True):
        exact = jax.jit(ELBOS["gamma_factors"])

    def go_on(start: Any, seed: int, draws: int, rate: float) -> bbvi.Posterior:
        return bbvi.fit(
            model, data, gradient=bbvi.Pathwise(), draws=bbvi.MonteCarlo(draws), optimizer=optax.adam(rate),
            stop=bbvi.Budget(steps=2_000), start=start, seed=seed, progress=False,
        )  # fmt: skip

    def elbo(fit: bbvi.Posterior) -> float:
        with jax.enable_x64(True):
            return float(exact(doubles(fit.params), data))

    best = max((go_on(None, seed, 10, 0.05) for seed in range(10)), key=elbo)
    for draws, rate in ((30, 0.01), (100, 0.001), (100, 0.0003)):
        best = go_on(best, 0, draws, rate)
    return {"elbo": elbo(best), "how": "the best of 10 pathwise runs, gone on with Adam's steps down to 0.0003"}
