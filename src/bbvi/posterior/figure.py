"""A figure that shows itself in a notebook, in a file of its own because matplotlib is slow to import."""

import io

from matplotlib.figure import Figure


class Picture(Figure):
    """A figure that no window knows, and that a notebook shows as an image."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()
