"""What a fit shows on the terminal, and how it takes Ctrl-C."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

_noting: list[threading.Event] = []


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[threading.Event]:
    """Note a first Ctrl-C in the event that is yielded instead of raising it; a second one raises. Nested uses share one event.

    Off the main thread, or where the program handles Ctrl-C itself, nothing changes.
    """
    main = threading.current_thread() is threading.main_thread()
    if main and _noting:
        yield _noting[-1]
        return
    seen = threading.Event()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield seen
        return

    def note(number: int, frame: object) -> None:
        seen.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, note)
    _noting.append(seen)
    try:
        yield seen
    finally:
        _noting.remove(seen)
        signal.signal(signal.SIGINT, signal.default_int_handler)


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
        if task.speed is None:
            return Text("")
        return Text(f"{task.speed:,.0f} steps/s" if task.speed >= 10 else f"{task.speed:.2g} steps/s")


@contextlib.contextmanager
def progress_bar(wanted: bool | None, total: int | None, *, shown: str = "ELBO") -> Iterator[Report]:
    """Yield a function that shows a step number and an ELBO (or what `shown` names); it is silent if no bar is wanted."""
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
