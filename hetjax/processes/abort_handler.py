"""A handler of SIGABRT: one line of explanation when JAX's runtime aborts a process.

The distributed runtime calls abort() when the coordinator is gone, or when a process
has sent no heartbeat for too long: no Python exception, no `finally`. It accepts no
Python function instead (jaxlib's `missed_heartbeat_callback` fails with std::bad_cast).
But abort() first calls the handler of SIGABRT, on the thread that gave up, while all
other threads run on. A C function there may call Python, which `signal.signal` cannot
do.
"""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def message_on_abort(find: Callable[[], str], status: int = 1) -> Iterator[None]:
    """Within the context, an abort prints the line that `find` returns, and exits.

    If `find` returns "" or fails, the process aborts as usual.
    """
    if os.name != "posix":
        yield
        return
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    libc.signal.restype = ctypes.c_void_p
    busy = threading.Lock()

    def on_abort(number: int) -> None:
        busy.acquire()  # a second thread that gives up waits for the first
        try:
            text = find()
        except BaseException:
            text = ""
        if text:
            os.write(2, f"{program_name()}: {text}\n".encode())
            os._exit(status)
        libc.signal(number, previous)
        signal.raise_signal(number)  # delivered when this function returns

    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(on_abort)
    address = ctypes.cast(handler, ctypes.c_void_p)
    previous = libc.signal(signal.SIGABRT, address)
    try:
        yield
    finally:
        libc.signal(signal.SIGABRT, previous)


def program_name() -> str:
    """Return the name of the running program."""
    return Path(sys.argv[0]).name
