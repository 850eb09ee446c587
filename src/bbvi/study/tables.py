"""The study's numbers for the terminal, and as CSV files."""

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bbvi.study import verdicts
from bbvi.study.numerals import decimals_for, duration, floats, number, power_of_ten, significant, with_error

SCORES = ("per_observation", "per_patient", "mse", "elbo")


def print_results(results: dict[str, Any], console: Console) -> None:
    """Print each part of the results that is there, then which of the paper's claims hold."""
    for data, scores in (results.get("comparison") or {}).items():
        console.print(comparison(data, scores))
    for name, make in (("gibbs", gibbs), ("variance", variance), ("truth", truth)):
        if results.get(name):
            console.print(make(results[name]))
    found = verdicts.summary(results) + ([verdicts.truth(results["truth"])] if results.get("truth") else [])
    for one in found:
        mark = {True: "[blue]✓[/]", False: "[yellow]✗[/]", None: "·"}[one.holds]
        console.print(f"{mark} {escape(one.title)}: [bold]{one.word}[/]. Found: {escape(one.found)}.", highlight=False)
        for case in one.each:
            console.print(f"    {escape(case)}", highlight=False)


def comparison(data: str, scores: dict[str, Any]) -> Table:
    """Make Table 1 for one data set."""
    table = _table(f"Table 1, {data}: held-out measurements (the paper's are other data)")
    for head in ("model", "paper", "per measurement", "per patient", "squared error", "steps", "time"):
        table.add_column(head, justify="left" if head == "model" else "right", no_wrap=head == "model")
    rows = [*scores["models"], *([{"model": "own averages", **scores["averages"]}] if scores.get("averages") else [])]
    decimals = {what: decimals_for(row.get(f"{what}_error") for row in rows) for what in SCORES}
    for row in rows:
        shown = [with_error(row.get(what), row.get(f"{what}_error"), decimals[what]) for what in SCORES[:3]]
        steps = number(row["steps"], 0) if row.get("steps") is not None else ""
        took = duration(row["seconds"]) if row.get("seconds") is not None else ""
        paper = significant(row["paper"]) if row.get("paper") is not None else ""
        table.add_row(escape(row["model"]), paper, *shown, steps, took)
    return table


def gibbs(section: dict[str, Any]) -> Table:
    """Make a table of where the runs of Figure 1 end."""
    table = _table(f"Figure 1, {section['data']}: after {duration(section.get('budget'))} each")
    for head in ("method", "seed", "per measurement", "squared error"):
        table.add_column(head, justify="left" if head == "method" else "right", no_wrap=head == "method")
    for curve in section["curves"]:
        value, error, mse = (
            floats(curve[what])[-1] if len(curve.get(what, ())) else None
            for what in ("per_observation", "error", "mse")
        )
        table.add_row(
            escape(curve["method"]), str(curve["seed"]), with_error(value, error), significant(mse, keep_zeros=True)
        )
    return table


def variance(section: dict[str, Any]) -> Table:
    """Make a table of Figure 2's medians."""
    table = _table(f"Figure 2, {section['data']}: variance of the gradient, median over iterations")
    table.add_column("estimator")
    table.add_column("variance", justify="right")
    for name, values in section["estimators"].items():
        table.add_row(escape(name), power_of_ten(np.nanmedian(floats(values))))
    return table


def truth(section: dict[str, Any]) -> Table:
    """Make a table of errors of the fitted mean of W x + o."""
    table = _table(f"Truth, {section['data']}: root mean squared error of W x + o")
    table.add_column("")
    for head in ("fitted mean", "own averages"):
        table.add_column(head, justify="right")
    for label in ("measured", "unmeasured"):
        table.add_row(
            label, *(significant(section[f"{name}_{label}"], keep_zeros=True) for name in ("error", "averages"))
        )
    return table


def _table(title: str) -> Table:
    return Table(title=escape(title), title_justify="left", title_style="bold", header_style="")


def write_csv(results: dict[str, Any], folder: str | Path) -> list[Path]:
    """Write comparison.csv, curves.csv, variance.csv and progress.csv, each if its part of the results is there."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    parts = [("comparison", "comparison", _comparison), ("gibbs", "curves", _curves)]
    parts += [("variance", "variance", _variance), ("progress", "progress", _progress)]
    paths = []
    for needs, name, rows in parts:
        if results.get(needs):
            paths.append(folder / f"{name}.csv")
            _write(paths[-1], rows(results[needs]))
    return paths


def _write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    listed = list(rows)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for row in listed for key in row)))
        writer.writeheader()
        writer.writerows(listed)


def _comparison(section: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for data, scores in section.items():
        for model in scores["models"]:
            yield {"data": data, **{key: value for key, value in model.items() if key != "history"}}
        if scores.get("averages"):
            yield {"data": data, "model": "own averages", **scores["averages"]}


def _curves(section: dict[str, Any]) -> Iterator[dict[str, Any]]:
    columns = ("seconds", "per_observation", "error", "mse")
    for curve in section["curves"]:
        known = [name for name in columns if curve.get(name) is not None]
        for values in zip(*(floats(curve[name]).tolist() for name in known), strict=True):
            yield {"method": curve["method"], "seed": curve["seed"], **dict(zip(known, values, strict=True))}


def _variance(section: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for name, values in section["estimators"].items():
        for iteration, value in zip(np.asarray(section["iterations"]).tolist(), floats(values).tolist(), strict=True):
            yield {"estimator": name, "iteration": iteration, "variance": value}


def _progress(section: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for run in section["runs"]:
        for seconds, elbo in zip(floats(run["seconds"]).tolist(), floats(run["elbo"]).tolist(), strict=True):
            yield {"estimator": run["estimator"], "seconds": seconds, "elbo": elbo}
