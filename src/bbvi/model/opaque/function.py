"""Section 2: "black box" taken at its word: any Python function or simulator as part of log p(x, z)."""

import dataclasses
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any

import jax

from bbvi.model.opaque.workers import Workers


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Opaque:
    """A function that JAX shall not trace, and how to call it; made by `bbvi.opaque`."""

    function: Callable[..., Any]
    stochastic: bool
    vectorized: bool
    executor: Executor | Workers | None
    reads: Mapping[str, Any] | None

    def __repr__(self) -> str:
        return f"opaque({getattr(self.function, '__name__', type(self.function).__name__)})"

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((arguments, keywords))):
            raise TypeError(
                f"{self!r} was called inside a function that JAX traces, where there are no numbers to call it with. "
                "Give it to bbvi.Model or bbvi.HierarchicalModel itself, as log_joint or one of log_prior, log_local and "
                "log_likelihood; or make the whole surrounding function opaque"
            )
        return self.function(*arguments, **keywords)


def opaque(
    fn: Callable[..., Any],
    *,
    stochastic: bool = False,
    vectorized: bool = False,
    executor: Executor | Workers | None = None,
    reads: Mapping[str, Any] | None = None,
) -> Opaque:
    """Let any Python function stand for a model function: NumPy code, a simulator, a call of another program.

    `fn` gets NumPy arrays, one sample of one group, and returns a number or a pytree of terms whose total is the
    value. Which terms read which latents is found by moving the latents, and checked again during the fit; a
    single number is one term that reads everything.

    Args:
        stochastic: `fn` draws random numbers; it is called with `seed=`, an int that differs between draws.
        vectorized: `fn` gets a leading axis of samples on every latent (and on `seed`) and returns it on every term.
        executor: where to make the calls: a `concurrent.futures` executor, or a cluster by `bbvi.on_ray()` or
            `bbvi.on_dask(client)`; `fn` and data must be picklable.
        reads: the terms' latents, if you know them: `{term: latent}`, `{term: [latents]}` or
            `{term: {latent: matrix}}` with a boolean matrix, term elements by latent elements. A lone array is
            the term `""`. It is checked by moving latents.

    Examples:
        >>> import bbvi, numpy as np
        >>> def log_joint(z, y):
        ...     return {"prior": -0.5 * z["mu"] ** 2, "data": -0.5 * (y - z["mu"]) ** 2}
        >>> model = bbvi.Model(bbvi.opaque(log_joint), mu=bbvi.real())
        >>> posterior = bbvi.fit(model, np.array([1.0, 2.0, 3.0]), stop=bbvi.Budget(steps=300))
        >>> print(round(float(posterior.mean()["mu"]), 1))  # the exact mean is 6 / 4
        1.5
    """
    if isinstance(fn, Opaque):
        raise TypeError(f"bbvi.opaque: {fn!r} is opaque already")
    if not callable(fn):
        raise TypeError(f"bbvi.opaque takes a function, got {type(fn).__name__}")
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise TypeError(
            "bbvi.opaque: executor= takes a concurrent.futures executor such as ProcessPoolExecutor(4), bbvi.on_ray() or "
            f"bbvi.on_dask(client), got {type(executor).__name__}"
        )
    if reads is not None and not isinstance(reads, Mapping):
        raise TypeError(f'bbvi.opaque: reads= takes a dict such as {{"prior": "mu"}}, got {type(reads).__name__}')
    return Opaque(fn, stochastic, vectorized, executor, reads)
