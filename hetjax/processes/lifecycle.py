"""How a process joins its run, and how it ends so that the others learn why."""

import atexit
import functools
import os
import re
import sys
import time
from contextlib import ExitStack
from typing import NoReturn

import jax
from jax._src import distributed  # JAX has no public access to its key-value store

from hetjax.processes.abort_handler import last_words, program
from hetjax.processes.agreement import PATIENCE, ProcessDied, Processes, here
from hetjax.processes.bootstrap import join, place_in
from hetjax.processes.liveness import Peers

_GRACE = 3.0  # [s] that a process has for its own error before it is ended
_EXIT = 300  # [s] that a process which is done waits for one that does not answer


def initialize(timeout: float = 120, heartbeat: float = 30) -> Processes:
    """Join the other processes of this run, if the environment tells of any.

    Call this before anything else uses JAX; see `joining` for the variables. All have
    to come within `timeout` seconds. A process that gives no sign of life for
    `heartbeat` seconds [s] counts as dead, and all others end with a line that names
    it. An uncaught exception ends this process at once, and the others are told of it.
    """
    if distributed.global_state.client is None:
        place = place_in(os.environ)
        if place is None:
            return here()
        join(place, timeout, heartbeat)
    processes = here()
    if processes.peers is not None:
        _prepare_end(processes.peers)
    return processes


def blame(error: Exception) -> Exception:
    """Why a program failed: a ProcessDied that names another process, or the error.

    The error is returned if it is not the runtime's, or if all processes answer for
    some seconds: then it has another reason. A collective that fails raises a
    JaxRuntimeError where its result is read, but a ValueError where a program that
    uses the result is called; both begin with a status, as "UNKNOWN: ".
    """
    peers = here().peers
    if peers is None or not re.match("[A-Z]+(_[A-Z]+)*: ", str(error)):
        return error
    verdict = peers.verdict(PATIENCE)
    return ProcessDied(verdict) if verdict else error


def leave(error: BaseException) -> None:
    """Note that an exception, as that of `sys.exit`, makes this process leave a run.

    The others would wait for it: when it exits, they are told, and end.
    """
    here().left = error


def end(status: int, reason: str) -> NoReturn:
    """Exit with a status that is not 0, and a line on standard error that says why.

    The other processes learn the reason. This does not wait for them, as an ordinary
    exit does: they may wait for this one.
    """
    if (peers := here().peers) is not None:
        _stop(peers, status, reason, f"{program()}: {reason}\n")
    print(f"{program()}: {reason}", file=sys.stderr)
    sys.exit(status)


def _stop(peers: Peers, status: int, reason: str, line: str) -> NoReturn:
    peers.tell(f"{peers.me} has ended: {reason}")
    if peers.me.index == 0:  # the others still need the store
        peers.wait_for_ends(_GRACE)
    sys.stdout.flush()
    sys.stderr.flush()
    os.write(2, line.encode())  # last: JAX's runtime may have written, too
    os._exit(status)


@functools.cache
def _prepare_end(peers: Peers) -> None:
    """Let this process say why the run ends, if it does; once."""
    stack = ExitStack()
    stack.enter_context(last_words(functools.partial(_last_words, peers)))
    stack.callback(_leave, peers)
    atexit.register(stack.close)


def _leave(peers: Peers) -> None:
    """At exit: wait for the others, unless an exception ended this process."""
    error = getattr(sys, "last_value", None) or here().left
    if error is not None:
        code = error.code if isinstance(error, SystemExit) else 1
        status = code if isinstance(code, int) and code else 1
        _stop(peers, status, f"{type(error).__name__}: {error}", line="")
    try:
        here().gather("end", None, _EXIT, patient=True)
    except (ProcessDied, OSError) as error:
        _stop(peers, 1, str(error), f"{program()}: {error}\n")
    jax.distributed.shutdown()


def _last_words(peers: Peers) -> str:
    """Why JAX's runtime gave up; the main thread may say it first, and end."""
    verdict = peers.verdict(PATIENCE)
    if verdict:
        time.sleep(_GRACE)
    return verdict
