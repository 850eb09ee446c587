"""Section 4.2: the groups i = 1 .. n of a hierarchical model, as arrays, ragged lists or a source on disk."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bbvi.model.buckets import find_buckets
from bbvi.model.labels import Labels, Unseen
from bbvi.model.long_form import columns_of, split
from bbvi.model.numbers import is_number_list, named_leaves, refuse_nan, refuse_rounding, refuse_unfit
from bbvi.model.records import Records
from bbvi.numerics.xla import for_one_run


def missing(array: Any) -> tuple[np.ndarray, np.ndarray]:
    """Split an array with NaN for "not measured" into values (0 there) and a mask of what was observed.

    Examples:
        >>> import bbvi
        >>> bbvi.missing([1.5, float("nan")])
        (array([1.5, 0. ]), array([ True, False]))
    """
    values = np.asarray(array, dtype=float)
    observed = ~np.isnan(values)
    return np.where(observed, values, 0.0), observed


class AbstractGroups(eqx.Module):
    """Data of n groups; `take` gives the rows of some of them."""

    @abstractmethod
    def __len__(self) -> int: ...

    def padded(self) -> dict[str, int]:
        """Return the length to which each ragged axis is padded, if there are such axes."""
        return {}

    def lengths(self, indices: Any) -> dict[str, Array]:
        """Give each group's own length of each ragged axis."""
        return {}

    @abstractmethod
    def take(self, indices: Any) -> Any:
        """Take the rows of these groups, a pytree with leading axis `len(indices)`."""

    def extremes(self) -> Any:
        """Give a row whose fields have the smallest and the largest number of all groups, padding aside; None if unknown."""
        return None


class ArrayGroups(AbstractGroups):
    """Groups as a pytree of arrays with a common leading axis."""

    arrays: Any

    def __len__(self):
        return jax.tree.leaves(self.arrays)[0].shape[0]

    def take(self, indices):
        return jax.tree.map(lambda leaf: leaf[indices], self.arrays)

    def extremes(self):
        return jax.tree.map(lambda leaf: _extremes(leaf), self.arrays)


class Cohort(AbstractGroups):
    """Groups whose named axes differ in length, padded at the end with zeros; `axes` tells each field's axis.

    `bucket` is each group's bucket, and `buckets` their lengths, the longest last.
    """

    fields: dict[str, Any]
    own: dict[str, Array]
    bucket: Array
    buckets: tuple[dict[str, int], ...] = eqx.field(static=True)
    axes: dict[str, str] = eqx.field(static=True)
    labels: Unseen = eqx.field(static=True, default=Unseen(Labels()))

    def __len__(self):
        return next(iter(self.own.values())).shape[0]

    def __repr__(self):
        fields = []
        for name, field in self.fields.items():
            axes = [self.axes[name]] if name in self.axes else []
            for path, leaf in named_leaves(field):
                fields.append(f"{name}{path}({', '.join([*axes, *map(str, leaf.shape[1 + len(axes) :])])})")
        lengths = [f"{axis} of length {own.min()} to {own.max()}" for axis, own in self.own.items()]
        return f"Cohort of {len(self)} groups: {', '.join(fields)}; {', '.join(lengths)}"

    def padded(self):
        return dict(self.buckets[-1])

    def lengths(self, indices):
        return {axis: own[indices] for axis, own in self.own.items()}

    def take(self, indices):
        own = self.lengths(indices)
        mask = {axis: jnp.arange(longest) < own[axis][..., None] for axis, longest in self.padded().items()}
        return {**jax.tree.map(lambda leaf: leaf[indices], self.fields), "mask": mask, "length": own}

    def extremes(self):
        own, padded = jax.tree.map(np.asarray, self.own), self.padded()
        real = {axis: np.arange(padded[axis]) < own[axis][:, None] for axis in padded}
        fields = {name: _extremes(leaf, real.get(self.axes.get(name, ""))) for name, leaf in self.fields.items()}
        mask = dict.fromkeys(real, np.array([False, True]))
        return {**fields, "mask": mask, "length": jax.tree.map(_extremes, own)}


class Stream(AbstractGroups):
    """Groups fetched by index from a source that need not fit in memory."""

    source: Any = eqx.field(static=True)

    def __len__(self):
        return len(self.source)

    def take(self, indices):
        return self._checked(self.source[np.asarray(indices)], np.asarray(indices))

    def steps(self, indices: np.ndarray, coming: np.ndarray) -> Any:
        """Take the rows of several steps, `(steps, batch)`; those `coming` are read meanwhile, if the source can."""
        if not isinstance(self.source, Records):
            taken = [self.take(numbers) for numbers in indices]
            return jax.tree.map(lambda *leaves: np.stack(leaves), *taken)
        rows = self.source.steps(indices)
        self.source.ahead(coming)
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), rows)
        self._checked(flat, indices.ravel())
        return rows

    def steps_within(self, num_bytes: int, batch: int) -> int:
        """Count the steps whose rows take so much memory and are read in one go; 0 if each is asked for by itself."""
        return num_bytes // (self.source.bytes_per_group * max(1, batch)) if isinstance(self.source, Records) else 0

    def _checked(self, given: Any, indices: np.ndarray) -> Any:
        rows = jax.tree.map(as_numpy, given)
        for path, leaf in named_leaves(rows):
            if leaf.shape[:1] != (len(indices),):
                raise ValueError(
                    f"the data source was asked for {len(indices)} groups but row{path} has shape {leaf.shape}; "
                    "__getitem__(indices) must return arrays with leading axis len(indices)"
                )
        refuse_unfit(rows, "row", indices)
        return rows


def ragged(
    table: Any = None,
    /,
    *,
    by: str | None = None,
    order: str | None = None,
    group: Mapping[str, Any] | Sequence[str] | None = None,
    **axes: Mapping[str, Sequence[Any]],
) -> Cohort:
    """Collect groups of different lengths: for each named axis, fields as lists with one array per group.

    A row then has each field, padded at the end, with `row["mask"][axis]` and `row["length"][axis]`.

    From a DataFrame of pandas or polars, or an xarray Dataset, with one row for each observation: `by` names the column that tells the
    group, `order` the one by which a group's rows are put in order, which names the axis too ("row" without). Columns that are the same
    in all rows of each group are fields of the group, with a warning where that may be chance, or those that `group=` lists. NaN in a column `labs` means not observed: it
    becomes 0, with `row["labs_observed"]`. Groups keep their keys as names.

    Examples:
        >>> import bbvi
        >>> cohort = bbvi.ragged(visit={"labs": [[1.0, 2.0], [3.0]]}, group={"age": [61.0, 48.0]})
        >>> cohort
        Cohort of 2 groups: age(), labs(visit); visit of length 1 to 2
        >>> cohort.take(1)["labs"], cohort.take(1)["mask"]["visit"]
        (Array([3., 0.], dtype=float32), Array([ True, False], dtype=bool))
        >>> import pandas as pd
        >>> table = pd.DataFrame({"patient": ["b", "a", "b"], "day": [2, 1, 1], "labs": [2.0, 3.0, 1.0], "age": [61, 48, 61]})
        >>> cohort = bbvi.ragged(table, by="patient", order="day")
        >>> cohort.take(1)["labs"], cohort.take(1)["age"]
        (Array([1., 2.], dtype=float32), Array(61, dtype=int32))
    """
    labels = Labels()
    if table is not None:
        axis = order or "row"
        if by is None or axes:
            raise TypeError(
                "bbvi.ragged takes a table with by=, the column that tells the group, or axes by name, not both"
            )
        keys, within, own = split(columns_of(table), by, order, group if group is None else list(group))
        if not within:
            raise ValueError(
                "bbvi.ragged: no column differs within a group; pass the table itself, with one row for each group"
            )
        axes, group, labels = {axis: within}, own, Labels({}, {by: keys}, by)
    elif by is not None or order is not None:
        raise TypeError("bbvi.ragged: by= and order= are for a table, which comes first: bbvi.ragged(table, by=...)")
    if group is not None and not isinstance(group, Mapping):
        raise TypeError(f"bbvi.ragged: group= takes a dict of fields, got {type(group).__name__}")
    if not axes:
        raise ValueError('bbvi.ragged needs at least one named axis, for example visit={"labs": [...]}')
    own = {axis: _lengths(axis, columns) for axis, columns in axes.items()}
    listed = [(axis, name, lists) for axis, columns in axes.items() for name, lists in columns.items()]
    names = ["mask", "length", *(name for _, name, _ in listed), *(group or {})]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"bbvi.ragged: the field name {name!r} is taken; choose another")
    fields: dict[str, Any] = jax.tree.map(as_numpy, dict(group or {}), is_leaf=is_number_list)
    refuse_unfit(fields, "cohort")
    leaves = [(f"group field {name!r}{path}", x.shape) for name in fields for path, x in named_leaves(fields[name])]
    _check_number_of_groups([*((f"{axis}.{name}", (len(lists),)) for axis, name, lists in listed), *leaves])
    buckets, bucket = find_buckets(own)
    fields |= {name: _pad(lists, buckets[-1][axis], axis, name) for axis, name, lists in listed}
    arrays, lengths, of_bucket = jax.tree.map(jnp.asarray, (fields, own, bucket))
    axis_of = {name: axis for axis, name, _ in listed}
    return Cohort(arrays, lengths, of_bucket, buckets, axis_of, Unseen(labels))


def _extremes(leaf: Any, real: np.ndarray | None = None) -> np.ndarray:
    values = np.asarray(leaf)
    values = values if real is None else values[real]
    return np.array([values.min(), values.max()]) if values.size else np.zeros(2)


def cut_rows(rows: Any, axes: Mapping[str, str], lengths: Mapping[str, int]) -> Any:
    """Cut each field of a cohort's rows to the length of its axis."""
    mask = {axis: leaf[:, : lengths[axis]] for axis, leaf in rows["mask"].items()}
    return {**rows, **{name: rows[name][:, : lengths[axis]] for name, axis in axes.items()}, "mask": mask}


def first_row(groups: AbstractGroups) -> Any:
    """Take one group's row, to see what it is like."""
    return _first_row(groups) if isinstance(groups, Stream) else eqx.filter_jit(_first_row, **for_one_run())(groups)


def row_shapes(groups: AbstractGroups, lengths: Mapping[str, int] | None = None) -> Any:
    """Find the shapes of one group's row, with the ragged axes of a cohort cut to these lengths."""
    if isinstance(groups, Stream):
        return _first_row(groups)
    return eqx.filter_eval_shape(lambda groups: _first_row(groups, lengths), groups)


def _first_row(groups: AbstractGroups, lengths: Mapping[str, int] | None = None) -> Any:
    rows = groups.take(np.array([0]))
    if lengths is not None and isinstance(groups, Cohort):
        rows = cut_rows(rows, groups.axes, lengths)
    return jax.tree.map(lambda leaf: leaf[0], rows)


def as_groups(data: Any) -> AbstractGroups:
    """Understand the `data=` of a hierarchical model."""
    if isinstance(data, AbstractGroups):
        groups = data
    elif isinstance(data, (dict, list, tuple)) or hasattr(data, "__array__"):
        arrays = jax.tree.map(as_numpy, data, is_leaf=is_number_list)
        if not jax.tree.leaves(arrays):
            raise ValueError("data is empty: it has no arrays")
        _check_number_of_groups([(f"data{path}", leaf.shape) for path, leaf in named_leaves(arrays)])
        refuse_unfit(arrays, "data")
        groups = ArrayGroups(jax.tree.map(jnp.asarray, arrays))
    elif hasattr(data, "__len__") and hasattr(data, "__getitem__"):
        groups = Stream(data)
    else:
        raise TypeError(
            f"data of a HierarchicalModel must be arrays with one entry per group, bbvi.ragged(...), or an object "
            f"with __len__ and __getitem__(indices); got {type(data).__name__}"
        )
    if len(groups) == 0:
        raise ValueError("data has no groups: nothing to fit")
    return groups


def as_numpy(leaf: Any) -> np.ndarray:
    """Make an array of numbers of a leaf of the data, or refuse it."""
    array = np.asarray(leaf)
    if array.dtype.kind not in "bifu":
        raise TypeError(f"data must be numbers, got {array.dtype} in {type(leaf).__name__}")
    return array


def _check_number_of_groups(shapes: list[tuple[str, tuple[int, ...]]]) -> None:
    for name, shape in shapes:
        if not shape:
            raise ValueError(f"{name} is a single number; each array needs one entry per group on its first axis")
    if len({shape[0] for _, shape in shapes}) > 1:
        listed = ", ".join(f"{name}: {shape[0]}" for name, shape in shapes)
        raise ValueError(f"the data disagree on the number of groups (the first axis of arrays): {listed}")


def _lengths(axis: str, columns: Mapping[str, Sequence[Any]]) -> np.ndarray:
    if not isinstance(columns, Mapping) or not columns:
        raise TypeError(f'bbvi.ragged: {axis}= takes a dict of fields, for example {axis}={{"labs": [...]}}')
    for name, arrays in columns.items():
        for i, array in enumerate(arrays):
            if np.ndim(array) == 0:
                raise ValueError(
                    f"bbvi.ragged: {axis}.{name} has a single number for group {i}; give one array per group, or, "
                    f"if every group has one number, group={{{name!r}: [...]}}"
                )
    lengths = {name: [len(a) for a in arrays] for name, arrays in columns.items()}
    first_name, first = next(iter(lengths.items()))
    if not first:
        raise ValueError(f"bbvi.ragged: {axis}.{first_name} is empty: no groups")
    for name, other in lengths.items():
        for i, (a, b) in enumerate(zip(first, other, strict=False)):
            if a != b:
                raise ValueError(f"bbvi.ragged: group {i}: {axis}.{first_name} has length {a}, {axis}.{name} has {b}")
    return np.asarray(first)


def _pad(given: Sequence[Any], longest: int, axis: str, name: str) -> np.ndarray:
    arrays = [as_numpy(array) for array in given]
    rests = {a.shape[1:] for a in arrays if len(a)}
    if len(rests) > 1:
        raise ValueError(
            f"bbvi.ragged: {axis}.{name}: groups disagree on the shape after the first axis: {sorted(rests)}"
        )
    out = np.zeros((len(arrays), longest, *next(iter(rests), ())), np.result_type(*arrays))
    for row, array in zip(out, arrays, strict=True):
        if len(array):
            row[: len(array)] = array
    refuse_nan(out, f"cohort[{name!r}]")
    refuse_rounding(np.concatenate([array for array in arrays if len(array)] or [out]), f"cohort[{name!r}]")
    return out
