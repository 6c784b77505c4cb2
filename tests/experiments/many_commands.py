"""Run compare.py with several command lines in one process: JAX starts slowly.

Reads a JSON list of argument lists from standard input and writes one of
{"status", "out", "err", "compiled"}; a traceback is part of "err", with status 1.
"""

import contextlib
import io
import json
import sys
import traceback

import jax.monitoring
from absl import app, flags

from experiments import compare
from experiments.common import scripts

COMPILED = "/jax/core/compile/backend_compile_duration"
compiled = []


def listen(event, duration, **kwargs):
    if event == COMPILED:
        compiled.append(event)


def run(arguments):
    """Run one command, from parsing the flags to the exit status."""
    flags.FLAGS.unparse_flags()
    flags.FLAGS["verbosity"].value = 0
    # absl registers its own flags once in a process
    app._register_and_parse_flags_with_usage.done = False
    sys.argv = ["compare.py", *arguments]
    compiled.clear()
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = _status()
    texts = {"out": out.getvalue(), "err": err.getvalue()}
    return {"status": status, **texts, "compiled": len(compiled)}


def _status():
    try:
        scripts.run(compare.main)
    except SystemExit as end:
        return end.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    jax.monitoring.register_event_duration_secs_listener(listen)
    print(json.dumps([run(arguments) for arguments in json.load(sys.stdin)]))
