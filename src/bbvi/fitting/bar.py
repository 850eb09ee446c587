"""A column of the progress bar, in a file of its own because rich is slow to import."""

from rich.progress import ProgressColumn, Task
from rich.text import Text


class Rate(ProgressColumn):
    """Steps per second."""

    def render(self, task: Task) -> Text:
        if task.speed is None:
            return Text("")
        return Text(f"{task.speed:,.0f} steps/s" if task.speed >= 10 else f"{task.speed:.2g} steps/s")
