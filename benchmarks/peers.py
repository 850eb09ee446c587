"""bbvi beside NumPyro, Pyro and PyMC on the model of cohort.py: `make bench-peers`, about 40 minutes.

Four parts: `check` holds each library's ELBO to that of judge.py at the same q; `steps` times a gradient step of each, the
programs taking turns while the others idle; `variance` compares the noise of gradients at the same lambda; `heldout`
follows the density of measurements left out while each library fits. A program that fails is listed with the last line it
wrote. With --quick, bbvi and the yardstick alone, on a few patients.
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
from pathlib import Path
from typing import Any

import cohort
import judge
import numpy as np
from driven import HERE, Method, Worker
from gradient_noise import variance
from heldout import heldout
from methods import METHODS, REPARAMETERISED, SCORES, attempt, chosen, written

Rows = list[dict[str, Any]]


def check(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Every library's own ELBO at a narrow q, where it has little noise, in standard errors from the judge's."""
    data = cohort.simulate(10, longest=8).padded()
    narrower = {"W_scale": 0.1, "o_scale": 0.1, "x_concentration": 100}
    q = {name: value * np.float32(narrower.get(name, 1)) for name, value in judge.start(data).items()}
    path, failures, rows = written(folder, "check", data, q), {}, []
    for name, method in chosen(options, {n: m for n, m in METHODS.items() if m.program != "yardstick"}).items():
        small = method.having(draws=10, batch=5)
        answer = attempt(name, failures, elbo_of, small, path, folder / "q.npz", options.patience)
        if answer is None:
            continue
        with np.load(folder / "q.npz") as q:
            ours = judge.elbo(dict(q), data)
        gap = (answer["mean"] - ours.mean) / np.hypot(answer["error"], ours.error)
        rows.append(
            {"method": name, "its ELBO": answer["mean"], "the judge's": ours.mean, "standard errors apart": gap}
        )
    return {"rows": rows, "failures": failures, "caption": "The ELBO of 10 patients at the same q"}


def elbo_of(method: Method, path: Path, into: Path, patience: float) -> dict[str, Any]:
    worker = Worker(method, path, patience=patience)
    try:
        worker.ask("posterior", into=str(into))
        return worker.ask("elbo", repeats=2000)
    finally:
        worker.close()


def steps(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """CPU and wall time of a step, medians over rounds in which the programs take turns, and peak memory."""
    data = cohort.simulate(options.patients, longest=options.longest).padded()
    path, failures = written(folder, "steps", data), {}
    methods = {n: m.having(draws=options.draws, batch=options.batch) for n, m in chosen(options, SCORES).items()}
    few = chosen(options, REPARAMETERISED)
    methods |= {name: method.having(draws=options.few_draws, batch=options.batch) for name, method in few.items()}
    workers, turns, rounds = {}, {}, {}
    for name, method in methods.items():
        worker = attempt(name, failures, Worker, method, path, patience=options.patience)
        made = worker and attempt(name, failures, warmed_up, worker)
        if made:
            workers[name], turns[name], rounds[name] = worker, made, []
            print(f"{name}: ready", flush=True)
    for _ in range(options.rounds):
        for name in list(workers):
            took = attempt(name, failures, workers[name].ask, "steps", num=turns[name])
            if took is None:
                del workers[name]
            else:
                rounds[name].append(took)
    rows = []
    for name, worker in workers.items():
        cpu, wall = (statistics.median(1e3 * t[what] / t["steps"] for t in rounds[name]) for what in ("cpu", "wall"))
        row = {"method": name, "S": methods[name].options["draws"], "CPU ms a step": cpu, "wall ms a step": wall}
        row |= {"peak MB": worker.ask("memory")["megabytes"]} | {"versions": worker.greeting["versions"]}
        rows.append(row)
        worker.close()
    caption = f"A step: {options.patients} patients of up to {options.longest} visits, batches of {options.batch}, median of {options.rounds} rounds"
    return {"rows": rows, "failures": failures, "caption": caption}


def warmed_up(worker: Worker) -> int:
    """Compile, let bbvi's chunks find their length, and say how many steps take a third of a second."""
    for _ in range(3):
        took = worker.ask("steps", num=1)
    return max(1, int(0.3 * took["steps"] / took["wall"]))


def table(rows: Rows) -> str:
    """Rows as Markdown, without what is no single value."""
    names = [name for name, value in rows[0].items() if not isinstance(value, (dict, list))]
    lines = [names, ["---"] * len(names), *([cell(row[name]) for name in names] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def cell(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    return {"processor": model, "cores": os.cpu_count(), "python": platform.python_version()}


def main() -> None:
    parts = {part.__name__: part for part in (check, steps, variance, heldout)}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(parts)}; default all")
    parser.add_argument("--quick", action="store_true", help="bbvi and the yardstick alone, on a few patients")
    parser.add_argument("--only", default="", help="methods whose name matches this expression, as in ^Pyro")
    parser.add_argument("--patients", type=int, default=803)
    parser.add_argument("--longest", type=int, default=120)
    parser.add_argument("--batch", type=int, default=25)
    parser.add_argument("--draws", type=int, default=1000, help="S of the score gradients that are timed")
    parser.add_argument("--few-draws", type=int, default=10, help="S of the reparameterised ones")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--few-patients", type=int, default=50, help="of the part variance")
    parser.add_argument("--variance-draws", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=200, help="of the gradient, in the part variance")
    parser.add_argument("--seconds", type=float, default=90, help="of each fit in the part heldout")
    parser.add_argument("--trial", type=float, default=15, help="seconds that each rate is tried")
    parser.add_argument(
        "--patience", type=float, default=900, help="seconds after which a program that is silent is ended"
    )
    parser.add_argument("--json", type=Path, default=HERE / "peers.json")
    parser.add_argument("--picture", type=Path, default=HERE.parent / "docs" / "images" / "peers.png")
    options = parser.parse_args()
    if options.quick:
        options.patients, options.longest, options.batch, options.draws, options.rounds = 12, 8, 5, 50, 1
    found = json.loads(options.json.read_text()) if options.json.exists() and not options.quick else {}
    for name in options.parts or (["check", "steps"] if options.quick else parts):
        with tempfile.TemporaryDirectory() as folder:
            found[name] = parts[name](options, Path(folder)) | {"machine": machine()}
        print(f"\n{found[name]['caption']}\n")
        print(table(found[name]["rows"]) if found[name]["rows"] else "nothing")
        for method, why in found[name]["failures"].items():
            print(f"\n{method} failed: {why}")
        print(flush=True)
        if not options.quick:
            options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
