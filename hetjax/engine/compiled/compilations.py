"""Counts XLA compilations by purpose, from JAX's own monitoring events.

And sees to it that threads do not compile the same program twice.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import jax.monitoring

_COMPILED = "/jax/core/compile/backend_compile_duration"
_LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"
_PHASES = (  # of which a compilation consists; their sum is not a worker's time
    "/jax/core/compile/jaxpr_trace_duration",
    _LOWERED,
    _COMPILED,
)


class Compilations:
    """What was compiled while counting, and the seconds that tracing and it took.

    Threads compile side by side: each has a purpose, and seconds, of its own.
    """

    def __init__(self):
        """Nothing was compiled yet."""
        self.programs: Counter[str] = Counter()
        self.seconds = 0.0  # of all threads
        self._lock = threading.Lock()
        self._own = threading.local()
        # threads that XLA compiles for now, or that wait for another's program
        self._lowered: set[int | None] = set()

    @property
    def purpose(self) -> str:
        """What this thread compiles for."""
        return getattr(self._own, "purpose", "other")

    @purpose.setter
    def purpose(self, purpose: str) -> None:
        self._own.purpose = purpose

    @contextmanager
    def of(self, purpose: str) -> Iterator[None]:
        """What this thread compiles in the block is for this purpose."""
        before = self.purpose
        self.purpose = purpose
        try:
            yield
        finally:
            self.purpose = before

    @property
    def own_seconds(self) -> float:
        """Seconds that this thread spent compiling, or waiting for that."""
        return getattr(self._own, "seconds", 0.0)

    def is_compiling(self, thread: threading.Thread) -> bool:
        """Has the thread lowered a program that XLA is not done with?"""
        return thread.ident in self._lowered

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """This thread waits for a program that another compiles."""
        began = time.perf_counter()
        self._lowered.add(threading.get_ident())
        try:
            yield
        finally:
            self._lowered.discard(threading.get_ident())
            waited = time.perf_counter() - began
            self._own.seconds = self.own_seconds + waited

    def _listen(self, event: str, duration_secs: float, **_: Any) -> None:
        if event not in _PHASES:
            return
        self._own.seconds = self.own_seconds + duration_secs
        with self._lock:
            self.seconds += duration_secs
            if event == _LOWERED:
                self._lowered.add(threading.get_ident())
            if event == _COMPILED:
                self._lowered.discard(threading.get_ident())
                self.programs[self.purpose] += 1

    @contextmanager
    def counting(self) -> Iterator["Compilations"]:
        """Count every compilation of this process inside the block."""
        jax.monitoring.register_event_duration_secs_listener(self._listen)
        try:
            yield self
        finally:
            jax.monitoring.unregister_event_duration_listener(self._listen)


class FirstCalls:
    """Programs that were called, of all runs: one thread compiles, others wait."""

    def __init__(self):
        """Nothing was called yet."""
        self._done: set[Hashable] = set()
        self._locks: dict[Hashable, threading.Lock] = {}

    def call(
        self,
        program: Callable,
        device: Hashable,
        shapes: Hashable,
        arguments: tuple,
        compilations: Compilations,
    ) -> Any:
        """What the program returns: traced once per shapes, compiled once per device.

        When two threads trace a program at once, JAX keeps one of the jaxprs, and may
        compile the other's program again in a later call.
        """
        key = (program, shapes, device)
        if key in self._done:
            return program(*arguments)
        self._first((program, shapes), lambda: program.trace(*arguments), compilations)
        outputs = self._first(key, lambda: program(*arguments), compilations)
        return program(*arguments) if outputs is None else outputs

    def _first(
        self, key: Hashable, make: Callable[[], Any], compilations: Compilations
    ) -> Any:
        """What the first thread makes; None for those who waited for it."""
        lock = self._locks.setdefault(key, threading.Lock())
        if not lock.acquire(blocking=False):
            with compilations.waiting():
                lock.acquire()
        try:
            if key in self._done:
                return None
            made = make()
            self._done.add(key)
            return made
        finally:
            lock.release()
