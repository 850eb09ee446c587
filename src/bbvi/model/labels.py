"""The names of axes, and of the entries along them, that data from pandas, polars and xarray bring along."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np


class Labels(NamedTuple):
    """The names of each field's axes, and the entries along axes that have names; `group` names the axis of groups."""

    dims: Mapping[str, tuple[str, ...]] = {}
    coords: Mapping[str, Any] = {}
    group: str = "group"


class Unseen:
    """Labels as a setting of a pytree that no program depends on: all are equal."""

    def __init__(self, labels: Labels):
        self.labels = labels

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unseen)

    def __hash__(self) -> int:
        return 0


def field_name(path: tuple[Any, ...]) -> str:
    """Name a leaf of the data by the path to it: y, data_0, age_mean.

    Examples:
        >>> import jax
        >>> [field_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(({"y": 1}, 2))]
        ['data_0_y', 'data_1']
        >>> field_name(())
        'data'
    """
    words = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path]
    return "_".join([*(["data"] if not words or words[0].isdigit() else []), *words])


def is_frame(data: Any) -> bool:
    """Tell whether data are a table with named columns, of pandas or polars."""
    return hasattr(data, "columns") and hasattr(data, "shape") and hasattr(data, "to_numpy")


def is_data_set(data: Any) -> bool:
    """Tell whether data are arrays by name, of xarray."""
    return hasattr(data, "data_vars")


def by_name(data: Any) -> Any:
    """Turn the tables and data sets in data into dicts of arrays."""

    def convert(leaf: Any) -> Any:
        if is_frame(leaf):
            return {str(name): leaf[name].to_numpy() for name in leaf.columns}
        return {str(name): x.values for name, x in leaf.data_vars.items()} if is_data_set(leaf) else leaf

    return jax.tree.map(convert, data, is_leaf=lambda leaf: is_frame(leaf) or is_data_set(leaf))


def labels_of(data: Any) -> Labels:
    """Collect the names of axes that data bring along."""
    dims: dict[str, tuple[str, ...]] = {}
    coords: dict[str, Any] = {}

    def note(name: str, axes: tuple[Any, ...], entries: Mapping[Any, Any]) -> None:
        dims[name] = tuple(map(str, axes))
        coords.update({str(axis): np.asarray(entries[axis]) for axis in axes if axis in entries})

    is_leaf = lambda leaf: is_frame(leaf) or is_data_set(leaf) or hasattr(leaf, "coords") or hasattr(leaf, "index")  # noqa: E731
    for path, leaf in jax.tree_util.tree_leaves_with_path(
        data, is_leaf=lambda x: not isinstance(x, (list, tuple, dict)) and is_leaf(x)
    ):
        name = field_name(path)
        if is_data_set(leaf):
            for own, x in leaf.data_vars.items():
                note(str(own), x.dims, {axis: x.coords[axis].values for axis in x.dims if axis in x.coords})
        elif hasattr(leaf, "coords") and hasattr(leaf, "dims"):
            note(name, leaf.dims, {axis: leaf.coords[axis].values for axis in leaf.dims if axis in leaf.coords})
        elif hasattr(leaf, "index") and hasattr(leaf, "to_numpy"):  # pandas
            axis = leaf.index.name or "row"
            for own in map(str, leaf.columns) if is_frame(leaf) else [name]:
                note(own, (axis,), {axis: leaf.index.to_numpy()})
    return Labels(dims, coords)
