"""What several tests need and is costly to make: once for all processes of a run.

And what only one process may have at a time.
"""

import contextlib
import json
import os

from filelock import FileLock


def once(tmp_path_factory, name, make):
    """JSON data that the first process of pytest-xdist makes; others wait for it."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:  # one process
        return make()
    file = tmp_path_factory.getbasetemp().parent / f"{name}-{run}.json"
    with FileLock(f"{file}.lock"):
        if not file.exists():
            file.write_text(json.dumps(make()))
        return json.loads(file.read_text())


def alone(tmp_path_factory, name):
    """A context in which only one process of pytest-xdist is at a time."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:
        return contextlib.nullcontext()
    return FileLock(tmp_path_factory.getbasetemp().parent / f"{name}-{run}.lock")
