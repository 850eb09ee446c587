"""What a fit shows on the terminal, and how it takes Ctrl-C."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

_noting: list[threading.Event] = []


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[threading.Event]:
    """Note a first Ctrl-C in the event that is yielded instead of raising it; a second one raises. Nested uses share one event.

    Off the main thread, or where the program handles Ctrl-C itself, nothing changes.
    """
    main = threading.current_thread() is threading.main_thread()
    seen = _noting[-1] if main and _noting else threading.Event()
    if not main or _noting or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
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


@contextlib.contextmanager
def progress_bar(wanted: bool | None, total: int | None, *, shown: str = "ELBO") -> Iterator[Report]:
    """Yield a function that shows a step number and an ELBO (or what `shown` names); it is silent if no bar is wanted."""
    from rich.console import Console  # slow to import

    console = Console(stderr=True)
    if wanted is False or not (console.is_terminal or console.is_jupyter):
        yield lambda step, elbo: None
        return
    if console.is_jupyter:  # where rich would need ipywidgets
        from bbvi.fitting.notebook import live_line

        yield live_line(total, shown)
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from bbvi.fitting.bar import Rate

    # until the budget's last step; a rule may stop before
    left = [] if total is None else [TextColumn("[cyan]≤"), TimeRemainingColumn(), TextColumn("[cyan]left")]
    bar = Progress(
        SpinnerColumn(), TextColumn("step {task.completed:,.0f}"), BarColumn(bar_width=24),
        TextColumn(shown + " {task.fields[elbo]}"), Rate(), TimeElapsedColumn(), *left,
        console=console, transient=False,
    )  # fmt: skip
    with bar:
        task = bar.add_task("fit", total=total, elbo="… compiling")
        yield lambda step, elbo: bar.update(task, completed=step, elbo=f"{elbo:,.2f}")
