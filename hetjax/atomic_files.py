"""Atomic writes: a file is written completely or not at all, and errors name it."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Add the file's name to an OSError: that of a write to a full disk has none."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` create a temporary file, then rename it to `path`.

    After an interruption or on a full disk, the old file stays, and no partial one is
    left. Errors: OSError that names `path`.
    """
    partial = path.with_name(f".{path.name}.partial")
    with naming(path):
        try:
            write(partial)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
