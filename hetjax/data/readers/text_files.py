"""Files as bytes and as lines, compressed or not; every failure is a `DataError`."""

import bz2
import gzip
import importlib
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from hetjax.data.readers import DataError, reading

CHUNK = 1 << 20  # [bytes] of text converted to numbers at a time
LONGEST_LINE = 1 << 26  # [bytes], so that a binary file does not fill the memory
LARGE = 32_000_000  # [bytes] of a file that takes a noticeable time to read
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
SUFFIXES = ("", ".gz", ".bz2", ".xz", ".zst")  # of files that `opened` reads
# the first bytes of a file show its compression; its name may be misleading
_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "Zstandard",
}
_OPEN = {"": lambda file: file, "gzip": gzip.open, "bzip2": bz2.open, "xz": lzma.open}


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """The file's content as bytes, with a progress bar if it is large."""
    kind = ""
    try:
        with open(path, "rb") as file:
            first = file.read(6)
            file.seek(0)
            kind = next((k for m, k in _MAGIC.items() if first.startswith(m)), "")
            with _counted(path, file) as counted:
                yield _opener(path, kind)(counted)
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            with reading(path):
                raise
        message = f"truncated or damaged {kind} ({error}); fetch the file again"
        raise DataError(f"{path}: {message}") from error


def _counted(path: Path, file: IO[bytes]) -> Any:
    """The open file, whose progress a bar shows."""
    size = path.stat().st_size
    hidden = True if size < LARGE else None  # None: unless it is a terminal
    name = f"reading {path.name}"
    return tqdm.wrapattr(file, "read", total=size, desc=name, disable=hidden)


def _opener(path: Path, kind: str) -> Any:
    """The function that decompresses an open file."""
    if kind != "Zstandard":
        return _OPEN[kind]
    try:
        return importlib.import_module("compression.zstd").open
    except ImportError:
        raise DataError(
            f"{path}: compressed by Zstandard, which Python reads from version 3.14 on:"
            f" unpack it (zstd -d {path.name}) and pass the unpacked file"
        ) from None


def chunks(path: Path) -> Iterator[tuple[int, list[bytes]]]:
    """Yields lists of lines, without their ends, and the number of the first one."""
    with opened(path) as file:
        first_line = 1
        while text := file.read(CHUNK):
            text += file.readline(LONGEST_LINE)
            if len(text) - text.rfind(b"\n", 0, -1) > LONGEST_LINE:
                line = first_line + text.count(b"\n", 0, -1)
                raise DataError(f"{path}:{line}: line too long to be data")
            if first_line == 1:
                text = text.removeprefix(BYTE_ORDER_MARK)
            lines = text.replace(b"\r\n", b"\n").removesuffix(b"\n").split(b"\n")
            yield first_line, lines
            first_line += len(lines)


def find(folder: Path, *names: str) -> Path:
    """The first file of these names in a folder, plain or compressed."""
    for name in names:
        for suffix in SUFFIXES:
            if (folder / f"{name}{suffix}").is_file():
                return folder / f"{name}{suffix}"
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    there = sorted(entry.name for entry in folder.iterdir())
    content = ", ".join(there[:20] + ["..."] * (len(there) > 20)) or "nothing"
    wanted = f"{names[0]} or {names[0]}.gz"
    raise DataError(f"{folder}: looked for {wanted}; it holds {content}")


def unsuffixed(name: str) -> str:
    """A file's name without the suffix of a compression."""
    stem, dot, suffix = name.rpartition(".")
    return stem if stem and dot + suffix in SUFFIXES else name
