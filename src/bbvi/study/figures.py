"""The study's figures as SVG, for the report, and as files."""

import io
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from bbvi.study import draw_curves, draw_models
from bbvi.study.palette import styled


def gibbs(section: dict[str, Any], narrow: bool = False) -> str:
    """Draw Figure 1: BBVI against Metropolis-Hastings within Gibbs."""
    return svg(draw_curves.gibbs(section, narrow))


def variance(section: dict[str, Any], narrow: bool = False) -> str:
    """Draw Figure 2: variance of the gradient's estimators."""
    return svg(draw_curves.variance(section, narrow))


def progress(section: dict[str, Any], narrow: bool = False) -> str:
    """Draw convergence with and without each variance reduction."""
    return svg(draw_curves.progress(section, narrow))


def histories(models: list[dict[str, Any]], narrow: bool = False) -> str:
    """Draw the ELBO of each model's fit."""
    return svg(draw_curves.histories(models, narrow))


def comparison(scores: dict[str, Any], narrow: bool = False) -> str:
    """Draw Table 1."""
    return svg(draw_models.comparison(scores, narrow))


def loadings(found: dict[str, Any], narrow: bool = False) -> str:
    """Draw the weights of labs on factors."""
    return svg(draw_models.loadings(found, narrow))


def trajectory(found: dict[str, Any], narrow: bool = False) -> str:
    """Draw a patient's labs through time."""
    return svg(draw_models.trajectory(found, narrow))


def factors(found: dict[str, Any], narrow: bool = False) -> str:
    """Draw a patient's factors through time."""
    return svg(draw_models.factors(found, narrow))


@styled
def svg(drawing: Figure) -> str:
    """Return a figure as SVG with letters as shapes, so that it looks the same with any fonts and on every run."""
    text = io.StringIO()
    drawing.savefig(text, format="svg", metadata={"Date": None})
    whole = text.getvalue()
    short = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), whole)  # a hundredth of a point
    return short[short.index("<svg") :]


def drawings(results: dict[str, Any]) -> dict[str, Callable[[], Figure]]:
    """Return functions that draw the figures which the results allow, by the names of their files."""
    found: dict[str, Callable[[], Figure]] = {}
    for name in ("gibbs", "variance", "progress"):
        if results.get(name):
            found[name] = partial(getattr(draw_curves, name), results[name])
    for data, scores in (results.get("comparison") or {}).items():
        found[f"comparison {data}"] = partial(draw_models.comparison, scores)
        found[f"histories {data}"] = partial(draw_curves.histories, scores["models"])
    for data, one in (results.get("factors") or {}).items():
        for name in ("loadings", "trajectory", "factors"):
            found[f"{name} {data}"] = partial(getattr(draw_models, name), one)
    return found


@styled
def save_all(results: dict[str, Any], folder: str | Path) -> list[Path]:
    """Save every figure as an SVG and a PNG file."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, draw in drawings(results).items():
        stem = "".join(letter if letter.isalnum() else "-" for letter in name)
        drawing = draw()
        for kind in ("svg", "png"):
            paths.append(folder / f"{stem}.{kind}")
            drawing.savefig(paths[-1], metadata={"Date": None} if kind == "svg" else None, dpi=200)
    return paths
