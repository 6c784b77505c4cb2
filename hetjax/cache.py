"""The cache folder: parsed texts, measurements and compiled programs."""

import hashlib
import os
import platform
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """Return $HETJAX_CACHE, or the user's cache folder."""
    chosen = os.environ.get("HETJAX_CACHE")
    return Path(chosen) if chosen else platformdirs.user_cache_path("hetjax")


def programs_folder() -> Path | None:
    """Return the folder of compiled programs, one for each kind of processor.

    It is in $HETJAX_COMPILATION_CACHE, or in the cache folder; None for "0", "off" or
    "". XLA's programs for CPUs use the instruction set of the processor that compiled
    them, and several machines may share a home folder.
    """
    chosen = os.environ.get("HETJAX_COMPILATION_CACHE")
    if chosen is not None and chosen.strip().lower() in ("", "0", "off"):
        return None
    base = Path(chosen) if chosen else cache_folder() / "programs"
    kind = hashlib.sha256(f"{platform.machine()}{_instructions()}".encode())
    return base / f"{platform.machine()}-{kind.hexdigest()[:12]}"


def _instructions() -> str:
    """The processor's model and instruction set, where known."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    named = ("model name", "flags", "Features", "CPU part")
    return "".join(sorted({line for line in lines if line.startswith(named)}))
