"""How much faster worker processes make a slow simulator: `python benchmarks/opaque.py`, about two minutes.

`--on ray` and `--on dask` take the workers of a cluster on this machine instead.

The simulator is pure Python arithmetic that keeps one core busy. The fit with one process and the fit with workers take
turns, a step each, and the median of the ratios of neighbours is reported: on a shared machine only that means anything.
"""

import argparse
import contextlib
import importlib
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import bbvi


def simulator(z, loops):
    """A log density that takes its time; 1 / 3 is its fixed point, so the loop adds nothing. Below 0 it waits, that many ms."""
    x = 1 / 3
    time.sleep(max(-loops, 0) / 1000)
    for _ in range(int(loops)):
        x = (x + 1.0) / 4.0
    return -0.5 * (float(z["mu"]) - 3 * x) ** 2


def calibrate(seconds: float) -> int:
    """How many rounds of the loop take this long."""
    began = time.perf_counter()
    simulator({"mu": 0.0}, 1_000_000)
    return int(seconds * 1_000_000 / (time.perf_counter() - began))


def seconds_per_step(runs: dict[str, object], steps: int) -> dict[str, list[float]]:
    """Seconds of each step, the runs taking turns."""
    # compiles, and starts the workers
    made = {name: len(next(run).history) for name, run in runs.items()}
    out: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(steps):
        for name, run in runs.items():
            began = time.perf_counter()
            steps_made = len(next(run).history)
            out[name].append((time.perf_counter() - began) / (steps_made - made[name]))
            made[name] = steps_made
    return out


@contextlib.contextmanager
def workers_on(where: str, num: int) -> Iterator[tuple[Any, Callable[..., Any]]]:
    """Start workers; give what `executor=` takes, and what maps a function over arguments in them without bbvi."""
    if where == "ray":
        ray = importlib.import_module("ray")
        ray.init(num_cpus=num, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        remote = ray.remote(simulator)
        yield bbvi.on_ray(), lambda z, loops: ray.get([remote.remote(*own) for own in zip(z, loops, strict=True)])
        ray.shutdown()
    elif where == "dask":
        distributed = importlib.import_module("distributed")
        with (
            distributed.LocalCluster(num, threads_per_worker=1, dashboard_address=None) as cluster,
            distributed.Client(cluster) as client,
        ):
            yield bbvi.on_dask(client), lambda *own: client.gather(client.map(simulator, *own, pure=False))
    else:
        with ProcessPoolExecutor(num, mp_context=multiprocessing.get_context("spawn")) as executor:
            yield executor, lambda *own: list(executor.map(simulator, *own))


def bare_speed_up(mapped: Callable[..., Any], loops: int, calls: int, repeats: int) -> float:
    """What the machine can give at this moment: the same calls in the same workers, without bbvi."""
    ratios = []
    for _ in range(repeats):
        began = time.perf_counter()
        for _ in range(calls):
            simulator({"mu": 0.0}, loops)
        middle = time.perf_counter()
        mapped([{"mu": 0.0}] * calls, [loops] * calls)
        ratios.append((middle - began) / (time.perf_counter() - middle))
    return statistics.median(ratios)


def main(argv: list[str] | None = None) -> None:
    """Print milliseconds a call, seconds a step of each run, and the speed-up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--on", choices=["processes", "ray", "dask"], default="processes")
    parser.add_argument("--milliseconds", type=float, default=25.0, help="of one call")
    parser.add_argument("--draws", type=int, default=40, help="calls a step")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument(
        "--waits", action="store_true", help="a call waits, as for another machine, and keeps no core busy"
    )
    parser.add_argument("--quick", action="store_true", help="a smoke: short calls, two steps")
    options = parser.parse_args(argv)
    if options.quick:
        options.milliseconds, options.draws, options.steps = 1.0, 4, 2
    loops = -options.milliseconds if options.waits else calibrate(options.milliseconds / 1000)
    with workers_on(options.on, options.workers) as (executor, mapped):
        models = {
            "one process": bbvi.Model(bbvi.opaque(simulator), mu=bbvi.real()),
            f"{options.workers} workers": bbvi.Model(bbvi.opaque(simulator, executor=executor), mu=bbvi.real()),
        }
        settings = {
            "draws": bbvi.MonteCarlo(options.draws), "stop": bbvi.Budget(steps=10_000), "gradient": bbvi.Score(True, None)
        }  # fmt: skip
        runs = {name: bbvi.iterate(model, loops, **settings) for name, model in models.items()}
        seen = seconds_per_step(runs, options.steps)
        bare = bare_speed_up(mapped, loops, options.draws, options.steps)
    one, many = seen.values()
    print(f"{options.draws} calls a step, {1000 * min(one) / options.draws:.1f} ms a call, {os.cpu_count()} cores")
    for name, seconds in seen.items():
        print(f"{name:12s} {statistics.median(seconds):.3f} s a step (fastest {min(seconds):.3f})")
    ratios = [a / b for a, b in zip(one, many, strict=True)]
    print(f"speed-up: {statistics.median(ratios):.2f} (fastest against fastest {min(one) / min(many):.2f})")
    print(f"the same calls in the same workers without bbvi: {bare:.2f}")


if __name__ == "__main__":
    main()
