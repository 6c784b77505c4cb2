"""Access to files: bytes, with or without gzip, and text in whole lines.

Any failure to read a file is a `DataError` that names it.
"""

import gzip
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
from tqdm import tqdm

from hetjax.data.readers.errors import DataError

Read = TypeVar("Read")

CHUNK = 1 << 18  # [bytes] of text converted to numbers at a time
LARGE = 32_000_000  # [bytes] of a file that takes a noticeable time to read
LONGEST_LINE = 1 << 26  # [bytes], so that a binary file does not fill memory
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """The file's content as bytes; any failure to read it is a DataError."""
    try:
        with open(path, "rb") as file:
            packed = file.read(2) == b"\x1f\x8b"  # the file's name may be misleading
            file.seek(0)
            yield gzip.GzipFile(fileobj=file) if packed else file
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        message = f"truncated or damaged gzip ({error}); fetch the file again"
        raise DataError(f"{path}: {message}") from error
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{path}: cannot be read ({reason})") from error


def chunks(path: Path, skip_header: bool) -> Iterator[tuple[int, bytes]]:
    """Yields chunks of whole lines, each with the number of its first line."""
    with opened(path) as file, _progress_bar(path) as bar:
        first_line = 1
        if skip_header:
            file.readline()
            first_line = 2
        while text := file.read(CHUNK):
            bar.update(_position(file) - bar.n)
            text += file.readline(LONGEST_LINE)
            too_long = False
            if not text.endswith(b"\n"):
                too_long = len(text) > LONGEST_LINE
                if too_long:  # errors in the lines before it are reported first
                    text = text[: text.rfind(b"\n") + 1]
                else:
                    text += b"\n"  # the file's last line
            if first_line == 1:
                text = text.removeprefix(BYTE_ORDER_MARK)
            if b"\r" in text:
                text = text.replace(b"\r\n", b"\n")
            if text:
                yield first_line, text
            first_line += _lines(text)
            if too_long:
                raise DataError(f"{path}:{first_line}: line too long to be data")


def _progress_bar(path: Path) -> tqdm:
    """A bar on standard error while a large file is read, if that is a terminal."""
    size = path.stat().st_size
    hidden = True if size < LARGE else None  # None: unless it is a terminal
    name = f"reading {path.name}"
    return tqdm(desc=name, total=size, disable=hidden, unit="B", unit_scale=True)


def _position(file: IO[bytes] | gzip.GzipFile) -> int:
    """The place in the file on the disk [bytes], which may be compressed."""
    packed: Any = file.fileobj if isinstance(file, gzip.GzipFile) else file
    return packed.tell()


def _lines(text: bytes) -> int:
    """The number of lines; NumPy counts five times as fast as `bytes.count`."""
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) == ord("\n")))


def from_first_bad_line(
    read: Callable[[bytes, int], Read], text: bytes, first_line: int
) -> Read:
    """The result of read(text, first_line), or its error for the first bad line.

    Readers check all lines at once for one kind of mistake after the other, so their
    error is about the first mistake of one kind. The first bad line is found by
    bisection, for which `read` must judge each line by itself.
    """
    try:
        return read(text, first_line)
    except DataError as error:
        found = error
    lines = text.split(b"\n")[:-1]
    half = len(lines) // 2
    for start, part in ((0, lines[:half]), (half, lines[half:])):
        if 0 < len(part) < len(lines):  # a single line was just read
            joined = b"".join(line + b"\n" for line in part)
            from_first_bad_line(read, joined, first_line + start)
    raise found
