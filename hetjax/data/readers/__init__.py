"""Readers of files: sparse text, images, texts, official data sets.

Each returns a `Dataset`; any problem with a file is a `DataError` that names it.
`text_files` has lines of compressed or plain files, `sparse_text` turns them into
matrices, `copies` is the cache of parsed data, and `named_sets` has the official data.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class DataError(ValueError):
    """Data that cannot be read; the message names the file, the line and the remedy."""


@contextmanager
def reading(path: Path, remedy: str = "") -> Iterator[None]:
    """Errors of reading the file become a `DataError` that names it."""
    remedy = remedy and f"; {remedy}"
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{path}: no such file{remedy}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not a text file ({error}){remedy}") from error
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{path}: cannot be read ({reason})") from error
