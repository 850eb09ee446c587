"""A bar with the step, the smoothed ELBO, the rate and the time left; silent off a terminal."""

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

Report = Callable[[int, float], None]


class _Left(ProgressColumn):
    """Time left until the budget's last step; a rule may stop before."""

    def render(self, task: Task) -> Text:
        seconds = task.time_remaining
        if task.total is None or seconds is None:
            return Text("")
        minutes, seconds = divmod(int(seconds), 60)
        hours, minutes = divmod(minutes, 60)
        clock = f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
        return Text(f"≤ {clock} left", style="cyan")


class _Rate(ProgressColumn):
    """Steps per second."""

    def render(self, task: Task) -> Text:
        return Text(
            ""
            if task.speed is None
            else f"{task.speed:,.0f} steps/s"
            if task.speed >= 10
            else f"{task.speed:.2g} steps/s"
        )


@contextlib.contextmanager
def progress_bar(wanted: bool | None, total: int | None, *, shown: str = "ELBO") -> Iterator[Report]:
    """Yield a function that shows a step number and an ELBO, or what else is `shown`; silent where no bar is wanted."""
    console = Console(stderr=True)
    if wanted is False or not (console.is_terminal or console.is_jupyter):
        yield lambda step, elbo: None
        return
    bar = Progress(
        SpinnerColumn(), TextColumn("step {task.completed:,.0f}"), BarColumn(bar_width=24),
        TextColumn(shown + " {task.fields[elbo]}"), _Rate(), TimeElapsedColumn(), _Left(),
        console=console, transient=False,
    )  # fmt: skip
    with bar:
        task = bar.add_task("fit", total=total, elbo="… compiling")
        yield lambda step, elbo: bar.update(task, completed=step, elbo=f"{elbo:,.2f}")
