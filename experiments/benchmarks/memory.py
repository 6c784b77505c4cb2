"""Whether arrays fit into the memory of a device."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SPARE = 0.1  # of the free memory stays free


def misfit(needed: int, devices: Sequence[Any]) -> str:
    """The reason why bytes on each of the devices do not fit; "" if they do."""
    free = _free(devices)
    if needed <= (1 - SPARE) * free:
        return ""
    return f"needs {needed / 1e9:.1f} GB on each device; {free / 1e9:.1f} GB are free"


def _free(devices: Sequence[Any]) -> float:
    """The free bytes of each device; CPU devices share the host's memory."""
    if devices[0].platform == "cpu":
        return _free_on_host() / len(devices)
    stats = [d.memory_stats() or {} for d in devices]
    return min(s.get("bytes_limit", 0) - s.get("bytes_in_use", 0) for s in stats)


def _free_on_host() -> float:
    """Available memory by the kernel, within the limit of a container [bytes]."""
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():  # not Linux: half of all memory
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2
    fields = dict(line.split(":") for line in meminfo.read_text().splitlines())
    free = 1024.0 * int(fields["MemAvailable"].split()[0])
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.exists() and limit.read_text().strip() != "max":
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        free = min(free, int(limit.read_text()) - used)
    return free
