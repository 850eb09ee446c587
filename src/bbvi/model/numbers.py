"""Refuse numbers in data that would reach the model as other numbers."""

from typing import Any

import jax
import numpy as np

#: a column may be rounded by this share of its spread
_MOST_ROUNDING = 1e-3
#: rows that tell of a column; with fewer, all numbers are looked at together
_FEW = 10
_REMEDY = "centre it or rescale it before the fit, or ask for 64 bits by jax.config.update('jax_enable_x64', True)"


def is_number_list(node: Any) -> bool:
    """Tell whether a list is an array written as a list, and not a list of arrays."""
    return isinstance(node, list) and all(isinstance(item, (int, float, list)) for item in node)


def named_leaves(tree: Any) -> list[tuple[str, Any]]:
    """List the leaves of a tree with the paths to them."""
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def refuse_unfit(tree: Any, name: str, groups: np.ndarray | None = None) -> None:
    """Raise on NaN and on numbers that the device's types would change; `groups` are those of a batch, if it is one."""
    for path, leaf in named_leaves(tree):
        if isinstance(leaf, np.ndarray):
            refuse_nan(leaf, name + path, groups)
            # a batch says little of how a column is spread
            (refuse_rounding if groups is None else refuse_overflow)(leaf, name + path)


def refuse_nan(values: np.ndarray, name: str, groups: np.ndarray | None = None) -> None:
    """Raise on NaN, naming where it is."""
    if values.dtype.kind == "f" and values.size and np.isnan(values.min()):
        where = tuple(int(i) for i in np.argwhere(np.isnan(values))[0])
        at = f"at index {where}" if groups is None else f"in group {groups[where[0]]}"
        raise ValueError(
            f"{name} holds NaN, first {at}; if it means 'not measured', use "
            "values, observed = bbvi.missing(array) and mask those terms with observed"
        )


def refuse_rounding(values: np.ndarray, name: str) -> None:
    """Raise if integers do not fit the device's type, or if rounding loses the differences within a column of floats.

    Examples:
        >>> import numpy as np
        >>> refuse_rounding(np.array([1_700_000_000_000, 1_700_000_060_000]), "data['time']")
        Traceback (most recent call last):
        ...
        ValueError: data['time'] holds 1700000000000, which int32 cannot hold; centre it or rescale it before the fit, or \
ask for 64 bits by jax.config.update('jax_enable_x64', True)
    """
    refuse_overflow(values, name)
    kept = jax.dtypes.canonicalize_dtype(values.dtype)
    if kept == values.dtype or values.dtype.kind != "f" or values.size < 3:
        return
    shape = (len(values), -1) if len(values) >= _FEW else (-1, 1)
    columns = np.where(np.isfinite(values), values, np.nan).reshape(shape)
    columns = columns[:, np.isfinite(columns).any(0)]
    spread, largest = np.nanmax(columns, 0) - np.nanmin(columns, 0), np.nanmax(np.abs(columns), 0)
    step = np.spacing(largest.astype(kept)).astype(float)
    # what differs by the rounding of a double is meant to be equal
    lost = (spread > 2.0**-40 * largest) & (step > _MOST_ROUNDING * spread)
    if lost.any():
        column = int(np.argmax(lost))
        where = f" in column {column}" if lost.size > 1 else ""
        raise ValueError(
            f"{name} has values near {largest[column]:g} that differ by {spread[column]:.3g} at most{where}, and {kept} "
            f"rounds them to multiples of {step[column]:.3g}; {_REMEDY}"
        )


def refuse_overflow(values: np.ndarray, name: str) -> None:
    """Raise if a number is beyond what the device's type can hold."""
    kept = jax.dtypes.canonicalize_dtype(values.dtype)
    if kept == values.dtype or values.dtype.kind not in "iuf":
        return
    limits = np.iinfo(kept) if values.dtype.kind in "iu" else np.finfo(kept)
    too_large = np.isfinite(values) & ((values > limits.max) | (values < limits.min))
    if too_large.any():
        raise ValueError(f"{name} holds {values[too_large].flat[0]}, which {kept} cannot hold; {_REMEDY}")
