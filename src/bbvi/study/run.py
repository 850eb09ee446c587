"""Section 5, end to end: what `bbvi study` does with a plan."""

import datetime
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

import bbvi
from bbvi.study import report, tables
from bbvi.study.clock import Clock
from bbvi.study.comparison import fit_and_score, table
from bbvi.study.data_sets import DataSet, data_sets
from bbvi.study.effort import EFFORTS, Effort
from bbvi.study.plan import Plan
from bbvi.study.sampling import BBVI, DEFAULTS, GIBBS, MODEL, PLAIN, sampled, summary, variational
from bbvi.study.settings import Settings
from bbvi.study.stages import Report, Stages, fingerprint
from bbvi.study.variance import convergence, variances

_COMPILING = 25.0  # seconds for the programs of a stage, to guess how long it takes


class Stage(NamedTuple):
    """A part of the study that is kept when it is finished."""

    name: str
    title: str
    guess: float
    work: Callable[..., Any]


def run(plan: Plan, console: Console | None = None) -> Path:
    """Run what is not finished yet, write the report, and return the path of its page."""
    console = Console() if console is None else console
    effort, folder = EFFORTS[plan.size], Path(plan.out)
    sets = data_sets(plan)[: effort.num_data_sets]
    for data in sets:
        console.print(facts_table(data))
    settings = [asdict(data.settings) for data in sets]
    stages = Stages(folder / "stages", fingerprint([plan.fingerprint(), effort._asdict(), settings]))
    todo, found = all_stages(plan, sets, effort), {}
    with Clock(console, [(stage.title, stage.guess) for stage in todo]) as clock:
        for stage in todo:
            with clock.stage(kept=stages.finished(stage.name)) as share:
                found[stage.name] = stages.run(stage.name, partial(timed, stage, share))
    results = collect(plan, sets, found, effort)
    page = report.write(results, folder / "report.html")
    tables.write_csv(results, folder)
    (folder / "results.json").write_text(json.dumps(as_json(results), indent=1, allow_nan=False))
    tables.print_results(results, console)
    console.print(f"report  {page}\nnumbers {folder / 'results.json'} and CSV files beside it")
    return page


def all_stages(plan: Plan, sets: list[DataSet], effort: Effort) -> list[Stage]:
    """List the stages of a plan; the experiments with one model and one cohort take the first data set."""
    out = [_fit_stage(name, data, effort, plan.seed) for data in sets for name in plan.models]
    if MODEL not in plan.models:
        return out
    first = (sets[0], effort)
    out += [
        Stage("variance", "variance of the gradient (Figure 2)", 2 * _COMPILING + 8 * len(effort.iterations),
              partial(variances, *first, seed=plan.seed)),
        Stage("convergence", "convergence with and without variance reductions", 4 * (effort.progress_seconds + 10),
              partial(convergence, *first, seed=plan.seed)),
    ]  # fmt: skip
    guess = effort.seconds + 2 * _COMPILING
    for seed in range(plan.seed, plan.seed + effort.seeds):
        ours = partial(variational, *first, method=BBVI, seed=seed)
        gibbs = partial(sampled, *first, bbvi.Coordinatewise(), method=GIBBS, seed=seed)
        out += [
            Stage(f"bbvi seed {seed}", f"{BBVI}, seed {seed} (Figure 1)", guess, ours),
            Stage(f"gibbs seed {seed}", f"{GIBBS}, seed {seed} (Figure 1)", guess, gibbs),
        ]
    if not effort.more_curves:
        return out
    ours = partial(variational, *first, method=DEFAULTS, seed=plan.seed)
    plain = partial(sampled, *first, bbvi.AllAtOnce(), method=PLAIN, seed=plan.seed)
    return [
        *out,
        Stage("bbvi defaults", f"{DEFAULTS} (Figure 1)", guess, ours),
        Stage("metropolis", f"{PLAIN} (Figure 1)", guess, plain),
    ]


def _fit_stage(name: str, data: DataSet, effort: Effort, seed: int) -> Stage:
    title = f"{name} on {data.train.name}"
    # a tenth of a second a step for 25 patients with 17 labs at 34 visits
    size = len(data.train.names) * sum(map(len, data.train.labs)) / len(data.train) / 17 / 34
    guess = _COMPILING + 0.1 * effort.train_steps * size
    return Stage(title, title, guess, partial(fit_and_score, name, data, effort, seed=seed))


def timed(stage: Stage, share: Report) -> dict[str, Any]:
    """Return a stage's result, and how long it took."""
    began = time.monotonic()
    return {"result": stage.work(report=share), "seconds": time.monotonic() - began}


def collect(plan: Plan, sets: list[DataSet], found: dict[str, Any], effort: Effort) -> dict[str, Any]:
    """Collect all results in the order of the report."""
    out: dict[str, Any] = {
        "plan": asdict(plan) | effort._asdict(), "command": " ".join(["bbvi", *sys.argv[1:]]), "versions": versions(), "machine": machine(),
        "date": f"{datetime.datetime.now():%Y-%m-%d %H:%M}",
        "stages": [{"name": name, "seconds": stage["seconds"]} for name, stage in found.items()],
        "data": [_described(data) for data in sets], "comparison": {}, "factors": {},
    }  # fmt: skip
    for data in sets:
        rows = [found[f"{name} on {data.train.name}"]["result"] for name in plan.models]
        out["comparison"][data.train.name] = table(rows, data, plan.seed)
        drawn = [row for row in rows if "factors" in row]
        if drawn:
            out["factors"][data.train.name] = drawn[0]["factors"]
        if drawn and "truth" in drawn[0]:
            out["truth"] = drawn[0]["truth"]
    for name, section in (("variance", "variance"), ("convergence", "progress")):
        if name in found:
            out[section] = found[name]["result"]
    curves = [stage["result"] for name, stage in found.items() if name.split()[0] in ("bbvi", "gibbs", "metropolis")]
    if curves:
        out["gibbs"] = summary(curves, sets[0], effort)
    return out


def _described(data: DataSet) -> dict[str, Any]:
    labs = data.train.lab_table()
    return {
        "name": data.train.name, "facts": data.patients.facts(), "num_train": len(data.train), "num_test": len(data.test),
        "lab_table": {"columns": list(labs.columns), "index": list(labs.index), "values": labs.to_numpy(float).tolist()},
        "settings": asdict(data.settings), "paper_settings": asdict(Settings.paper(data.settings.num_factors)),
    }  # fmt: skip


def facts_table(data: DataSet) -> Table:
    """Describe a data set in a few lines."""
    facts = Table(title=data.patients.name, show_header=False, title_justify="left")
    split = {"split": f"{len(data.train)} patients for training, {len(data.test)} for the test"}
    for label, value in (data.patients.facts() | split).items():
        if label != "data":
            facts.add_row(label, value)
    return facts


def versions() -> dict[str, str]:
    """Return the versions of bbvi and of the libraries that compute for it."""
    return {name: version(name) for name in ("bbvi", "jax", "jaxlib", "numpyro", "optax", "equinox", "numpy", "scipy")}


def machine() -> dict[str, Any]:
    """Describe the machine on which the times were taken."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    return {
        "cpu": names[0] if names else platform.processor() or platform.machine(), "cores": os.cpu_count() or 1,
        "memory": f"{memory / 2**30:.0f} GB", "python": platform.python_version(), "os": f"{platform.system()} {platform.machine()}",
    }  # fmt: skip


def as_json(tree: Any) -> Any:
    """Return arrays as lists, and None for what is not a finite number."""
    if isinstance(tree, dict):
        return {str(key): as_json(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [as_json(value) for value in tree]
    if isinstance(tree, np.ndarray):
        return as_json(tree.tolist())
    if isinstance(tree, (float, np.floating)):
        return float(tree) if np.isfinite(tree) else None
    return tree.item() if isinstance(tree, np.generic) else tree
