"""Section 5's "Exploring Models": scores of models, loadings, and a patient's labs and factors through time."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from bbvi.study.numerals import floats
from bbvi.study.palette import HELD, INK, SOFT, canvas, colour, legend_above, styled

BLUE = "#0072B2"
MOST_PANELS = 6


@styled
def comparison(scores: dict[str, Any], narrow: bool = False) -> Figure:
    """Draw Table 1: predictive likelihoods with two standard errors."""
    models = scores["models"]
    drawing = canvas(narrow, 0.75 + 0.34 * len(models))
    axes = drawing.subplots()
    order = [model["model"] for model in models]
    for row, model in enumerate(models):
        value, error = floats([model["per_observation"], model.get("per_observation_error")])
        if np.isfinite(value):
            bar = 2 * error if np.isfinite(error) else 0
            axes.errorbar(value, row, xerr=bar, fmt="o", ms=6, lw=1.6, color=colour(model["model"], order))
    averages = (scores.get("averages") or {}).get("per_observation")
    if averages is not None and np.isfinite(averages):
        axes.axvline(averages, color=SOFT, lw=1, ls=(0, (3, 2)), label="a patient's own averages")
        legend_above(axes, narrow)
    axes.set_yticks(range(len(models)), order, parse_math=False)
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.set_ylim(len(models) - 0.5, -0.5)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("log predictive density" + ("" if narrow else " of a held-out measurement, ± 2 standard errors"))
    return drawing


@styled
def loadings(found: dict[str, Any], narrow: bool = False) -> Figure:
    """Draw the weights W, labs by factors: the mean in each cell, coloured by it, pale where within two sd of 0."""
    mean, sd = floats(found["W_mean"]), floats(found["W_sd"])
    num_labs, num_factors = mean.shape
    drawing = canvas(narrow, 0.8 + 0.27 * num_labs, width=min(8.4, 2.4 + 0.8 * num_factors))
    axes = drawing.subplots()
    limit = 1.2 * np.nanmax(np.abs(mean), initial=1e-9)  # short of the darkest shades
    image = axes.imshow(mean, cmap="PuOr_r", vmin=-limit, vmax=limit, aspect="auto")
    for lab in range(num_labs):
        for factor in range(num_factors):
            value = mean[lab, factor]
            clear = abs(value) > 2 * sd[lab, factor]
            shade = "white" if np.dot(image.to_rgba(value)[:3], (0.30, 0.59, 0.11)) < 0.5 else INK
            axes.text(
                factor, lab, f"{value:.2f}".replace("-", "−"), ha="center", va="center", fontsize=7.5, color=shade,
                alpha=1.0 if clear else 0.45,
            )  # fmt: skip
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.set_xticks(range(num_factors), [f"{k + 1}" for k in range(num_factors)])
    axes.set_yticks(range(num_labs), [str(name) for name in found["labs"]], parse_math=False)
    axes.tick_params(length=0, labelcolor=INK)
    axes.set_xlabel("factor")
    bar = drawing.colorbar(image, ax=axes, pad=0.02, aspect=30, shrink=0.9)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0)
    return drawing


@styled
def trajectory(found: dict[str, Any], narrow: bool = False) -> Figure:
    """Draw a test patient's labs: fitted mean, 90 % intervals, kept and held-out measurements, the truth if known."""
    patient, names = found["patient"], found["labs"]
    chosen = shown_labs(patient)
    columns = 1 if narrow else min(2, len(chosen))
    rows = -(-len(chosen) // columns)
    drawing = canvas(narrow, 0.7 + 1.5 * rows, 0.9 + 1.35 * rows)
    panels = drawing.subplots(rows, columns, sharex=True, squeeze=False).ravel()
    for axes, lab in zip(panels, chosen, strict=False):
        _lab(axes, patient, lab)
        axes.set_title(str(names[lab]), parse_math=False, fontsize=9)
    for axes in panels[len(chosen) :]:
        axes.set_visible(False)
    for axes in panels[max(0, len(chosen) - columns) : len(chosen)]:
        axes.set_xlabel("time")
        axes.tick_params(labelbottom=True)
    handles, labels = panels[0].get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside upper left", ncol=2 if narrow else 5, handlelength=1.4)
    return drawing


def shown_labs(patient: dict[str, Any]) -> list[int]:
    """Return the labs with the most held-out measurements, in the data's order."""
    held = np.asarray(patient["held"], bool).sum(0)
    measured = np.isfinite(floats(patient["labs"])).sum(0)
    best = np.lexsort((-measured, -held))[:MOST_PANELS]
    return sorted(int(lab) for lab in best)


def _lab(axes: Any, patient: dict[str, Any], lab: int) -> None:
    at = floats(patient["times"])
    low, high, mean = (floats(patient[what])[:, lab] for what in ("low", "high", "mean"))
    value, kept, held = (
        floats(patient["labs"])[:, lab],
        *(np.asarray(patient[k], bool)[:, lab] for k in ("kept", "held")),
    )
    axes.fill_between(at, low, high, color=BLUE, alpha=0.16, lw=0, label="90 % interval")
    axes.plot(at, mean, color=BLUE, lw=1.5, label="fitted mean")
    if patient.get("truth") is not None:
        axes.plot(at, floats(patient["truth"])[:, lab], color=INK, lw=0.9, ls=(0, (3, 2)), label="truth")
    axes.plot(at[kept], value[kept], "o", ms=3.2, color=INK, mew=0, label="kept")
    axes.plot(at[held], value[held], "o", ms=4.6, mfc="white", mec=HELD, mew=1.3, label="held out", zorder=4)


@styled
def factors(found: dict[str, Any], narrow: bool = False) -> Figure:
    """Draw the same patient's factors, which summarise the visits, with 90 % intervals."""
    patient = found["patient"]
    at, mean = floats(patient["times"]), floats(patient["factor_mean"])
    low, high = floats(patient["factor_low"]), floats(patient["factor_high"])
    count = mean.shape[1]
    columns = min(2 if narrow else 5, count)
    rows = -(-count // columns)
    drawing = canvas(narrow, 0.35 + 1.45 * rows)
    panels = drawing.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for factor, axes in enumerate(panels):
        axes.set_visible(factor < count)
        if factor < count:
            axes.fill_between(at, low[:, factor], high[:, factor], color=BLUE, alpha=0.16, lw=0)
            axes.plot(at, mean[:, factor], color=BLUE, lw=1.5)
            axes.set_title(f"factor {factor + 1}", fontsize=9)
            axes.locator_params(axis="x", nbins=3)
        if count - columns <= factor < count:
            axes.set_xlabel("time")
            axes.tick_params(labelbottom=True)
    panels[0].set_ylim(bottom=0)
    return drawing
