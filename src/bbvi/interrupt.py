"""Ctrl-C, put off until the chunk of steps at hand is done: what it works on is used up and must be replaced."""

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[threading.Event]:
    """Note a first Ctrl-C in the event instead of raising it; a second one raises.

    Off the main thread, or where the program handles Ctrl-C itself, nothing changes.
    """
    seen = threading.Event()
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield seen
        return

    def note(number: int, frame: object) -> None:
        seen.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, note)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
