"""A stream from a file gives the rows of the file, and a fit to it is the fit to the same arrays in memory, to the bit."""

import threading

import jax
import numpy as np
import numpyro.distributions as dist
import pytest

import bbvi
from bbvi.model.records import Records, probes

RNG = np.random.default_rng(0)
ARRAYS = {"y": RNG.normal(size=300).astype(np.float32), "x": RNG.normal(size=(300, 2)).astype(np.float32)}


def parquet(folder):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"y": ARRAYS["y"], "x": list(ARRAYS["x"])}), folder / "d.parquet", row_group_size=70)
    return folder / "d.parquet"


def hdf5(folder):
    with pytest.importorskip("h5py").File(folder / "d.h5", "w") as file:
        for name, x in ARRAYS.items():
            file[name] = x
    return folder / "d.h5"


def zarr(folder):
    group = pytest.importorskip("zarr").open_group(str(folder / "d.zarr"), mode="w")
    for name, x in ARRAYS.items():
        group.create_array(name, data=x) if hasattr(group, "create_array") else group.create_dataset(name, data=x)
    return folder / "d.zarr"


@pytest.mark.parametrize("write", [parquet, hdf5, zarr])
def test_any_rows_are_those_of_the_file(write, tmp_path):
    groups = bbvi.stream(write(tmp_path))
    chosen = RNG.integers(0, 300, 40)
    found = groups[chosen]
    assert len(groups) == 300 and found.keys() == ARRAYS.keys()
    for name, x in ARRAYS.items():
        np.testing.assert_array_equal(found[name], x[chosen])


def as_records():
    table = np.zeros(300, [("y", np.float32), ("x", np.float32, 2)])
    for name, x in ARRAYS.items():
        table[name] = x
    return Records(table)


def test_a_fit_to_a_stream_is_the_fit_to_the_arrays():
    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["w"]).sum(),
        log_likelihood=lambda beta, z, row: dist.Normal(row["x"] @ beta["w"], 1).log_prob(row["y"]),
        globals={"w": bbvi.real(2)},
    )
    options = {"batch_size": 20, "stop": bbvi.Budget(steps=70)}
    fits = [bbvi.fit(model, data, **options) for data in (ARRAYS, as_records())]
    jax.tree.map(np.testing.assert_array_equal, *(dict(posterior.params) for posterior in fits))


def test_what_is_announced_is_read_in_another_thread_and_changes_nothing():
    records, threads = as_records(), set()
    read = records.__class__.__getitem__

    class Noted(Records):
        def __getitem__(self, indices):
            threads.add(threading.current_thread() is threading.main_thread())
            return read(self, indices)

    records = Noted(as_records()._table)
    steps = RNG.integers(0, 300, (5, 4))
    for announced in (steps, steps[:2], steps[:, ::-1]):
        records.ahead(announced)
        np.testing.assert_array_equal(records.steps(steps)["y"], ARRAYS["y"][steps])
    assert threads == {True, False}
    records.ahead(steps + 1000)  # what cannot be read fails only where it is asked for
    np.testing.assert_array_equal(records.steps(steps)["y"], ARRAYS["y"][steps])


def test_files_that_cannot_be_streamed_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no"):
        bbvi.stream(tmp_path / "none.parquet")
    (tmp_path / "d.csv").write_text("y\n1\n")
    with pytest.raises(ValueError, match="reads .parquet"):
        bbvi.stream(tmp_path / "d.csv")
    with pytest.importorskip("h5py").File(tmp_path / "e.h5", "w") as file:
        file["a"], file["b"] = np.zeros(3), np.zeros(4)
    with pytest.raises(ValueError, match="one entry for each group"):
        bbvi.stream(tmp_path / "e.h5")


@pytest.mark.parametrize("write", [parquet, hdf5, zarr])
def test_a_stream_is_known_by_all_of_its_rows_and_not_by_where_it_is(write, tmp_path, monkeypatch):
    folders = [tmp_path / name for name in ("here", "there", "changed")]
    for folder in folders:
        folder.mkdir()
    here, there = (bbvi.stream(write(folder)) for folder in folders[:2])
    monkeypatch.setitem(ARRAYS, "y", np.where(np.arange(300) == 123, 9.0, ARRAYS["y"]).astype(np.float32))
    changed = bbvi.stream(write(folders[2]))
    assert here.identity() == there.identity() != changed.identity()


@pytest.mark.parametrize("num", [1, 2, 63, 64, 65, 1000, 10**9])
def test_a_source_is_looked_at_from_its_first_row_to_its_last(num):
    seen = probes(num)
    assert len(set(seen)) == len(seen) == min(num, 64)
    assert seen[0] == 0 and seen[-1] == num - 1
    assert np.diff(seen, append=num).max() <= max(2, num / 30)
