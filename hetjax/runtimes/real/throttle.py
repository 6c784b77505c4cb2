"""Between the programs of a local round: a worker that is slowed down waits.

A round that is not needed any more ends here, too.
"""

import threading
import time
from typing import Any

import jax

from hetjax.engine.programs.compilations import Compilations


class Cancelled(Exception):
    """The rest of this local round is not needed."""


class Throttle:
    """The pace of one worker's rounds; `between` is called by the thread that works."""

    def __init__(self, compilations: Compilations):
        """Rounds are not slowed down yet."""
        self._compilations = compilations
        self._end = threading.Event()
        self._slowdown = 1.0
        self._since = 0.0  # stamp of the begin of the last step
        self._compiled = 0.0  # [s] of this thread's compiling before that

    def begin(self, slowdown: float) -> None:
        """A round begins whose steps take `slowdown` times as long."""
        self._slowdown = slowdown
        self._since = time.perf_counter()
        self._compiled = self._compilations.own_seconds

    def cancel(self) -> None:
        """End the round after its current program; called from another thread."""
        self._end.set()

    def renew(self) -> None:
        """Rounds from now on are not cancelled."""
        self._end.clear()

    @property
    def cancelled(self) -> bool:
        """Was the round cancelled?"""
        return self._end.is_set()

    def between(self, replica: Any) -> None:
        """Wait as long as the slowdown says; raise Cancelled if the round is."""
        if self._end.is_set():
            raise Cancelled
        if self._slowdown <= 1:
            return
        jax.block_until_ready(replica)
        compiled = self._compilations.own_seconds
        took = time.perf_counter() - self._since - (compiled - self._compiled)
        if self._end.wait((self._slowdown - 1) * took):
            raise Cancelled
        self._since, self._compiled = time.perf_counter(), compiled
