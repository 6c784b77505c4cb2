"""Direct I/O: files that are written past the system's page cache, where allowed.

A checkpoint is large and seldom read. In the cache it would displace a data set that is
mapped into memory, and filling the cache takes ten times the CPU time of the disk's own
transfer from our memory (`O_DIRECT`), which needs no copy.
"""

import errno
import mmap
import os
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

_PIECE = 2**22  # bytes of one write
_BLOCK = 2**12  # bytes: the length of a direct write is a multiple of it


class DirectFile:
    """A new file that is written once, from its beginning to its end.

    `size` and `crc` (CRC-32) are those of all data passed to `write`. On a file system
    without direct writes, such as one in memory, the writes are ordinary ones.
    """

    def __init__(self, path: Path):
        """Open the file, and empty it."""
        self.size = self.crc = 0
        # it begins at a page of memory, as direct writes require
        self._piece = memoryview(mmap.mmap(-1, _PIECE))
        self._filled = 0  # bytes of the piece
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        self._direct = getattr(os, "O_DIRECT", 0)  # not on every system
        try:
            self._file = os.open(path, flags | self._direct, 0o666)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._file, self._direct = os.open(path, flags, 0o666), 0

    def write(self, data: Any) -> int:
        """Write bytes, or an object whose memory is one block of bytes."""
        rest = given = memoryview(data).cast("B")
        while rest:
            part, rest = rest[: _PIECE - self._filled], rest[_PIECE - self._filled :]
            self.crc, self.size = zlib.crc32(part, self.crc), self.size + len(part)
            self._piece[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            if self._filled == _PIECE:
                self._flush(_PIECE)
        return len(given)

    def _flush(self, end: int) -> None:
        """Write the piece up to `end`."""
        done = 0
        while done < end:
            try:
                done += os.write(self._file, self._piece[done:end])
            except OSError as error:
                if error.errno != errno.EINVAL or not self._direct:
                    raise
                self._turn_off_direct()
        self._filled -= end
        self._piece[: self._filled] = bytes(self._piece[end : end + self._filled])

    def _turn_off_direct(self) -> None:
        import fcntl  # only on systems that have direct writes

        flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
        fcntl.fcntl(self._file, fcntl.F_SETFL, flags & ~self._direct)
        self._direct = 0

    def _finish(self) -> None:
        """Write the rest, and wait until all data are on the disk."""
        self._flush(self._filled // _BLOCK * _BLOCK)
        if self._filled:
            if self._direct:
                self._turn_off_direct()
            self._flush(self._filled)
        os.fsync(self._file)

    def __enter__(self) -> "DirectFile":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """Close the file; after an error, drop the data not written yet."""
        try:
            if error is None:
                self._finish()
        finally:
            with suppress(OSError):
                os.close(self._file)
