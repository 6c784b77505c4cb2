"""Counts of XLA compilations by purpose, and first calls of programs by threads.

The counts come from JAX's monitoring events. `FirstCalls` prevents threads from
compiling the same program twice.
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
_PHASES = (  # the phases of a compilation; they are not charged to a worker
    "/jax/core/compile/jaxpr_trace_duration",
    _LOWERED,
    _COMPILED,
)


class Compilations:
    """Counts of compilations, and the seconds of tracing and compiling.

    Threads compile concurrently: each has its own purpose and its own seconds. Time in
    which several threads compile counts once in `seconds`.
    """

    def __init__(self):
        """Start with all counts at zero."""
        self.programs: Counter[str] = Counter()
        self.seconds = 0.0  # of the wall clock, while any thread compiled
        self._spans: list[
            tuple[float, float]
        ] = []  # these seconds, disjoint and sorted
        self._lock = threading.Lock()
        self._own = threading.local()
        # threads that compile, or that wait for a program of another thread
        self._lowered: set[int | None] = set()
        # while a run is prepared: returns the signal that came, "" if none
        self.interrupted: Callable[[], str] = lambda: ""

    def between_programs(self) -> None:
        """Raise a KeyboardInterrupt if a signal has come while a run is prepared.

        An exception that a signal raises inside a compilation makes XLA crash.
        """
        if came := self.interrupted():
            raise KeyboardInterrupt(came)

    @property
    def purpose(self) -> str:
        """The purpose of this thread's compilations."""
        return getattr(self._own, "purpose", "other")

    @purpose.setter
    def purpose(self, purpose: str) -> None:
        self._own.purpose = purpose

    @contextmanager
    def of(self, purpose: str) -> Iterator[None]:
        """Set the purpose of this thread's compilations inside the block."""
        before = self.purpose
        self.purpose = purpose
        try:
            yield
        finally:
            self.purpose = before

    @property
    def own_seconds(self) -> float:
        """Seconds that this thread has compiled or waited for a compilation."""
        return getattr(self._own, "seconds", 0.0)

    def is_compiling(self, thread: threading.Thread) -> bool:
        """Whether XLA compiles a program for this thread, or it waits for one."""
        return thread.ident in self._lowered

    @property
    def busy(self) -> bool:
        """Whether XLA compiles a program for any thread."""
        return bool(self._lowered)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count this thread inside the block as waiting for another's compilation."""
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
            now = time.perf_counter()
            self._add(now - duration_secs, now)
            if event == _LOWERED:
                self._lowered.add(threading.get_ident())
            if event == _COMPILED:
                self._lowered.discard(threading.get_ident())
                self.programs[self.purpose] += 1

    def _add(self, start: float, end: float) -> None:
        """Count a span, which ends after all others but may contain or overlap some.

        Phases contain others if a program calls another jitted function.
        """
        while self._spans and self._spans[-1][1] > start:
            first, last = self._spans.pop()
            self.seconds -= last - first
            start = min(start, first)
        self._spans.append((start, end))
        self.seconds += end - start

    @contextmanager
    def counting(self) -> Iterator["Compilations"]:
        """Count every compilation of this process inside the block."""
        jax.monitoring.register_event_duration_secs_listener(self._listen)
        try:
            yield self
        finally:
            jax.monitoring.unregister_event_duration_listener(self._listen)


class FirstCalls:
    """The first calls of programs, in all runs: one thread compiles, others wait."""

    def __init__(self):
        """Start with no program called."""
        self._done: set[Hashable] = set()
        self._locks: dict[Hashable, threading.Lock] = {}

    @property
    def number(self) -> int:
        """The number of first calls."""
        return len(self._done)

    def call(
        self,
        program: Callable,
        device: Hashable,
        shapes: Hashable,
        arguments: tuple,
        compilations: Compilations,
    ) -> Any:
        """Call the program, traced once per shapes and compiled once per device.

        If two threads trace a program at the same time, JAX caches one of the two
        jaxprs, and a later call may compile the other one again.
        """
        compilations.between_programs()
        key = (program, shapes, device)
        if key in self._done:
            return program(*arguments)
        self._first((program, shapes), lambda: program.trace(*arguments), compilations)
        outputs = self._first(key, lambda: program(*arguments), compilations)
        return program(*arguments) if outputs is None else outputs

    def _first(
        self, key: Hashable, make: Callable[[], Any], compilations: Compilations
    ) -> Any:
        """Return `make()` in the first thread, None in threads that waited for it."""
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
