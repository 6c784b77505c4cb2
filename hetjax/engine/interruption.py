"""Ctrl-C and SIGTERM take effect between two events: a run ends with a valid history.

Queues and shells send SIGTERM before they kill a process.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

INTERRUPTED = "interrupted"  # `History.stopped` after Ctrl-C or SIGTERM


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether Ctrl-C or SIGTERM came inside the block.

    They only set that flag, but Ctrl-C once more raises KeyboardInterrupt at once.
    Outside the main thread signals cannot be handled, and the flag is never set.
    """
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def handle(number: int, frame: object) -> None:
        if came and number == signal.SIGINT:
            raise KeyboardInterrupt
        came.append(number)

    before = {n: signal.signal(n, handle) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            # None: a handler that no Python code has set, which only it can set again
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
