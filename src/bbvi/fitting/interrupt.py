"""Ctrl-C, put off until the chunk of steps at hand is done: what it works on is used up and must be replaced.

Noted rather than raised, it also cannot get lost: Python drops what is raised while it collects garbage.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator

_noting: list[threading.Event] = []


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[threading.Event]:
    """Note a first Ctrl-C in the event instead of raising it; a second one raises. Inside another one, share its event.

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
