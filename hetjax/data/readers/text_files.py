"""Reading files as bytes, compressed or not, and as text in whole lines.

Any failure to read a file is a `DataError` that names it.
"""

import bz2
import gzip
import importlib
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
from tqdm import tqdm

from hetjax.data.readers import DataError

Read = TypeVar("Read")

CHUNK = 1 << 18  # [bytes] of text converted to numbers at a time
LARGE = 32_000_000  # [bytes] of a file that takes a noticeable time to read
LONGEST_LINE = 1 << 26  # [bytes], so that a binary file does not fill the memory
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


# the first bytes of a file show its compression; its name may be misleading
_GZIP, _BZIP2, _XZ, _ZSTD = "gzip", "bzip2", "xz", "Zstandard"
_MAGIC = {
    b"\x1f\x8b": _GZIP,
    b"BZh": _BZIP2,
    b"\xfd7zXZ\0": _XZ,
    b"\x28\xb5\x2f\xfd": _ZSTD,
}
SUFFIXES = ("", ".gz", ".bz2", ".xz", ".zst")  # of files that `opened` reads


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The file's content as bytes; any failure to read it is a DataError."""
    kind = ""
    try:
        with open(path, "rb") as file:
            first = file.read(6)
            file.seek(0)
            kind = next((k for m, k in _MAGIC.items() if first.startswith(m)), "")
            yield _unpacked(path, kind, file)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise DataError(f"{path}: cannot be read ({error.strerror})") from error
        message = f"truncated or damaged {kind} ({error}); fetch the file again"
        raise DataError(f"{path}: {message}") from error


def _unpacked(path: Path, kind: str, file: IO[bytes]) -> Any:
    """The uncompressed content of an open file; `kind` is its compression, or ""."""
    if kind == _GZIP:
        return gzip.GzipFile(fileobj=file)
    if kind == _BZIP2:
        return bz2.BZ2File(file)
    if kind == _XZ:
        return lzma.LZMAFile(file)
    if kind == _ZSTD:
        try:
            return importlib.import_module("compression.zstd").ZstdFile(file)
        except ImportError:
            raise DataError(
                f"{path}: compressed by {_ZSTD}, which Python reads from version 3.14 "
                f"on: unpack it (zstd -d {path.name}) and pass the unpacked file"
            ) from None
    return file


def find(folder: Path, name: str) -> Path | None:
    """The file of this name in a folder, plain or compressed; None without one."""
    paths = (folder / f"{name}{suffix}" for suffix in SUFFIXES)
    return next((path for path in paths if path.is_file()), None)


def unsuffixed(name: str) -> str:
    """A file's name without the suffix of a compression."""
    stem, dot, suffix = name.rpartition(".")
    return stem if stem and dot + suffix in SUFFIXES else name


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
                if too_long:  # errors in earlier lines are reported first
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
    """A progress bar for reading a large file, if standard error is a terminal."""
    size = path.stat().st_size
    hidden = True if size < LARGE else None  # None: unless it is a terminal
    name = f"reading {path.name}"
    return tqdm(desc=name, total=size, disable=hidden, unit="B", unit_scale=True)


def _position(file: IO[bytes]) -> int:
    """The position in the (possibly compressed) file on the disk [bytes]."""
    return os.lseek(file.fileno(), 0, os.SEEK_CUR)


def _lines(text: bytes) -> int:
    """The number of lines; NumPy counts five times as fast as `bytes.count`."""
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) == ord("\n")))


def from_first_bad_line(
    read: Callable[[bytes, int], Read], text: bytes, first_line: int
) -> Read:
    """The result of read(text, first_line), or its error for the first bad line.

    Readers check all lines for one kind of mistake after the other, so their error is
    about the first mistake of one kind. The first bad line is found by bisection; for
    this, `read` must check each line by itself.
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
