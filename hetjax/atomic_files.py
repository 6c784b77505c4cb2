"""Files that are written completely or not at all, and errors that name the file."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Name the file in an OSError: that of a write to a full disk names none."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make a temporary file, then rename it to `path`.

    An interruption or a full disk leaves no half file, and what was there before stays.
    Errors: OSError that names `path`.
    """
    partial = path.with_name(f".{path.name}.partial")
    with naming(path):
        try:
            write(partial)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
