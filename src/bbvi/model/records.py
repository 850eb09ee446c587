"""Section 4.2: groups in files larger than memory, laid out so that a batch of any groups is read fast."""

import hashlib
import itertools
import tempfile
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

_ROWS_PER_BLOCK = 1 << 16
#: rows that a source is known by, and by what they are spread: multiples of the golden ratio
_PROBES, _GOLDEN = 64, 0x9E3779B97F4A7C15


class Records:
    """Groups as records of a file that the system maps into memory; `records[indices]` gives a dict of arrays.

    What a fit will ask for next, it announces by `ahead`: a thread reads it while steps are made.
    """

    def __init__(
        self, table: np.ndarray, folder: tempfile.TemporaryDirectory | None = None, checksum: str | None = None
    ):
        self._table, self._folder, self._checksum = table, folder, checksum
        self._lock = threading.Lock()
        self._reader = ThreadPoolExecutor(1, "bbvi-records")
        self._next: tuple[np.ndarray, Future] | None = None

    def __len__(self) -> int:
        return len(self._table)

    @property
    def bytes_per_group(self) -> int:
        """The size of a row."""
        return self._table.dtype.itemsize

    def identity(self) -> str | None:
        """Return a checksum of all rows, wherever the file was; None if they did not come from one."""
        return self._checksum

    def __repr__(self) -> str:
        return f"Records({len(self)} groups, fields {list(self._table.dtype.names or ())})"

    def __getitem__(self, indices: Any) -> dict[str, np.ndarray]:
        rows = self._table[np.asarray(indices)]
        return {name: np.ascontiguousarray(rows[name]) for name in rows.dtype.names}

    def ahead(self, indices: np.ndarray) -> None:
        """Begin to read the groups of coming steps, `(steps, batch)`."""
        with self._lock:
            self._next = indices, self._reader.submit(self.__getitem__, indices)

    def steps(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Read the groups of several steps, `(steps, batch)`: what was announced, and the rest now."""
        with self._lock:
            expected, self._next = self._next, None
        if expected is None:
            return self[indices]
        announced, future = expected
        num = min(len(announced), len(indices))
        if not np.array_equal(announced[:num], indices[:num]):
            return self[indices]
        early = {name: x[:num] for name, x in future.result().items()}
        if num == len(indices):
            return early
        late = self[indices[num:]]
        return {name: np.concatenate([x, late[name]]) for name, x in early.items()}


def identity_of(source: Any) -> str | None:
    """Return what a source says of itself, if it does: another text for other rows."""
    own = getattr(source, "identity", None)
    return str(own()) if callable(own) else None


def probes(num: int) -> np.ndarray:
    """Number the rows that stand for a source: all of a short one, else one from each of as many parts, the first and the last among them.

    Examples:
        >>> probes(10**6)[[0, 1, 2, -1]].tolist()
        [0, 19313, 44595, 999999]
    """
    if num <= _PROBES:
        return np.arange(num)
    ends = [k * num // _PROBES for k in range(_PROBES + 1)]
    parts = enumerate(itertools.pairwise(ends), 1)
    inner = [begin + ((k * _GOLDEN % (1 << 64)) * (end - begin) >> 64) for k, (begin, end) in parts]
    return np.array([0, *inner[1:-1], num - 1])


def stream(path: Any, *, fields: list[str] | None = None, folder: str | None = None) -> Records:
    """Read groups from a parquet file or folder, a zarr group or an HDF5 file that need not fit into memory.

    Columns, or arrays with one entry for each group on their first axis, become the fields of a row; `fields` chooses some of them. A
    column of lists of one length is an array. The file is read once, a block at a time, into a temporary file of plain records, in
    `folder` if given, from which batches of random groups are read fast: a row group of parquet would have to be decoded for each
    of its rows. It takes the room of the decoded fields on the disk, and goes with the object.

    Needs pyarrow, zarr or h5py, which are not installed with bbvi: `pip install 'bbvi[data]'`.

    Examples:
        >>> import bbvi, pyarrow, pyarrow.parquet, tempfile, os  # doctest: +SKIP
        >>> path = os.path.join(tempfile.mkdtemp(), "visits.parquet")  # doctest: +SKIP
        >>> pyarrow.parquet.write_table(pyarrow.table({"y": [0.5, 1.5, 2.5]}), path)  # doctest: +SKIP
        >>> groups = bbvi.stream(path)  # doctest: +SKIP
        >>> groups[[2, 0]]  # doctest: +SKIP
        {'y': array([2.5, 0.5])}
    """
    place = Path(path)
    if not place.exists():
        raise FileNotFoundError(f"bbvi.stream: there is no {place}")
    suffix = place.suffix.lower()
    if suffix in (".h5", ".hdf5", ".hdf"):
        num, blocks = _of_arrays(_needed("h5py").File(place, "r"), fields)
    elif suffix == ".zarr":
        num, blocks = _of_arrays(_needed("zarr").open_group(str(place), mode="r"), fields)
    elif suffix == ".parquet" or place.is_dir():
        num, blocks = _of_parquet(place, fields)
    else:
        raise ValueError(f"bbvi.stream reads .parquet, .zarr, .h5 and .hdf5, got {place.name!r}")
    if num == 0:
        raise ValueError(f"bbvi.stream: {place} has no rows")
    return _written(num, blocks, folder)


def _needed(module: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.split(".")[0]
        raise ImportError(
            f"bbvi.stream needs {package} for this file, which is not installed: pip install {package}"
        ) from None


def _of_arrays(file: Any, fields: list[str] | None) -> tuple[int, Iterator[Mapping[str, np.ndarray]]]:
    """Blocks of the arrays of a zarr group or an HDF5 file."""
    arrays = {name: file[name] for name in fields or list(file.keys()) if hasattr(file[name], "shape")}
    lengths = {name: x.shape[0] if x.shape else 0 for name, x in arrays.items()}
    if len(set(lengths.values())) != 1:
        raise ValueError(
            f"bbvi.stream: the arrays need one entry for each group on their first axis; they have {lengths}"
        )
    num = next(iter(lengths.values()))
    starts = range(0, num, _ROWS_PER_BLOCK)
    return num, ({name: np.asarray(x[at : at + _ROWS_PER_BLOCK]) for name, x in arrays.items()} for at in starts)


def _of_parquet(place: Path, fields: list[str] | None) -> tuple[int, Iterator[Mapping[str, np.ndarray]]]:
    table = _needed("pyarrow.dataset").dataset(str(place), format="parquet")
    batches = table.to_batches(columns=fields, batch_size=_ROWS_PER_BLOCK)
    return table.count_rows(), (_columns(batch) for batch in batches if len(batch))


def _columns(batch: Any) -> dict[str, np.ndarray]:
    found = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if hasattr(column, "flatten") and "list" in str(column.type):
            flat = column.flatten().to_numpy(zero_copy_only=False)
            lengths = {len(item) for item in column}
            if len(lengths) != 1:
                raise ValueError(
                    f"bbvi.stream: the lists of column {name!r} differ in length; read them by bbvi.ragged"
                )
            found[name] = flat.reshape(len(column), -1)
        else:
            found[name] = column.to_numpy(zero_copy_only=False)
    return found


def _written(num: int, blocks: Iterator[Mapping[str, np.ndarray]], where: str | None) -> Records:
    """Write the blocks as records of one file, and map it."""
    folder = tempfile.TemporaryDirectory(prefix="bbvi-", dir=where)
    table: Any = None
    at, checksum = 0, hashlib.sha256()
    for block in blocks:
        for name, x in block.items():
            if x.dtype.kind not in "biuf":
                raise TypeError(
                    f"bbvi.stream: data must be numbers, and {name!r} holds {x.dtype}; choose others by fields="
                )
        if table is None:
            kinds = [(name, x.dtype, x.shape[1:]) for name, x in block.items()]
            table = np.memmap(Path(folder.name) / "records", np.dtype(kinds), "w+", shape=(num,))
        size = len(next(iter(block.values())))
        for name, x in block.items():
            if not np.can_cast(x.dtype, table.dtype[name].base, "same_kind"):
                raise TypeError(
                    f"bbvi.stream: {name!r} is {x.dtype} in a later part of the file, and was {table.dtype[name].base}; "
                    "write it as floats, with NaN for what is missing"
                )
            table[name][at : at + size] = x
        checksum.update(memoryview(table[at : at + size].view(np.uint8)))
        at += size
    table.flush()
    known_by = f"{table.dtype} {checksum.hexdigest()}"
    return Records(np.memmap(Path(folder.name) / "records", table.dtype, "r", shape=(num,)), folder, known_by)
