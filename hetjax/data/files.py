"""Files as their readers want them: bytes, gzip or not, and text in whole lines.

Whatever fails in reading one is a `DataError` that names the file.
"""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from hetjax.data.errors import DataError

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
            if not text.endswith(b"\n"):
                if len(text) > LONGEST_LINE:
                    line = first_line + text.count(b"\n")
                    raise DataError(f"{path}:{line}: line too long to be data")
                text += b"\n"  # the file's last line
            if first_line == 1:
                text = text.removeprefix(BYTE_ORDER_MARK)
            if b"\r" in text:
                text = text.replace(b"\r\n", b"\n")
            yield first_line, text
            first_line += text.count(b"\n")
