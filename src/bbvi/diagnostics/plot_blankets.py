"""The picture of the blankets: arrays of terms down, latents across, a mark where one reads the other."""

from typing import Any

import numpy as np
import scipy.sparse as sparse

_COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860", "#da8bc3", "#8c8c8c")
_PIXELS = 200


def plot_blankets(found: Any) -> Any:
    """Draw an `Explanation`: who reads whom, with each array's share of the variance at the side."""
    from matplotlib.colors import ListedColormap

    from bbvi.posterior.figure import Picture

    terms = [term for term in found.shapes if found.readings[term]]
    names = list(found.problem.latents)
    heights = [_weight(found.shapes[term]) for term in terms]
    widths = [_weight(found.problem.shape(name)) for name in names]
    size = (2.9 + 4.6 * sum(widths) / max(sum(widths), 0.5), 0.9 + 3.6 * sum(heights) / max(sum(heights), 0.5))
    figure = Picture(figsize=size, dpi=120)
    grid = figure.add_gridspec(
        len(terms), len(names) + 1, height_ratios=heights, width_ratios=[*widths, 0.16 * sum(widths)],
        hspace=0.08, wspace=0.05, left=1.75 / size[0], right=1 - 0.25 / size[0], top=1 - 0.75 / size[1], bottom=0.1 / size[1],
    )  # fmt: skip
    for i, term in enumerate(terms):
        for j, name in enumerate(names):
            axes, colour = figure.add_subplot(grid[i, j]), _COLOURS[j % len(_COLOURS)]
            reading = found.readings[term].get(name)
            if reading is not None:
                image, colours = _image(reading.pairs()), ListedColormap([(1, 1, 1, 0), colour])
                axes.imshow(image, aspect="auto", interpolation="nearest", cmap=colours, vmin=0, vmax=1)
            axes.set_facecolor("#f4f4f4" if reading is None else "white")
            axes.set(xticks=[], yticks=[])
            for spine in axes.spines.values():
                spine.set(color="#cccccc", linewidth=0.6)
            if i == 0:
                axes.set_title(f"{name}\n{_shape(found.problem.shape(name))}", fontsize=8, color=colour)
            if j == 0:
                label = f"{term}\n{_shape(found.shapes[term])}"
                axes.set_ylabel(label, rotation=0, ha="right", va="center", fontsize=8)
        _bar(figure.add_subplot(grid[i, len(names)]), found.shares[term], first=i == 0)
    return figure


def _bar(axes: Any, share: float, *, first: bool) -> None:
    axes.barh([0], [share if np.isfinite(share) else 0], color="#555555", height=0.5)
    axes.set(xlim=(0, 1), ylim=(-1, 1), xticks=[], yticks=[])
    axes.text(0.0, -0.75, percent(share), fontsize=7, va="center", color="#555555")
    for spine in axes.spines.values():
        spine.set_visible(False)
    if first:
        axes.set_title("variance", fontsize=8, color="#555555", loc="left")


def percent(share: float) -> str:
    """A share for people to read."""
    if not np.isfinite(share):
        return "not finite"
    return f"{100 * share:.0f} %" if share >= 0.095 or share == 0 else f"{100 * share:.1g} %"


def _weight(shape: tuple[int, ...]) -> float:
    """Room for an array: more for larger ones, but all can be seen."""
    return float(np.prod(shape)) ** 0.3


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "1"


def _image(pairs: sparse.csr_array) -> np.ndarray:
    """The pattern, thinned to the pixels there are: a pixel is marked if anything in it is."""
    rows, columns = pairs.nonzero()
    height, width = (min(_PIXELS, size) for size in pairs.shape)
    image = np.zeros((height, width))
    image[rows * height // pairs.shape[0], columns * width // pairs.shape[1]] = 1
    return image
