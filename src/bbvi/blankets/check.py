"""Checks around the first step: blankets that hold, padding that no term sees, and what was not finite."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bbvi.blankets.blankets import Blankets
from bbvi.model.groups import AbstractGroups, Cohort, first_row
from bbvi.model.problem import Problem, Terms, total
from bbvi.numerics.xla import for_one_run

_NUM_DRAWS = 2
_NUM_GROUPS = 4
_NUM_MOVES = 4
_SHARES = (0.5, 0.25, 0.1)


def check_padding(problem: Problem, blankets: Blankets, groups: Cohort) -> None:
    """Change padded latents and padded rows of a few groups: no term may move."""
    generator = np.random.default_rng(0)

    def padded_otherwise(z: Any, other: Any, groups: Cohort, group: Array) -> tuple[Any, Any, Any]:
        """A group's row, with other padded latents, and with other padded data."""
        row, own = groups.take(group), groups.lengths(group)
        mixed = {name: _beyond_length(problem, name, z[name], other[name], own) for name in z}
        return row, mixed, _other_padding(groups, row, own)

    otherwise = eqx.filter_jit(padded_otherwise, **for_one_run())
    # the same program each time, so that the same numbers give the same bits
    trace, site = blankets.group_trace, problem.no_call_site(_NUM_DRAWS)
    terms_at = jax.jit(lambda beta, z, row: trace.at_samples((beta | site, z | site), row, _NUM_DRAWS), **for_one_run())

    def values(names: Any) -> dict[str, Any]:
        return {
            name: np.moveaxis(problem.latents[name].some_values(problem.lengths, _NUM_DRAWS, generator), 0, -1)
            for name in names
        }

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


def check_blankets(problem: Problem, blankets: Blankets, data: Any, groups: AbstractGroups | None) -> None:
    """Move a few latent elements: no term outside their blankets may move."""
    generator = np.random.default_rng(0)
    moves: list[tuple[str, np.ndarray]] = []
    for name in problem.latents:
        size = int(np.prod(problem.shape(name)))
        moves += [(name, np.arange(size) == factor) for factor in generator.permutation(size)[:_NUM_MOVES]]
        # many at once: what reads none of them must not move
        moves += [(name, generator.random(size) < share) for share in _SHARES if size > _NUM_MOVES]
    values = {}
    for name, latent in problem.latents.items():
        base, other = latent.some_values(problem.lengths, 2, generator)
        columns = np.repeat(base[..., None], len(moves) + 1, axis=-1)
        flat = columns.reshape(int(np.prod(problem.shape(name))), *latent.event, len(moves) + 1)
        changed = other.reshape(flat.shape[:-1])
        for column, (moved, chosen) in enumerate(moves, start=1):
            if moved == name:
                flat[chosen, ..., column] = changed[chosen]
        values[name] = flat.reshape(columns.shape)
    site = problem.no_call_site(len(moves) + 1)
    beta = {name: values[name] for name in problem.globals} | site

    def prior(b: Any, d: Any) -> tuple[Terms, Terms]:
        trace, num = blankets.prior_trace, len(moves) + 1
        return blankets.prior_terms(b, d, num), trace.at_samples((b,), d, num)

    def group(b: Any, z: Any, row: Any) -> tuple[Terms, Terms]:
        trace, num = blankets.group_trace, len(moves) + 1
        return blankets.group_terms(b, z, row, num), trace.at_samples((b, z), row, num)

    terms, returned = eqx.filter_jit(prior, **for_one_run())(beta, data)
    _check_moves(terms, blankets.prior, moves, tuple(problem.opaque))
    _check_totals(terms, returned)
    if groups is not None:
        row = first_row(groups)
        z = {name: values[name] for name in problem.locals} | site
        terms, returned = jax.jit(group, **for_one_run())(beta, z, row)
        look_ups = blankets.look_ups, blankets.indices(row)
        _check_moves(terms, blankets.group, moves, tuple(problem.opaque), look_ups)
        _check_totals(terms, returned)


def _check_totals(terms: Terms, returned: Terms) -> None:
    """The terms must add up to what the function returned."""
    arrays, whole = jax.device_get((terms, returned))
    one, other = np.asarray(total(arrays), np.float64), np.asarray(total(whole), np.float64)
    size = total({name: np.abs(leaf) for name, leaf in arrays.items()})
    if not np.all((np.abs(one - other) <= 1e-3 * (1 + size)) | ~np.isfinite(other)):
        raise RuntimeError(
            f"the terms found in the log joint add up to {one[0]}, the function returns {other[0]}: "
            "does it hide state or randomness? If not, this is a bug in bbvi: please report it"
        )


def _check_moves(
    terms: Terms, part: Any, moves: list[tuple[str, np.ndarray]], opaque: tuple[str, ...], look_ups: Any = ({}, [])
) -> None:
    chosen, indices = look_ups
    for term, value in terms.items():
        flat = np.asarray(value).reshape(-1, len(moves) + 1)
        for column, (latent, mask) in enumerate(moves, start=1):
            # a loop that goes on until all elements are done rounds one by the others
            rounding = 1e-6 * np.max(np.abs(flat), where=np.isfinite(flat), initial=0)
            moved = ~np.isclose(flat[:, column], flat[:, 0], rtol=1e-5, atol=rounding, equal_nan=True)
            pattern = part.get(latent, {}).get(term)
            inside = pattern.readers(mask) if pattern is not None else np.zeros(len(flat), bool)
            for item in chosen.get(latent, []):
                if item.term == term:
                    inside = inside | (item.pairs(indices)[:, mask].sum(1) > 0)
            if (moved & ~inside).any():
                element = int(np.flatnonzero(moved & ~inside)[0])
                which = np.flatnonzero(mask)
                those = f"element {which[0]}" if len(which) == 1 else f"some of {len(which)} elements"
                seen = f"{term}, element {element}, changed with {those} of latent {latent!r}, which"
                if term.startswith(opaque):
                    raise RuntimeError(
                        f"{seen} it was not found to read: it reads more at some values than at others. Declare with "
                        "bbvi.opaque(fn, reads=...) all that its terms can read"
                    )
                raise RuntimeError(
                    f"{seen} its trace does not show: does the function hide state or randomness? If not, this is a bug in "
                    "bbvi, or in a rule added by bbvi.rule: please report it"
                )


def _beyond_length(problem: Problem, name: str, value: Any, other: Any, own: dict[str, Any]) -> Any:
    """`value` where the group is, `other` where its padding is."""
    keep = problem.locals[name].mask(problem.lengths, own)
    return jnp.where(keep.reshape(keep.shape + (1,) * (value.ndim - keep.ndim)), value, other)


def _other_padding(groups: Cohort, row: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    moved = dict(row)
    for name, axis in groups.axes.items():
        value = row[name]
        keep = (jnp.arange(value.shape[0]) < own[axis]).reshape(-1, *[1] * (value.ndim - 1))
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
