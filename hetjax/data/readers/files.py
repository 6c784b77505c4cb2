"""Files as their readers want them: bytes, gzip or not, and text in whole lines.

Whatever fails in reading one is a `DataError` that names the file.
"""

import gzip
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeVar

from hetjax.data.readers.errors import DataError

Read = TypeVar("Read")

CHUNK = 1 << 19  # [bytes] of text turned into numbers at a time
LONGEST_LINE = 1 << 26  # [bytes], so that a file that is no text does not fill memory
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """The file's text as bytes; whatever fails in reading them is a DataError."""
    try:
        with open(path, "rb") as file:
            packed = file.read(2) == b"\x1f\x8b"  # a name may lie, the content does not
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
    """Pieces of text, each of whole lines, with the number of their first line."""
    with opened(path) as file:
        first_line = 1
        if skip_header:
            file.readline()
            first_line = 2
        while text := file.read(CHUNK):
            text += file.readline(LONGEST_LINE)
            too_long = False
            if not text.endswith(b"\n"):
                too_long = len(text) > LONGEST_LINE
                if too_long:  # the lines before it come first, whatever is in them
                    text = text[: text.rfind(b"\n") + 1]
                else:
                    text += b"\n"  # the file's last line
            if first_line == 1:
                text = text.removeprefix(BYTE_ORDER_MARK)
            if b"\r" in text:
                text = text.replace(b"\r\n", b"\n")
            if text:
                yield first_line, text
            first_line += text.count(b"\n")
            if too_long:
                raise DataError(f"{path}:{first_line}: line too long to be data")


def from_first_bad_line(
    read: Callable[[bytes, int], Read], text: bytes, first_line: int
) -> Read:
    """read(text, first_line) of whole lines; its error is about the first bad line.

    Readers look at all lines at once, for one kind of mistake after the other, and so
    find the first mistake of a kind. `read` must judge each line by itself: then the
    first bad line is found by halves.
    """
    try:
        return read(text, first_line)
    except DataError as error:
        found = error
    lines = text.split(b"\n")[:-1]
    half = len(lines) // 2
    for start, part in ((0, lines[:half]), (half, lines[half:])):
        if 0 < len(part) < len(lines):  # a line by itself was just read
            joined = b"".join(line + b"\n" for line in part)
            from_first_bad_line(read, joined, first_line + start)
    raise found
