"""What a process still says when JAX's distributed runtime aborts it.

The runtime calls abort() when the coordinator is gone, or when a process has sent no
heartbeat for too long: no Python exception, no `finally`. A Python function cannot be
given to it instead (jaxlib's `missed_heartbeat_callback` fails with std::bad_cast). But
abort() first calls the handler of SIGABRT, on the thread that gave up, while all others
run on; a C function there may call Python, which `signal.signal` cannot do.
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
def last_words(find: Callable[[], str], status: int = 1) -> Iterator[None]:
    """Within the context, an abort says in one line what `find` returns, and exits.

    If `find` returns "" or fails, the abort goes on.
    """
    if os.name != "posix":
        yield
        return
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    libc.signal.restype = ctypes.c_void_p
    speaking = threading.Lock()

    def on_abort(number: int) -> None:
        speaking.acquire()  # a second thread that gives up waits for the first
        try:
            text = find()
        except BaseException:
            text = ""
        if text:
            os.write(2, f"{program()}: {text}\n".encode())
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


def program() -> str:
    """The name of the program that runs."""
    return Path(sys.argv[0]).name
