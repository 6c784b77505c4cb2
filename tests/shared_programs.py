"""Runs on one task share its compiled programs, as the runs of a session do."""

from functools import cache


@cache
def programs(task):
    """In place of the class `Programs`."""
    from hetjax.engine.compiled.programs import Programs  # here: host tests lack JAX

    return Programs(task)
