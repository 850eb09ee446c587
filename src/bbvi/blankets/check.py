"""Checks around the first step: blankets that hold, padding that no term sees, and what was not finite."""

from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bbvi.blankets.blankets import Blankets
from bbvi.blankets.patterns import readers
from bbvi.blankets.scope import Scope
from bbvi.model.groups import AbstractGroups, Cohort, first_row
from bbvi.model.latents import Latent
from bbvi.model.problem import Problem, Terms
from bbvi.numerics.xla import for_one_run, program

_NUM_DRAWS = 2
_NUM_GROUPS = 4
_NUM_MOVES = 4
_SHARES = (0.5, 0.25, 0.1)


def _check_padding(problem: Problem, blankets: Blankets, groups: Cohort) -> None:
    """Change padded latents and padded rows of a few groups, and raise if a term moves."""
    generator = np.random.default_rng(0)

    def padded_otherwise(z: Any, other: Any, groups: Cohort, group: Array) -> tuple[Any, Any, Any]:
        """Return a group's row, other padded latents, and the row with other padded data."""
        row, own = groups.take(group), groups.lengths(group)
        keep = {name: problem.locals[name].mask(problem.lengths, own) for name in z}
        mixed = {name: jnp.where(_along(keep[name], value), value, other[name]) for name, value in z.items()}
        return row, mixed, _other_padding(groups, row, own)

    otherwise = program(padded_otherwise, **for_one_run())
    # the same program each time, so that the same numbers give the same bits
    trace, site = blankets.of_group.trace, problem.no_call_site(_NUM_DRAWS)
    terms_at = jax.jit(lambda beta, z, row: trace.at_samples((beta | site, z | site), row, _NUM_DRAWS), **for_one_run())

    def values(latents: Mapping[str, Latent]) -> dict[str, Any]:
        drawn = {name: x.some_values(problem.lengths, _NUM_DRAWS, generator) for name, x in latents.items()}
        return {name: np.moveaxis(value, 0, -1) for name, value in drawn.items()}

    beta = values(problem.globals)
    own_lengths = groups.lengths(np.arange(problem.num_groups)).values()
    # the groups with most padding on each axis: a full one could not show that its padding is read
    shortest = [np.argsort(np.asarray(own), kind="stable")[:_NUM_GROUPS] for own in own_lengths]
    for group in np.unique(np.concatenate(shortest)):
        z = values(problem.locals)
        row, mixed, moved = otherwise(z, values(problem.locals), groups, jnp.asarray(group))
        terms, axis = terms_at(beta, z, row), next(iter(groups.padded()))
        _check_same(terms, terms_at(beta, mixed, row), int(group), "latents", axis)
        _check_same(terms, terms_at(beta, z, moved), int(group), "data", axis)


def check_blankets(problem: Problem, blankets: Blankets, data: Any, groups: AbstractGroups | None) -> bool:
    """Move a few latent elements, and raise if a term outside of their blankets moves; and padding, which no term may see.

    Return whether all terms were finite at these values.
    """
    generator, all_finite = np.random.default_rng(0), True
    moves: list[tuple[str, np.ndarray]] = []
    for name in problem.latents:
        size = int(np.prod(problem.shape(name)))
        moves += [(name, np.arange(size) == factor) for factor in generator.permutation(size)[:_NUM_MOVES]]
        # many at once: what reads none of them must not move
        moves += [(name, generator.random(size) < share) for share in _SHARES if size > _NUM_MOVES]
    num, values = len(moves) + 1, {}
    for name, latent in problem.latents.items():
        base, other = latent.some_values(problem.lengths, 2, generator)
        none = np.zeros(int(np.prod(problem.shape(name))), bool)
        masks = np.stack([none, *(mask if moved == name else none for moved, mask in moves)], -1)
        masks = masks.reshape(*problem.shape(name), *[1] * len(latent.event), num)
        values[name] = np.where(masks, other[..., None], base[..., None])
    parts = [{name: values[name] for name in part} for part in (problem.globals, problem.locals)]
    beta, own = (part | problem.no_call_site(num) for part in parts)
    for scope in blankets.scopes:
        constant = data if groups is None or not scope.of_groups else first_row(groups)

        def both(latents: tuple[Any, ...], constant: Any, scope: Scope = scope) -> tuple[Terms, Terms]:
            terms = scope.at_samples(latents[0] | latents[-1], constant, num)
            return terms, scope.trace.at_samples(latents, constant, num)

        latents = (beta, own) if scope.of_groups else (beta,)
        terms, returned = program(both, **for_one_run())(latents, constant)
        _check_moves(terms, scope, moves, constant)
        all_finite &= all(bool(np.isfinite(leaf).all()) for leaf in terms.values())
        _check_totals(scope, terms, returned, latents, constant)
    if isinstance(groups, Cohort):
        _check_padding(problem, blankets, groups)
    return all_finite


def _check_totals(scope: Scope, terms: Terms, returned: Terms, latents: tuple[Any, ...], constant: Any) -> None:
    """Raise if the terms do not add up to what the function returned, within what its sums may have rounded."""
    arrays, whole = jax.device_get((terms, returned))
    one, other, size = _total(arrays.values()), _total(whole.values()), _total(map(np.abs, arrays.values()))
    num = sum(leaf.size for leaf in arrays.values()) / len(one)
    tolerance = 1e-3 + num * jnp.finfo(jnp.result_type(float)).eps / 2  # of numbers that are added one by one
    apart = np.abs(np.subtract(one, other, where=np.isfinite(other), out=np.zeros_like(other)))
    wrong = np.isfinite(other) & ~(apart <= tolerance * (1 + size))
    if wrong.any():
        at_one = jax.tree.map(lambda leaf: jnp.asarray(leaf)[..., 0], latents)
        wrong &= ~(apart <= tolerance * (1 + size + scope.split.size_of_constants(*at_one, constant)))
    if wrong.any():
        which = np.flatnonzero(wrong)[0]
        raise RuntimeError(
            f"the terms found in the log joint add up to {one[which]}, the function returns {other[which]}: "
            "does it hide state or randomness? If not, this is a bug in bbvi: please report it"
        )


def _total(arrays: Iterable[np.ndarray]) -> np.ndarray:
    """Sum of everything, for each sample, in double precision."""
    return np.sum([leaf.reshape(-1, leaf.shape[-1]).sum(0, dtype=np.float64) for leaf in arrays], 0)


def _check_moves(terms: Terms, scope: Scope, moves: list[tuple[str, np.ndarray]], constant: Any) -> None:
    """Raise if a term has moved outside of the blankets of the elements that were moved."""
    indices = scope.indices(constant) if scope.look_ups else []
    for term, value in terms.items():
        flat = np.asarray(value).reshape(-1, len(moves) + 1)
        for column, (latent, mask) in enumerate(moves, start=1):
            # a loop that goes on until all elements are done rounds one by the others
            rounding = 1e-6 * np.max(np.abs(flat), where=np.isfinite(flat), initial=0)
            moved = ~np.isclose(flat[:, column], flat[:, 0], rtol=1e-5, atol=rounding, equal_nan=True)
            inside = np.zeros(len(flat), bool)
            if (pattern := scope.patterns.get(latent, {}).get(term)) is not None:
                inside = readers(pattern, mask)
            elif (item := scope.look_ups.get(latent, {}).get(term)) is not None:
                inside = item.pairs(indices)[:, mask].sum(1) > 0
            if (moved & ~inside).any():
                element = int(np.flatnonzero(moved & ~inside)[0])
                which = np.flatnonzero(mask)
                those = f"element {which[0]}" if len(which) == 1 else f"some of {len(which)} elements"
                why = "its trace does not show: does the function hide state or randomness? If not, this is a bug in bbvi, "
                why += "or in a rule added by bbvi.rule: please report it"
                if term.startswith(tuple(scope.problem.opaque)):
                    why = "it was not found to read: it reads more at some values than at others. Declare with "
                    why += "bbvi.opaque(fn, reads=...) all that its terms can read"
                raise RuntimeError(f"{term}, element {element}, changed with {those} of latent {latent!r}, which {why}")


def _along(keep: Array, value: Array) -> Array:
    """Repeat a mask over the last axes of a value."""
    return keep.reshape(keep.shape + (1,) * (value.ndim - keep.ndim))


def _other_padding(groups: Cohort, row: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    moved = dict(row)
    for name, axis in groups.axes.items():
        value = row[name]
        keep = _along(jnp.arange(value.shape[0]) < own[axis], value)
        other = ~value if value.dtype == bool else value + jnp.ones((), value.dtype)
        moved[name] = jnp.where(keep, value, other)
    return moved


def _check_same(terms: Terms, moved: Terms, group: int, what: str, axis: str) -> None:
    for name, term in terms.items():
        if not np.array_equal(np.asarray(term), np.asarray(moved[name]), equal_nan=True):
            raise ValueError(
                f"{name} changes with the padded {what} of group {group}: padding is counted as if it were data. Mask "
                f'the term before it is summed: jnp.where(row["mask"][{axis!r}], term, 0), with [:, None] for each further axis'
            )
