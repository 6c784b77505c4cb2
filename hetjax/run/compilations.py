"""Counts XLA compilations by purpose, from JAX's own monitoring events."""

import threading
from collections import Counter
from collections.abc import Iterator
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
        self._lowered: set[int | None] = set()  # threads that XLA compiles for now

    @property
    def purpose(self) -> str:
        """What this thread compiles for."""
        return getattr(self._own, "purpose", "other")

    @purpose.setter
    def purpose(self, purpose: str) -> None:
        self._own.purpose = purpose

    @property
    def own_seconds(self) -> float:
        """Seconds that this thread spent compiling."""
        return getattr(self._own, "seconds", 0.0)

    def is_compiling(self, thread: threading.Thread) -> bool:
        """Has the thread lowered a program that XLA is not done with?"""
        return thread.ident in self._lowered

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
