"""What several tests need and is costly to make: once for all processes of a run.

And what only one process may have at a time.
"""

import contextlib
import json
import os

from filelock import FileLock


def once(tmp_path_factory, name, make):
    """JSON data that the first process of pytest-xdist makes; others wait for it."""
    file = _shared(tmp_path_factory, f"{name}.json")
    if file is None:
        return make()
    with alone(tmp_path_factory, name):
        if not file.exists():
            file.write_text(json.dumps(make()))
        return json.loads(file.read_text())


def alone(tmp_path_factory, name):
    """A context in which only one process of pytest-xdist is at a time."""
    file = _shared(tmp_path_factory, f"{name}.lock")
    return contextlib.nullcontext() if file is None else FileLock(file)


def _shared(tmp_path_factory, name):
    """A path that all processes of a run share; None if there is only one."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:
        return None
    return tmp_path_factory.getbasetemp().parent / f"{run}-{name}"
