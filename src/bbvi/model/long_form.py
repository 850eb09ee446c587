"""Tables with a row for each visit of each patient, from pandas, polars or xarray, as groups of different lengths."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bbvi.model.labels import by_name, is_data_set, is_frame

Columns = dict[str, np.ndarray]

#: how likely it may be, at the most, that a column is the same within groups because its values happened to fall so
_MOST_CHANCE = 0.01


def columns_of(table: Any) -> Columns:
    """Return the columns of a table by name."""
    if not (is_frame(table) or is_data_set(table)):
        raise TypeError(
            f"bbvi.ragged: by= is for a DataFrame or an xarray Dataset in long form, got {type(table).__name__}"
        )
    columns = by_name(table)
    if any(np.ndim(x) == 0 for x in columns.values()) or len({len(x) for x in columns.values()}) > 1:
        raise ValueError("bbvi.ragged: a table in long form has one row for each observation in all its columns")
    return columns


def split(
    columns: Columns, by: str, order: str | None, group: Sequence[str] | None
) -> tuple[np.ndarray, dict[str, list[np.ndarray]], Mapping[str, np.ndarray]]:
    """Cut columns into groups: the groups' keys, the columns that differ within groups, and those that do not."""
    for name in filter(None, (by, order, *(group or ()))):
        if name not in columns:
            raise ValueError(f"bbvi.ragged: there is no column {name!r}; the columns are {sorted(columns)}")
    keys = columns[by]
    if any(key is None or key != key for key in keys.tolist()):
        raise ValueError(f"bbvi.ragged: rows without a key in {by!r}: drop them, or give them one")
    labels, number = np.unique(keys, return_inverse=True)
    rows = np.argsort(number, kind="stable") if order is None else np.lexsort((columns[order], number))
    number = number[rows]
    starts = np.flatnonzero(np.r_[True, number[1:] != number[:-1]])
    within: dict[str, list[np.ndarray]] = {}
    own: Columns = {}
    doubtful = []
    for name, column in columns.items():
        if name == by:
            continue
        values = column[rows]
        if values.dtype.kind not in "biuf":
            try:
                if values.dtype.kind in "mM":
                    raise TypeError
                values = values.astype(float)  # numbers among which some are missing
            except (TypeError, ValueError):
                if name == order:
                    continue  # by dates rows are only put in order
                raise TypeError(
                    f"bbvi.ragged: column {name!r} holds {column.dtype}, and data must be numbers: encode it, or drop it"
                ) from None
        first = values[starts][number]
        constant = bool(np.all((values == first) | ((values != values) & (first != first))))
        if group is not None and name in group and not constant:
            raise ValueError(f"bbvi.ragged: group= names {name!r}, which is not the same in all rows of a group")
        is_own = name != order and len(starts) < len(rows) and constant if group is None else name in group
        doubtful += [name] if is_own and group is None and _chance(values, number) > _MOST_CHANCE else []
        for field, array in _observed(name, values).items():
            if is_own:
                own[field] = array[starts]
            else:
                within[field] = np.split(array, starts[1:])
    if doubtful:
        warnings.warn(
            f"bbvi.ragged takes {doubtful} as columns of the groups, since they are the same in all rows of each {by!r}; with so few rows, or "
            f"so few values, that may be chance: say group={doubtful} if they are, or list in group= those that are",
            stacklevel=3,
        )
    return labels, within, own


def _chance(values: np.ndarray, number: np.ndarray) -> float:
    """Return how likely it is that a column is the same within groups, if its values fall on rows independently of these."""
    shares = np.unique(values, return_counts=True)[1] / len(values)
    lengths, times = np.unique(np.bincount(number), return_counts=True)
    return float(np.prod([np.sum(shares**length) ** num for length, num in zip(lengths, times, strict=True)]))


def _observed(name: str, values: np.ndarray) -> Columns:
    """Split a column with NaN for what is missing into values and what was observed."""
    absent = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), bool)
    if not absent.any():
        return {name: values}
    return {name: np.where(absent, 0, values), f"{name}_observed": ~absent}
