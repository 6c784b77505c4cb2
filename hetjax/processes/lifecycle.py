"""Joining and leaving a run of several processes.

JAX ends all processes when one dies or hangs (`heartbeat`), and names it. An exception
ends a process at once: an ordinary exit would wait for the others, and they for it.
"""

import atexit
import functools
import os
import re
import sys
import threading
from contextlib import suppress
from typing import NoReturn

import jax

from hetjax.processes.bootstrap import join, say
from hetjax.processes.exchange import ProcessDied, Processes, current_processes

_GRACE = 3.0  # [s] that process 0 waits for others that end
_silence = 100.0  # [s] after which JAX ends all processes: its default
# statuses of errors that a collective raises if a process is gone
_COLLECTIVE = re.compile("(UNKNOWN|INTERNAL|UNAVAILABLE|ABORTED|DEADLINE_EXCEEDED): ")


def initialize(timeout: float = 120, heartbeat: float = 30) -> Processes:
    """Join the other processes of this run, if the environment states any.

    Call this before anything else uses JAX; see `hetjax.processes.bootstrap` for the
    variables. All processes must join within `timeout` seconds [s]. If a process gives
    no sign of life for `heartbeat` seconds [s], all others end and name it. An uncaught
    exception ends this process at once.
    """
    global _silence
    if jax.distributed.is_initialized():
        _install_exit_handler()
    elif join(timeout, heartbeat):
        _silence = heartbeat
        _install_exit_handler()
    return current_processes()


def blame(error: Exception) -> Exception:
    """Return a ProcessDied if a collective may have failed, otherwise the error.

    A collective that fails raises a JaxRuntimeError where its result is read, but a
    ValueError where a program that uses the result is called.
    """
    if current_processes().count == 1 or not _COLLECTIVE.match(str(error)):
        return error
    return ProcessDied(
        "another process of the run has died or ended: the output of the processes, or "
        f"of their launcher, says which and why ({str(error).splitlines()[0]})"
    )


def leave(error: BaseException) -> None:
    """Note that an exception, such as that of `sys.exit`, makes this process leave."""
    current_processes().exit_error = error


def end(status: int, reason: str | Exception) -> NoReturn:
    """Exit with a nonzero status, and print the reason to standard error.

    This does not wait for other processes, as an ordinary exit does.
    """
    say(str(reason))
    if current_processes().count > 1:
        _exit_now(status, reason)
    sys.exit(status)


def _exit_now(status: int, reason: object) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    if isinstance(reason, ProcessDied):
        # JAX ends this process, and names the other, unless all are alive
        threading.Timer(_silence + _GRACE, os._exit, [status]).start()
        jax.distributed.shutdown()
    with suppress(Exception):
        current_processes().hold_first("end", _GRACE)
    os._exit(status)


@functools.cache
def _install_exit_handler() -> None:
    atexit.register(_at_exit)


def _at_exit() -> None:
    """Wait for the other processes, unless an exception ended this one."""
    error = getattr(sys, "last_value", None) or current_processes().exit_error
    if error is not None:
        code = error.code if isinstance(error, SystemExit) else 1
        _exit_now(code if isinstance(code, int) and code else 1, error)
    jax.distributed.shutdown()
