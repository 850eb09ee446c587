"""One colour for each model, method and estimator, the same on every figure, from Okabe and Ito's set for the colour-blind."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

INK, SOFT, RULE = "#1b1f24", "#57606a", "#d8dee4"
HELD = "#D55E00"
_SPARE = ["#009E73", "#CC79A7", "#785EF0", "#882255", "#44AA99", "#999933"]
# a family of models has a hue, its time series the darker shade; BBVI and what it uses are blue
_COLOURS = {
    "Gamma-Normal-TS": "#0072B2",
    "Gamma-Normal": "#56B4E9",
    "Gamma-TS": "#D55E00",
    "Gamma": "#E69F00",
    "BBVI": "#0072B2",
    "Metropolis-Hastings within Gibbs": "#CC79A7",
    "Metropolis-Hastings": "#7A7A7A",
    "Eq. 3": "#7A7A7A",
    "Eq. 6": "#E69F00",
    "Eq. 10": "#0072B2",
    "leave-one-out": "#009E73",
    "cross-fitted": "#CC79A7",
}
_STYLE = {
    "font.family": "DejaVu Sans", "font.size": 9.0, "axes.labelsize": 9.0, "axes.titlesize": 9.5,
    "axes.titlelocation": "left", "axes.edgecolor": SOFT, "axes.linewidth": 0.7, "axes.labelcolor": SOFT,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True,
    "grid.color": "#eaeef2", "grid.linewidth": 0.7, "text.color": INK, "xtick.color": SOFT, "ytick.color": SOFT,
    "xtick.labelsize": 8.5, "ytick.labelsize": 8.5, "legend.frameon": False, "legend.fontsize": 8.5,
    "lines.solid_capstyle": "round", "svg.fonttype": "path", "svg.hashsalt": "bbvi", "axes.unicode_minus": True,
}  # fmt: skip


def colour(name: str, among: Sequence[str] = ()) -> str:
    """Return the colour of a model, method or estimator: its own, that of the one it mentions, or a spare one.

    Examples:
        >>> colour("Gamma-TS"), colour("Algorithm 1 (Eq. 3)") == colour("Eq. 3")
        ('#D55E00', True)
        >>> colour("a fifth model", ["Gamma", "a fifth model"])
        '#009E73'
    """
    if name in _COLOURS:
        return _COLOURS[name]
    for known in sorted(_COLOURS, key=len, reverse=True):
        if f"({known})" in name or name.startswith(f"{known},") or name.endswith(f" {known}"):
            return _COLOURS[known]
    unknown = [other for other in among if other not in _COLOURS]
    return _SPARE[(unknown.index(name) if name in unknown else 0) % len(_SPARE)]


def styled(draw: Callable[..., Any]) -> Callable[..., Any]:
    """Run a function under the report's style, and leave matplotlib's settings as they were."""

    @functools.wraps(draw)
    def with_style(*args: Any, **options: Any) -> Any:
        with mpl.rc_context(_STYLE):  # type: ignore[arg-type]
            return draw(*args, **options)

    return with_style


def canvas(narrow: bool, height: float, narrow_height: float | None = None, *, width: float = 8.4) -> Figure:
    """Make an empty figure as wide as the page's text, or as a phone."""
    size = (3.9, narrow_height or height) if narrow else (width, height)
    drawing = Figure(figsize=size, layout="constrained", dpi=150)
    FigureCanvasAgg(drawing)
    return drawing


def legend_above(axes: Any, narrow: bool, columns: int = 5) -> None:
    """Put the legend over the axes, from the left, out of the way of the curves."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        legend = axes.legend(
            handles, labels, loc="lower left", bbox_to_anchor=(0, 1.01), ncol=1 if narrow else min(columns, len(labels)),
            borderaxespad=0, borderpad=0.2, handlelength=1.6, columnspacing=1.6,
        )  # fmt: skip
        for text in legend.get_texts():
            text.set_parse_math(False)
