"""A process that makes steps when told to: one line of JSON in, one line out; idle in between."""

import argparse
import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]


class AbstractRun(ABC):
    """A fit of one library that goes on from where it stopped."""

    @abstractmethod
    def steps(self, num: int) -> int:
        """Make about `num` steps, wait until they are done, and say how many they were."""

    @abstractmethod
    def posterior(self) -> Arrays:
        """The present q in the words of `judge.py`."""

    @abstractmethod
    def elbo(self, repeats: int) -> tuple[float, float]:
        """The library's own estimate of the full-data ELBO at the present q, and its standard error."""

    def gradients(self, repeats: int) -> tuple[Arrays, Arrays]:
        """Mean and variance of the noisy gradient at the present q, by names such as "x_log_mean"."""
        raise TypeError(f"{type(self).__name__} does not report its gradient")


def serve(build: Callable[[Arrays, Arrays, dict[str, Any]], AbstractRun], versions: dict[str, str]) -> None:
    """Build a run of the data named on the command line and obey orders until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path, help="arrays of the cohort and, as start_..., of the first q")
    parser.add_argument("options", type=json.loads)
    arguments = parser.parse_args()
    with np.load(arguments.data) as file:
        arrays = dict(file)
    first = {name.removeprefix("start_"): array for name, array in arrays.items() if name.startswith("start_")}
    data = {name: array for name, array in arrays.items() if not name.startswith("start_")}
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints must not get between the answers
    began = time.perf_counter()
    run = build(data, first, arguments.options)
    print(json.dumps({"versions": versions, "seconds": time.perf_counter() - began}), file=answers)
    for line in sys.stdin:
        print(json.dumps(obey(run, json.loads(line))), file=answers)


def obey(run: AbstractRun, order: dict[str, Any]) -> dict[str, Any]:
    """Carry out one order."""
    match order:
        case {"do": "steps", "num": num}:
            return timed(run, num)
        case {"do": "memory"}:
            return {"megabytes": peak_megabytes()}
        case {"do": "elbo", "repeats": repeats}:
            mean, error = run.elbo(repeats)
            return {"mean": mean, "error": error}
        case {"do": "posterior", "into": path}:
            np.savez(path, **run.posterior())
            return {}
        case {"do": "gradients", "into": path, "repeats": repeats}:
            mean, variance = run.gradients(repeats)
            both = {"mean": mean, "variance": variance}
            np.savez(path, **{f"{of} {name}": array for of, tree in both.items() for name, array in tree.items()})
            return {}
        case {"do": "fit", "clock": clock, "marks": marks, "into": path}:
            return fit(run, clock, marks, path)
    raise ValueError(f"no such order: {order}")


def timed(run: AbstractRun, num: int) -> dict[str, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    made = run.steps(num)
    return {"steps": made, "wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}


def fit(run: AbstractRun, clock: float, marks: list[float], path: str) -> dict[str, Any]:
    """Go on to each mark, in seconds, and keep q there; what it takes to write q down is not on the clock."""
    began, steps = clock, 0
    kept, seconds = [], []
    for mark in marks:
        while clock < mark:
            ahead = 0.5 * (mark - clock) * steps / (clock - began) if steps else 1
            took = timed(run, max(1, int(ahead)))
            clock, steps = clock + took["wall"], steps + int(took["steps"])
        kept.append(run.posterior())
        seconds.append(clock)
    np.savez(path, **{name: np.stack([q[name] for q in kept]) for name in kept[0]})
    return {"seconds": seconds, "steps": steps}


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """The mean of independent values and its standard error."""
    return float(np.mean(values)), float(np.std(values, ddof=1) / np.sqrt(len(values)))


def peak_megabytes() -> float:
    """The most that this process ever held in memory."""
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) / 1024
