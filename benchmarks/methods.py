"""What the benchmark of peers compares: bbvi, a yardstick, and the same model in other libraries."""

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import judge
import numpy as np
from driven import Failed, Method

SCORE = Method("numpyro", {"method": "score", "sites": "path", "rate": 1.0, "optimizer": "adagrad"})
PYRO = Method("pyro", {"rate": 1.0, "optimizer": "adagrad"})
PATHWISE, AUTO = SCORE.having(method="pathwise"), SCORE.having(method="auto")
OURS = Method("ours", {"method": "score", "rate": 1.0})
PYMC = Method("pymc", {"rate": 0.01, "optimizer": "adam"})
WRITTEN, BEST = {"strata": 1, "shared_batch": False}, {"strata": 5, "shared_batch": True}

SCORES = {
    "yardstick by hand": Method("yardstick", {}),
    "bbvi Score": OURS,
    "Pyro TraceGraph_ELBO, at its best": PYRO.having(**BEST),
    "Pyro TraceGraph_ELBO, as written": PYRO.having(**WRITTEN),
    "NumPyro TraceGraph_ELBO, at its best": SCORE.having(**BEST),
    "NumPyro TraceGraph_ELBO, as written": SCORE.having(**WRITTEN),
}
REPARAMETERISED = {
    "bbvi Pathwise": OURS.having(method="pathwise"),
    "NumPyro pathwise Gamma, at its best": PATHWISE.having(**BEST),
    "NumPyro pathwise Gamma, as written": PATHWISE.having(**WRITTEN),
    "NumPyro AutoNormal, at its best": AUTO.having(**BEST),
    "NumPyro AutoNormal, as written": AUTO.having(**WRITTEN),
    "PyMC ADVI": PYMC,
}
METHODS = SCORES | REPARAMETERISED


def written(folder: Path, name: str, data: judge.Arrays, q: judge.Arrays | None = None) -> Path:
    """A file with the data and the q to start from, for the programs to read."""
    start = judge.start(data) if q is None else q
    np.savez(folder / f"{name}.npz", **data, **{f"start_{key}": value for key, value in start.items()})
    return folder / f"{name}.npz"


def chosen(options: argparse.Namespace, methods: dict[str, Method]) -> dict[str, Method]:
    mine = {name: m for name, m in methods.items() if not options.quick or name in ("bbvi Score", "yardstick by hand")}
    return {name: m for name, m in mine.items() if re.search(options.only, name)}


def attempt(name: str, failures: dict[str, str], work: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """The result of some work with a program; None, and a line among the failures, if the program failed."""
    try:
        return work(*arguments, **keywords)
    except Failed as error:
        failures[name] = str(error)
        print(f"{name} failed: {error}", flush=True)
        return None
