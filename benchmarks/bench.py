"""Time per step against the number of groups, and peak memory: `make bench`, a few minutes.

Runs are interleaved, one chunk of steps of each in turn, and the median over chunks is reported: on a shared machine
only ratios measured side by side mean anything. Memory is that of a process of its own for each size.
"""

import argparse
import itertools
import json
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import numpyro.distributions as dist

import bbvi


def model():
    """Group means around a global mean with a global scale: two locals and two globals."""
    return bbvi.HierarchicalModel(
        log_prior=lambda beta: {
            "mu": dist.Normal(0, 5).log_prob(beta["mu"]),
            "tau": dist.HalfNormal(2).log_prob(beta["tau"]),
        },
        log_local=lambda beta, z, row: dist.Normal(beta["mu"], beta["tau"]).log_prob(z["theta"]),
        log_likelihood=lambda beta, z, row: dist.Normal(z["theta"], 1.0).log_prob(row["y"]),
        globals={"mu": bbvi.real(), "tau": bbvi.positive()},
        locals={"theta": bbvi.real(2)},
    )


def groups(num: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"y": rng.normal(size=(num, 2)).astype(np.float32)}


def run(num: int, batch: int, draws: int):
    never = bbvi.Budget(steps=10_000_000)
    return bbvi.iterate(model(), groups(num), batch_size=batch, draws=bbvi.MonteCarlo(draws), stop=never)


def time_per_step(sizes: list[int], batch: int, draws: int, chunks: int) -> dict[int, list[float]]:
    """Seconds per step of each chunk, the sizes taking turns."""
    runs = {num: run(num, batch, draws) for num in sizes}
    seen = {num: 0 for num in sizes}
    for num, _ in itertools.product(sizes, range(4)):
        seen[num] = len(next(runs[num]).history)  # compile, and let the chunks reach their length
    out: dict[int, list[float]] = {num: [] for num in sizes}
    for _ in range(chunks):
        for num in sizes:
            began = time.perf_counter()
            steps = len(next(runs[num]).history)
            out[num].append((time.perf_counter() - began) / (steps - seen[num]))
            seen[num] = steps
    return out


def peak_memory(num: int, batch: int, draws: int) -> float:
    """Megabytes at the most of a process that makes a few hundred steps."""
    command = [sys.executable, __file__, "--memory", str(num), "--batch", str(batch), "--draws", str(draws)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 100_000, 1_000_000])
    parser.add_argument("--batch", type=int, default=25)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--chunks", type=int, default=15)
    parser.add_argument("--memory", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        for _ in zip(range(6), run(options.memory, options.batch, options.draws), strict=False):
            pass
        status = Path("/proc/self/status").read_text().splitlines()
        peak = next(line for line in status if line.startswith("VmHWM"))
        print(int(peak.split()[1]) / 1024)
        return
    times = time_per_step(options.sizes, options.batch, options.draws, options.chunks)
    medians = {num: statistics.median(values) for num, values in times.items()}
    first = medians[options.sizes[0]]
    print(f"jax {jax.__version__}, bbvi {bbvi.__version__}, Python {platform.python_version()}, {platform.machine()}")
    print(f"batch of {options.batch} groups, {options.draws} draws, median of {options.chunks} interleaved chunks")
    print(f"{'groups':>12} {'us a step':>10} {'ratio':>7} {'peak MB':>9}")
    for num in options.sizes:
        memory = peak_memory(num, options.batch, options.draws)
        print(f"{num:>12,} {medians[num] * 1e6:>10.0f} {medians[num] / first:>7.2f} {memory:>9.0f}", flush=True)


if __name__ == "__main__":
    main()
