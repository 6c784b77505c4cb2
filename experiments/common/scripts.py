"""How every script starts and ends: user errors are one line, with exit status 2."""

import logging
import sys
from collections.abc import Callable
from pathlib import Path

from absl import app, flags


def run(main: Callable[[], int | None]) -> None:
    """Parse the flags and run a script's main function, which returns the exit status.

    Errors that a user can make (ValueError, OSError, a wrong flag) are reported in one
    line on standard error, with status 2. Ctrl-C before any result is status 130.
    """
    # JAX tells, under absl's handler, of every kind of device that is not here
    logging.getLogger("jax._src.xla_bridge").setLevel(logging.WARNING)
    app.run(lambda argv: _guarded(main, argv), flags_parser=_parse)


def _guarded(main: Callable[[], int | None], argv: list[str]) -> None:
    if len(argv) > 1:
        _fail(f"{argv[1]!r} is not a flag; settings are given as --name=value")
    try:
        status = main()
    except (ValueError, OSError) as error:
        _fail(str(error))
    except KeyboardInterrupt:
        _fail("interrupted before there was a result", 130)
    sys.exit(status)


def _parse(argv: list[str]) -> list[str]:
    try:
        return flags.FLAGS(argv)
    except flags.Error as error:
        _fail(f"{error} (--help lists the flags)")
        raise


def _fail(message: str, status: int = 2) -> None:
    print(f"{Path(sys.argv[0]).name}: {message}", file=sys.stderr)
    sys.exit(status)
