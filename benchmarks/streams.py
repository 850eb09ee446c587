"""Steps a second on 10^6 groups from a file on disk, over those on the same groups in memory.

    python benchmarks/streams.py [--groups 1000000] [--batch 100] [--repeats 8] [--kinds parquet zarr hdf5]

All fits are compiled before the clock starts, and take short turns; both clocks are read, the processor's and the wall's. Installs of pyarrow,
zarr and h5py are needed for what is measured.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import jax
import numpy as np
import numpyro.distributions as dist

import bbvi

FIELDS = 10
SECONDS = 2  # of a turn


def model() -> bbvi.HierarchicalModel:
    """A logistic regression by rows."""
    return bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["w"]),
        log_likelihood=lambda beta, z, row: dist.Bernoulli(logits=row["x"] @ beta["w"]).log_prob(row["y"]),
        globals={"w": bbvi.real(FIELDS)},
    )


def write(kind: str, arrays: Mapping[str, np.ndarray], folder: Path) -> Path:
    """Write the arrays to a file of this kind."""
    if kind == "parquet":
        import pyarrow
        import pyarrow.parquet

        path = folder / "rows.parquet"
        lists = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(arrays["x"].ravel()), FIELDS)
        pyarrow.parquet.write_table(pyarrow.table({"x": lists, "y": arrays["y"]}), path, row_group_size=100_000)
    elif kind == "zarr":
        import zarr

        path = folder / "rows.zarr"
        group = zarr.open_group(str(path), mode="w")
        for name, x in arrays.items():
            group.create_array(name, data=x, chunks=(100_000, *x.shape[1:]))
    else:
        import h5py

        path = folder / "rows.h5"
        with h5py.File(path, "w") as file:
            for name, x in arrays.items():
                file[name] = x
    return path


def turn(run: Iterator[bbvi.Posterior]) -> tuple[float, float]:
    """Make steps for a while; return the seconds that a step took, of the processor and of the wall."""
    first = len(next(run).history)
    began = np.array([time.process_time(), time.monotonic()])
    while time.process_time() - began[0] < SECONDS:
        last = next(run)
    processor, wall = (np.array([time.process_time(), time.monotonic()]) - began) / (len(last.history) - first)
    return processor, wall


def main() -> None:
    """Print the medians of each kind, and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--groups", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--kinds", nargs="+", default=["parquet", "zarr", "hdf5"])
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(options.groups, FIELDS)).astype(np.float32)
    y = (rng.uniform(size=options.groups) < 1 / (1 + np.exp(-x.sum(1)))).astype(np.float32)
    arrays = {"x": x, "y": y}
    with tempfile.TemporaryDirectory() as folder:
        sources: dict = {"memory": arrays}
        for kind in options.kinds:
            path, began = write(kind, arrays, Path(folder)), time.process_time()
            sources[kind] = bbvi.stream(path)
            print(f"{kind}: laid out in {time.process_time() - began:.1f} s of the processor")
        runs = {
            name: bbvi.iterate(model(), data, batch_size=options.batch, stop=bbvi.Budget(seconds=36000))
            for name, data in sources.items()
        }
        for run in runs.values():
            turn(run)
        took = np.array([[turn(run) for run in runs.values()] for _ in range(options.repeats)])
    print(f"jax {jax.__version__}, {options.groups} groups, batches of {options.batch}, {options.repeats} turns each")
    for number, name in enumerate(runs):
        step = 1e6 * np.median(took[:, number], 0)
        ratios = took[:, 0] / took[:, number]
        speed = ", ".join(
            f"{np.median(own):.2f} ({own.min():.2f} to {own.max():.2f}) by the {clock}"
            for own, clock in zip(ratios.T, ("processor", "wall"), strict=True)
        )
        print(
            f"{name}: {step[0]:.0f} us of the processor and {step[1]:.0f} of the wall a step; speed over memory's {speed}"
        )


if __name__ == "__main__":
    main()
