"""The training data of a run on its devices: whether they fit, and the copies."""

import os

from hetjax.data.dataset import Split
from hetjax.data.device_rows import DeviceRows, device_bytes
from hetjax.engine.job import Job
from hetjax.engine.placement import Device

DATA_SHARE = 0.25  # of a device's memory for training data, at most
MAX_OTHER_SPLITS = 1  # other splits that stay on a device
SMALL_HOST = 2**33  # bytes of memory, if the system does not tell


def fits(split: Split, device: Device) -> bool:
    """Whether a split is in memory, and small enough for a device."""
    num_bytes = device_bytes(split)
    return num_bytes is not None and num_bytes <= DATA_SHARE * device_memory(device)


def rows_on(job: Job, device: Device | None) -> DeviceRows:
    """Return a job's training split on a device, shared by runs on the same data."""
    known = {} if job.on_devices is None else job.on_devices
    key = id(job.train), device
    if key not in known:
        for old in list(known)[: max(0, len(known) - MAX_OTHER_SPLITS)]:
            del known[old]
        known[key] = job.train, DeviceRows(job.train, device)  # keeps the id valid
    return known[key][1]


def device_memory(device: Device) -> float:
    """Return the bytes of a device's memory; for a CPU, the host's memory."""
    stats = device.memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"]
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not on every system
        return SMALL_HOST
