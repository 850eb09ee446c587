"""Show how far a run of the study is, and how long it still takes."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from bbvi.study.stages import Report


class Clock:
    """A progress bar over stages of guessed lengths; what is left is guessed from the stages that are over."""

    def __init__(self, console: Console, stages: list[tuple[str, float]]):
        self._console, self._stages, self._number = console, stages, 0
        self._taken = self._guessed = 0.0
        self._progress = Progress(
            TextColumn("{task.fields[number]}"), TextColumn("{task.description}"), BarColumn(bar_width=30), TaskProgressColumn(),
            TextColumn("{task.fields[left]}"), console=console, refresh_per_second=2,
        )  # fmt: skip

    def __enter__(self) -> "Clock":
        self._progress.start()
        total = sum(guess for _, guess in self._stages)
        self._task = self._progress.add_task("", total=total, number="", left="")
        return self

    def __exit__(self, *_: Any) -> None:
        self._progress.stop()

    @contextlib.contextmanager
    def stage(self, kept: bool) -> Iterator[Report]:
        """Begin the next stage; `kept` if it was finished earlier."""
        title, guess = self._stages[self._number]
        self._number += 1
        began, before = time.monotonic(), sum(g for _, g in self._stages[: self._number - 1])
        number = f"{self._number}/{len(self._stages)}"

        def report(share: float) -> None:
            done, took = guess * min(share, 1.0), time.monotonic() - began
            self._progress.update(
                self._task, completed=before + done, description=title, number=number, left=self._left(before + done, took, done)
            )  # fmt: skip

        report(0.0)
        yield report
        took = time.monotonic() - began
        if kept:
            self._console.print(f"{number} {title}: kept from an earlier run")
            return
        self._taken, self._guessed = self._taken + took, self._guessed + guess
        self._console.print(f"{number} {title}: {took:.0f} s")

    def _left(self, completed: float, took: float, done: float) -> str:
        """Guess the work that is left, at the pace of the work so far."""
        left = sum(guess for _, guess in self._stages) - completed
        pace = (self._taken + took) / (self._guessed + done) if self._guessed + done > 20 else 1.0
        minutes = left * pace / 60
        return f"about {minutes:.0f} min left" if minutes >= 1.5 else f"about {60 * minutes:.0f} s left"
