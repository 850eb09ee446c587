"""Draw docs/images/patterns.png: which entries of the factor of a precision may differ from 0, as `fit` chooses them.

Usage: python docs/make_patterns_picture.py
"""

from pathlib import Path

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from bbvi import Model, explain, positive, real


def walk(z, _):
    steps = jnp.diff(z["x"]) / z["step"]
    return -(steps**2).sum() - ((z["x"] / z["noise"]) ** 2).sum() - z["step"] ** 2 - z["noise"] ** 2


def grid(z, _):
    return sum(-(jnp.diff(z["x"], axis=axis) ** 2).sum() for axis in (0, 1))


def crossed(z, _):
    return -((z["person"][:, None] - z["item"]) ** 2).sum()


def trend(z, _):
    level, slope = z["level"], z["slope"]
    return -((level[1:] - level[:-1] - slope[:-1]) ** 2).sum() - (jnp.diff(slope) ** 2).sum()


MODELS = {
    "a walk and two scales": Model(walk, step=positive(), noise=positive(), x=real(140)),
    "a grid of 12 by 12": Model(grid, x=real(12, 12)),
    "15 items by 130 persons": Model(crossed, item=real(15), person=real(130)),
    "a level and a slope": Model(trend, level=real(70), slope=real(70)),
}


def pattern(core, width, size):
    """Entries at or below the diagonal: columns of the core, and of the block of each row and the one before."""
    row, column = np.indices((size, size))
    block = (row - core) // max(width, 1) - (column - core) // max(width, 1)
    near = (block <= 1) & (column >= core) if width else row == column
    return (column <= row) & (near | (column < core))


figure, axes = plt.subplots(1, len(MODELS), figsize=(12, 3.3), layout="constrained")
for axis, (title, model) in zip(axes, MODELS.items(), strict=True):
    (block,) = explain(model).structure
    size = sum(int(np.prod(latent.shape)) for latent in model.globals.values())
    axis.imshow(pattern(block.core, block.width, size), cmap="Greys", interpolation="none")
    axis.set(title=title, xticks=[], yticks=[], xlabel=f"core {block.core}, width {block.width}")
figure.savefig(Path(__file__).parent / "images" / "patterns.png", dpi=110)
