"""Steps a second on 10^6 groups from a parquet file, over those on the same groups in memory.

    python benchmarks/streams.py [--groups 1000000] [--batch 100] [--repeats 5]

Both fits are compiled before the clock starts, and take turns. pyarrow must be installed.
"""

import argparse
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
import numpyro.distributions as dist

import bbvi

FIELDS = 10


def model() -> bbvi.HierarchicalModel:
    """A logistic regression by rows."""
    return bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["w"]),
        log_likelihood=lambda beta, z, row: dist.Bernoulli(logits=row["x"] @ beta["w"]).log_prob(row["y"]),
        globals={"w": bbvi.real(FIELDS)},
    )


def main() -> None:
    """Print the ratio of each repeat, and their median."""
    import pyarrow
    import pyarrow.parquet

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--groups", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(options.groups, FIELDS)).astype(np.float32)
    y = (rng.uniform(size=options.groups) < 1 / (1 + np.exp(-x.sum(1)))).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        lists = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(x.ravel()), FIELDS)
        pyarrow.parquet.write_table(pyarrow.table({"x": lists, "y": y}), path, row_group_size=100_000)
        began = time.monotonic()
        streamed = bbvi.stream(path)
        print(f"laid out in {time.monotonic() - began:.1f} s, {path.stat().st_size / 1e6:.0f} MB of parquet")
        sources = {"memory": {"x": x, "y": y}, "parquet": streamed}
        runs = {
            name: bbvi.iterate(model(), data, batch_size=options.batch, stop=bbvi.Budget(seconds=3600))
            for name, data in sources.items()
        }
        speeds: dict[str, list[float]] = {name: [] for name in runs}
        for repeat in range(-1, options.repeats):
            for name, run in runs.items():
                first, began = len(next(run).history), time.monotonic()
                while time.monotonic() - began < 4:
                    last = next(run)
                if repeat >= 0:
                    speeds[name].append((len(last.history) - first) / (time.monotonic() - began))
        ratios = np.divide(speeds["parquet"], speeds["memory"])
        print(f"jax {jax.__version__}, {options.groups} groups, batches of {options.batch}")
        print({name: round(float(np.median(own))) for name, own in speeds.items()}, "steps/s")
        print("parquet / memory:", np.round(ratios, 2), "median", round(float(np.median(ratios)), 2))


if __name__ == "__main__":
    main()
