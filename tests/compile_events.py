"""What JAX compiles within a context."""

from contextlib import contextmanager

import jax.monitoring

PROGRAMS = "/jax/core/compile/backend_compile_duration"


@contextmanager
def compile_events(kind=PROGRAMS):
    """A list of names, one for every program; of `kind`, a prefix, for other events."""
    events = []

    def listen(event, duration, **kwargs):
        if event.startswith(kind):
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield events
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
