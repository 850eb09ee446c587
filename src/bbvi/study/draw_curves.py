"""Figures 1 and 2: curves against time and iteration."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, SymmetricalLogLocator

from bbvi.study.numerals import duration, floats, number, percent
from bbvi.study.palette import INK, SOFT, canvas, colour, legend_above, styled


@styled
def gibbs(section: dict[str, Any], narrow: bool = False) -> Figure:
    """Draw Figure 1: held-out predictive likelihood against time, whole and near the ends, and the squared error.

    Every seed is a thin line with its error, their mean a thick one.
    """
    curves = section["curves"]
    panels = ["whole", "ends", "mse"] if _has_mse(curves) else ["whole", "ends"]
    drawing = canvas(narrow, 1.0 + 1.9 * len(panels), 1.6 + 1.9 * len(panels))
    axes = dict(zip(panels, drawing.subplots(len(panels), 1, sharex=True), strict=True))
    for method in dict.fromkeys(curve["method"] for curve in curves):
        seeds = [curve for curve in curves if curve["method"] == method]
        for name, panel in axes.items():
            _method(panel, method, seeds, "mse" if name == "mse" else "per_observation")
    main = [c for c in curves if c["method"] != "Metropolis-Hastings"] or curves
    _frame(axes["whole"], main)
    _frame_ends(axes["ends"], main)
    _below_the_frame(axes["whole"], curves)
    _reach(axes["ends"], section.get("reach") or {}, narrow)
    axes["whole"].set_ylabel("log predictive\ndensity")
    axes["ends"].set_ylabel("the same,\nnear the ends")
    legend_above(axes["whole"], narrow)
    if "mse" in axes:
        axes["mse"].set_ylabel("squared error")
        axes["mse"].set_yscale("log")
    _clock(axes[panels[-1]], curves)
    return drawing


def _has_mse(curves: list[dict[str, Any]]) -> bool:
    return all(curve.get("mse") is not None and len(curve["mse"]) for curve in curves)


def _method(axes: Any, method: str, seeds: list[dict[str, Any]], what: str) -> None:
    for curve in seeds:
        at, value = floats(curve["seconds"]), floats(curve[what])
        good = np.isfinite(value) & (at > 0)
        axes.plot(at[good], value[good], color=colour(method), lw=0.8, alpha=0.5)
        if what == "per_observation" and curve.get("error") is not None:
            error = floats(curve["error"])[good]
            axes.fill_between(at[good], value[good] - error, value[good] + error, color=colour(method), alpha=0.1, lw=0)
    grid, mean = _mean_over_seeds(seeds, what)
    axes.plot(grid, mean, color=colour(method), lw=2.2, label=method)


def _mean_over_seeds(seeds: list[dict[str, Any]], what: str) -> tuple[np.ndarray, np.ndarray]:
    """Average the seeds' curves, on the times that all of them cover."""
    pairs = [(floats(curve["seconds"]), floats(curve[what])) for curve in seeds]
    pairs = [(at[np.isfinite(y) & (at > 0)], y[np.isfinite(y) & (at > 0)]) for at, y in pairs]
    pairs = [(at, y) for at, y in pairs if len(at)]
    if not pairs:
        return np.empty(0), np.empty(0)
    first, last = max(at[0] for at, _ in pairs), min(at[-1] for at, _ in pairs)
    if first >= last:
        return np.empty(0), np.empty(0)
    grid = np.geomspace(first, last, 200)
    return grid, np.mean([np.interp(np.log(grid), np.log(at), y) for at, y in pairs], axis=0)


def _frame(axes: Any, curves: list[dict[str, Any]]) -> None:
    """Frame the values at which the methods end; a curve that starts far below enters from below."""
    values = np.concatenate([floats(curve["per_observation"]) for curve in curves])
    values = values[np.isfinite(values)]
    if len(values) and values.max() > values.min():
        top, low = values.max(), np.quantile(values, 0.15)
        low = max(values.min(), top - 1.6 * (top - low))
        axes.set_ylim(low - 0.06 * (top - low), top + 0.12 * (top - low))


def _frame_ends(axes: Any, curves: list[dict[str, Any]]) -> None:
    """Frame the last values and their errors, with as much room below as they take."""
    last = [(floats(c["per_observation"])[-1], floats(c["error"])[-1]) for c in curves if len(c["per_observation"])]
    values = np.array([value + sign * error for value, error in last for sign in (-1, 1)])
    values = values[np.isfinite(values)]
    if len(values):
        low, high = values.min(), values.max()
        room = max(high - low, 1e-3 * max(1.0, abs(high)))
        axes.set_ylim(low - 1.2 * room, high + 0.35 * room)


def _below_the_frame(axes: Any, curves: list[dict[str, Any]]) -> None:
    low = axes.get_ylim()[0]
    ends: dict[str, list[float]] = {}
    for curve in curves:
        values = floats(curve["per_observation"])
        values = values[np.isfinite(values)]
        ends.setdefault(curve["method"], []).append(values.max() if len(values) else -np.inf)
    lines = [f"{name}: never above {number(max(best), 1)}" for name, best in ends.items() if max(best) < low]
    if lines:
        axes.text(
            0.99, 0.03, "below the frame\n" + "\n".join(lines), transform=axes.transAxes,
            ha="right", va="bottom", fontsize=8, color=SOFT,
        )  # fmt: skip


def _reach(axes: Any, reach: dict[str, Any], narrow: bool) -> None:
    """Mark where Gibbs ends, and when BBVI gets there."""
    if reach.get("gibbs_end") is None or not np.isfinite(reach["gibbs_end"]):
        return
    axes.axhline(reach["gibbs_end"], color=INK, lw=0.8, ls=(0, (1, 2)))
    when = reach.get("bbvi_seconds_to_gibbs_end")
    if when:
        axes.plot(when, reach["gibbs_end"], "o", ms=6, mfc="white", mec=INK, mew=1.2, zorder=5)
        words = f"BBVI where Gibbs ends:\n{duration(when)}, {percent(reach.get('share_of_budget'))} of the time"
        axes.annotate(
            words, (when, reach["gibbs_end"]), xytext=(9, -10), textcoords="offset points", va="top",
            fontsize=7.5 if narrow else 8, color=INK,
            bbox={"fc": "white", "ec": "none", "alpha": 0.8, "pad": 1},
        )  # fmt: skip


def _clock(axes: Any, curves: list[dict[str, Any]]) -> None:
    """Make a logarithmic axis of time, from the first point after 0 to the last."""
    times = np.concatenate([*(floats(curve["seconds"]) for curve in curves), np.empty(0)])
    times = times[np.isfinite(times) & (times > 0)]
    axes.set_xscale("log")
    axes.set_xlabel("time (logarithmic)")
    if len(times) and times.min() < times.max():
        first, last = max(times.min(), times.max() / 1e4), times.max() * 1.05
        axes.set_xlim(first, last)
        axes.set_xticks([tick for tick in TICKS if first <= tick <= last])
    axes.xaxis.set_major_formatter(lambda seconds, _: duration(seconds))
    axes.xaxis.set_minor_locator(NullLocator())


TICKS = [0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 180, 600, 1800, 3600, 10800, 36000, 86400]  # seconds, minutes, hours


@styled
def variance(section: dict[str, Any], narrow: bool = False) -> Figure:
    """Draw Figure 2: variance of the gradient's estimators against iteration, on a logarithmic scale."""
    drawing = canvas(narrow, 3.7, 4.4)
    axes = drawing.subplots()
    iterations = floats(section["iterations"])
    order = list(section["estimators"])
    for name in order:
        values = floats(section["estimators"][name])
        values = np.where(values > 0, values, np.nan)
        dotted = name not in ("Eq. 3", "Eq. 6", "Eq. 10")  # not in the paper
        axes.plot(
            iterations, values, color=colour(name, order), lw=1.6, ls=(0, (3, 1.2)) if dotted else "-",
            marker="o" if len(values) <= 40 else None, ms=3.2, label=ESTIMATORS.get(name, name),
        )  # fmt: skip
    axes.set_yscale("log")
    axes.set_xlabel("iteration")
    axes.set_ylabel("variance of the gradient")
    legend_above(axes, narrow, columns=3)
    return drawing


ESTIMATORS = {
    "Eq. 3": "Eq. 3, plain",
    "Eq. 6": "Eq. 6, Rao-Blackwellized",
    "Eq. 10": "Eq. 10, with control variate",
    "leave-one-out": "leave-one-out",
    "cross-fitted": "cross-fitted",
}


@styled
def progress(section: dict[str, Any], narrow: bool = False) -> Figure:
    """Draw the ELBO against time, with and without each variance reduction."""
    runs = {run["estimator"]: run for run in section["runs"]}
    return _elbos(runs, narrow)


@styled
def histories(models: list[dict[str, Any]], narrow: bool = False) -> Figure:
    """Draw the ELBO of each model's fit against time."""
    return _elbos({model["model"]: model["history"] for model in models if model.get("history")}, narrow)


def _elbos(runs: dict[str, dict[str, Any]], narrow: bool) -> Figure:
    drawing = canvas(narrow, 3.3, 4.2)
    axes = drawing.subplots()
    finite = []
    for name, run in runs.items():
        at, elbo = floats(run["seconds"]), floats(run["elbo"])
        good = np.isfinite(elbo) & (at > 0)
        axes.plot(at[good], elbo[good], color=colour(name, list(runs)), lw=1.6, label=name)
        finite.append(elbo[good])
    values = np.concatenate([*finite, np.empty(0)])
    starts = [elbo[0] for elbo in finite if len(elbo)]
    if starts and values.min() < min(starts) - 2 * abs(min(starts)):
        # a run that falls without end leaves the frame, so that the others can be seen
        axes.set_ylim(bottom=min(starts) - 2 * abs(min(starts)))
        values = values[values >= min(starts)]
    sizes = np.abs(values[values != 0])
    if len(sizes) and sizes.max() > 20 * np.quantile(sizes, 0.05):
        limit = float(np.quantile(sizes, 0.05))
        axes.set_yscale("symlog", linthresh=limit, linscale=0.5)
        axes.yaxis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=limit, subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(lambda value, _: thousands(value))
    axes.set_ylabel("ELBO (nats)")
    legend_above(axes, narrow, columns=4)
    _clock(axes, list(runs.values()))
    return drawing


def thousands(value: float) -> str:
    """Write a number on an axis, with k for thousands and M for millions.

    Examples:
        >>> thousands(-20000), thousands(-1.5e6), thousands(0.5)
        ('−20 k', '−1.5 M', '0.5')
    """
    for size, unit in ((1e6, " M"), (1e3, " k"), (1, "")):
        if abs(value) >= size or size == 1:
            return f"{value / size:g}{unit}".replace("-", "−")
    return ""
