"""Joining and leaving a run: a process that ends announces the reason to the others."""

import atexit
import functools
import os
import re
import sys
import time
from contextlib import ExitStack
from typing import NoReturn

import jax

from hetjax.processes.abort_handler import message_on_abort, program_name
from hetjax.processes.bootstrap import find_place, join
from hetjax.processes.exchange import (
    PATIENCE,
    ProcessDied,
    Processes,
    current_processes,
)
from hetjax.processes.liveness import Peers

_GRACE = 3.0  # [s] for a process to report its own error before it is ended
_EXIT = 300  # [s] that a finished process waits for one that does not answer


def initialize(timeout: float = 120, heartbeat: float = 30) -> Processes:
    """Join the other processes of this run, if the environment states any.

    Call this before anything else uses JAX; see `hetjax.processes.bootstrap` for the
    variables. All processes must join within `timeout` seconds [s]. A process without a
    sign of life for `heartbeat` seconds [s] counts as dead, and all others end with a
    line that names it. An uncaught exception ends this process at once, and is
    announced to the others.
    """
    if not jax.distributed.is_initialized():
        place = find_place(os.environ)
        if place is None:
            return current_processes()
        join(place, timeout, heartbeat)
    processes = current_processes()
    if processes.peers is not None:
        _install_exit_handlers(processes.peers)
    return processes


def blame(error: Exception) -> Exception:
    """Return why a program failed: a ProcessDied that names the process, or the error.

    The error is returned if it is not the runtime's, or if all processes answer for
    some seconds: then it has another reason. A collective that fails raises a
    JaxRuntimeError where its result is read, but a ValueError where a program that uses
    the result is called; both begin with a status, such as "UNKNOWN: ".
    """
    peers = current_processes().peers
    if peers is None or not re.match("[A-Z]+(_[A-Z]+)*: ", str(error)):
        return error
    reason = peers.diagnose(PATIENCE)
    return ProcessDied(reason) if reason else error


def leave(error: BaseException) -> None:
    """Note that an exception, such as that of `sys.exit`, makes this process leave.

    The others would wait for it. When it exits, the exception is announced to them, and
    they end.
    """
    current_processes().exit_error = error


def end(status: int, reason: str) -> NoReturn:
    """Exit with a nonzero status, and print the reason to standard error.

    The reason is announced to the other processes. This does not wait for them, as an
    ordinary exit does: they may be waiting for this process.
    """
    if (peers := current_processes().peers) is not None:
        _exit_now(peers, status, reason, f"{program_name()}: {reason}\n")
    print(f"{program_name()}: {reason}", file=sys.stderr)
    sys.exit(status)


def _exit_now(peers: Peers, status: int, reason: str, line: str) -> NoReturn:
    peers.announce(f"{peers.me} has ended: {reason}")
    if peers.me.index == 0:  # the others still need the store
        peers.wait_for_exits(_GRACE)
    sys.stdout.flush()
    sys.stderr.flush()
    os.write(2, line.encode())  # last: JAX's runtime may have written as well
    os._exit(status)


@functools.cache
def _install_exit_handlers(peers: Peers) -> None:
    """Handle an abort and the exit of this process, once."""
    stack = ExitStack()
    stack.enter_context(message_on_abort(functools.partial(_abort_reason, peers)))
    stack.callback(_at_exit, peers)
    atexit.register(stack.close)


def _at_exit(peers: Peers) -> None:
    """Wait for the other processes, unless an exception ended this one."""
    error = getattr(sys, "last_value", None) or current_processes().exit_error
    if error is not None:
        code = error.code if isinstance(error, SystemExit) else 1
        status = code if isinstance(code, int) and code else 1
        _exit_now(peers, status, f"{type(error).__name__}: {error}", line="")
    try:
        current_processes().gather("end", None, _EXIT, patient=True)
    except (ProcessDied, OSError) as error:
        _exit_now(peers, 1, str(error), f"{program_name()}: {error}\n")
    jax.distributed.shutdown()


def _abort_reason(peers: Peers) -> str:
    """Return why JAX's runtime gave up, after the main thread had time to exit."""
    reason = peers.diagnose(PATIENCE)
    if reason:
        time.sleep(_GRACE)
    return reason
