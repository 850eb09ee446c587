"""The picture of a fit: whether the ELBO has settled, and how large the steps were."""

from typing import Any

import numpy as np


def plot_history(posterior: Any) -> Any:
    """Draw the smoothed ELBO against steps with its noise band, and below it the size of the steps."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    history = posterior.history
    history = history[np.isfinite(history["elbo"])]  # the step that broke a fit has no ELBO
    figure = Figure(figsize=(7.5, 5.0), layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[2.2, 1])
    step, elbo = history.index.to_numpy(), history["elbo"].to_numpy()
    if len(elbo):
        smooth, error = _running(elbo, max(1, len(elbo) // 50))
        below, above = smooth - 2 * error, smooth + 2 * error
        top.fill_between(step, below, above, color="#4c72b0", alpha=0.2, lw=0, label="noise, ± 2 sd")
        top.plot(step, smooth, color="#4c72b0", lw=1.6, label="ELBO, smoothed")
        late = len(smooth) // 20
        low, high = np.quantile(below[late:], 0.02), np.max(above[late:])
        if np.isfinite([low, high]).all() and high > low:
            top.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
        top.legend(frameon=False, loc="lower right")
        bottom.plot(step, history["change"], color="#999999", lw=0.8)
        bottom.set_yscale("log")
    verdict = "converged" if posterior.converged else "not converged"
    top.set_title(f"{verdict} after {len(elbo):,} steps ({posterior.stopped})", fontsize=10, loc="left")
    top.set_ylabel("ELBO (nats)")
    bottom.set_ylabel("change of λ (rms)")
    bottom.set_xlabel("step")
    for axes in (top, bottom):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.2)
    return figure


def _running(values: np.ndarray, window: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the centred running mean and standard deviation, with shorter windows at the ends."""
    centred = values - np.median(values)
    sums = np.concatenate([[0.0], np.cumsum(centred)])
    squares = np.concatenate([[0.0], np.cumsum(centred**2)])
    low = np.maximum(np.arange(len(values)) - window, 0)
    high = np.minimum(np.arange(len(values)) + window + 1, len(values))
    mean = (sums[high] - sums[low]) / (high - low)
    variance = (squares[high] - squares[low]) / (high - low) - mean**2
    return mean + np.median(values), np.sqrt(np.maximum(variance, 0))
