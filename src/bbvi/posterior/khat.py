"""How good is q: the Pareto shape k-hat of importance ratios (Yao et al. 2018; Vehtari et al. 2024)."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bbvi.numerics.address import Key, fold, seed_key
from bbvi.posterior.pareto import Khat, pareto_khat
from bbvi.posterior.ratios import Ratios
from bbvi.posterior.values import central_value

_INNER_DRAWS = 10
_FEWEST, _MOST = 1000, 100_000
_SMALL_ERROR = 0.05
# about a second's worth of numbers: more draws than the fewest are for models in which they are cheap
_MANY_FLOATS = 1 << 25


def khat_of(posterior: Any, ratios: Ratios, n: int | None, seed: int | Array, groups: np.ndarray | None = None) -> Khat:
    """Compute k-hat of the globals, each group integrated out by inner draws, and of each group at central globals.

    Of a flat model it is that of all latents. `groups` chooses some, and `n=None` as many draws as it takes to know k-hat.
    """
    key = fold(seed_key(seed), "khat")
    if ratios.groups is None:
        return _settled(lambda first, num: ratios.of_all(num, key, first)[None], n, ratios.cost(0))[0]
    khat, num_groups = Khat(np.nan), len(ratios.groups)
    if ratios.params["globals"]:
        cost = ratios.cost(num_groups * _num_inner(ratios))
        khat = _settled(lambda first, num: _of_globals(ratios, key, first, num)[None], n, cost)[0]
    if ratios.params["locals"]:
        chosen, centre = np.arange(num_groups) if groups is None else groups, _centre(posterior)

        def given_globals(samples: Array) -> np.ndarray:
            fixed = {k: jnp.broadcast_to(value[..., None], (*value.shape, len(samples))) for k, value in centre.items()}
            at = fold(key, "local")
            return ratios.of_groups(fixed | ratios.problem.call_site(at, samples), at, samples, chosen)

        cost = ratios.cost(max(len(chosen), ratios.block(_FEWEST)))
        own = _settled(lambda first, num: ratios.in_pieces(given_globals, first, num), n, cost)
        khat.locals = np.array(own, float)
    return khat


def _centre(posterior: Any) -> dict[str, Array]:
    """Return a central value of each global."""
    problem, params = posterior._problem, posterior._params["globals"]
    means = problem.joined(posterior.mean())
    return {name: central_value(latent, params[name], means.get(name)) for name, latent in problem.globals.items()}


def is_cheap(ratios: Ratios) -> bool:
    """Tell whether k-hat takes seconds at the most, so that nobody need ask for it."""
    num_groups = 0 if ratios.groups is None else len(ratios.groups)
    return ratios.cost(num_groups * _num_inner(ratios)) * _FEWEST <= 4 * _MANY_FLOATS


def _num_inner(ratios: Ratios) -> int:
    return _INNER_DRAWS if ratios.params["locals"] else 1


def _of_globals(ratios: Ratios, key: Key, first: int, num: int) -> np.ndarray:
    """log p(x, beta) - log q(beta), in which inner draws integrate out the locals of each group."""
    inner = [fold(key, f"inner {m}") for m in range(_num_inner(ratios))]

    def piece(samples: Array) -> np.ndarray:
        beta, log_ratio = ratios.of_globals(key, samples)
        of_groups = [ratios.of_groups(beta, at, samples) for at in inner]
        marginal = np.logaddexp.reduce(of_groups, axis=0) - np.log(len(inner))
        return np.asarray(log_ratio, np.float64) + marginal.sum(0, dtype=np.float64)

    return ratios.in_pieces(piece, first, num)


def _settled(draw: Callable[[int, int], np.ndarray], n: int | None, cost: int) -> list[Khat]:
    """Compute k-hat of each row of the log ratios `draw(first, num)`, which computes so many numbers a draw.

    From n draws, or by doubling them until every standard error is small.
    """
    log_ratios = draw(0, _FEWEST if n is None else n)
    khats = [pareto_khat(row) for row in log_ratios]
    most = min(_MOST, _MANY_FLOATS // max(1, cost) // _FEWEST * _FEWEST) if n is None else 0
    while (num := log_ratios.shape[-1]) < most and not all(k.standard_error < _SMALL_ERROR for k in khats):
        log_ratios = np.concatenate([log_ratios, draw(num, min(num, most - num))], axis=-1)
        khats = [pareto_khat(row) for row in log_ratios]
    return khats
