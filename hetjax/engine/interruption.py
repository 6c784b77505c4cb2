"""Signals: Ctrl-C and SIGTERM end a run between two events, with a valid history.

Queues and shells send SIGTERM before they kill a process, and SLURM sends SIGUSR1
(`--signal=USR1@60`) some time before a job's time limit.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = "interrupted"  # `History.stopped` after Ctrl-C or SIGTERM


@contextmanager
def interruptible(*, checkpointed: bool = False) -> Iterator[Callable[[], str]]:
    """Yield a function that returns the name of the signal that came inside the block.

    The name is "" until Ctrl-C ("SIGINT") or SIGTERM comes, or, if the run is
    `checkpointed`, SIGUSR1, which otherwise kills the process. Signals are only noted,
    but a second Ctrl-C raises KeyboardInterrupt at once. Outside the main thread
    signals cannot be handled, and none is noted.
    """
    came: list[str] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: ""
        return

    def handle(number: int, frame: object) -> None:
        if came and number == signal.SIGINT:
            raise KeyboardInterrupt
        came.append(signal.Signals(number).name)

    handled = [signal.SIGINT, signal.SIGTERM]
    if checkpointed and hasattr(signal, "SIGUSR1"):  # not on every system
        handled.append(signal.SIGUSR1)
    before = {number: signal.signal(number, handle) for number in handled}
    try:
        yield lambda: came[0] if came else ""
    finally:
        for number, handler in before.items():
            # None: a handler set outside Python, which cannot be restored here
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


# an exception raised in these makes XLA crash, or is dropped by Python
_COMPILING = ("jax/_src/compiler.py", "jax/_src/interpreters/mlir.py")
_IN_GARBAGE_COLLECTION = "_xla_gc_callback"
_AGAIN = 0.1  # [s] after which a signal is sent again


def raise_between_programs(number: int, frame: FrameType | None) -> None:
    """Handle a signal: raise a KeyboardInterrupt with its name, outside compilations.

    For scripts, which may be stopped at any time. A signal during a compilation is sent
    again a little later.
    """
    if _is_safe(frame):
        raise KeyboardInterrupt(signal.Signals(number).name)
    again = threading.Timer(_AGAIN, os.kill, (os.getpid(), number))
    again.daemon = True
    again.start()


def _is_safe(frame: FrameType | None) -> bool:
    while frame is not None:
        code = frame.f_code
        if code.co_name == _IN_GARBAGE_COLLECTION:
            return False
        if code.co_filename.replace(os.sep, "/").endswith(_COMPILING):
            return False
        frame = frame.f_back
    return True
