"""Functions of draws from q: predictions, with intervals, in memory that does not grow with the number of groups."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bbvi.model.groups import AbstractGroups
from bbvi.model.model import Model
from bbvi.model.problem import Problem
from bbvi.numerics.address import fold, seed_key
from bbvi.numerics.xla import for_one_run, program
from bbvi.posterior.posterior import Posterior
from bbvi.posterior.ratios import bind_again

_FLOATS_PER_BLOCK = 1 << 24


class Prediction(NamedTuple):
    """What a function of the latents is under q, in the form that the function returns; groups stand on the first axis.

    Attributes:
        mean: its mean.
        sd: its standard deviation.
        low: the lower end of its central interval.
        high: the upper end.
    """

    mean: Any
    sd: Any
    low: Any
    high: Any


def predict(
    posterior: Posterior,
    fn: Callable[..., Any],
    n: int = 1000,
    *,
    data: Any = None,
    level: float = 0.9,
    seed: int = 0,
    groups: Any = None,
) -> Prediction:
    """Push n draws of the posterior through a function, and return means, standard deviations and intervals of the results.

    The function is called with one draw of the latents: `fn(z)`, `fn(z, data)` or, if it draws random numbers of its own,
    `fn(z, data, key)`. It returns a number, an array, or any pytree of arrays. For a `HierarchicalModel` it is called for each
    group, or for those in `groups=`: z has the globals and that group's locals, and data is its row; a function of z alone, in a
    model without locals, is called once a draw. `data` are those of the fit unless given.

    Memory holds a block of groups at a time, and of a flat model n results.

    Examples:
        >>> import bbvi, jax, jax.numpy as jnp, numpyro.distributions as dist
        >>> model = bbvi.Model(
        ...     lambda z, y: dist.Normal(0, 1).log_prob(z["mu"]) + dist.Normal(z["mu"], 1).log_prob(y).sum(), mu=bbvi.real()
        ... )
        >>> posterior = bbvi.fit(model, jnp.array([1.2, 0.7, 0.9]))
        >>> tomorrow = bbvi.predict(posterior, lambda z, y, key: dist.Normal(z["mu"], 1).sample(key), 2000)
        >>> bool(tomorrow.low < 0 < tomorrow.mean < 1 < tomorrow.high)
        True
    """
    if not 0 < level < 1:
        raise ValueError(f"predict: level is the probability of the interval, between 0 and 1, got {level!r}")
    if not (isinstance(n, (int, np.integer)) and n >= 2):
        raise ValueError(f"predict: n is the number of draws, 2 or more, got {n!r}")
    problem, flat, source = posterior._problem, posterior._data, posterior._groups
    if data is not None:
        problem, flat, source = bind_again("this posterior", problem, data)
    elif posterior._without_data and num_arguments(fn) > 1:
        raise ValueError("this posterior was loaded without its data; pass data=")

    def draw(name: str, own: np.ndarray) -> Any:
        return posterior._draw(name, n, seed, own if name in problem.locals else None)

    numbers = np.arange(problem.num_groups) if groups is None else posterior._numbers(groups)
    blocks = blocks_of_results(problem, (flat, source), draw, fn, seed, numbers)
    ends = [(1 - level) / 2, (1 + level) / 2]
    joined = jax.tree.map(lambda *leaves: np.concatenate(leaves), *(_statistics(block, ends) for block in blocks))
    return joined if is_by_group(problem, fn) else jax.tree.map(lambda leaf: leaf[0], joined)


def blocks_of_results(
    problem: Problem,
    data: tuple[Any, AbstractGroups | None],
    draw: Callable[..., Any],
    fn: Any,
    seed: Any,
    numbers: np.ndarray,
) -> Iterator[Any]:
    """Yield what the function returns as arrays `(draw, group, ...)`, block of groups after block; one group of a flat model.

    `draw(name, numbers)` gives the draws of a factor of q, those of a local of these groups.
    """
    flat, source = data
    count, key = num_arguments(fn), fold(seed_key(seed), "predictions")
    numbers = numbers if is_by_group(problem, fn) else np.zeros(1, int)
    beta = {name: draw(name, numbers) for name in problem.globals}
    call = _caller(problem, fn, count, key)

    def arguments(own: np.ndarray) -> tuple[Any, ...]:
        rows = flat if source is None else source.take(own) if count > 1 else {}
        local = {name: draw(name, own) for name in problem.locals}
        num = len(next(iter((beta | local).values())))
        return beta, local, rows, jnp.asarray(own), jnp.arange(num, dtype=jnp.uint32)

    try:
        shapes = jax.tree.leaves(eqx.filter_eval_shape(call, *arguments(numbers[:1])))
    except jax.errors.JAXTypeError as error:
        error.add_note("The function is traced by JAX: write it with jnp, and draw its random numbers from the key.")
        raise
    size = max(1, _FLOATS_PER_BLOCK // max(1, sum(shape.size for shape in shapes)))
    compiled = program(call, **for_one_run())
    for own in np.array_split(numbers, -(-len(numbers) // size)):
        yield compiled(*arguments(own))


def _caller(problem: Problem, fn: Callable[..., Any], count: int, key: Any) -> Callable[..., Any]:
    flat = isinstance(problem.model, Model)

    def one(beta: Any, local: Any, row: Any, group: Any, draw: Any) -> Any:
        z = problem.members({**beta, **local})
        at = jax.random.wrap_key_data(jnp.asarray(fold(fold(key, group), draw)).reshape(2), impl="threefry2x32")
        return jax.tree.map(jnp.asarray, fn(*(z, row, at)[:count]))

    over_groups = jax.vmap(one, (None, 0, None if flat else 0, 0, None))
    return jax.vmap(over_groups, (0, 0, None, None, 0))


def _statistics(results: Any, ends: list[float]) -> Prediction:
    def of(leaf: Any) -> tuple[np.ndarray, ...]:
        x = np.asarray(leaf, np.float64)
        return x.mean(0), x.std(0, ddof=1), *np.quantile(x, ends, 0)

    leaves, tree = jax.tree.flatten(results)
    return Prediction(*(jax.tree.unflatten(tree, own) for own in zip(*map(of, leaves), strict=True)))


def num_arguments(fn: Callable[..., Any]) -> int:
    """Count how many of z, data and key the function takes."""
    if not callable(fn):
        raise TypeError(f"predict: expected a function of z, or of (z, data, key), got {type(fn).__name__}")
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(fn).parameters.values()
    needed = [p for p in parameters if p.kind in kinds and p.default is inspect.Parameter.empty]
    count = 3 if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters) else len(needed)
    if not 1 <= count <= 3:
        raise TypeError(
            f"predict: the function takes (z), (z, data) or (z, data, key); this one takes {count} arguments"
        )
    return count


def is_by_group(problem: Problem, fn: Callable[..., Any]) -> bool:
    """Whether the function is called for each group."""
    return not isinstance(problem.model, Model) and (bool(problem.locals) or num_arguments(fn) > 1)
