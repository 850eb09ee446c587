"""Keep XLA's alarm about slow compilations, which is for its own developers, off the user's terminal."""

import contextlib
import os
import re
import threading
from collections.abc import Iterator

#: what the alarm writes: where it is raised, its sentence, and the lines of stars around this
_ALARM = re.compile(rb"^(.*slow_operation_alarm.*|.*Very slow compile\?.*|\*{20,})\n?", re.MULTILINE)
#: XLA waits for two minutes
_SECONDS = 100.0


@contextlib.contextmanager
def without_alarm(seconds: float = _SECONDS) -> Iterator[None]:
    """Leave the alarm's lines out of what is written to the standard error stream from so many seconds on; all others pass.

    The alarm can only be turned off for the whole process, before JAX starts.
    """
    begun: list[_Filter] = []
    lock, timer = threading.Lock(), threading.Timer(seconds, lambda: begin())
    over = False

    def begin() -> None:
        with lock:
            if not over:
                begun.append(_Filter())

    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with lock:
            over = True
        for one in begun:
            one.end()


class _Filter:
    """The standard error stream, read before it goes where it went."""

    def __init__(self) -> None:
        self._true, (self._source, into) = os.dup(2), os.pipe()
        os.dup2(into, 2)
        os.close(into)
        self._thread = threading.Thread(target=self._pass_on, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Give the stream back, after all that was written has passed."""
        os.dup2(self._true, 2)
        # a process that was started meanwhile may keep writing
        self._thread.join(timeout=1.0)

    def _pass_on(self) -> None:
        while written := os.read(self._source, 1 << 16):
            os.write(self._true, _ALARM.sub(b"", written))
        os.close(self._source)
        os.close(self._true)
