"""Scripts' `main` in this process, from parsing the flags to the exit status.

A process of its own would import JAX for each command, which takes three seconds.
"""

import contextlib
import io
import logging
import os
import runpy
import signal
import sys
import traceback
from pathlib import Path
from typing import NamedTuple

import jax
from absl import app, flags
from compile_events import compile_events
from script_parts import EXPERIMENTS, no_scripts

CHANGED = ("jax_cpu_enable_async_dispatch",)  # by scripts on real devices


class Run(NamedTuple):
    """As `subprocess.run` returns it, and how many programs were compiled."""

    returncode: int
    stdout: str
    stderr: str
    compiled: int


def run(folder, script, *arguments):
    """Run a script, as `papers/crossbow.py`, in a folder.

    A traceback is part of the standard error, with status 1.
    """
    out, err = io.StringIO(), io.StringIO()
    with _as_it_was(), no_scripts():
        flags.FLAGS.unparse_flags()
        flags.FLAGS["verbosity"].value = 0
        sys.argv = [script, *map(str, arguments)]
        os.chdir(folder)
        output = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
        with output[0], output[1], compile_events() as compiled:
            status = _status(EXPERIMENTS / script)
    return Run(status, out.getvalue(), err.getvalue(), len(compiled))


def _status(script):
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        return end.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


@contextlib.contextmanager
def _as_it_was():
    """Undo what scripts change of a process, since theirs ends with them."""
    folder, argv, path = os.getcwd(), sys.argv, list(sys.path)
    handlers = {
        s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    }
    config = {name: jax.config.values[name] for name in CHANGED}
    filters = list(logging.getLogger("absl").filters)
    initialized, app._run_init.done = app._run_init.done, True  # absl's, for all
    try:
        yield
    finally:
        here = os.getcwd()
        for name, module in list(sys.modules.items()):  # modules of the folder itself
            file = getattr(module, "__file__", None) or ""
            if Path(file).parent == Path(here):
                del sys.modules[name]
        app._run_init.done = initialized
        logging.getLogger("absl").filters[:] = filters
        for name, value in config.items():
            jax.config.update(name, value)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        sys.path[:] = path
        sys.argv = argv
        os.chdir(folder)
