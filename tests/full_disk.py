"""A disk that takes no more, as far as this process sees."""

import contextlib
import resource
import sys

SECONDS = "jax_persistent_cache_min_compile_time_secs"


@contextlib.contextmanager
def full_disk(most):
    """Files above `most` bytes are an OSError, which names no file."""
    with _no_programs_on_disk():
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextlib.contextmanager
def _no_programs_on_disk():
    """Let JAX write no compiled programs: other tests would find halves of them."""
    if "jax" not in sys.modules:
        yield
        return
    config = sys.modules["jax"].config
    before = config.values[SECONDS]
    config.update(SECONDS, 1e9)
    try:
        yield
    finally:
        config.update(SECONDS, before)
