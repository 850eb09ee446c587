"""Components that can change places: permutations of latents that leave log p as it is, so that every optimum has copies."""

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from bbvi.blankets.blankets import Blankets
from bbvi.families import Joined
from bbvi.families.charts import AbstractCategoryVectors, Binary, Categories
from bbvi.model.problem import Problem, total
from bbvi.numerics.xla import for_one_run, program

_MOST_COMPONENTS, _MOST_TRIALS, _POINTS = 50, 64, 2
_ROUNDING = 1e-5


class Exchangeable(NamedTuple):
    """So many components, and the latents that have them: as entries along an axis, or as the codes of categories."""

    num: int
    latents: tuple[str, ...]


class _Place(NamedTuple):
    """Where a latent has components: an axis of its values, or None for its codes."""

    latent: str
    axis: int | None

    def permuted(self, values: np.ndarray, order: np.ndarray) -> np.ndarray:
        """Let the component at `order[k]` take place k, in values with points first."""
        return np.argsort(order)[values] if self.axis is None else np.take(values, order, self.axis + 1)


def exchangeable(problem: Problem, blankets: Blankets, data: Any, row: Any) -> list[Exchangeable]:
    """Find, for each number of components, the most latents that can permute them together without changing log p.

    A swap of the first two and a turn of all make up every permutation. log p is compared before and after at random values.
    """
    if problem.opaque:
        return []

    def log_p(latents: tuple[Any, ...], data: Any, row: Any) -> Any:
        terms = blankets.prior.trace.at_samples(latents[:1], data, 3 * _POINTS)
        if blankets.group is not None:
            terms = terms | blankets.group.trace.at_samples(latents, row, 3 * _POINTS)
        return total(terms), total(jax.tree.map(abs, terms))

    compiled, generator = program(log_p, **for_one_run()), np.random.default_rng(0)
    base = {n: np.asarray(x.some_values(problem.lengths, _POINTS, generator)) for n, x in problem.latents.items()}

    def stays(places: tuple[_Place, ...], num: int) -> bool:
        orders = np.roll(np.arange(num), 1), np.array([1, 0, *range(2, num)])
        versions = [base, dict(base), dict(base)]
        for version, order in zip(versions[1:], orders, strict=True):
            for place in places:
                version[place.latent] = place.permuted(version[place.latent], order)
        values = {n: np.moveaxis(np.concatenate([version[n] for version in versions]), 0, -1) for n in base}
        parts = [
            {n: values[n] for n in part} | problem.no_call_site(3 * _POINTS)
            for part in (problem.globals, problem.locals)
        ]
        sums, sizes = (
            np.asarray(leaf, float).reshape(3, _POINTS) for leaf in jax.device_get(compiled(tuple(parts), data, row))
        )
        return bool(np.isfinite(sums).all() and (abs(sums - sums[0]) <= _ROUNDING * (1 + sizes)).all())

    by_size: dict[int, list[_Place]] = {}
    for place, num in _places(problem):
        if 2 <= num <= _MOST_COMPONENTS:
            by_size.setdefault(num, []).append(place)
    found = []
    for num, places in by_size.items():
        subsets = itertools.chain(*(itertools.combinations(places, k) for k in range(len(places), 0, -1)))
        some = itertools.islice(subsets, _MOST_TRIALS)
        if (largest := next((one for one in some if stays(one, num)), None)) is not None:
            found.append(Exchangeable(num, tuple(dict.fromkeys(place.latent for place in largest))))
    return found


def _places(problem: Problem) -> Iterator[tuple[_Place, int]]:
    for name, latent in problem.latents.items():
        chart, shape = latent.family.chart, problem.shape(name)
        if isinstance(chart, Joined):
            continue  # a block's numbers stand in one vector
        yield from ((_Place(name, axis), size) for axis, size in enumerate(shape))
        if isinstance(chart, AbstractCategoryVectors):
            yield _Place(name, len(shape)), chart.k
        elif isinstance(chart, (Binary, Categories)):
            yield _Place(name, None), len(chart.values())
