"""The picture of a fit: whether the ELBO has settled, and how large the steps were."""

from typing import Any

import numpy as np


def plot_history(posterior: Any) -> Any:
    """Draw the smoothed ELBO against steps with its noise band, and below it the size of the steps."""
    from bbvi.posterior.figure import Picture  # slow to import

    history = posterior.history
    history = history[np.isfinite(history["elbo"])]  # the step that broke a fit has no ELBO
    figure = Picture(figsize=(7.5, 5.0), layout="constrained", dpi=120)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[2.2, 1])
    step, elbo = history.index.to_numpy(), history["elbo"]
    if len(elbo):
        window = elbo.rolling(2 * max(1, len(elbo) // 50) + 1, center=True, min_periods=1)
        smooth, error = window.mean().to_numpy(), window.std(ddof=0).to_numpy()
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
    top.set_title(posterior._ending(), fontsize=10, loc="left")
    top.set(ylabel="ELBO (nats)")
    bottom.set(ylabel="change of λ (rms)", xlabel="step")
    for axes in (top, bottom):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.2)
    return figure
