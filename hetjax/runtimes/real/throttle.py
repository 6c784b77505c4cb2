"""The throttle of a worker: it waits or stops between the programs of a local round."""

import threading
import time
from typing import Any

import jax

from hetjax.engine.programs.compilations import Compilations


class Cancelled(Exception):
    """Raised to end a local round whose result is not needed."""


class Throttle:
    """Slows down or cancels one worker's rounds; its thread calls `between`."""

    def __init__(self, compilations: Compilations):
        """Start without a slowdown."""
        self._compilations = compilations
        self._end = threading.Event()
        self._slowdown = 1.0
        self._since = 0.0  # stamp at the begin of the last step
        self._compiled = 0.0  # [s] that this thread had spent compiling by then

    def begin(self, slowdown: float) -> None:
        """Begin a round whose steps take `slowdown` times as long."""
        self._slowdown = slowdown
        self._since = time.perf_counter()
        self._compiled = self._compilations.own_seconds

    def cancel(self) -> None:
        """End the round after its current program; called from another thread."""
        self._end.set()

    def renew(self) -> None:
        """Allow new rounds after a cancelled one."""
        self._end.clear()

    @property
    def cancelled(self) -> bool:
        """Whether the round was cancelled."""
        return self._end.is_set()

    def between(self, replica: Any) -> None:
        """Wait for as long as the slowdown demands; raise Cancelled if cancelled."""
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
