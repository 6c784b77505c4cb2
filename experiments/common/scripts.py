"""Start and end of every script: user errors are one line, with exit status 2.

A script may be one of several processes (see launch.py): process 0 alone prints to
standard output, and whatever ends one process ends all of them.
"""

import logging
import os
import re
import signal
import sys
from collections.abc import Callable

from absl import app, flags

from hetjax.engine.interruption import raise_between_programs
from hetjax.processes import exchange, lifecycle

# other tools' names of flags; absl itself suggests names with similar spelling
_MEANT = {"lr": "learning_rate", "lrs": "learning_rates", "bs": "batch_size"}
# sent by queues before a job's time is over; the same command resumes
_AGAIN = ("SIGTERM", "SIGUSR1")


def run(main: Callable[[], int | None]) -> None:
    """Parse the flags and run a script's main function, which returns the exit status.

    Errors that a user can make (ValueError, OSError, a wrong flag) are reported in one
    line on standard error, with status 2. Ctrl-C is status 130, SIGTERM and SIGUSR1 are
    75 (EX_TEMPFAIL): all runs are checkpointed, so that a queue may start it again. If
    another process of the run has died, JAX's runtime ends this one, and names it.
    """
    # JAX logs, under absl's handler, every kind of device that is missing, and
    # each step of joining the processes
    for name in ("jax._src.xla_bridge", "jax._src.distributed"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("absl").addFilter(_is_no_orbax_detail)
    # --help lists the flags of the script's parts, too
    for module, own in flags.FLAGS.flags_by_module_dict().items():
        for flag in own if module.startswith("experiments.") else ():
            flags.FLAGS.register_key_flag_for_module(sys.argv[0], flag)
    app.run(lambda argv: _guarded(main, argv), flags_parser=_parse)


def _guarded(main: Callable[[], int | None], argv: list[str]) -> None:
    if len(argv) > 1:
        message = f"{argv[1]!r} is not a flag; settings are given as --name=value"
        lifecycle.end(2, message)
    for name in ("SIGINT", *_AGAIN):  # within a run they are handled there
        if hasattr(signal, name):
            signal.signal(signal.Signals[name], raise_between_programs)
    try:
        if lifecycle.initialize().count > 1:
            _leave_output_to_first()
            exchange.current_processes().agree({"flags": _flags_of_all()})
        status = main()
    except KeyboardInterrupt as error:
        status = status_of(str(error))
        lifecycle.end(status, "interrupted before there was a result")
    except Exception as error:
        blamed = lifecycle.blame(error)
        if isinstance(blamed, exchange.ProcessDied):
            lifecycle.end(1, blamed)
        if isinstance(error, (ValueError, OSError)):
            lifecycle.end(2, str(error))
        raise
    sys.exit(status)


def _is_no_orbax_detail(record: logging.LogRecord) -> bool:
    """Silence Orbax's message for each array that it writes."""
    return record.levelno >= logging.WARNING or "orbax" not in record.pathname


def status_of(name: str) -> int:
    """The exit status after a signal: EX_TEMPFAIL (75) asks to be started again."""
    return os.EX_TEMPFAIL if name in _AGAIN else 130


def _flags_of_all() -> str:
    """The flags that all processes must be given: folders may differ."""
    own = [a for a in sys.argv[1:] if not re.match("--?(out|data)(=|$)", a)]
    return " ".join(sorted(own))


def _leave_output_to_first() -> None:
    """Let process 0 alone print to standard output, and only what the script prints.

    Libraries' output there (gloo reports its connections) goes to standard error.
    """
    sys.stdout.flush()
    output = os.dup(1) if exchange.is_first() else os.open(os.devnull, os.O_WRONLY)
    sys.stdout = os.fdopen(output, "w", encoding=sys.stdout.encoding)
    os.dup2(2, 1)


def _parse(argv: list[str]) -> list[str]:
    try:
        return flags.FLAGS(argv)
    except flags.UnrecognizedFlagError as error:
        meant = _MEANT.get(error.flagname, "")
        hint = f"did you mean --{meant}? " if meant in flags.FLAGS else ""
        lifecycle.end(2, f"{error} ({hint}--help lists the flags)")
    except (flags.Error, ValueError) as error:  # --noall=1 is a ValueError to absl
        lifecycle.end(2, f"{error} (--help lists the flags)")
