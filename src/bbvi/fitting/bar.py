"""Columns of the progress bar, in a file of their own because rich is slow to import."""

from rich.progress import ProgressColumn, Task
from rich.text import Text


class Left(ProgressColumn):
    """Time left until the budget's last step; a rule may stop before."""

    def render(self, task: Task) -> Text:
        seconds = task.time_remaining
        if task.total is None or seconds is None:
            return Text("")
        minutes, seconds = divmod(int(seconds), 60)
        hours, minutes = divmod(minutes, 60)
        clock = f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
        return Text(f"≤ {clock} left", style="cyan")


class Rate(ProgressColumn):
    """Steps per second."""

    def render(self, task: Task) -> Text:
        if task.speed is None:
            return Text("")
        return Text(f"{task.speed:,.0f} steps/s" if task.speed >= 10 else f"{task.speed:.2g} steps/s")
