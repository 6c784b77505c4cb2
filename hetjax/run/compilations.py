"""Counts XLA compilations by purpose, from JAX's own monitoring events."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import jax.monitoring

_COMPILED = "/jax/core/compile/backend_compile_duration"
_PHASES = (  # of which a compilation consists; their sum is not a worker's time
    "/jax/core/compile/jaxpr_trace_duration",
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
    _COMPILED,
)


@dataclass
class Compilations:
    """What was compiled while counting, and the seconds that tracing and it took."""

    programs: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    purpose: str = "other"

    def _listen(self, event: str, duration_secs: float, **_: Any) -> None:
        if event in _PHASES:
            self.seconds += duration_secs
        if event == _COMPILED:
            self.programs[self.purpose] += 1

    @contextmanager
    def counting(self) -> Iterator["Compilations"]:
        """Count every compilation of this process inside the block."""
        jax.monitoring.register_event_duration_secs_listener(self._listen)
        try:
            yield self
        finally:
            jax.monitoring.unregister_event_duration_listener(self._listen)
