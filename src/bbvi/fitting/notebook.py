"""The progress of a fit in a notebook: one line that is written anew."""

import time
from collections.abc import Callable
from typing import Any


def live_line(total: int | None, shown: str) -> Callable[[int, float], None]:
    """Show a line in the cell's output, and return a function that writes a step number and an ELBO into it."""
    from IPython.display import HTML, display

    show: Any = display
    handle, began = show(HTML("<code>compiling …</code>"), display_id=True), time.monotonic()
    last = "" if total is None else f" of at most {total:,}"

    def report(step: int, elbo: float) -> None:
        seconds = time.monotonic() - began
        words = (
            f"step {step:,}{last} · {shown} {elbo:,.2f} · {step / max(seconds, 1e-9):,.0f} steps/s · {seconds:,.0f} s"
        )
        handle.update(HTML(f"<code>{words}</code>"))

    return report
