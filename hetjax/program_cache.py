"""JAX's persistent compilation cache, which stores programs for the next process.

`hetjax.tree` turns it on when it is imported, before anything is compiled.
"""

import contextlib
import os
import tempfile
from pathlib import Path

import jax

from hetjax.cache import programs_folder

MOST = 2**30  # bytes of programs; beyond, the least recently used ones are removed


def enable_program_cache() -> None:
    """Turn on JAX's persistent compilation cache, unless the user has set it.

    Small programs are stored as well: a run compiles dozens. If the folder cannot be
    written, the cache stays off.
    """
    if getattr(jax.config, "jax_compilation_cache_dir", None) is not None:
        return
    folder = programs_folder()
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        _remove_old(folder)
    except OSError:
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    if "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES" not in os.environ:
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _remove_old(folder: Path) -> None:
    """If the programs exceed `MOST` bytes, remove the oldest until half of it is left.

    Empty files are removed as well: their processes were killed while they wrote.
    """
    found = []
    for entry in os.scandir(folder):
        with contextlib.suppress(OSError):  # another process has removed it
            if entry.is_file():
                s = entry.stat()
                found.append((max(s.st_atime, s.st_mtime), s.st_size, entry.path))
    total = sum(size for _, size, _ in found)
    left = total if total <= MOST else MOST // 2
    for _, size, path in sorted(found):
        if total > left or size == 0:
            with contextlib.suppress(OSError):
                os.unlink(path)
            total -= size
